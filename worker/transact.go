package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"
)

// transact claims some of the jobs in a transaction, performs them and commits.
// Up to links more jobs are claimed, each with the end of the transaction before.
// It reports how many it has found, and whether the transactions have done all
// that they were to do. Its error is final.
func (d *duty) transact(ctx, jobs context.Context, conn *pgx.Conn, keys []key, most, links int) (found int, whole bool, err error) {
	next := chained{keys: keys, begin: time.Now()}
	takeCtx, cancel := taking(ctx, jobs)
	next.claim, next.err = d.pool.claim(takeCtx, conn, keys, most)
	cancel()
	for ; ; links-- {
		c := next.claim
		if next.err != nil {
			return found, false, d.notClaimed(ctx, conn, next.keys, next.err)
		}
		if ctx.Err() != nil {
			d.queue.giveBack(next.keys)
			return found, false, d.pool.undo(conn, nil)
		}
		d.queue.giveBack(c.untried)
		d.queue.done(gone, c.gone...)
		if len(c.jobs) == 0 {
			return found, true, nil
		}
		found += len(c.jobs)
		t := &transaction{duty: d, conn: conn, begin: next.begin, jobs: c.jobs, last: links == 0}
		d.metrics.running.Add(int64(len(c.jobs)))
		t.perform(ctx, jobs)
		d.metrics.running.Add(-int64(len(c.jobs)))
		for _, job := range t.alone {
			if conn.IsClosed() || ctx.Err() != nil {
				d.queue.done(soon, job.key())
				continue
			}
			if _, _, err := d.transact(ctx, jobs, conn, []key{job.key()}, 1, 0); err != nil {
				return found, false, err
			}
		}
		if t.next.keys == nil {
			return found, len(t.alone) == 0, nil
		}
		next = t.next
	}
}

// longestChain is how many jobs are claimed with the completion of the one before,
// until the connection may be another's.
const longestChain = 100

// chained is what became of a claim.
type chained struct {
	keys  []key
	begin time.Time // a moment before its transaction began
	claim claim
	err   error
}

// transaction performs the jobs that it has claimed, and ends.
type transaction struct {
	duty  *duty
	conn  *pgx.Conn
	begin time.Time
	jobs  []*Job
	last  bool // no other is to be claimed with its end

	done   []*Job // their handlers returned states
	states []State
	failed []failure
	rest   []*Job // not begun

	alone []*Job // to be claimed again, one by one: one of them keeps the others from committing

	next chained // without keys if nothing was claimed with its end
}

// failure is a job whose handler gave no state.
type failure struct {
	job *Job
	err error
}

// perform calls the handlers, commits, and tells the queue what became of the
// jobs, but for those that are to be performed alone.
func (t *transaction) perform(ctx, jobs context.Context) {
	d := t.duty
	limit := t.timeout()
	jobsCtx, cancel := jobs, context.CancelFunc(func() {})
	if limit > 0 {
		// Counted from before the transaction began, so that it ends here
		// before the server ends it.
		jobsCtx, cancel = context.WithDeadlineCause(jobs, t.begin.Add(limit), fmt.Errorf("%w: %s", errTimeout, limit))
	}
	defer cancel()
	spanCtx, span := d.spans.transaction(jobsCtx, t.jobs, t.begin)
	defer span.End()

	var err error
	if d.together != nil {
		err = t.handleTogether(spanCtx)
	} else {
		err = t.handleEach(spanCtx, ctx, limit)
	}
	for _, job := range t.jobs {
		job.session.close()
	}
	if err == nil && jobsCtx.Err() != nil {
		err = context.Cause(jobsCtx) // too late, whatever the handlers say
	}
	switch {
	case err != nil, len(t.done) == 0:
		err = d.pool.undo(t.conn, err)
	default:
		err = t.complete(spanCtx, ctx)
		if err != nil && jobsCtx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(jobsCtx), err)
		}
	}
	t.end(jobs, span, err)
}

// complete commits, and claims the next job with that, unless others wait for the
// connection, or ctx has ended.
func (t *transaction) complete(jobsCtx, ctx context.Context) error {
	d := t.duty
	var next []key
	if !t.last && ctx.Err() == nil && !d.conns.wanted() {
		next = d.queue.more()
	}
	begin := time.Now()
	committed, c, err := d.pool.complete(jobsCtx, t.conn, t.done, t.states, next)
	if !committed {
		d.queue.giveBack(next)
		return err
	}
	t.next = chained{next, begin, c, err}
	return nil
}

// timeout is that of the whole transaction: the shortest of the jobs'.
func (t *transaction) timeout() time.Duration {
	limit := t.jobs[0].Timeout
	for _, job := range t.jobs[1:] {
		if job.Timeout > 0 && (limit == 0 || job.Timeout < limit) {
			limit = job.Timeout
		}
	}
	return limit
}

// handleEach calls the handler for one job after the other. What is not begun in
// half of the time, or when the worker is to stop, is left for others. An error
// means that the transaction cannot go on.
func (t *transaction) handleEach(jobsCtx, ctx context.Context, limit time.Duration) error {
	d := t.duty
	for i, job := range t.jobs {
		if i > 0 && (ctx.Err() != nil || limit > 0 && time.Since(t.begin) > limit/2) {
			t.rest = t.jobs[i:]
			return nil
		}
		began := time.Now()
		jobCtx, span := d.spans.job(jobsCtx, job, len(t.jobs) > 1)
		state, err := d.call(jobCtx, job, job.session)
		failSpan(span, err)
		span.End()
		d.metrics.took(time.Since(began))
		switch {
		case err == nil:
			t.done, t.states = append(t.done, job), append(t.states, state)
			continue
		case jobsCtx.Err() == nil && !t.conn.IsClosed():
			t.failed = append(t.failed, failure{job, err})
		}
		if len(t.jobs) == 1 || jobsCtx.Err() != nil || t.conn.IsClosed() {
			return err
		}
		// What it has written is in the transaction with what the others have.
		if job.session.used.Load() {
			return errSpoilt
		}
	}
	return nil
}

// errSpoilt ends a transaction with the writes of a handler that failed.
var errSpoilt = errors.New("one of the batch has failed")

// handleTogether calls the handler once for all jobs.
func (t *transaction) handleTogether(ctx context.Context) error {
	began := time.Now()
	states, err := t.duty.callTogether(ctx, t.jobs)
	t.duty.metrics.took(time.Since(began))
	if err != nil {
		return err
	}
	for i, job := range t.jobs {
		if states[i] == nil {
			t.failed = append(t.failed, failure{job, errNothing})
			continue
		}
		if err := job.beforeCommit(ctx, job.session); err != nil {
			return err
		}
		t.done, t.states = append(t.done, job), append(t.states, states[i])
	}
	return nil
}

// end tells the queue, the log and the server what became of the jobs.
func (t *transaction) end(jobs context.Context, span trace.Span, err error) {
	d, took := t.duty, time.Since(t.begin)
	switch {
	case err == nil:
		d.queue.done(completed, keysOf(t.done)...)
		d.metrics.count(outcomeCompleted, len(t.done))
		if len(t.done) == 1 {
			d.logOf(t.done[0]).Debug("done", "took", took)
		} else if len(t.done) > 1 {
			d.log.Debug("done", "jobs", len(t.done), "took", took)
		}
		d.queue.giveBack(keysOf(t.rest))
	case len(t.jobs) == 1:
		t.failed = []failure{{t.jobs[0], err}}
	case t.conn.IsClosed() && !errors.Is(err, errTimeout):
		// It may have been committed. If so, the next claim does not find them.
		d.log.Warn("lost the connection, will look at the jobs again", "jobs", len(t.jobs), "error", err)
		d.queue.done(soon, keysOf(t.jobs)...)
		d.metrics.count(outcomeRedone, len(t.jobs))
		failSpan(span, err)
		return
	default:
		d.log.Debug("the batch is rolled back, will do its jobs one by one", "jobs", len(t.jobs), "error", err)
		t.alone = t.others()
	}
	failSpan(span, err)
	for _, f := range t.failed {
		d.queue.done(d.settle(jobs, t.conn, f.job, f.err, took), f.job.key())
	}
}

// others are the jobs of a batch that was rolled back, without those that have
// failed by themselves.
func (t *transaction) others() []*Job {
	failed := make(map[*Job]bool, len(t.failed))
	for _, f := range t.failed {
		failed[f.job] = true
	}
	var others []*Job
	for _, job := range t.jobs {
		if !failed[job] {
			others = append(others, job)
		}
	}
	return others
}

func keysOf(jobs []*Job) []key {
	keys := make([]key, len(jobs))
	for i, job := range jobs {
		keys[i] = job.key()
	}
	return keys
}

func (d *duty) logOf(job *Job) *slog.Logger { return d.log.With("wid", job.WID, "tgid", job.TGID) }

// settle logs why a job was not done, has the server count the failure if it is
// one, and says when the job is to be redone.
func (d *duty) settle(jobs context.Context, conn *pgx.Conn, job *Job, err error, took time.Duration) outcome {
	log := d.logOf(job)
	result := judge(err)
	switch {
	case conn.IsClosed() && !errors.Is(err, errTimeout):
		// It may have been committed. If so, the next claim does not find it.
		log.Warn("lost the connection, will look at the job again", "error", err)
		result = soon
	case errors.Is(err, ErrLeaseLost):
		log.Warn("lost the lease", "error", err, "took", took)
		result = gone
	case result == gone:
		log.Info("somebody else completed it", "error", err)
	case result == soon:
		log.Debug("lost a race, will redo it", "error", err)
	case errors.Is(err, errAborted):
		log.Warn("rolled back", "error", err, "took", took)
	case errors.Is(err, errNothing):
		log.Info("rolled back: no state returned", "took", took)
	default:
		log.Error("rolled back", "error", err, "took", took)
	}
	d.metrics.count(named(result), 1)
	if result != failed {
		return result
	}
	d.worker.undone.Add(1)
	if conn.IsClosed() || errors.Is(err, errNothing) || errors.Is(err, errAborted) {
		return failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(jobs), undoTimeout)
	defer cancel()
	noted, e := d.pool.fail(ctx, conn, job, err)
	if e != nil {
		log.Warn("the failure is not counted", "error", e)
	}
	if noted {
		return reported
	}
	return failed
}

// call calls the handler for a job, and then what it wants done before the
// commit, in db unless that is nil.
func (d *duty) call(ctx context.Context, job *Job, db Querier) (state State, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}()
	state, err = d.handler(ctx, job)
	switch {
	case err != nil:
		return nil, err
	case state == nil:
		return nil, errNothing
	case db == nil:
		return state, nil
	}
	return state, job.beforeCommit(ctx, db)
}

// callTogether calls the handler for all jobs of a transaction.
func (d *duty) callTogether(ctx context.Context, jobs []*Job) (states []State, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}()
	states, err = d.together(ctx, jobs)
	if err == nil && len(states) != len(jobs) {
		err = fmt.Errorf("the handler returned %d states for %d jobs", len(states), len(jobs))
	}
	return states, err
}

func panicError(p any) error { return fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack()) }
