package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/worker"
)

// batch is how many jobs the workers of the benchmark complete with one commit, where they do so at all.
const batch = 100

// ways are what is compared, in turns, several times: the machine is not the same all the time.
var ways = []struct {
	name    string
	options worker.Options
}{
	{"one job per transaction, 8 side by side", worker.Options{Concurrency: 8}},
	{fmt.Sprintf("up to %d jobs per transaction, 2 side by side", batch), worker.Options{Concurrency: 2, Batch: batch}},
}

const rounds = 3

// measureWorker compares workers in Go that take one job per transaction with such that take many.
func measureWorker(ctx context.Context, conn *pgx.Conn, o options) error {
	for _, m := range []struct {
		name    string
		measure func(context.Context, *pgx.Conn, worker.Options, int) (float64, error)
	}{
		{"package worker, jobs that do nothing: jobs per second", measureNoOps},
		{"package worker, figure 2: instances per second", measureFigure2},
	} {
		best := make([]float64, len(ways))
		for range rounds {
			for i, way := range ways {
				perSecond, err := m.measure(ctx, conn, way.options, o.instances/4)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", m.name, way.name, err)
				}
				best[i] = max(best[i], perSecond)
			}
		}
		fmt.Println(m.name + fmt.Sprintf(" (best of %d)", rounds))
		for i, way := range ways {
			report("  "+way.name, "%.0f", best[i])
		}
		report("  ratio", "%.1f", best[1]/best[0])
	}
	return nil
}

// withFlow has f run while there is a flow called bench_worker.
func withFlow(ctx context.Context, conn *pgx.Conn, definition string, f func() error) error {
	if _, err := conn.Exec(ctx, "select wed_sql.create_flow('bench_worker')"); err != nil {
		return err
	}
	if _, err := conn.PgConn().Exec(ctx, definition+"; select wed_sql.sync('1 minute')").ReadAll(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "select wed_sql.drop_flow('bench_worker')")
	return err
}

func newWorker(once bool) (*worker.Worker, error) {
	return worker.New(worker.Config{DSN: "dbname=" + database, Once: once, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
}

func returns(state worker.State) worker.Handler {
	return func(context.Context, *worker.Job) (worker.State, error) { return state, nil }
}

// measureNoOps has a worker complete so many jobs that pend already.
func measureNoOps(ctx context.Context, conn *pgx.Conn, o worker.Options, jobs int) (perSecond float64, err error) {
	err = withFlow(ctx, conn, `insert into bench_worker.wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into bench_worker.wed_trig (trname, cpred) values ('work', 'v < 1');
		insert into bench_worker.wed_trig (cpred, cfinal) values ('v >= 1', true)`, func() error {
		if _, err := conn.Exec(ctx, "insert into bench_worker.wed_flow (v) select 0 from generate_series(1, $1)", jobs); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "select wed_sql.sync('10 minutes')"); err != nil {
			return err
		}
		w, err := newWorker(true)
		if err == nil {
			err = w.Handle("bench_worker", "work", returns(worker.State{"v": 1}), o)
		}
		if err != nil {
			return err
		}
		began := time.Now()
		if err := w.Run(ctx); err != nil {
			return err
		}
		perSecond = float64(jobs) / time.Since(began).Seconds()
		return nil
	})
	return perSecond, err
}

// measureFigure2 starts so many instances, a hundred per transaction, while one worker performs the three transitions,
// until the last one has ended.
func measureFigure2(ctx context.Context, conn *pgx.Conn, o worker.Options, instances int) (perSecond float64, err error) {
	err = withFlow(ctx, conn, `insert into bench_worker.wed_attr (aname, adv) values ('a1', 'ready'), ('a2', null), ('a3', null);
		insert into bench_worker.wed_trig (trname, cpred) values
			('tr_a2', $$a1='ready' and (a2 is null)$$),
			('tr_a3', $$a1='ready' and (a3 is null)$$),
			('tr_final', $$a1='ready' and (a2 is not null) and (a3 is not null)$$);
		insert into bench_worker.wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true)`, func() error {
		w, err := newWorker(false)
		if err != nil {
			return err
		}
		for transition, state := range map[string]worker.State{"tr_a2": {"a2": "x"}, "tr_a3": {"a3": "x"}, "tr_final": {"a1": "x"}} {
			if err := w.Handle("bench_worker", transition, returns(state), o); err != nil {
				return err
			}
		}
		runCtx, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- w.Run(runCtx) }()
		for n := 0; n < instances; n += 100 {
			if _, err := conn.Exec(ctx, "insert into bench_worker.wed_flow (a1) select 'ready' from generate_series(1, $1)", min(100, instances-n)); err != nil {
				return err
			}
		}
		for left := true; left; {
			if _, err := conn.Exec(ctx, "select wed_sql.sync('10 minutes')"); err != nil {
				return err
			}
			if err := conn.QueryRow(ctx, "select exists (select from bench_worker.wed_flow where a1 = 'ready')").Scan(&left); err != nil {
				return err
			}
		}
		perSecond = float64(instances) / time.Since(began).Seconds()
		stop()
		return <-ended
	})
	return perSecond, err
}
