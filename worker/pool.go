package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

	page, lock, still, rows string // SQL
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
		// no lock is taken but those of the jobs that are returned. (A condition on
		// job_pool itself would let the planner lock jobs that it throws away.)
		// CASE keeps the jobs that are gone from being locked.
		lock: `select j.wid, j.tgid, j.version, j.fired_at, j.payload, j.attempts, j.timeout::text,
				extract(epoch from j.timeout)::float8
			from (select c.wid, c.tgid
				from rows from (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[])) as c (wid, tgid)
				where case when exists (select from ` + jobs + ` p
						where p.wid = c.wid and p.tgid = c.tgid and p.trname = $3)
					then wed_sql.try_lock(c.wid, c.tgid) end
				limit $4) c
			join ` + jobs + ` j on j.wid = c.wid and j.tgid = c.tgid`,
		// Between the snapshot of the statement above and its locks, a job may
		// have been completed. This one's snapshot is taken under the locks.
		still: `select j.wid, j.tgid, j.version
			from rows from (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[])) as c (wid, tgid),
				lateral (select p.wid, p.tgid, p.version from ` + jobs + ` p
					where p.wid = c.wid and p.tgid = c.tgid offset 0) j`,
		// Workers of other transitions write the same instances, and an update takes
		// them in any order. In one order for all, nobody waits in a circle.
		rows: "select from " + pgx.Identifier{flow, "wed_flow"}.Sanitize() +
			" where wid = any ($1) order by wid for no key update",
	}
}

// update writes attributes of instances, given as JSON: each value is read as the
// attribute's type wants it, on the row as it then is.
func (p *pool) update(columns []string) string {
	set, from := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		set[i] = pgx.Identifier{c}.Sanitize()
		from[i] = "x." + set[i]
	}
	// The commit is on its way already: only an error can stop it when an
	// instance is hidden from this role.
	return `with written as (
			update ` + pgx.Identifier{p.flow, "wed_flow"}.Sanitize() + ` f
				set (` + strings.Join(set, ", ") + `) =
					(select ` + strings.Join(from, ", ") + ` from pg_catalog.jsonb_populate_record(f, c.state) x)
				from rows from (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::jsonb[])) as c (wid, state)
				where f.wid = c.wid returning f.wid)
		select case when count(*) <> pg_catalog.cardinality($1)
			then ((count(*)::text operator(pg_catalog.||) ' instances written instead of ') operator(pg_catalog.||) pg_catalog.cardinality($1)::text)::integer end from written`
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

// claim is what became of the jobs that were to be claimed.
type claim struct {
	jobs    []*Job // locked by the transaction, in the order they were asked for
	gone    []key  // not pending any more, or somebody else works on them
	changed []key  // locked here, but fired anew since
	untried []key
}

// claim begins a transaction and locks the first of the jobs that are pending
// and that nobody else works on, up to most. It takes one round trip. Without
// such a job it leaves no transaction behind.
func (p *pool) claim(ctx context.Context, conn *pgx.Conn, keys []key, most int) (claim, error) {
	wids, tgids := make([]int64, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		wids[i], tgids[i] = k.wid, k.tgid
	}
	locked := make(map[key]*Job, most)
	pending := make(map[key]int64, most) // versions
	var batch pgx.Batch
	// Read committed, whatever the default: see still.
	batch.Queue("begin isolation level read committed read write")
	batch.Queue(p.lock, wids, tgids, p.transition, most).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			job := &Job{Flow: p.flow, TrName: p.transition, session: newSession(conn)}
			var (
				interval *string
				seconds  *float64
			)
			if err := rows.Scan(&job.WID, &job.TGID, &job.version, &job.FiredAt, (*[]byte)(&job.Payload), &job.Attempts,
				&interval, &seconds); err != nil {
				return err
			}
			if interval != nil && seconds != nil {
				job.interval, job.Timeout = *interval, duration(*seconds)
			}
			// an older one has been withdrawn
			if other := locked[job.key()]; other == nil || other.version < job.version {
				locked[job.key()] = job
			}
		}
		return rows.Err()
	})
	batch.Queue(p.still, wids, tgids).Query(func(rows pgx.Rows) error {
		var (
			k       key
			version int64
		)
		_, err := pgx.ForEachRow(rows, []any{&k.wid, &k.tgid, &version}, func() error {
			pending[k] = max(pending[k], version)
			return nil
		})
		return err
	})
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return claim{}, p.undo(conn, fmt.Errorf("claim a job: %w", err))
	}

	var c claim
	for i, k := range keys {
		if len(locked) == most && len(c.jobs)+len(c.changed) == most {
			c.untried = keys[i:]
			break
		}
		job := locked[k]
		version, pends := pending[k]
		switch {
		case job == nil:
			c.gone = append(c.gone, k)
		case pends && version == job.version:
			c.jobs = append(c.jobs, job)
		default:
			// Another state has fired it since, or none: the payload is another one.
			c.changed = append(c.changed, k)
		}
	}
	if len(c.jobs) == 0 {
		return c, p.undo(conn, nil)
	}
	return c, nil
}

// complete writes the new states of claimed jobs and commits, in one round trip.
func (p *pool) complete(ctx context.Context, conn *pgx.Conn, jobs []*Job, states []State) error {
	writes, err := p.group(ctx, conn, jobs, states)
	if err != nil {
		return p.undo(conn, err)
	}
	var batch pgx.Batch
	if len(jobs) > 1 {
		wids := make([]int64, len(jobs))
		for i, j := range jobs {
			wids[i] = j.WID
		}
		batch.Queue(p.rows, wids)
	}
	for _, w := range writes {
		batch.Queue(p.update(w.columns), w.wids, w.states)
	}
	batch.Queue("commit")
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return p.undo(conn, fmt.Errorf("write the new state: %w", err))
	}
	return nil
}

// write is an update of some instances, of the same columns.
type write struct {
	columns []string
	wids    []int64
	states  []string // JSON
}

// group makes as few updates of the new states as possible.
func (p *pool) group(ctx context.Context, conn *pgx.Conn, jobs []*Job, states []State) ([]*write, error) {
	var writes []*write
	of := make(map[string]*write)
	for i, state := range states {
		values, err := json.Marshal(state)
		if err != nil {
			return nil, fmt.Errorf("encode the new state of instance %d: %w", jobs[i].WID, err)
		}
		columns := slices.Sorted(maps.Keys(state))
		set := strings.Join(columns, "\x00")
		w := of[set]
		if w == nil {
			w = &write{columns: columns}
			if len(columns) == 0 {
				// An instance that stays as it is has a new state, too. UPDATE wants a
				// column for that: any attribute, set to itself.
				c, err := p.anyAttribute(ctx, conn)
				if err != nil {
					return nil, err
				}
				w.columns = []string{c}
			}
			of[set] = w
			writes = append(writes, w)
		}
		w.wids = append(w.wids, jobs[i].WID)
		w.states = append(w.states, string(values))
	}
	return writes, nil
}

// lease takes the first of the jobs that is to be had, for a time, outside of any
// transaction. It returns nil without such a job.
func (p *pool) lease(ctx context.Context, conn *pgx.Conn, keys []key, length time.Duration) (*Job, error) {
	wids, tgids := make([]int64, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		wids[i], tgids[i] = k.wid, k.tgid
	}
	job := &Job{Flow: p.flow, TrName: p.transition, session: closedSession(errLeased)}
	// The limit ends it: none is leased but the one that is returned.
	err := conn.QueryRow(ctx, `select l.wid, l.tgid, l.fired_at, l.payload, l.attempts, l.lckid
		from (select c.wid, c.tgid from rows from (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::integer[])) as c (wid, tgid)
			where exists (select from `+pgx.Identifier{p.flow, "job_pool"}.Sanitize()+` p
				where p.wid = c.wid and p.tgid = c.tgid and p.trname = $3)
			offset 0) c,
			lateral wed_sql.lease_job($4, c.wid, c.tgid, $5::text::interval) l
		limit 1`, wids, tgids, p.transition, p.flow, formatInterval(length)).
		Scan(&job.WID, &job.TGID, &job.FiredAt, (*[]byte)(&job.Payload), &job.Attempts, &job.token)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("lease a job: %w", err)
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

// completeLeased writes the new state of a leased job, and what is to be written
// with it, in a transaction of its own.
func (p *pool) completeLeased(ctx context.Context, conn *pgx.Conn, job *Job, state State) error {
	values, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the new state: %w", err)
	}
	const complete = "select wed_sql.complete($1, $2, $3, $4, $5::jsonb)"
	args := []any{p.flow, job.WID, job.TGID, job.token, string(values)}
	if len(job.last) == 0 {
		_, err := conn.Exec(ctx, complete, args...)
		return err
	}
	var batch pgx.Batch
	batch.Queue("begin isolation level read committed read write")
	// First: under the lock that it takes, the lease cannot be lost any more.
	batch.Queue(complete, args...)
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
