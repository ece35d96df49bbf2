package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// leased is a job that was leased, or none.
type leased struct {
	job   *Job
	begin time.Time // a moment before its lease began
}

// lease takes one of the jobs for a time, gives back the connection, performs
// the job without one, and completes it in a short transaction, with which it
// leases the next one. It reports how many it has found. Its error is final.
func (d *duty) lease(ctx, jobs context.Context, conn *pgx.Conn, keys []key) (found int, err error) {
	next := leased{begin: time.Now()}
	takeCtx, cancel := taking(ctx, jobs)
	next.job, err = d.pool.lease(takeCtx, conn, keys, d.options.Lease)
	cancel()
	if err != nil {
		err = d.notClaimed(ctx, conn, keys, err)
		d.conns.put(conn)
		return 0, err
	}
	d.tried(keys, next.job)
	d.conns.put(conn)
	for next.job != nil {
		if ctx.Err() != nil {
			d.letGo(jobs, next.job)
			return found, ctx.Err()
		}
		found++
		next = d.performLeased(ctx, jobs, next)
	}
	return found, nil
}

// tried tells the queue which of the jobs was leased, if one was.
func (d *duty) tried(keys []key, job *Job) {
	if job == nil {
		d.queue.done(gone, keys...)
		return
	}
	d.queue.tried(keys, job.key())
}

// letGo gives back a job that is not begun, because the worker is to stop.
func (d *duty) letGo(jobs context.Context, job *Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(jobs), takeGrace)
	defer cancel()
	conn, err := d.conns.get(ctx)
	if err == nil {
		err = d.pool.release(ctx, conn, job)
		d.conns.put(conn)
	}
	if err != nil {
		d.logOf(job).Warn("the job is leased until its lease ends", "reason", err)
	}
	d.queue.giveBack([]key{job.key()})
}

// performLeased runs the handler, while the lease is kept, and completes the job.
// It returns the one that was leased with that, unless ctx has ended.
func (d *duty) performLeased(ctx, jobs context.Context, l leased) (next leased) {
	job := l.job
	d.metrics.running.Add(1)
	defer d.metrics.running.Add(-1)
	jobCtx, lose := context.WithCancelCause(jobs)
	defer lose(nil)
	jobCtx, span := d.spans.transaction(jobCtx, []*Job{job}, l.begin)
	defer span.End()
	k := &keeper{duty: d, job: job, lose: lose, until: l.begin.Add(d.options.Lease)}
	keepCtx, stop := context.WithCancel(jobCtx)
	var group errgroup.Group
	group.Go(func() error {
		k.keep(keepCtx)
		return nil
	})

	state, err := d.call(jobCtx, job, nil)
	took := time.Since(l.begin)
	d.metrics.took(took)
	if err == nil && jobCtx.Err() != nil {
		err = context.Cause(jobCtx)
	}
	if err == nil {
		next, err = k.complete(jobCtx, state, func() []key {
			if ctx.Err() != nil {
				return nil
			}
			return d.queue.more()
		})
	}
	stop()
	_ = group.Wait()
	if err == nil {
		d.logOf(job).Debug("done", "took", took)
		d.metrics.count(outcomeCompleted, 1)
		d.queue.done(completed, job.key())
		return next
	}
	failSpan(span, err)
	d.queue.done(d.settleLeased(jobs, job, err, took), job.key())
	return next
}

// settleLeased gives back a job that was not completed, and says when it is to be redone.
func (d *duty) settleLeased(jobs context.Context, job *Job, err error, took time.Duration) outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(jobs), undoTimeout)
	defer cancel()
	conn, e := d.conns.get(ctx)
	if e != nil {
		d.logOf(job).Warn("the job is leased until its lease ends", "error", err, "reason", e)
		d.metrics.count(outcomeFailed, 1)
		return gone
	}
	defer d.conns.put(conn)
	result := d.settle(jobs, conn, job, err, took)
	if result == gone || result == reported {
		return result
	}
	if e := d.pool.release(ctx, conn, job); e != nil {
		d.logOf(job).Warn("the job is leased until its lease ends", "reason", e)
	}
	if result == failed {
		return reported // the notification that it is free again is about what we know
	}
	return result
}

// keeper keeps a lease.
type keeper struct {
	duty *duty
	job  *Job
	lose context.CancelCauseFunc

	mu    sync.Mutex // held while something is done under the lease
	until time.Time  // when the lease ends, or before that
}

// keep extends the lease at every third of it, until ctx ends.
func (k *keeper) keep(ctx context.Context) {
	length := k.duty.options.Lease
	for attempt := 0; ; {
		wait := length / 3
		if attempt > 0 {
			wait = min(backoff(dialFirst, dialLimit, attempt-1), wait)
		}
		if sleep(ctx, wait) != nil {
			return
		}
		err := k.extend(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			attempt = 0
		case lostLease(err) || time.Now().After(k.end()):
			k.lose(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		default:
			attempt++
			k.duty.logOf(k.job).Warn("could not extend the lease, will try again", "error", err, "attempt", attempt)
		}
	}
}

func (k *keeper) end() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until
}

// extend extends the lease. It takes no longer than the lease lasts.
func (k *keeper) extend(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, k.until)
	defer cancel()
	conn, err := k.duty.conns.get(ctx)
	if err != nil {
		return err
	}
	defer k.duty.conns.put(conn)
	begin := time.Now()
	if err := k.duty.pool.extend(ctx, conn, k.job, k.duty.options.Lease); err != nil {
		return err
	}
	k.until = begin.Add(k.duty.options.Lease)
	return nil
}

// complete completes the job, and leases one of those that more hands out with
// it. What took long is not redone because of a race or a lost connection: it tries
// again, for as long as a lease lasts.
func (k *keeper) complete(ctx context.Context, state State, more func() []key) (next leased, err error) {
	patience := time.Now().Add(k.duty.options.Lease)
	for attempt := 0; ; attempt++ {
		next, again, err := k.tryComplete(ctx, state, more)
		if err == nil || !again || time.Now().After(patience) {
			return next, err
		}
		more = func() []key { return nil } // nothing is to hold it up then
		k.duty.logOf(k.job).Debug("could not complete the job yet, will try again", "error", err, "attempt", attempt+1)
		if sleep(ctx, backoff(10*time.Millisecond, time.Second, attempt)) != nil {
			return leased{}, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// tryComplete reports whether it may succeed later, if it does not now. The
// lease is not extended meanwhile: that would wait for this transaction.
func (k *keeper) tryComplete(ctx context.Context, state State, more func() []key) (next leased, again bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Nothing is to be gained by a connection that comes after the lease.
	getCtx, cancel := context.WithDeadlineCause(ctx, k.until, ErrLeaseLost)
	conn, err := k.duty.conns.get(getCtx)
	if err != nil && getCtx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(getCtx), err)
	}
	cancel()
	if err != nil {
		return leased{}, false, err
	}
	defer k.duty.conns.put(conn)
	next, err = k.write(ctx, conn, state, more)
	switch {
	case err == nil:
		return next, false, nil
	case ctx.Err() != nil:
		return leased{}, false, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	// If a lost connection has committed, the next attempt does not find the job.
	return leased{}, conn.IsClosed() || judge(err) == soon, fmt.Errorf("write the new state: %w", err)
}

// write writes the new state; and leases the next job in the same transaction,
// unless the handler has something to write there, too.
func (k *keeper) write(ctx context.Context, conn *pgx.Conn, state State, more func() []key) (next leased, err error) {
	d := k.duty
	var keys []key
	if len(k.job.last) == 0 {
		keys = more()
	}
	if len(keys) == 0 {
		return leased{}, d.pool.completeLeased(ctx, conn, k.job, state)
	}
	next.begin = time.Now()
	var written bool
	next.job, written, err = d.pool.completeAndLease(ctx, conn, k.job, state, keys, d.options.Lease)
	if err == nil {
		d.tried(keys, next.job)
		return next, nil
	}
	d.queue.giveBack(keys)
	if written && !conn.IsClosed() && ctx.Err() == nil {
		// it was the lease that failed, and has taken the state with it
		err = d.pool.completeLeased(ctx, conn, k.job, state)
	}
	return leased{}, err
}

// lostLease tells whether err means that the token is worth nothing any more.
func lostLease(err error) bool {
	s := sqlState(err)
	return s == stateLeased || s == stateNotPending || errors.Is(err, ErrLeaseLost)
}
