package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// pool speaks the worker protocol for one transition of one flow. Its methods
// are statements on a connection; it keeps nothing else.
type pool struct {
	flow, transition string

	page string // SQL, to be planned anew each time: a plan that was made while the pool was empty would read all of it
}

func newPool(flow, transition string) *pool {
	jobs := pgx.Identifier{flow, "job_pool"}.Sanitize()
	const open = "lckid is null and (available_at is null or available_at <= clock_timestamp())"
	return &pool{
		flow:       flow,
		transition: transition,
		// Two ranges of the index, which is in this order, and not one condition that
		// would read it from its beginning. What is leased or not to be tried yet is
		// announced when it may be.
		page: `select wid, tgid, fired_at, priority from (
				(select wid, tgid, fired_at, priority from ` + jobs + `
					where trname = $1 and priority = $2 and (fired_at, wid, tgid) > ($3, $4, $5) and ` + open + `
					order by fired_at, wid, tgid limit $6)
				union all
				(select wid, tgid, fired_at, priority from ` + jobs + `
					where trname = $1 and priority < $2 and ` + open + `
					order by priority desc, fired_at, wid, tgid limit $6)) j
			order by priority desc, fired_at, wid, tgid limit $6`,
	}
}

// check tells whether there is a flow with such a transition.
func (p *pool) check(ctx context.Context, conn *pgx.Conn) error {
	var extension, flow bool
	err := conn.QueryRow(ctx, `select exists (select from pg_extension where extname = 'wed_sql'),
		to_regclass($1) is not null`, pgx.Identifier{p.flow, "job_pool"}.Sanitize()).Scan(&extension, &flow)
	switch {
	case err != nil:
		return fmt.Errorf("look for flow %q: %w", p.flow, err)
	case !extension:
		return ErrNoExtension
	case !flow:
		return fmt.Errorf("flow %q: %w", p.flow, ErrNoFlow)
	}
	// A worker role does not see the rules, but knows its own transitions.
	var granted *bool
	err = conn.QueryRow(ctx, "select $2 = any (wed_sql.visible_transitions(to_regclass($1)))",
		pgx.Identifier{p.flow, "wed_flow"}.Sanitize(), p.transition).Scan(&granted)
	switch {
	case err != nil:
		return fmt.Errorf("look for the transitions of flow %q: %w", p.flow, err)
	case granted != nil && *granted:
		return nil
	case granted != nil:
		return fmt.Errorf("transition %q of flow %q: %w", p.transition, p.flow, ErrNotGranted)
	case p.transition == "_EXCPT":
		return nil
	}
	var known bool
	err = conn.QueryRow(ctx, "select exists (select from "+pgx.Identifier{p.flow, "wed_trig"}.Sanitize()+
		" where trname = $1)", p.transition).Scan(&known)
	switch {
	case err != nil:
		return fmt.Errorf("look for transition %q of flow %q: %w", p.transition, p.flow, err)
	case !known:
		return fmt.Errorf("transition %q of flow %q: %w", p.transition, p.flow, ErrNoTransition)
	}
	return nil
}

// fail has a failed attempt counted, outside of the transaction that failed. The
// server decides when the job is to be tried again. It reports whether the server
// has taken note.
func (p *pool) fail(ctx context.Context, conn *pgx.Conn, job *Job, reason error) (noted bool, err error) {
	// no text of PostgreSQL's has a zero byte
	text := strings.ReplaceAll(strings.ToValidUTF8(reason.Error(), "\uFFFD"), "\x00", "")
	err = conn.QueryRow(ctx, "select wed_sql.fail($1, $2, $3, $4, $5)", p.flow, job.WID, job.TGID, text,
		nullable(job.token)).Scan(&noted)
	if err != nil {
		return false, fmt.Errorf("report the failure: %w", err)
	}
	return noted, nil
}

// scan reads a page of up to so many pending jobs: by priority, and then the longest pending
// first. last is nil when the page is the pool's last one.
func (p *pool) scan(ctx context.Context, conn *pgx.Conn, after cursor, most int) (jobs []scanned, last *cursor, err error) {
	from := pgtype.Timestamptz{Time: after.firedAt, Valid: true}
	if after.firedAt.IsZero() {
		from.InfinityModifier = pgtype.NegativeInfinity
		after.priority = math.MaxInt32
	}
	rows, err := conn.Query(ctx, p.page, pgx.QueryExecModeCacheDescribe, p.transition, after.priority, from, after.key.wid, after.key.tgid, most)
	if err != nil {
		return nil, nil, fmt.Errorf("read the job pool: %w", err)
	}
	var c cursor
	_, err = pgx.ForEachRow(rows, []any{&c.key.wid, &c.key.tgid, &c.firedAt, &c.priority}, func() error {
		jobs = append(jobs, scanned{c.key, c.priority})
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the job pool: %w", err)
	}
	if len(jobs) == most {
		last = &c
	}
	return jobs, last, nil
}

// claim is what became of the jobs that were to be claimed.
type claim struct {
	jobs    []*Job // locked by the transaction, in the order they were asked for
	gone    []key  // not pending any more, or somebody else works on them
	untried []key
}

// These are calls of functions only: a connection may plan them once.
const (
	claimJobs = `select wid, tgid, version, fired_at, payload, attempts, timeout::text, extract(epoch from timeout)::float8
		from wed_sql.claim_jobs($1, $2, $3, $4, $5)`
	completeJobs = "select wed_sql.complete_jobs($1, $2, $3)"
	leaseJobs    = `select wid, tgid, fired_at, payload, attempts, lckid
		from wed_sql.lease_jobs($1, $2, $3, $4, $5::text::interval, 1)`
	completeLeased = "select wed_sql.complete($1, $2, $3, $4, $5::jsonb)"
)

// claim begins a transaction and locks the first of the jobs that are pending
// and that nobody else works on, up to most. It takes one round trip. Without
// such a job it leaves no transaction behind.
func (p *pool) claim(ctx context.Context, conn *pgx.Conn, keys []key, most int) (claim, error) {
	var jobs []*Job
	var batch pgx.Batch
	p.queueClaim(&batch, conn, keys, most, &jobs)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return claim{}, p.undo(conn, fmt.Errorf("claim a job: %w", err))
	}
	return p.sortOut(conn, keys, most, jobs)
}

// queueClaim adds the begin of a transaction to a batch, and a claim in it, whose
// jobs will be in jobs.
func (p *pool) queueClaim(batch *pgx.Batch, conn *pgx.Conn, keys []key, most int, jobs *[]*Job) {
	wids, tgids := split(keys)
	// Read committed, whatever the default: a job is read as it is under its lock.
	batch.Queue("begin isolation level read committed read write")
	batch.Queue(claimJobs, p.flow, p.transition, wids, tgids, most).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			job, err := p.claimed(conn, rows)
			if err != nil {
				return err
			}
			*jobs = append(*jobs, job)
		}
		return rows.Err()
	})
}

func split(keys []key) (wids []int64, tgids []int32) {
	wids, tgids = make([]int64, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		wids[i], tgids[i] = k.wid, k.tgid
	}
	return wids, tgids
}

// sortOut tells which of the keys' jobs were claimed. If none was, it ends the
// transaction.
func (p *pool) sortOut(conn *pgx.Conn, keys []key, most int, jobs []*Job) (claim, error) {
	c := claim{jobs: jobs}
	for i, k := range keys {
		switch {
		case len(jobs) > 0 && jobs[0].key() == k:
			jobs = jobs[1:]
		case len(jobs) == 0 && len(c.jobs) == most:
			c.untried = keys[i:]
			return c, nil
		default:
			c.gone = append(c.gone, k)
		}
	}
	if len(c.jobs) == 0 {
		return c, p.undo(conn, nil)
	}
	return c, nil
}

// claimed reads a job that claim_jobs returns.
func (p *pool) claimed(conn *pgx.Conn, row pgx.Rows) (*Job, error) {
	job := &Job{Flow: p.flow, TrName: p.transition, session: newSession(conn)}
	var (
		interval *string
		seconds  *float64
	)
	err := row.Scan(&job.WID, &job.TGID, &job.version, &job.FiredAt, (*[]byte)(&job.Payload), &job.Attempts, &interval, &seconds)
	if err == nil && interval != nil && seconds != nil {
		job.interval, job.Timeout = *interval, duration(*seconds)
	}
	return job, err
}

// complete writes the new states of claimed jobs and commits; and then, if there is
// one, claims the next job in a transaction of its own: all in one round trip.
// Whatever becomes of that claim, committed says what became of the jobs.
func (p *pool) complete(ctx context.Context, conn *pgx.Conn, jobs []*Job, states []State, next []key) (committed bool, c claim, err error) {
	wids, values := make([]int64, len(jobs)), make([]string, len(jobs))
	for i, state := range states {
		value, err := json.Marshal(state)
		if err != nil {
			return false, c, p.undo(conn, fmt.Errorf("encode the new state of instance %d: %w", jobs[i].WID, err))
		}
		wids[i], values[i] = jobs[i].WID, string(value)
	}
	var batch pgx.Batch
	batch.Queue(completeJobs, p.flow, wids, values)
	batch.Queue("commit").Exec(func(pgconn.CommandTag) error {
		committed = true
		return nil
	})
	var claimed []*Job
	if len(next) > 0 {
		p.queueClaim(&batch, conn, next, len(next), &claimed)
	}
	err = conn.SendBatch(ctx, &batch).Close()
	switch {
	case committed && err != nil:
		return true, c, p.undo(conn, fmt.Errorf("claim a job: %w", err))
	case err != nil:
		return false, c, p.undo(conn, fmt.Errorf("write the new state: %w", err))
	case len(next) > 0:
		c, err = p.sortOut(conn, next, len(next), claimed)
	}
	return true, c, err
}

// lease takes the first of the jobs that is to be had, for a time, outside of any
// transaction. It returns nil without such a job.
func (p *pool) lease(ctx context.Context, conn *pgx.Conn, keys []key, length time.Duration) (*Job, error) {
	job, err := p.leased(conn.QueryRow(ctx, leaseJobs, p.leaseArgs(keys, length)...))
	if err != nil {
		return nil, fmt.Errorf("lease a job: %w", err)
	}
	return job, nil
}

// leaseArgs are the arguments of leaseJobs.
func (p *pool) leaseArgs(keys []key, length time.Duration) []any {
	wids, tgids := split(keys)
	return []any{p.flow, p.transition, wids, tgids, formatInterval(length)}
}

// leased reads the job that leaseJobs returns; nil if there is none.
func (p *pool) leased(row pgx.Row) (*Job, error) {
	job := &Job{Flow: p.flow, TrName: p.transition, session: closedSession(errLeased)}
	err := row.Scan(&job.WID, &job.TGID, &job.FiredAt, (*[]byte)(&job.Payload), &job.Attempts, &job.token)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return job, nil
}

// extend has a lease last for so long from now on.
func (p *pool) extend(ctx context.Context, conn *pgx.Conn, job *Job, length time.Duration) error {
	_, err := conn.Exec(ctx, "select wed_sql.extend($1, $2, $3, $4, $5::text::interval)", p.flow, job.WID, job.TGID, job.token,
		formatInterval(length))
	if err != nil {
		return fmt.Errorf("extend the lease: %w", err)
	}
	return nil
}

// release gives a leased job back.
func (p *pool) release(ctx context.Context, conn *pgx.Conn, job *Job) error {
	_, err := conn.Exec(ctx, "select wed_sql.release($1, $2, $3, $4)", p.flow, job.WID, job.TGID, job.token)
	if err != nil {
		return fmt.Errorf("release the job: %w", err)
	}
	return nil
}

// tokenArgs are the arguments of completeLeased.
func (p *pool) tokenArgs(job *Job, state State) ([]any, error) {
	values, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("encode the new state: %w", err)
	}
	return []any{p.flow, job.WID, job.TGID, job.token, string(values)}, nil
}

// completeAndLease writes the new state of a leased job, and leases the first of
// the next ones that is to be had, in one transaction and one round trip. written
// tells whether it came as far as the lease. next is nil without such a job.
func (p *pool) completeAndLease(ctx context.Context, conn *pgx.Conn, job *Job, state State, keys []key, length time.Duration) (
	next *Job, written bool, err error) {
	args, err := p.tokenArgs(job, state)
	if err != nil {
		return nil, false, err
	}
	var batch pgx.Batch // without a begin, it is a transaction of its own
	batch.Queue(completeLeased, args...).Exec(func(pgconn.CommandTag) error {
		written = true
		return nil
	})
	batch.Queue(leaseJobs, p.leaseArgs(keys, length)...).QueryRow(func(row pgx.Row) error {
		next, err = p.leased(row)
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, written, err
	}
	return next, true, nil
}

// completeLeased writes the new state of a leased job, and what is to be written
// with it, in a transaction of its own.
func (p *pool) completeLeased(ctx context.Context, conn *pgx.Conn, job *Job, state State) error {
	args, err := p.tokenArgs(job, state)
	if err != nil {
		return err
	}
	if len(job.last) == 0 {
		_, err := conn.Exec(ctx, completeLeased, args...)
		return err
	}
	var batch pgx.Batch
	batch.Queue("begin isolation level read committed read write")
	// First: under the lock that it takes, the lease cannot be lost any more.
	batch.Queue(completeLeased, args...)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return p.undo(conn, err)
	}
	s := newSession(conn)
	defer s.close()
	if err := job.beforeCommit(ctx, s); err != nil {
		return p.undo(conn, err)
	}
	tag, err := conn.Exec(ctx, "commit")
	if err != nil {
		return p.undo(conn, err)
	}
	if tag.String() != "COMMIT" {
		return errSwallowed
	}
	return nil
}

// undo rolls back and returns err. A connection that cannot even do that is closed.
func (p *pool) undo(conn *pgx.Conn, err error) error {
	if conn.IsClosed() {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if _, e := conn.Exec(ctx, "rollback"); e != nil {
		conn.Close(ctx)
		if err == nil {
			err = fmt.Errorf("roll back: %w", e)
		}
	}
	return err
}

// undoTimeout bounds a rollback: a server that takes longer is not there.
const undoTimeout = 10 * time.Second

// duration converts seconds, which may be more than a Duration can hold.
func duration(seconds float64) time.Duration {
	if seconds >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(seconds * float64(time.Second))
}
