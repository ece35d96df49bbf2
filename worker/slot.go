package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// slot works on one job at a time, on a connection of its own, until ctx ends.
// Jobs are run under jobs, which outlives ctx.
func (w *Worker) slot(ctx, jobs context.Context, q *queue) error {
	var conn *pgx.Conn
	defer func() { hangUp(conn) }()
	// Where workers of other processes are quicker, more jobs are tried at once.
	tries := 1
	for {
		t, ok := q.next(ctx, tries)
		if !ok {
			return nil
		}
		if conn == nil || conn.IsClosed() {
			c, err := w.connect(ctx)
			if err != nil {
				w.putBack(q, t)
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			conn = c
		}
		var err error
		if t.scan {
			err = w.scan(ctx, conn, q, t.after)
		} else {
			var found bool
			if found, err = w.work(ctx, jobs, conn, q, t.keys); found {
				tries = max(tries/2, 1)
			} else {
				tries = min(tries*4, maxClaim)
			}
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// connect returns a connection for a slot. A worker that works the pool off
// once does not wait for a server that is away.
func (w *Worker) connect(ctx context.Context) (*pgx.Conn, error) {
	if w.cfg.Once {
		return w.dial.once(ctx)
	}
	return w.dial.connect(ctx)
}

func (w *Worker) putBack(q *queue, t task) {
	if t.scan {
		q.scanFailed()
		return
	}
	q.giveBack(t.keys)
}

// scan reads a page of the job pool into the queue. Its error is final.
func (w *Worker) scan(ctx context.Context, conn *pgx.Conn, q *queue, after cursor) error {
	found, last, err := w.pool.scan(ctx, conn, after)
	if err == nil {
		q.scanFound(found, last)
		return nil
	}
	q.scanFailed()
	if ctx.Err() != nil {
		return nil
	}
	if w.cfg.Once {
		return err
	}
	w.log.Error("could not read the job pool", "error", err)
	return w.flowGone(ctx, conn, err)
}

// flowGone returns the reason when err means that there is nothing left to work for.
func (w *Worker) flowGone(ctx context.Context, conn *pgx.Conn, err error) error {
	if s := sqlState(err); s != stateUndefinedTable && s != stateUndefinedSchema {
		return nil
	}
	if e := w.pool.check(ctx, conn); errors.Is(e, ErrNoFlow) || errors.Is(e, ErrNoExtension) {
		return e
	}
	return nil
}

// work claims one of the jobs, and performs it. It reports whether there was one
// to claim. Its error is final.
func (w *Worker) work(ctx, jobs context.Context, conn *pgx.Conn, q *queue, keys []key) (found bool, err error) {
	begin := time.Now()
	job, err := w.pool.claim(ctx, conn, keys)
	switch {
	case err != nil && ctx.Err() != nil:
		q.giveBack(keys)
		return false, nil
	case err != nil && conn.IsClosed():
		q.done(soon, keys...)
		w.log.Warn("lost the connection", "error", err)
		return false, nil
	case err != nil:
		q.done(failed, keys...)
		w.undone.Add(1)
		w.log.Error("could not claim a job", "error", err)
		return false, w.flowGone(ctx, conn, err)
	case job == nil:
		q.done(gone, keys...)
		return false, nil
	}

	// The jobs before it are gone or locked; the ones after it were not tried.
	i := slices.Index(keys, job.key())
	q.done(gone, keys[:i]...)
	q.giveBack(keys[i+1:])
	q.done(w.perform(jobs, conn, job, begin), keys[i])
	return true, nil
}

// perform runs the handler for a claimed job and ends the transaction.
func (w *Worker) perform(jobs context.Context, conn *pgx.Conn, job *Job, begin time.Time) outcome {
	ctx, cancel := jobs, context.CancelFunc(func() {})
	if job.Timeout > 0 {
		// Counted from before the transaction began, so that it ends here
		// before the server ends it.
		ctx, cancel = context.WithDeadlineCause(jobs, begin.Add(job.Timeout),
			fmt.Errorf("%w: %s", errTimeout, job.Timeout))
	}
	defer cancel()
	log := w.log.With("wid", job.WID, "tgid", job.TGID)

	state, err := handle(ctx, w.cfg.Handler, job)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // too late, whatever the handler says
	}
	if err != nil {
		err = w.pool.undo(conn, err)
	} else {
		err = w.pool.complete(ctx, conn, job, state)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
	result := w.report(log, conn, err, time.Since(begin))
	if result == failed && !conn.IsClosed() && !errors.Is(err, errNothing) && !errors.Is(err, errAborted) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(jobs), undoTimeout)
		defer cancel()
		noted, e := w.pool.fail(ctx, conn, job, err)
		if e != nil {
			log.Warn("the failure is not counted", "error", e)
		}
		if noted {
			return reported
		}
	}
	return result
}

// errTimeout is the cause of a handler's context that ended in time.
var errTimeout = errors.New("the job's timeout has passed")

// report logs what became of a job and says whether it is to be redone.
func (w *Worker) report(log *slog.Logger, conn *pgx.Conn, err error, took time.Duration) outcome {
	if err == nil {
		log.Debug("done", "took", took)
		return completed
	}
	result := judge(err)
	switch {
	case conn.IsClosed() && !errors.Is(err, errTimeout):
		// It may have been committed. If so, the next claim does not find it.
		log.Warn("lost the connection, will look at the job again", "error", err)
		result = soon
	case result == gone:
		log.Info("somebody else completed it", "error", err)
	case result == soon:
		log.Debug("lost a race, will redo it", "error", err)
	case errors.Is(err, errNothing):
		log.Info("rolled back: no state returned", "took", took)
	default:
		log.Error("rolled back", "error", err, "took", took)
	}
	if result == failed {
		w.undone.Add(1)
	}
	return result
}

// handle calls the handler.
func handle(ctx context.Context, h Handler, job *Job) (state State, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	state, err = h(ctx, job)
	if err == nil && state == nil {
		err = errNothing
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return state, err
}
