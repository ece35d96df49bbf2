// Package contest has the workloads in which systems are compared. What counts
// as done is the same for all of them: it is in the database, and another session
// sees it there.
package contest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// System performs jobs that are in a database.
type System interface {
	Name() string
	// Open sets the system up in an empty database, with so many workers side by
	// side as soon as they are started.
	Open(ctx context.Context, db *server.Database, kind Kind, concurrency int) (Session, error)
}

// Unhurried is a system that waits between its fetches, whatever there is to do. It
// gets a tenth of the jobs, for what is to be seen is seen then.
type Unhurried interface{ Unhurried() bool }

// Fair is how many of the jobs or instances a system gets.
func Fair(system System, n int) int {
	if u, ok := system.(Unhurried); ok && u.Unhurried() {
		return max(n/10, 1)
	}
	return n
}

// Kind of work that a session is opened for.
type Kind string

const (
	NoOps Kind = "noops" // jobs that do nothing
	Flow  Kind = "flow"  // the paper's figure 2: two transitions side by side, and one that joins them
)

// Figure2 is the paper's, as a flow of wed_sql.
const Figure2 = `select wed_sql.create_flow('paper');
		insert into paper.wed_attr (aname, adv) values ('a1', 'ready'), ('a2', null), ('a3', null);
		insert into paper.wed_trig (trname, cpred) values
			('tr_a2', $$a1='ready' and (a2 is null)$$),
			('tr_a3', $$a1='ready' and (a3 is null)$$),
			('tr_final', $$a1='ready' and (a2 is not null) and (a3 is not null)$$);
		insert into paper.wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true)`

// Session is a system in a database of its own.
type Session interface {
	// Fill enqueues jobs that do nothing.
	Fill(ctx context.Context, jobs int) error
	// Start starts the workers.
	Start(ctx context.Context) error
	// Begin starts instances of the flow, perTransaction with each commit.
	Begin(ctx context.Context, instances, perTransaction int) error
	// Handled waits until so many handlers have run: of jobs that do nothing, or
	// of those that end an instance.
	Handled(ctx context.Context, n int) error
	// Left is a query that says whether there is still something to do.
	Left() string
	// History waits until all is recorded; false where nothing is recorded later
	// than it is done.
	History(ctx context.Context) (recorded bool, err error)

	// Pickups enqueues jobs one after the other, each in a transaction of its own,
	// and returns how long after its commit each handler started.
	Pickups(ctx context.Context, jobs int, every time.Duration) ([]time.Duration, error)
	// Starts starts instances, one after the other, and returns when each was begun.
	Starts(ctx context.Context, instances int, every time.Duration) (map[int64]time.Time, error)
	// Instances is the table of the flow's instances; they have ended when a1 is not 'ready'.
	Instances() string

	Close(ctx context.Context) error
}

// Throughput is that of so many jobs or instances.
type Throughput struct {
	N        int
	Done     time.Duration // until all was done
	Recorded time.Duration // until the history was complete, too; 0 where there is none
	Writes   int64         // transactions that wrote meanwhile, in the whole server
}

// Burst has jobs that are there already worked off.
func Burst(ctx context.Context, s *server.Server, system System, jobs, concurrency int) (Throughput, error) {
	return within(ctx, s, system, NoOps, concurrency, func(db *server.Database, session Session) (Throughput, error) {
		if err := session.Fill(ctx, jobs); err != nil {
			return Throughput{}, fmt.Errorf("enqueueing: %w", err)
		}
		return clock(ctx, db, session, jobs, func() error { return session.Start(ctx) })
	})
}

// instancesPerTransaction is how many instances a transaction starts, when as many as possible are to be.
const instancesPerTransaction = 100

// Flows has so many instances begun and ended, as fast as possible.
func Flows(ctx context.Context, s *server.Server, system System, instances, concurrency int) (Throughput, error) {
	return within(ctx, s, system, Flow, concurrency, func(db *server.Database, session Session) (Throughput, error) {
		if err := warm(ctx, session); err != nil {
			return Throughput{}, err
		}
		t, err := clock(ctx, db, session, instances+warmUp, func() error {
			return session.Begin(ctx, instances, instancesPerTransaction)
		})
		t.N = instances
		return t, err
	})
}

// warmUp is how many jobs or instances come first, where the workers run already.
const warmUp = 20

func warm(ctx context.Context, session Session) error {
	if err := session.Start(ctx); err != nil {
		return fmt.Errorf("starting the workers: %w", err)
	}
	if err := session.Begin(ctx, warmUp, 1); err != nil {
		return fmt.Errorf("starting instances: %w", err)
	}
	return session.Handled(ctx, warmUp)
}

// Pickups says how long after the commit of each job its handler started.
func Pickups(ctx context.Context, s *server.Server, system System, jobs, concurrency int, every time.Duration) ([]time.Duration, error) {
	return within(ctx, s, system, NoOps, concurrency, func(_ *server.Database, session Session) ([]time.Duration, error) {
		if err := session.Start(ctx); err != nil {
			return nil, fmt.Errorf("starting the workers: %w", err)
		}
		took, err := session.Pickups(ctx, jobs+warmUp, every)
		if err != nil {
			return nil, err
		}
		return took[warmUp:], nil
	})
}

// FlowTimes says how long each instance took, from when the statement that started
// it was sent to the commit of its last state.
func FlowTimes(ctx context.Context, s *server.Server, system System, instances, concurrency int, every time.Duration) ([]time.Duration, error) {
	return within(ctx, s, system, Flow, concurrency, func(db *server.Database, session Session) ([]time.Duration, error) {
		if err := warm(ctx, session); err != nil {
			return nil, err
		}
		begun, err := session.Starts(ctx, instances, every)
		if err != nil {
			return nil, err
		}
		if err := session.Handled(ctx, warmUp+instances); err != nil {
			return nil, err
		}
		conn, err := db.Connect(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if err := untilNothingIsLeft(ctx, conn, session.Left()); err != nil {
			return nil, err
		}
		var took []time.Duration
		var wid int64
		var ended time.Time
		rows, err := conn.Query(ctx, "select wid, pg_xact_commit_timestamp(xmin) from "+session.Instances())
		if err != nil {
			return nil, err
		}
		_, err = pgx.ForEachRow(rows, []any{&wid, &ended}, func() error {
			if at, ok := begun[wid]; ok {
				took = append(took, ended.Sub(at))
			}
			return nil
		})
		if err == nil && len(took) != instances {
			err = fmt.Errorf("of %d instances %d have ended", instances, len(took))
		}
		return took, err
	})
}

// within has f run with a session of the system in a new database.
func within[R any](ctx context.Context, s *server.Server, system System, kind Kind, concurrency int,
	f func(*server.Database, Session) (R, error)) (result R, err error) {
	err = s.With(ctx, string(kind), func(db *server.Database) error {
		result, err = inSession(ctx, db, system, kind, concurrency, f)
		return err
	})
	return result, err
}

func inSession[R any](ctx context.Context, db *server.Database, system System, kind Kind, concurrency int,
	f func(*server.Database, Session) (R, error)) (result R, err error) {
	session, err := system.Open(ctx, db, kind, concurrency)
	if err != nil {
		return result, fmt.Errorf("setting up %s: %w", system.Name(), err)
	}
	defer func() {
		if e := session.Close(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	result, err = f(db, session)
	if err != nil {
		return result, fmt.Errorf("%s: %w", system.Name(), err)
	}
	return result, nil
}

// clock says how long it takes from begin until handlers have run and nothing is left to do.
func clock(ctx context.Context, db *server.Database, session Session, handlers int, begin func() error) (Throughput, error) {
	if err := db.Settle(ctx); err != nil {
		return Throughput{}, err
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return Throughput{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	before, err := db.Writes(ctx)
	if err != nil {
		return Throughput{}, err
	}

	t := Throughput{N: handlers}
	began := time.Now()
	if err := begin(); err != nil {
		return t, err
	}
	if err := session.Handled(ctx, handlers); err != nil {
		return t, err
	}
	if err := untilNothingIsLeft(ctx, conn, session.Left()); err != nil {
		return t, err
	}
	t.Done = time.Since(began)
	recorded, err := session.History(ctx)
	if err != nil {
		return t, err
	}
	if recorded {
		t.Recorded = time.Since(began)
	}
	after, err := db.Writes(ctx)
	t.Writes = after - before
	return t, err
}

// untilNothingIsLeft asks every two milliseconds. Handlers have all run by then: it is not for long.
func untilNothingIsLeft(ctx context.Context, conn *pgx.Conn, left string) error {
	for {
		var is bool
		if err := conn.QueryRow(ctx, left).Scan(&is); err != nil {
			return fmt.Errorf("%s: %w", left, err)
		}
		if !is {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}
