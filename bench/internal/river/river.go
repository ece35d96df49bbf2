// Package river is River as a system to compare.
package river

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// System is River, as it comes or as its own benchmark configures it.
type System struct {
	name           string
	cooldown, poll time.Duration // between fetches; 0 is River's default
}

// Systems are River's defaults, and the shortest intervals that it takes.
func Systems() []*System {
	return []*System{
		{name: "River, default"},
		{name: "River, tuned", cooldown: time.Millisecond, poll: time.Millisecond},
	}
}

func (s *System) Name() string { return s.name }

// Unhurried: River's default is a tenth of a second between fetches.
func (s *System) Unhurried() bool { return s.cooldown == 0 }

func (s *System) Open(ctx context.Context, db *server.Database, kind contest.Kind, concurrency int) (contest.Session, error) {
	// one connection for each worker, and those that River needs itself: it fetches, completes, listens and elects
	config, err := pgxpool.ParseConfig(db.DSN())
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(concurrency + 8)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	if err := db.Exec(ctx, instances); err != nil {
		return nil, err
	}
	o := &session{pool: pool, kind: kind, counter: contest.NewCounter()}
	workers := river.NewWorkers()
	river.AddWorker(workers, &noOp{counter: o.counter})
	river.AddWorker(workers, &step{session: o})
	river.AddWorker(workers, &final{session: o})
	o.client, err = river.NewClient(driver, &river.Config{
		FetchCooldown: s.cooldown, FetchPollInterval: s.poll, Logger: quiet, Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
	})
	return o, err
}

type session struct {
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	kind    contest.Kind
	counter *contest.Counter
	started bool
}

type noOpArgs struct {
	N int64 `json:"n"`
}

func (noOpArgs) Kind() string { return "noop" }

type noOp struct {
	river.WorkerDefaults[noOpArgs]
	counter *contest.Counter
}

func (w *noOp) Work(_ context.Context, job *river.Job[noOpArgs]) error {
	w.counter.Started(job.Args.N)
	w.counter.Done()
	return nil
}

const perInsert = 5000

func (o *session) Fill(ctx context.Context, jobs int) error {
	for n := 0; n < jobs; n += perInsert {
		params := make([]river.InsertManyParams, min(perInsert, jobs-n))
		for i := range params {
			params[i].Args = noOpArgs{N: int64(n + i)}
		}
		if _, err := o.client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

func (o *session) Start(ctx context.Context) error {
	o.started = true
	return o.client.Start(ctx)
}

func (o *session) Handled(ctx context.Context, n int) error { return o.counter.Wait(ctx, n) }

// Left: what is completed is kept.
func (o *session) Left() string {
	return "select exists (select from river_job where finalized_at is null)"
}

func (o *session) History(context.Context) (bool, error) { return false, nil }

func (o *session) Pickups(ctx context.Context, jobs int, every time.Duration) ([]time.Duration, error) {
	return o.counter.Pace(ctx, jobs, every, func(i int) (int64, error) {
		_, err := o.client.Insert(ctx, noOpArgs{N: int64(i)}, nil)
		return int64(i), err
	})
}

func (o *session) Close(ctx context.Context) error {
	defer o.pool.Close()
	if !o.started {
		return nil
	}
	return o.client.StopAndCancel(ctx)
}
