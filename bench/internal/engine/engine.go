// Package engine measures parts of wed_sql by themselves: the guard, the way from a
// commit to a notification, the follower, and the engine at rest.
package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/figures"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// Sizes say how much is measured.
type Sizes struct {
	Samples int
	Rest    time.Duration
}

const tables = `
	create table plain (wid bigint primary key, pad text default repeat('x', 90), a1 text default 'ready', a2 text, a3 text)
		with (fillfactor = 70);
	create table plain_job (wid bigint, tgid integer, trname text, payload jsonb, fired_at timestamptz default now(),
		primary key (wid, tgid));
	create index on plain_job (trname, fired_at)`

// Bouts of all parts.
func Bouts(z Sizes) (bouts []contest.Bout) {
	for _, part := range []struct {
		name    string
		measure func(context.Context, *server.Database, *pgx.Conn, *report.Report, Sizes) error
	}{{"latency", latency}, {"guard", guard}, {"follower", follower}, {"rest", rest}} {
		bouts = append(bouts, contest.Bout{Workload: "engine", System: part.name, Run: func(ctx context.Context, s *server.Server, r *report.Report) error {
			return within(ctx, s, func(db *server.Database, conn *pgx.Conn) error { return part.measure(ctx, db, conn, r, z) })
		}})
	}
	return bouts
}

// within has f run with the flow of figure 2 in a new database.
func within(ctx context.Context, s *server.Server, f func(*server.Database, *pgx.Conn) error) error {
	return s.With(ctx, "engine", func(db *server.Database) error {
		for _, sql := range []string{"create extension wed_sql", contest.Figure2, tables, "select wed_sql.sync('1 minute')"} {
			if err := db.Exec(ctx, sql); err != nil {
				return err
			}
		}
		conn, err := db.Connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		return f(db, conn)
	})
}

func add(r *report.Report, what, metric string, value float64) {
	r.Add(report.Engine, what, metric, value)
}

// latency waits for the notification of each instance that it starts, one after the other.
func latency(ctx context.Context, db *server.Database, conn *pgx.Conn, r *report.Report, z Sizes) error {
	const warmUp = 50
	listener, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer listener.Close(context.WithoutCancel(ctx))
	if _, err := listener.Exec(ctx, "listen tr_a2"); err != nil {
		return err
	}
	var fromCommit, fromStart []time.Duration
	for i := range z.Samples + warmUp {
		var started, committed, arrived time.Time
		group, groupCtx := errgroup.WithContext(ctx)
		group.Go(func() error {
			_, err := listener.WaitForNotification(groupCtx)
			arrived = time.Now()
			return err
		})
		started = time.Now()
		_, err := conn.Exec(ctx, "insert into paper.wed_flow default values")
		committed = time.Now()
		if err != nil {
			return err
		}
		if err := group.Wait(); err != nil {
			return fmt.Errorf("waiting for the notification of instance %d: %w", i, err)
		}
		if i >= warmUp {
			fromCommit = append(fromCommit, max(arrived.Sub(committed), 0))
			fromStart = append(fromStart, arrived.Sub(started))
		}
	}
	for _, m := range []struct {
		metric string
		q      float64
	}{{report.P50, .5}, {report.P99, .99}} {
		add(r, "from the commit of a state to the notification of its job", m.metric, figures.Milliseconds(figures.Quantile(fromCommit, m.q)))
		add(r, "from the start of the insert to the notification", m.metric, figures.Milliseconds(figures.Quantile(fromStart, m.q)))
	}
	return nil
}

// follower starts many instances in one statement and waits until the last one is matched.
func follower(ctx context.Context, _ *server.Database, conn *pgx.Conn, r *report.Report, z Sizes) error {
	instances := 10 * z.Samples
	if _, err := conn.Exec(ctx, "insert into paper.wed_flow (a1) select 'ready' from generate_series(1, $1)", instances); err != nil {
		return err
	}
	began := time.Now()
	if _, err := conn.Exec(ctx, "select wed_sql.sync('10 minutes')"); err != nil {
		return err
	}
	add(r, "follower alone: states, of two jobs each", report.PerSecond, float64(instances)/time.Since(began).Seconds())
	return nil
}
