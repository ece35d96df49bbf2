// Package wedsql is wed_sql as a system to compare: its extension, its engine, and
// its package worker.
package wedsql

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/server"
	"github.com/wed-sql/wed_sql/worker"
)

// System takes jobs as Options say, but for their concurrency.
type System struct {
	name    string
	options worker.Options
}

// Systems are the ways in which a worker takes jobs.
func Systems() []*System {
	return []*System{
		{name: "wed_sql, one by one"},
		{name: "wed_sql, batched", options: worker.Options{Batch: 200}},
		{name: "wed_sql, leased", options: worker.Options{Lease: time.Minute}},
	}
}

func (s *System) Name() string { return s.name }

const noOps = `select wed_sql.create_flow('noops');
		insert into noops.wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into noops.wed_trig (trname, cpred) values ('work', 'v < 1');
		insert into noops.wed_trig (cpred, cfinal) values ('v >= 1', true)`

func (s *System) Open(ctx context.Context, db *server.Database, kind contest.Kind, concurrency int) (contest.Session, error) {
	definition := noOps
	if kind == contest.Flow {
		definition = contest.Figure2
	}
	if err := db.Exec(ctx, "create extension wed_sql"); err != nil {
		return nil, err
	}
	if err := db.Exec(ctx, definition); err != nil {
		return nil, err
	}
	if err := db.Exec(ctx, "select wed_sql.sync('1 minute')"); err != nil {
		return nil, err
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, err
	}
	o := &session{db: db, conn: conn, kind: kind, options: s.options, connections: concurrency, counter: contest.NewCounter()}
	o.options.Concurrency = concurrency
	return o, nil
}

type session struct {
	db          *server.Database
	conn        *pgx.Conn
	kind        contest.Kind
	options     worker.Options
	connections int
	counter     *contest.Counter

	workers errgroup.Group
	stop    context.CancelFunc
}

func (o *session) Fill(ctx context.Context, jobs int) error {
	if _, err := o.conn.Exec(ctx, "insert into noops.wed_flow (v) select 0 from generate_series(1, $1)", jobs); err != nil {
		return err
	}
	return o.sync(ctx)
}

func (o *session) sync(ctx context.Context) error {
	_, err := o.conn.Exec(ctx, "select wed_sql.sync('10 minutes')")
	return err
}

func (o *session) Start(ctx context.Context) error {
	w, err := worker.New(worker.Config{
		DSN: o.db.DSN(), Connections: o.connections, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	if o.kind == contest.NoOps {
		err = w.Handle("noops", "work", o.ending(worker.State{"v": 1}), o.options)
	} else {
		for transition, h := range map[string]worker.Handler{
			"tr_a2": step(worker.State{"a2": "x"}), "tr_a3": step(worker.State{"a3": "x"}), "tr_final": o.ending(worker.State{"a1": "x"}),
		} {
			if err == nil {
				err = w.Handle("paper", transition, h, o.options)
			}
		}
	}
	if err != nil {
		return err
	}
	ctx, o.stop = context.WithCancel(ctx)
	o.workers.Go(func() error { return w.Run(ctx) })
	return nil
}

func step(state worker.State) worker.Handler {
	return func(context.Context, *worker.Job) (worker.State, error) { return state, nil }
}

// ending is a step whose handler counts.
func (o *session) ending(state worker.State) worker.Handler {
	return func(_ context.Context, job *worker.Job) (worker.State, error) {
		o.counter.Started(job.WID)
		o.counter.Done()
		return state, nil
	}
}

func (o *session) Begin(ctx context.Context, instances, perTransaction int) error {
	const insert = "insert into paper.wed_flow (a1) select 'ready' from generate_series(1, $1)"
	for n := 0; n < instances; n += perTransaction {
		if _, err := o.conn.Exec(ctx, insert, min(perTransaction, instances-n)); err != nil {
			return err
		}
	}
	return nil
}

func (o *session) Handled(ctx context.Context, n int) error { return o.counter.Wait(ctx, n) }

func (o *session) Left() string {
	if o.kind == contest.NoOps {
		return "select exists (select from noops.wed_flow where v < 1)"
	}
	return "select exists (select from paper.wed_flow where a1 = 'ready')"
}

func (o *session) History(ctx context.Context) (bool, error) { return true, o.sync(ctx) }

func (o *session) Pickups(ctx context.Context, jobs int, every time.Duration) ([]time.Duration, error) {
	return o.counter.Pace(ctx, jobs, every, func(int) (wid int64, err error) {
		err = o.conn.QueryRow(ctx, "insert into noops.wed_flow (v) values (0) returning wid").Scan(&wid)
		return wid, err
	})
}

func (o *session) Starts(ctx context.Context, instances int, every time.Duration) (map[int64]time.Time, error) {
	return contest.Begin(ctx, instances, every, func() (wid int64, err error) {
		err = o.conn.QueryRow(ctx, "insert into paper.wed_flow (a1) values ('ready') returning wid").Scan(&wid)
		return wid, err
	})
}

func (o *session) Instances() string { return "paper.wed_flow" }

func (o *session) Close(ctx context.Context) error {
	defer o.conn.Close(ctx)
	if o.stop == nil {
		return nil
	}
	o.stop()
	if err := o.workers.Wait(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}
