package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/examples/travel"
)

const (
	demoFlow = "travel"

	engineTimeout  = 20 * time.Second // for the engine to find a new flow
	cleanupTimeout = 20 * time.Second
)

func demoCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "watch a process run, from its first states to its last",
		Description: `Creates the flow "travel", a travel agency: customers are checked, flights and
hotels are booked in parallel, some of it fails and is led back, trips are
closed. Each transition is a shell script, performed by "wedctl worker run".
What the demo makes it removes again, the extension included, unless --keep is
given.

Example: wedctl demo --keep && wedctl instance trace -f travel 2`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "keep", DisableDefaultText: true, Usage: "leave the flow and its history in the database"},
			&cli.DurationFlag{Name: "pace", Value: 300 * time.Millisecond, Usage: "`TIME` that each transition takes"},
			&cli.DurationFlag{Name: "timeout", Value: time.Minute, Usage: "give up when it takes longer"},
			&cli.StringFlag{Name: "files", Usage: "only write the example's rules and scripts into `DIR`"},
			dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			if dir := c.String("files"); dir != "" {
				return writeExample(con, dir)
			}
			if c.Args().Present() {
				return usagef("%s takes no arguments", c.Command.HelpName)
			}
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			d := &demo{con: con, dsn: dsn(c), keep: c.Bool("keep"), pace: c.Duration("pace"), timeout: c.Duration("timeout")}
			err := d.run(ctx)
			if err != nil && ctx.Err() != nil {
				err = &failure{code: exitFailure, message: "interrupted; " + d.leaves()}
			}
			if e := d.cleanUp(); err == nil {
				err = e
			}
			return err
		},
	}
}

func writeExample(con *console, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a directory for the example: %w", err)
	}
	if err := travel.Extract(dir); err != nil {
		return err
	}
	fmt.Fprintf(con.out, "%s holds travel.sql (the rules), trips.sql (some customers) and a script for each transition\n", dir)
	return nil
}

// demo is one run of the demonstration. It notes what it makes, for cleanUp.
type demo struct {
	con     *console
	dsn     string
	keep    bool
	pace    time.Duration
	timeout time.Duration

	dir           string // of the scripts
	workers       *workers
	madeExtension bool
	madeSchema    bool // of the extension, which does not take it along
	madeFlow      bool
	names         map[int64]string // customers by wid
	lines         []traceLine      // what was seen, in commit order
	ended         int
}

func (d *demo) run(ctx context.Context) error {
	conn, err := connect(ctx, d.dsn, "wedctl demo")
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if err := d.prepare(ctx, conn); err != nil {
		return err
	}
	if err := d.showRules(ctx, conn); err != nil {
		return err
	}
	if err := d.startWorkers(); err != nil {
		return err
	}
	if err := d.startTrips(ctx, conn); err != nil {
		return err
	}
	if err := d.watch(ctx, conn); err != nil {
		return err
	}
	return d.summarize(ctx, conn)
}

// prepare creates the flow and waits until the engine follows it.
func (d *demo) prepare(ctx context.Context, conn *pgx.Conn) error {
	var server, database string
	var schema, extension, extensionSchema bool
	err := conn.QueryRow(ctx, `select split_part(current_setting('server_version'), ' ', 1), current_database(),
		exists (select from pg_namespace where nspname = $1),
		exists (select from pg_extension where extname = 'wed_sql'),
		exists (select from pg_namespace where nspname = 'wed_sql')`, demoFlow).
		Scan(&server, &database, &schema, &extension, &extensionSchema)
	if err != nil {
		return fmt.Errorf("look at the server: %w", err)
	}
	if schema {
		return &failure{exitFailure, fmt.Sprintf("database %q has a schema %q already, and the demo does not touch it", database, demoFlow),
			"take another database (PGDATABASE), or drop it: psql -c \"select wed_sql.drop_flow('" + demoFlow + "')\""}
	}
	if !extension {
		if _, err := conn.Exec(ctx, "create extension wed_sql"); err != nil {
			return fmt.Errorf("create the extension wed_sql in database %q: %w", database, err)
		}
		d.madeExtension, d.madeSchema = true, !extensionSchema
	}
	if _, err := conn.PgConn().Exec(ctx, travel.Rules()).ReadAll(); err != nil {
		return needs(fmt.Errorf("create the flow %q: %w", demoFlow, err), rightsOfOwner)
	}
	d.madeFlow = true
	installed, err := requireExtension(ctx, conn)
	if err != nil {
		return err
	}
	c := d.con
	fmt.Fprintf(c.out, "%s\nwed_sql %s, PostgreSQL %s, database %s\n\n", c.bold("A travel agency as a WED-flow"), installed, server, database)

	_, err = conn.Exec(ctx, fmt.Sprintf("select wed_sql.sync('%d ms')", engineTimeout.Milliseconds()))
	if sqlState(err) == "WED14" {
		hint := engineTrouble(ctx, conn)
		if hint == "" {
			hint = "`wedctl status` and the server's log say what it does"
		}
		return &failure{exitFailure, fmt.Sprintf("the engine has not followed database %q for %s", database, engineTimeout), hint}
	}
	if err != nil {
		return fmt.Errorf("wait for the engine: %w", err)
	}
	return nil
}

// engineTrouble says what is wrong with the engine, "" if nothing is known of that.
func engineTrouble(ctx context.Context, conn *pgx.Conn) string {
	_, rows, err := readStatus(ctx, conn)
	if err != nil {
		return ""
	}
	for _, r := range rows {
		if r.Database != conn.Config().Database || r.State == stateStreaming {
			continue
		}
		if r.Error == nil {
			return "the engine is " + r.State
		}
		return fmt.Sprintf("the engine is %s; its last error: %s", r.State, *r.Error)
	}
	return ""
}

func (d *demo) showRules(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `select coalesce(cname, '-'), btrim(cpred), coalesce(trname, '(the end)'),
		case when cfinal then '-' else timeout::text end from travel.wed_trig order by tgid`)
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	table, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
		r := make([]string, 4)
		return r, row.Scan(&r[0], &r[1], &r[2], &r[3])
	})
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	table = append(table, []string{"none of these", "(and nothing is pending)", "_EXCPT", "-"})
	fmt.Fprintln(d.con.out, "The rules: whenever a trip's data satisfy a predicate, its transition is fired.")
	d.con.writeTable([]string{"CONDITION", "PREDICATE", "FIRES", "TIMEOUT"}, table, tableLook{wrap: []int{1}})
	return nil
}

func (d *demo) startWorkers() error {
	dir, err := os.MkdirTemp("", "wedctl-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the scripts: %w", err)
	}
	d.dir = dir
	if err := travel.Extract(dir); err != nil {
		return err
	}
	if d.workers, err = startWorkers(dir, d.dsn, d.pace); err != nil {
		return err
	}
	fmt.Fprintf(d.con.out, "\n%d workers, a process for each transition, like this one:\n"+
		"  wedctl worker run --flow travel --transition book_hotel -- sh book_hotel.sh\n", len(d.workers.children))
	return nil
}

func (d *demo) startTrips(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.PgConn().Exec(ctx, travel.Trips()).ReadAll(); err != nil {
		return fmt.Errorf("start the trips: %w", err)
	}
	rows, err := conn.Query(ctx, `select wid, customer from travel.wed_flow`)
	if err != nil {
		return fmt.Errorf("read the trips: %w", err)
	}
	d.names = make(map[int64]string)
	var wid int64
	var name string
	_, err = pgx.ForEachRow(rows, []any{&wid, &name}, func() error {
		d.names[wid] = name
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the trips: %w", err)
	}
	return nil
}

// leaves says what cleanUp is going to leave.
func (d *demo) leaves() string {
	if d.keep && d.madeFlow {
		return "the flow " + demoFlow + " is kept"
	}
	return "what the demo had made is removed"
}

// cleanUp removes all that the run has made, also when it was interrupted.
func (d *demo) cleanUp() error {
	var errs []error
	if d.workers != nil {
		errs = append(errs, d.workers.stop())
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	var sql []string
	if d.madeFlow {
		sql = append(sql, "select wed_sql.drop_flow('"+demoFlow+"')")
	}
	if d.madeExtension {
		sql = append(sql, "drop extension wed_sql")
	}
	if d.madeSchema {
		sql = append(sql, "drop schema if exists wed_sql")
	}
	if d.keep || len(sql) == 0 {
		return errors.Join(errs...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := d.execute(ctx, sql); err != nil {
		errs = append(errs, &failure{exitFailure, "could not remove what the demo made: " + oneLine(err),
			"do it by psql: " + strings.Join(sql, "; ")})
	}
	return errors.Join(errs...)
}

// execute runs statements on a connection of its own: the run's may be broken.
func (d *demo) execute(ctx context.Context, statements []string) error {
	conn, err := connect(ctx, d.dsn, "wedctl demo")
	if err != nil {
		return err
	}
	defer hangUp(conn)
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}
