package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{
		Name:    "output",
		Aliases: []string{"o"},
		Value:   "table",
		Usage:   "table or json, for programs",
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

// tableLook says how a table is laid out. Columns are counted from 0.
type tableLook struct {
	right []int // aligned at the right
	wrap  []int // may be wrapped when the terminal is narrower than the table
}

const columnGap = "  "

// writeTable writes rows under a header, in columns without lines around them.
func (c *console) writeTable(header []string, rows [][]string, look tableLook) {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", columnGap
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()

	if header != nil {
		bold := make([]string, len(header))
		for i, h := range header {
			bold[i] = c.bold(h)
		}
		t.AppendHeader(tableRow(bold))
	}
	for _, row := range rows {
		t.AppendRow(tableRow(row))
	}
	widths := c.columnWidths(append([][]string{header}, rows...), look.wrap)
	configs := make([]table.ColumnConfig, len(widths))
	for i, w := range widths {
		configs[i] = table.ColumnConfig{Number: i + 1, WidthMax: w, WidthMaxEnforcer: text.WrapSoft}
		if slices.Contains(look.right, i) {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	t.SetColumnConfigs(configs)
	fmt.Fprintln(c.out, t.Render())
}

func tableRow(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, s := range cells {
		row[i] = s
	}
	return row
}

// narrowest is the width down to which words are broken.
const narrowest = 16

// columnWidths returns the widths of a table's columns. On a terminal that is too
// narrow for them, those that may be wrapped shrink, the widest first: down to
// their longest word, and if need be further.
func (c *console) columnWidths(rows [][]string, wrap []int) []int {
	var widths, words []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, words = append(widths, 0), append(words, 0)
			}
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(cell))
			for _, w := range strings.Fields(cell) {
				words[i] = max(words[i], text.StringWidthWithoutEscSequences(w))
			}
		}
	}
	total := len(columnGap) * len(widths)
	for _, w := range widths {
		total += w
	}
	if c.width == 0 {
		return widths
	}
	for _, limit := range [][]int{words, slices.Repeat([]int{narrowest}, len(widths))} {
		for ; total > c.width; total-- {
			widest := -1
			for _, i := range wrap {
				if i < len(widths) && widths[i] > limit[i] && (widest < 0 || widths[i] > widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	return widths
}

// orDash stands in for what is not there.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// hang writes a text behind a beginning; on a terminal, what does not fit into a
// line goes on below itself.
func (c *console) hang(begin, s string) {
	indent := text.StringWidthWithoutEscSequences(begin)
	lines := []string{s}
	if room := c.width - indent; c.width > 0 && room >= narrowest {
		lines = strings.Split(strings.TrimRight(text.WrapSoft(s, room), " \n"), "\n")
	}
	for _, l := range lines {
		fmt.Fprintln(c.out, strings.TrimRight(begin+l, " "))
		begin = strings.Repeat(" ", indent)
	}
}
