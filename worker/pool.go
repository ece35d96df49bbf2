package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// pool speaks the worker protocol for one transition of one flow. Its methods
// are statements on a connection; it keeps nothing else.
type pool struct {
	flow, transition string

	page, lock, still string // SQL

	reports bool // the server counts failed attempts
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
		// The candidates are tried one by one, in order, and the limit ends it:
		// no lock is taken but that of the job that is returned. (A condition on
		// job_pool itself would let the planner lock jobs that it throws away.)
		// CASE keeps the jobs that are gone from being locked.
		lock: `select j.wid, j.tgid, j.fired_at, j.payload, j.timeout::text,
				extract(epoch from j.timeout)::float8
			from (select c.wid, c.tgid
				from unnest($1::bigint[], $2::integer[]) as c (wid, tgid)
				where case when exists (select from ` + jobs + ` p
						where p.wid = c.wid and p.tgid = c.tgid and p.trname = $3)
					then wed_sql.try_lock(c.wid, c.tgid) end
				limit 1) c
			join ` + jobs + ` j on j.wid = c.wid and j.tgid = c.tgid`,
		// Between the snapshot of the statement above and its lock, the job may
		// have been completed. This one's snapshot is taken under the lock.
		still: `select j.wid, j.tgid, j.fired_at
			from unnest($1::bigint[], $2::integer[]) as c (wid, tgid),
				lateral (select p.wid, p.tgid, p.fired_at from ` + jobs + ` p
					where p.wid = c.wid and p.tgid = c.tgid offset 0) j`,
	}
}

// update writes attributes, given as JSON: each value is read as the attribute's
// type wants it, on the row as it then is.
func (p *pool) update(columns []string) string {
	set, from := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		set[i] = pgx.Identifier{c}.Sanitize()
		from[i] = "x." + set[i]
	}
	// The commit is on its way already: only an error can stop it when the
	// instance is hidden from this role.
	return `with written as (
			update ` + pgx.Identifier{p.flow, "wed_flow"}.Sanitize() + ` f
				set (` + strings.Join(set, ", ") + `) =
					(select ` + strings.Join(from, ", ") + ` from jsonb_populate_record(f, $1) x)
				where f.wid = $2 returning f.wid)
		select case when count(*) <> 1
			then (count(*) || ' instances written instead of 1')::integer end from written`
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

// learn finds out what the server can do.
func (p *pool) learn(ctx context.Context, conn *pgx.Conn) error {
	err := conn.QueryRow(ctx, `select to_regprocedure('wed_sql.fail(text, bigint, integer, text, text)') is not null`).Scan(&p.reports)
	if err != nil {
		return fmt.Errorf("look for wed_sql.fail: %w", err)
	}
	return nil
}

// fail has a failed attempt counted, outside of the transaction that failed. The
// server decides when the job is to be tried again. It reports whether the server
// has taken note.
func (p *pool) fail(ctx context.Context, conn *pgx.Conn, job *Job, reason error) (noted bool, err error) {
	if !p.reports {
		return false, nil
	}
	// no text of PostgreSQL's has a zero byte
	text := strings.ReplaceAll(strings.ToValidUTF8(reason.Error(), "\uFFFD"), "\x00", "")
	err = conn.QueryRow(ctx, "select wed_sql.fail($1, $2, $3, $4)", p.flow, job.WID, job.TGID, text).Scan(&noted)
	if err != nil {
		return false, fmt.Errorf("report the failure: %w", err)
	}
	return noted, nil
}

// scan reads a page of pending jobs: by priority, and then the longest pending
// first. last is nil when the page is the pool's last one.
func (p *pool) scan(ctx context.Context, conn *pgx.Conn, after cursor) (jobs []scanned, last *cursor, err error) {
	from := pgtype.Timestamptz{Time: after.firedAt, Valid: true}
	if after.firedAt.IsZero() {
		from.InfinityModifier = pgtype.NegativeInfinity
		after.priority = math.MaxInt32
	}
	rows, err := conn.Query(ctx, p.page, p.transition, after.priority, from, after.key.wid, after.key.tgid, pageSize)
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
	if len(jobs) == pageSize {
		last = &c
	}
	return jobs, last, nil
}

// claim begins a transaction and locks the first of the jobs that is pending
// and that nobody else works on. It takes one round trip. Without such a job it
// returns nil and leaves no transaction behind.
func (p *pool) claim(ctx context.Context, conn *pgx.Conn, keys []key) (*Job, error) {
	wids, tgids := make([]int64, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		wids[i], tgids[i] = k.wid, k.tgid
	}
	var (
		job   *Job
		valid bool
		batch pgx.Batch
	)
	// Read committed, whatever the default: see still.
	batch.Queue("begin isolation level read committed read write")
	batch.Queue(p.lock, wids, tgids, p.transition).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			job = &Job{Flow: p.flow, TrName: p.transition, db: conn}
			var (
				payload  []byte
				interval *string
				seconds  *float64
			)
			if err := rows.Scan(&job.WID, &job.TGID, &job.FiredAt, &payload, &interval, &seconds); err != nil {
				return err
			}
			job.Payload = payload
			if interval != nil && seconds != nil {
				job.interval, job.Timeout = *interval, duration(*seconds)
			}
		}
		return rows.Err()
	})
	batch.Queue(p.still, wids, tgids).Query(func(rows pgx.Rows) error {
		var c cursor
		_, err := pgx.ForEachRow(rows, []any{&c.key.wid, &c.key.tgid, &c.firedAt}, func() error {
			// Another time means that it was completed and fired anew: the
			// payload is another one, too.
			valid = valid || job != nil && c.key == job.key() && c.firedAt.Equal(job.FiredAt)
			return nil
		})
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, p.undo(conn, fmt.Errorf("claim a job: %w", err))
	}
	if !valid {
		return nil, p.undo(conn, nil)
	}
	return job, nil
}

// complete writes the new state and commits, in one round trip.
func (p *pool) complete(ctx context.Context, conn *pgx.Conn, job *Job, state State) error {
	values, err := json.Marshal(state)
	if err != nil {
		return p.undo(conn, fmt.Errorf("encode the new state: %w", err))
	}
	columns := make([]string, 0, len(state))
	for c := range state {
		columns = append(columns, c)
	}
	if len(columns) == 0 {
		// An instance that stays as it is has a new state, too. UPDATE wants a
		// column for that: any attribute, set to itself.
		c, err := p.anyAttribute(ctx, conn)
		if err != nil {
			return p.undo(conn, err)
		}
		columns = []string{c}
	}
	slices.Sort(columns) // one text per set of attributes

	var batch pgx.Batch
	batch.Queue(p.update(columns), string(values), job.WID)
	batch.Queue("commit")
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return p.undo(conn, fmt.Errorf("write the new state: %w", err))
	}
	return nil
}

// anyAttribute returns the name of an attribute of the flow.
func (p *pool) anyAttribute(ctx context.Context, conn *pgx.Conn) (string, error) {
	var name string
	err := conn.QueryRow(ctx, `select attname from pg_attribute where attrelid = to_regclass($1)
		and attnum > 0 and not attisdropped and attname not in ('wid', '_stamp') order by attnum limit 1`,
		pgx.Identifier{p.flow, "wed_flow"}.Sanitize()).Scan(&name)
	if err != nil {
		return "", fmt.Errorf("look for an attribute of flow %q: %w", p.flow, err)
	}
	return name, nil
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
