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

// lease takes one of the jobs for a time, gives back the connection, performs
// the job without one, and completes it in a short transaction. Its error is
// final.
func (d *duty) lease(ctx, jobs context.Context, conn *pgx.Conn, keys []key) (found int, err error) {
	begin := time.Now()
	takeCtx, cancel := taking(ctx, jobs)
	job, err := d.pool.lease(takeCtx, conn, keys, d.options.Lease)
	if job != nil && ctx.Err() != nil {
		if e := d.pool.release(takeCtx, conn, job); e != nil {
			d.logOf(job).Warn("the job is leased until its lease ends", "reason", e)
		}
		job, err = nil, ctx.Err()
	}
	cancel()
	switch {
	case err != nil:
		err = d.notClaimed(ctx, conn, keys, err)
	case job == nil:
		d.queue.done(gone, keys...)
	default:
		d.queue.tried(keys, job.key())
	}
	d.conns.put(conn)
	if job == nil {
		return 0, err
	}
	d.metrics.running.Add(1)
	defer d.metrics.running.Add(-1)
	d.queue.done(d.performLeased(jobs, job, begin), job.key())
	return 1, nil
}

// performLeased runs the handler, while the lease is kept, and completes the job.
func (d *duty) performLeased(jobs context.Context, job *Job, begin time.Time) outcome {
	ctx, lose := context.WithCancelCause(jobs)
	defer lose(nil)
	ctx, span := d.spans.transaction(ctx, []*Job{job}, begin)
	defer span.End()
	k := &keeper{duty: d, job: job, lose: lose, until: begin.Add(d.options.Lease)}
	keepCtx, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		k.keep(keepCtx)
		return nil
	})

	state, err := d.call(ctx, job, nil)
	took := time.Since(begin)
	d.metrics.took(took)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = k.complete(ctx, state)
	}
	stop()
	_ = group.Wait()
	if err == nil {
		d.logOf(job).Debug("done", "took", took)
		d.metrics.count(outcomeCompleted, 1)
		return completed
	}
	failSpan(span, err)
	return d.settleLeased(jobs, job, err, took)
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

// complete completes the job. What took long is not redone because of a race or
// a lost connection: it tries again, for as long as a lease lasts.
func (k *keeper) complete(ctx context.Context, state State) error {
	patience := time.Now().Add(k.duty.options.Lease)
	for attempt := 0; ; attempt++ {
		again, err := k.tryComplete(ctx, state)
		if err == nil || !again || time.Now().After(patience) {
			return err
		}
		k.duty.logOf(k.job).Debug("could not complete the job yet, will try again", "error", err, "attempt", attempt+1)
		if sleep(ctx, backoff(10*time.Millisecond, time.Second, attempt)) != nil {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// tryComplete reports whether it may succeed later, if it does not now. The
// lease is not extended meanwhile: that would wait for this transaction.
func (k *keeper) tryComplete(ctx context.Context, state State) (again bool, err error) {
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
		return false, err
	}
	defer k.duty.conns.put(conn)
	err = k.duty.pool.completeLeased(ctx, conn, k.job, state)
	switch {
	case err == nil:
		return false, nil
	case ctx.Err() != nil:
		return false, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	// If a lost connection has committed, the next attempt does not find the job.
	return conn.IsClosed() || judge(err) == soon, fmt.Errorf("write the new state: %w", err)
}

// lostLease tells whether err means that the token is worth nothing any more.
func lostLease(err error) bool {
	s := sqlState(err)
	return s == stateLeased || s == stateNotPending || errors.Is(err, ErrLeaseLost)
}
