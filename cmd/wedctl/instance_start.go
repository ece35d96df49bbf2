package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

const rightsOfStarter = "usage on the flow's schema, insert on its wed_flow, select on its column wid"

func instanceStartCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "start",
		Usage:     "start an instance, and print its number",
		ArgsUsage: "[NAME=VALUE...]",
		Description: `NAME=VALUE sets an attribute, the value written as in SQL between quotes; those
that are not set have their defaults. --set-json takes any, null included.

Example: wedctl instance start -f travel customer=Ada 'destination=São Paulo'`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.StringFlag{Name: "set-json", Usage: "`OBJECT` of attributes; -: read it from standard input"},
			&cli.IntFlag{Name: "count", Aliases: []string{"n"}, Value: 1, Usage: "start so many, all the same"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			s, err := parseStart(c, con.in)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl instance start")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			flow, err := con.theFlow(c, conn)
			if err != nil {
				return needs(err, rightsOfStarter)
			}
			var wids []int64
			err = con.busy(c.Context, "start", func(ctx context.Context) (err error) {
				wids, err = s.run(ctx, conn, flow)
				return err
			})
			if err != nil {
				return needs(err, rightsOfStarter)
			}
			if !asJSON {
				for _, wid := range wids {
					fmt.Fprintln(con.out, wid)
				}
				return nil
			}
			raw := make([]json.RawMessage, len(wids))
			name, err := json.Marshal(flow)
			if err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			for i, wid := range wids {
				raw[i] = fmt.Appendf(nil, `{"flow":%s,"wid":%d}`, name, wid)
			}
			return writeJSON(con.out, raw)
		},
	}
}

// newInstances is what a command line says of new instances.
type newInstances struct {
	set    []assignment
	object string // JSON, or ""
	keys   []string
	count  int
}

func parseStart(c *cli.Context, stdin io.Reader) (*newInstances, error) {
	s := &newInstances{object: c.String("set-json"), count: c.Int("count")}
	if s.count < 1 {
		return nil, usagef("--count is a number of instances, not %d", s.count)
	}
	var err error
	if s.set, err = parseAssignments(c.Args().Slice()); err != nil {
		return nil, err
	}
	if s.object == "-" {
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		s.object = string(text)
	}
	if c.IsSet("set-json") {
		if s.keys, err = parseObject(s.object); err != nil {
			return nil, err
		}
	}
	for _, a := range s.set {
		for _, k := range s.keys {
			if a.name == k {
				return nil, usagef("attribute %q is set twice", k)
			}
		}
	}
	return s, nil
}

// startBatch is how many instances are sent to the server at once.
const startBatch = 1000

// run starts the instances, all or none, and returns their numbers.
func (s *newInstances) run(ctx context.Context, conn *pgx.Conn, flow string) ([]int64, error) {
	types, err := attributeTypes(ctx, conn, flow)
	if err != nil {
		return nil, err
	}
	names := append([]string(nil), s.keys...)
	for _, a := range s.set {
		names = append(names, a.name)
	}
	if err := checkAttributes(flow, types, names); err != nil {
		return nil, err
	}
	insert, args := s.statement(pgx.Identifier{flow, "wed_flow"}.Sanitize(), types)
	wids := make([]int64, 0, s.count)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// for triggers that somebody has put on the table, as if any application inserted
		if _, err := tx.Exec(ctx, `set local search_path to default`); err != nil {
			return err
		}
		for len(wids) < s.count {
			batch := new(pgx.Batch)
			for range min(startBatch, s.count-len(wids)) {
				batch.Queue(insert, args...).QueryRow(func(row pgx.Row) error {
					var wid int64
					err := row.Scan(&wid)
					wids = append(wids, wid)
					return err
				})
			}
			if err := tx.SendBatch(ctx, batch).Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start an instance of flow %q: %w", flow, err)
	}
	return wids, nil
}

// statement inserts one instance.
func (s *newInstances) statement(table string, types map[string]string) (insert string, args []any) {
	var columns, values []string
	if len(s.keys) > 0 {
		args = append(args, s.object)
	}
	for _, k := range s.keys {
		column := pgx.Identifier{k}.Sanitize()
		columns = append(columns, column)
		values = append(values, "(pg_catalog.jsonb_populate_record(null::"+table+", $1::jsonb))."+column)
	}
	for _, a := range s.set {
		args = append(args, a.text)
		columns = append(columns, pgx.Identifier{a.name}.Sanitize())
		values = append(values, fmt.Sprintf("cast($%d::text as %s)", len(args), types[a.name]))
	}
	if len(columns) == 0 {
		return "insert into " + table + " default values returning wid", nil
	}
	return "insert into " + table + " (" + strings.Join(columns, ", ") + ") values (" + strings.Join(values, ", ") + ") returning wid", args
}
