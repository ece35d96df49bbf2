package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func flowCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "flow",
		Usage: "define flows, and look at them",
		Description: `A flow is a schema with the attributes and rules of a process.

Example: wedctl flow list`,
		Subcommands: []*cli.Command{
			flowCreateCommand(con),
			flowApplyCommand(con),
			flowListCommand(con),
			flowShowCommand(con),
			flowCheckCommand(con),
			flowExportCommand(con),
			flowGraphCommand(con),
			flowDropCommand(con),
		},
	}
}

// flowEnv names the variable that stands for --flow.
const flowEnv = "WEDCTL_FLOW"

// flowFlag names the flow that a command is about; theFlow reads it.
func flowFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "flow", Aliases: []string{"f"}, EnvVars: []string{flowEnv},
		Usage: "`NAME` of the flow, if several",
	}
}

// theFlow returns the flow that a command is about: the one that is named or, if
// none is, the only one that there is. Which that is, a person is told.
func (con *console) theFlow(c *cli.Context, conn *pgx.Conn) (string, error) {
	if name := c.String("flow"); name != "" {
		return name, requireFlow(c.Context, conn, name)
	}
	if _, err := requireExtension(c.Context, conn); err != nil {
		return "", err
	}
	flows, err := flowNames(c.Context, conn)
	if err != nil {
		return "", err
	}
	database := conn.Config().Database
	switch len(flows) {
	case 0:
		return "", notFound("`wedctl demo --keep` makes one to look at", "there is no flow in database %q", database)
	case 1:
		if c.String("output") != "json" {
			fmt.Fprintln(con.err, con.dim("flow "+quoted(flows[0])+", the only one in database "+quoted(database)))
		}
		return flows[0], nil
	}
	names := make([]string, len(flows))
	for i, f := range flows {
		names[i] = quoted(f)
	}
	return "", &failure{
		code:    exitUsage,
		message: fmt.Sprintf("%s needs --flow: database %q has %s", c.Command.HelpName, database, some(names, 8)),
		hint:    "the environment variable " + flowEnv + " names one for every command",
	}
}

// some lists words, but no more than a line takes.
func some(words []string, most int) string {
	if len(words) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}

// flowNames lists the flows of the database. Anybody may: it takes no right on them.
func flowNames(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `
		select n.nspname::text
		from pg_attribute a
		join pg_type y on y.oid = a.atttypid and y.typname = 'stamp'
		join pg_class c on c.oid = a.attrelid and c.relname = 'wed_flow' and c.relkind = 'r'
		join pg_namespace n on n.oid = c.relnamespace
		where a.attname = '_stamp' and not a.attisdropped
		and y.typnamespace = (select e.extnamespace from pg_extension e where e.extname = 'wed_sql')
		order by n.nspname`)
	if err != nil {
		return nil, fmt.Errorf("list the flows: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the flows: %w", err)
	}
	return names, nil
}
