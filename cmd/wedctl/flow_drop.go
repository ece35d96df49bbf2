package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"
)

func flowDropCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "drop",
		Usage:     "remove a flow and all that is in it",
		ArgsUsage: "NAME",
		Description: `Its instances, jobs and history are gone then. Says how many there are, and
asks.

Example: wedctl flow drop orders`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, DisableDefaultText: true, Usage: "do not ask"},
			&cli.DurationFlag{Name: "lock-timeout", Value: 5 * time.Second, Usage: "wait so long for others"},
			dsnFlag(),
		},
		Action: func(c *cli.Context) error { return dropFlow(c, con) },
	}
}

func dropFlow(c *cli.Context, con *console) error {
	ctx := c.Context
	name, err := theName(c)
	if err != nil {
		return err
	}
	if !c.Bool("yes") && !con.asks {
		return &failure{code: exitUsage, message: "there is nobody to ask", hint: "--yes drops the flow without asking"}
	}
	conn, err := connect(ctx, dsn(c), "wedctl flow drop")
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := requireFlow(ctx, conn, name); err != nil {
		return err
	}
	counts, err := countFlow(ctx, conn, name)
	if err != nil {
		return needs(err, rightsOfAuthor)
	}
	fmt.Fprintf(con.out, "flow %q has instances: %s\n", name, counts)
	if !c.Bool("yes") {
		question := "Drop it with its history?"
		if n := counts.Instances["R"] + counts.Instances["E"] + counts.Instances["S"]; n > 0 {
			question = fmt.Sprintf("Drop it with its history, %s that %s not ended included?", several(n, "instance"), hasNot(n))
		}
		yes, err := con.agreed(question)
		if err != nil {
			return err
		}
		if !yes {
			return &failure{code: exitFailure, message: "nothing was dropped"}
		}
	}
	if _, err := conn.Exec(ctx, `select set_config('lock_timeout', $1, false)`, fmt.Sprintf("%dms", max(c.Duration("lock-timeout").Milliseconds(), 1))); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	_, err = conn.Exec(ctx, `select wed_sql.drop_flow($1)`, name)
	if sqlState(err) == "55P03" {
		return inTheWay(ctx, conn, name, c.Duration("lock-timeout"))
	}
	if err != nil {
		return needs(fmt.Errorf("drop flow %q: %w", name, err), rightsOfAuthor)
	}
	fmt.Fprintf(con.out, "flow %q is gone\n", name)
	return nil
}

func hasNot(n int64) string {
	if n == 1 {
		return "has"
	}
	return "have"
}
