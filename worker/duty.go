package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say how the jobs of a transition are taken. The zero value takes one
// after the other, each in a transaction of its own.
type Options struct {
	// Concurrency is how many transactions, or leased jobs, may run side by
	// side; 0 means 1. The handler is called from several goroutines when it is
	// more than 1.
	Concurrency int

	// Batch is how many jobs one transaction may take and complete; 0 means 1.
	// They are of different instances. A commit costs as much for a hundred jobs
	// as for one: short work is done several times as fast. When one of them
	// fails, the others are redone one by one, so a handler may be called for
	// them again. A transaction does not wait for its batch to be full.
	Batch int

	// Lease has each job taken for so long, and for longer as long as its
	// handler runs, with no transaction open meanwhile: for work that takes
	// minutes or days. The job's timeout does not limit it. Job.DB is not to be
	// had then, see Job.BeforeCommit. At least a second; 0 means no lease.
	//
	// However many leased jobs run, a Worker opens no more than four
	// connections for them.
	Lease time.Duration
}

const (
	briefConns = 4 // for all leased jobs of a worker

	minLease = time.Second
	maxBatch = 10_000
)

// complete returns the options with their defaults.
func (o Options) complete(together bool) (Options, error) {
	switch {
	case o.Concurrency < 0:
		return o, fmt.Errorf("Options.Concurrency is %d", o.Concurrency)
	case o.Batch < 0 || o.Batch > maxBatch:
		return o, fmt.Errorf("Options.Batch is %d, it may be up to %d", o.Batch, maxBatch)
	case o.Lease != 0 && o.Lease < minLease:
		return o, fmt.Errorf("Options.Lease is %s, it is at least %s", o.Lease, minLease)
	case o.Lease != 0 && (o.Batch > 1 || together):
		return o, errors.New("Options.Lease and Options.Batch exclude each other: leased jobs are completed one by one")
	}
	o.Concurrency = max(o.Concurrency, 1)
	o.Batch = max(o.Batch, 1)
	return o, nil
}

// duty is one transition that a worker performs.
type duty struct {
	flow, transition string
	options          Options
	handler          Handler      // either this
	together         BatchHandler // or this

	worker  *Worker
	log     *slog.Logger
	pool    *pool
	queue   *queue
	conns   *conns
	metrics *dutyMetrics
	spans   spans
}

func (d *duty) attach(w *Worker) {
	d.worker = w
	d.log = w.log.With("flow", d.flow, "transition", d.transition)
	d.pool = newPool(d.flow, d.transition)
	d.queue = newQueue(d.options.Concurrency, d.options.Batch, w.cfg)
	d.conns = w.direct
	if d.options.Lease > 0 {
		d.conns = w.brief
	}
	d.metrics = newDutyMetrics(d.flow, d.transition)
	d.spans = newSpans(w.tracer, d.flow, d.transition)
}

// slot does one thing after the other, until ctx ends: it performs jobs, and
// reads the pool. Handlers are run under jobs, which outlives ctx.
func (d *duty) slot(ctx, jobs context.Context) error {
	size := d.options.Batch // of the next transaction
	tries := 1              // where workers of other processes are quicker, more jobs are tried at once
	for {
		t, ok := d.queue.next(ctx, max(tries, size))
		if !ok {
			return nil
		}
		conn, err := d.conns.get(ctx)
		if err != nil {
			d.putBack(t)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var found int
		switch {
		case t.scan:
			err = d.scan(ctx, conn, t.after)
			d.conns.put(conn)
		case d.options.Lease > 0:
			found, err = d.lease(ctx, jobs, conn, t.keys)
		default:
			var whole bool
			links := 0 // a batch shares its round trips as it is
			if size == 1 {
				links = longestChain
			}
			found, whole, err = d.transact(ctx, jobs, conn, t.keys, size, links)
			d.conns.put(conn)
			if whole {
				size = min(2*size, d.options.Batch)
			} else {
				size = max(size/2, 1) // where many fail, less is redone
			}
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		switch {
		case t.scan:
		case found > 0:
			tries = max(tries/2, 1)
		default:
			tries = min(tries*4, maxClaim)
		}
	}
}

// takeGrace is how long the taking of a job may go on when the worker is to stop.
const takeGrace = 5 * time.Second

// taking is a context in which jobs are taken: ctx's end does not cut that off. A
// lease that the worker never learns of lasts, and a session that ends with a job's
// lock is a failed attempt.
func taking(ctx, jobs context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(jobs)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(takeGrace, cancel) })
	return longer, func() { stop(); cancel() }
}

func (d *duty) putBack(t task) {
	if t.scan {
		d.queue.scanFailed()
		return
	}
	d.queue.giveBack(t.keys)
}

// scan reads a page of the job pool into the queue. Its error is final.
func (d *duty) scan(ctx context.Context, conn *pgx.Conn, after cursor) error {
	found, last, err := d.pool.scan(ctx, conn, after, d.queue.page)
	if err == nil {
		d.queue.scanFound(found, last)
		return nil
	}
	d.queue.scanFailed()
	if ctx.Err() != nil {
		return nil
	}
	if d.worker.cfg.Once {
		return err
	}
	if conn.IsClosed() {
		d.log.Warn("lost the connection, will read the job pool again", "error", err)
		return nil
	}
	d.log.Error("could not read the job pool", "error", err)
	return d.flowGone(ctx, conn, err)
}

// flowGone returns the reason when err means that there is nothing left to work for.
func (d *duty) flowGone(ctx context.Context, conn *pgx.Conn, err error) error {
	if s := sqlState(err); s != stateUndefinedTable && s != stateUndefinedSchema {
		return nil
	}
	if e := d.pool.check(ctx, conn); errors.Is(e, ErrNoFlow) || errors.Is(e, ErrNoExtension) {
		return e
	}
	return nil
}

// notClaimed says what becomes of jobs that could not be claimed because of an
// error. Its error is final.
func (d *duty) notClaimed(ctx context.Context, conn *pgx.Conn, keys []key, err error) error {
	switch {
	case ctx.Err() != nil:
		d.queue.giveBack(keys)
		return nil
	case conn.IsClosed():
		d.queue.done(soon, keys...)
		d.log.Warn("lost the connection", "error", err)
		return nil
	case judge(err) == soon:
		d.queue.done(soon, keys...)
		return nil
	}
	d.queue.done(failed, keys...)
	d.worker.undone.Add(1)
	d.log.Error("could not claim a job", "error", err)
	return d.flowGone(ctx, conn, err)
}
