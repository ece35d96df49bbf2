// Package growth says what a state costs, from its writing to its line in the history,
// as things grow that should not matter.
package growth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
	"github.com/wed-sql/wed_sql/worker"
)

// Sizes are the points of the curves, and how many states are timed at each.
type Sizes struct {
	Rules, Instances, Pending, States, Listeners, Databases []int
	Timed                                                   int
}

var (
	// Small is for a look whether it works.
	Small = Sizes{[]int{1, 10}, []int{100, 1000}, []int{100, 1000}, []int{1, 10}, []int{1, 10}, []int{1, 2}, 200}
	// Usual takes minutes.
	Usual = Sizes{[]int{1, 10, 100, 1000}, []int{1000, 10_000, 100_000}, []int{1000, 10_000, 100_000},
		[]int{1, 10, 100, 1000}, []int{1, 10, 100, 1000}, []int{1, 5, 20}, 2000}
	// Full has the largest that are promised.
	Full = Sizes{[]int{1, 10, 100, 1000, 10_000}, []int{1000, 10_000, 100_000, 1_000_000}, []int{100, 1000, 10_000, 100_000, 1_000_000},
		[]int{1, 10, 100, 1000, 10_000}, []int{1, 10, 100, 1000}, []int{1, 2, 5, 10, 20}, 2000}
)

// curve is one of report.Curves: measure returns the cost of a state where n is as it is.
type curve struct {
	name    string
	points  []int
	measure func(ctx context.Context, s *server.Server, n, timed int) (time.Duration, error)
}

func curves(z Sizes) []curve {
	return []curve{
		{report.Curves[0], z.Rules, rules},
		{report.Curves[1], z.Instances, instances},
		{report.Curves[2], z.Pending, pending},
		{report.Curves[4], z.Listeners, listeners},
		{report.Curves[5], z.Databases, databases},
	}
}

// Bouts of all points of all curves.
func Bouts(z Sizes) (bouts []contest.Bout) {
	add := func(name, point string, run func(context.Context, *server.Server, *report.Report) error) {
		bouts = append(bouts, contest.Bout{Workload: "growth", System: name + " " + point, Run: run})
	}
	for _, c := range curves(z) {
		for _, n := range c.points {
			add(c.name, fmt.Sprint(n), func(ctx context.Context, s *server.Server, r *report.Report) error {
				cost, err := c.measure(ctx, s, n, z.Timed)
				if err == nil {
					r.AddAt(c.name, "wed_sql", report.MicrosPer, float64(n), float64(cost)/float64(time.Microsecond))
				}
				return err
			})
		}
	}
	add(report.Curves[3], fmt.Sprint("to ", z.States[len(z.States)-1]), func(ctx context.Context, s *server.Server, r *report.Report) error {
		return states(ctx, s, r, z.States)
	})
	return bouts
}

// flow is the definition that all curves but one of them start from.
const flow = `select wed_sql.create_flow('grows');
	insert into grows.wed_attr (aname, atype, adv) values ('kind', 'text', 'k0'), ('v', 'integer', '0');
	insert into grows.wed_trig (cpred, cfinal) values ('v >= 1', true);
	insert into grows.wed_trig (trname, cpred) values ('work', $$kind = 'k0' and v < 1$$)`

// within has f run with a flow in a new database.
func within(ctx context.Context, s *server.Server, definition string, f func(*server.Database, *pgx.Conn) (time.Duration, error)) (cost time.Duration, err error) {
	err = s.With(ctx, "growth", func(db *server.Database) error {
		for _, sql := range []string{"create extension wed_sql", definition} {
			if err := db.Exec(ctx, sql); err != nil {
				return err
			}
		}
		conn, err := db.Connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if err := sync(ctx, conn); err != nil {
			return err
		}
		cost, err = f(db, conn)
		return err
	})
	return cost, err
}

func sync(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "select wed_sql.sync('60 minutes')")
	return err
}

// fill starts instances, and waits until they are in the history.
func fill(ctx context.Context, conn *pgx.Conn, values string, n int) error {
	for ; n > 0; n -= 50_000 {
		sql := "insert into grows.wed_flow (kind, v) select " + values + " from generate_series(1, $1)"
		if _, err := conn.Exec(ctx, sql, min(n, 50_000)); err != nil {
			return err
		}
	}
	return sync(ctx, conn)
}

// cost starts instances, a hundred with each commit, and has a worker do their jobs: two
// states of each.
func cost(ctx context.Context, db *server.Database, conn *pgx.Conn, instances int) (time.Duration, error) {
	if err := db.Settle(ctx); err != nil {
		return 0, err
	}
	const warm = 20
	w, err := begin(ctx, db)
	if err != nil {
		return 0, err
	}
	if err := w.run(ctx, conn, warm, warm); err != nil {
		return 0, err
	}
	began := time.Now()
	err = w.run(ctx, conn, instances, warm+instances)
	took := time.Since(began)
	if e := w.end(); err == nil {
		err = e
	}
	return took / time.Duration(2*instances), err
}

// working is a worker that counts.
type working struct {
	counter *contest.Counter
	stop    context.CancelFunc
	group   errgroup.Group
}

func begin(ctx context.Context, db *server.Database) (*working, error) {
	w, err := worker.New(worker.Config{DSN: db.DSN(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return nil, err
	}
	b := &working{counter: contest.NewCounter()}
	err = w.Handle("grows", "work", func(context.Context, *worker.Job) (worker.State, error) {
		b.counter.Done()
		return worker.State{"v": 1}, nil
	}, worker.Options{Concurrency: 4, Batch: 100})
	if err != nil {
		return nil, err
	}
	ctx, b.stop = context.WithCancel(ctx)
	b.group.Go(func() error { return w.Run(ctx) })
	return b, nil
}

// run starts instances, and waits until handlers have run and all is recorded.
func (b *working) run(ctx context.Context, conn *pgx.Conn, instances, handlers int) error {
	for n := 0; n < instances; n += 100 {
		if _, err := conn.Exec(ctx, "insert into grows.wed_flow (v) select 0 from generate_series(1, $1)", min(100, instances-n)); err != nil {
			return err
		}
	}
	if err := b.counter.Wait(ctx, handlers); err != nil {
		return err
	}
	for left := true; left; { // the last handlers have run, their transactions may be about to commit
		const query = "select exists (select from grows.wed_flow where kind = 'k0' and v < 1)"
		if err := conn.QueryRow(ctx, query).Scan(&left); err != nil {
			return err
		}
	}
	return sync(ctx, conn)
}

func (b *working) end() error {
	b.stop()
	return b.group.Wait()
}
