package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/definition"
)

func flowExportCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write a flow's definition as a file",
		ArgsUsage: "NAME",
		Description: `SQL that "wedctl flow apply" reads, and psql with search_path set to the flow:
a line for each attribute and rule, the same for the same flow. What has its
default is left out. Worker roles are those of this place: --grants adds them.

Example: wedctl flow export orders > orders.sql`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "grants", DisableDefaultText: true, Usage: "with the worker roles"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "sql", Usage: "sql or json, for programs"},
			dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			name, err := theName(c)
			if err != nil {
				return err
			}
			format := c.String("output")
			if format != "sql" && format != "json" {
				return usagef("--output is sql or json, not %q", format)
			}
			conn, err := connect(c.Context, dsn(c), "wedctl flow export")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			d, _, err := readFlow(c.Context, conn, name)
			if err != nil {
				return err
			}
			if format == "json" {
				return writeDefinition(con, d, c.Bool("grants"))
			}
			fmt.Fprint(con.out, d.SQL(c.Bool("grants")))
			return nil
		},
	}
}

func writeDefinition(con *console, d *definition.Definition, grants bool) error {
	for i := range d.Rules {
		d.Rules[i].ID = 0 // of this database only
	}
	if !grants {
		d.Workers = []definition.Worker{}
	}
	return writeObject(con.out, d)
}

// readFlow reads the definition of a flow that there has to be, at one moment.
func readFlow(ctx context.Context, conn *pgx.Conn, flow string) (*definition.Definition, definition.Status, error) {
	if err := requireFlow(ctx, conn, flow); err != nil {
		return nil, definition.Status{}, err
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, definition.Status{}, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, `select set_config('intervalstyle', 'postgres', true)`); err != nil {
		return nil, definition.Status{}, fmt.Errorf("prepare: %w", err)
	}
	d, status, err := definition.Read(ctx, tx, flow)
	if err != nil {
		return nil, status, ownFlow(err, flow)
	}
	return d, status, nil
}
