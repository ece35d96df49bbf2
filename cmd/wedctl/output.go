package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{
		Name:    "output",
		Aliases: []string{"o"},
		Value:   "table",
		Usage:   "`FORMAT`: table for people, json for programs",
	}
}

// wantsJSON reports which of the two formats is asked for.
func wantsJSON(c *cli.Context) (bool, error) {
	switch f := c.String("output"); f {
	case "json":
		return true, nil
	case "table":
		return false, nil
	default:
		return false, usagef("--output is table or json, not %q", f)
	}
}

// writeJSON writes rows, JSON objects each, as an array with a line per row.
func writeJSON(w io.Writer, rows []json.RawMessage) error {
	var b bytes.Buffer
	b.WriteString("[")
	for i, r := range rows {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  ")
		b.Write(r)
	}
	if len(rows) > 0 {
		b.WriteString("\n")
	}
	b.WriteString("]\n")
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// writeTable writes rows under a header, in columns without lines around them.
// right lists the columns, counted from 0, that are aligned at the right.
func (c *console) writeTable(header []string, rows [][]string, right ...int) {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()

	head := make(table.Row, len(header))
	for i, h := range header {
		head[i] = c.bold(h)
	}
	t.AppendHeader(head)
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i, s := range row {
			cells[i] = s
		}
		t.AppendRow(cells)
	}
	configs := make([]table.ColumnConfig, len(header))
	for i := range configs {
		configs[i] = table.ColumnConfig{Number: i + 1}
		if slices.Contains(right, i) {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.SetColumnConfigs(configs)
	fmt.Fprintln(c.out, t.Render())
}

// orDash stands in for what is not there.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
