// Command bench measures wed_sql on the server that PGHOST and its like name, which it should have for itself: it drops
// and creates databases called wed_bench. What it prints belongs to one run on one machine; compare the lines with each
// other, not with those of another day.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
)

const database = "wed_bench"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	flag.IntVar(&o.instances, "instances", 20000, "instances that are started at once, to see how fast the follower is")
	flag.IntVar(&o.samples, "samples", 2000, "notifications to wait for, and updates to time")
	flag.IntVar(&o.clients, "clients", 8, "concurrent workers under load")
	flag.DurationVar(&o.duration, "duration", 10*time.Second, "how long to load the server, each time")
	only := flag.String("only", "", "measure this alone: latency, guard, follower, load, bare, rest, worker")
	flag.Parse()

	if err := recreateDatabase(ctx); err != nil {
		return err
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := defineFlow(ctx, conn); err != nil {
		return err
	}

	for _, m := range []struct {
		name    string
		measure func(context.Context, *pgx.Conn, options) error
	}{
		{"latency", measureLatency}, {"guard", measureGuard}, {"follower", measureFollower}, {"load", measureLoad},
		{"bare", measureBare}, {"rest", measureRest}, {"worker", measureWorker},
	} {
		if *only != "" && m.name != *only {
			continue
		}
		if err := m.measure(ctx, conn, o); err != nil {
			return err
		}
	}
	conn.Close(ctx)
	return dropDatabase(ctx)
}

type options struct {
	instances, samples, clients int
	duration                    time.Duration
}

func connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, "dbname="+database)
	if err != nil {
		return nil, fmt.Errorf("connecting to database %s: %w", database, err)
	}
	return conn, nil
}

func recreateDatabase(ctx context.Context) error {
	if err := dropDatabase(ctx); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, "")
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "create database "+database)
	return err
}

// dropDatabase drops the extension first: a slot keeps its database.
func dropDatabase(ctx context.Context) error {
	admin, err := pgx.Connect(ctx, "")
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer admin.Close(ctx)
	var exists bool
	if err := admin.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", database).Scan(&exists); err != nil || !exists {
		return err
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "drop extension if exists wed_sql cascade")
	conn.Close(ctx)
	if err != nil {
		return err
	}
	for {
		_, err = admin.Exec(ctx, "drop database "+database+" with (force)")
		if err == nil || ctx.Err() != nil {
			return err
		}
		var active bool // the engine is on its way out
		if e := admin.QueryRow(ctx, "select exists (select from pg_replication_slots where database = $1)", database).Scan(&active); e != nil || !active {
			return err
		}
	}
}

// defineFlow makes the flow of the paper's figure 2, and a plain table to compare it with.
func defineFlow(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{
		"create extension wed_sql",
		"select wed_sql.create_flow('paper')",
		`insert into paper.wed_attr (aname, adv) values ('a1', 'ready'), ('a2', null), ('a3', null)`,
		`insert into paper.wed_trig (trname, cpred) values
		     ('tr_a2', $$a1='ready' and (a2 is null)$$),
		     ('tr_a3', $$a1='ready' and (a3 is null)$$),
		     ('tr_final', $$a1='ready' and (a2 is not null) and (a3 is not null)$$)`,
		`insert into paper.wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true)`,
		`create table plain (wid bigint primary key, pad text default repeat('x', 90), a1 text default 'ready', a2 text, a3 text)
		     with (fillfactor = 70)`,
		`create table plain_job (wid bigint, tgid integer, trname text, payload jsonb, fired_at timestamptz default now(),
		     primary key (wid, tgid))`,
		"create index on plain_job (trname, fired_at)",
		"select wed_sql.sync('1 minute')",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
