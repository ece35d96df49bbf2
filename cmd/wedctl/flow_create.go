package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/definition"
)

func flowCreateCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "make a flow without attributes and rules",
		ArgsUsage: "NAME",
		Description: `A flow is a schema of its own. Define it by rows of its wed_attr and wed_trig,
or in a file, by "wedctl flow apply", which makes the flow, too.

Example: wedctl flow create orders`,
		Flags: []cli.Flag{dsnFlag()},
		Action: func(c *cli.Context) error {
			name, err := theName(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl flow create")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			if _, err := requireExtension(c.Context, conn); err != nil {
				return err
			}
			found, err := definition.Exists(c.Context, conn, name)
			if err != nil {
				return err
			}
			if found {
				return &failure{code: exitFailure, message: fmt.Sprintf("there is a flow %q already", name), hint: "`wedctl flow show` shows it"}
			}
			if _, err := conn.Exec(c.Context, `select wed_sql.create_flow($1)`, name); err != nil {
				return needs(fmt.Errorf("make flow %q: %w", name, err), rightsOfAuthor)
			}
			fmt.Fprintf(con.out, "flow %q is there; it has no attributes and rules yet\n", name)
			return nil
		},
	}
}

// theName returns the only argument of a command, the name of a flow.
func theName(c *cli.Context) (string, error) {
	if c.Args().Len() != 1 || c.Args().First() == "" {
		return "", usagef("%s needs the NAME of a flow", c.Command.HelpName)
	}
	return c.Args().First(), nil
}
