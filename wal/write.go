package wal

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
)

// work is one transaction of the applier.
type work struct {
	upto  LSN // position to store; 0: leave it
	xids  []uint32
	flows []*lines
	mute  bool // no notifications
	keep  bool // jobs that are there

	measured []Measured
	names    []string // of transitions, in measured
}

// failure is an error of one statement of a work.
type failure struct {
	err  error
	step step
	flow *flow // whose statement it was, or nil
}

func (f *failure) Error() string {
	if f.flow == nil {
		return fmt.Sprintf("%s: %v", f.step, f.err)
	}
	return fmt.Sprintf("%s of flow %s: %v", f.step, f.flow.name, f.err)
}

func (f *failure) Unwrap() error { return f.err }

type step string

const (
	stepPositions step = "ask for the log's position"
	stepAwait     step = "wait for the writers' transactions"
	stepFence     step = "store the applied position"
	stepWaypoint  step = "log the running transactions"
	stepPrepare   step = "prepare the statements"
	stepState     step = "read wed_flow"
	stepTrace     step = "write wed_trace"
	stepWithdraw  step = "withdraw jobs"
	stepTimers    step = "set timers"
	stepJobs      step = "write job_pool"
	stepNotify    step = "notify"
	stepCommit    step = "commit"
)

// waypointStep bounds how much log must be decoded again after a restart, in bytes. The
// server makes such points by itself, but every 15 seconds only, however fast it writes.
const waypointStep = 8 << 20

// SQL of the applier. Names are qualified by search_path = pg_catalog.
const (
	sqlPositions = `select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text`
	sqlAwait     = `select wed_sql.await_transactions($1::text::xid[])`
	sqlBegin     = `select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text,
       wed_sql.await_transactions($1::text::xid[])`
	// An older engine's last batch may still be running. It then finds another epoch,
	// and must not only leave the row alone: it must fail.
	sqlFence = `with moved as (update wed_sql.follower set applied_lsn = coalesce($1::text::pg_lsn, applied_lsn)
 where epoch = $2 returning 1) select 1 / count(*) from moved`
	// Not in the batch: it may be tried again in another way, the flow may be gone.
	sqlUnfollow = `insert into wed_sql.followed as w (flow_id, error, whole) select flow_id, $2, false from wed_sql.flow where flow_id = $1
on conflict (flow_id) do update set since = null, error = excluded.error`

	sqlWaypoint = `select wed_sql.log_running_transactions()`
	sqlNotify   = `select wed_sql.notify_listeners($1::text[], $2::text[])`

	sqlTrace = `insert into %[1]s (wid, version, state, trw, trf, status, tstmp, pending, error, healed)
select s.wid, s.version, s.state::jsonb, s.trw, s.trf::text[], s.status::"char",
       case when s.base is null then s.tstmp
            else greatest(s.tstmp, (select p.tstmp + s.step * interval '1 microsecond'
                                      from %[1]s p where p.wid = s.wid and p.version <= s.base
                                     order by p.version desc limit 1)) end,
       s.pending::int[], s.error, s.healed
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[],
              $8::bigint[], $9::bigint[], $10::text[], $11::text[], $12::boolean[])
    as s(wid, version, state, trw, trf, status, tstmp, base, step, pending, error, healed)`

	sqlJobs = `insert into %s (wid, tgid, trname, timeout, payload, fired_at, version, priority)
select j.wid, j.tgid, j.trname, j.timeout::interval, j.payload::jsonb, j.fired_at, j.version, j.priority
  from unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::bigint[], $8::int[])
    as j(wid, tgid, trname, timeout, payload, fired_at, version, priority)`

	// What is in use is left to the sweeper: nobody keeps the follower waiting. A rule that
	// fires again has a row of its own, by the version.
	sqlWithdraw = `with w as materialized (select * from unnest($2::bigint[], $3::int[], $4::bigint[]) as w(wid, tgid, version)),
     t as materialized (
         select x.wid, x.tgid, x.kind, x.version from w join wed_sql.timer x on x.flow_id = $1 and x.wid = w.wid and x.tgid = w.tgid
          where x.kind in ('d', 'a', 'r', 'l', 'g') and x.version < w.version for update of x skip locked),
     stopped as (delete from wed_sql.timer x using t
                  where x.flow_id = $1 and x.wid = t.wid and x.tgid = t.tgid and x.kind = t.kind and x.version = t.version),
     j as materialized (
         select p.wid, p.tgid, p.version from w join %[1]s p on p.wid = w.wid and p.tgid = w.tgid
          where p.version < w.version for update of p skip locked),
     removed as (delete from %[1]s p using j where p.wid = j.wid and p.tgid = j.tgid and p.version = j.version)
insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
select distinct $1::int, w.wid, w.tgid, 'w'::"char", w.version, now() + interval '1 second'
  from w
 where exists (select from %[1]s p where p.wid = w.wid and p.tgid = w.tgid and p.version < w.version
                  and not exists (select from j where j.wid = p.wid and j.tgid = p.tgid and j.version = p.version))
    or exists (select from wed_sql.timer x where x.flow_id = $1 and x.wid = w.wid and x.tgid = w.tgid
                  and x.kind in ('d', 'a') and x.version < w.version
                  and not exists (select from t where t.wid = x.wid and t.tgid = x.tgid and t.kind = x.kind and t.version = x.version))
    on conflict do nothing`

	// One that is there already keeps its time.
	sqlTimers = `insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
select $1, s.wid, s.tgid, s.kind::"char", s.version,
       s.begun + least(coalesce(s.after::interval, interval '0'), interval '100 years')
  from unnest($2::bigint[], $3::int[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[])
    as s(wid, tgid, kind, version, begun, after)
    on conflict do nothing`

	// A job that is there already can only come from a backup or a hand. Taking that
	// into account each time would make the insert four times as expensive.
	sqlNewJobs = sqlJobs + ` on conflict (wid, tgid, version) do nothing`
)

func (a *applier) await(ctx context.Context, xids []uint32) error {
	if len(xids) == 0 {
		return nil
	}
	if _, err := a.db.Exec(ctx, sqlAwait, xidArray(xids)); err != nil {
		return &failure{err: err, step: stepAwait}
	}
	return nil
}

func xidArray(xids []uint32) string {
	b := []byte{'{'}
	for i, x := range xids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(x), 10)
	}
	return string(append(b, '}'))
}

func (a *applier) prepareFlow(ctx context.Context, f *flow) error {
	if a.stale || len(a.prepared) >= maxPreparedFlows {
		if err := a.db.DeallocateAll(ctx); err != nil {
			return fmt.Errorf("deallocate statements: %w", err)
		}
		clear(a.prepared)
		a.stale = false
	}
	if _, ok := a.prepared[f.id]; ok {
		return nil
	}
	s := statements{trace: fmt.Sprintf("trace_%d", f.id), jobs: fmt.Sprintf("jobs_%d", f.id)}
	if _, err := a.db.Prepare(ctx, s.trace, fmt.Sprintf(sqlTrace, f.trace)); err != nil {
		return &failure{err: err, step: stepPrepare, flow: f}
	}
	if _, err := a.db.Prepare(ctx, s.jobs, fmt.Sprintf(sqlJobs, f.pool)); err != nil {
		return &failure{err: err, step: stepPrepare, flow: f}
	}
	a.prepared[f.id] = s
	return nil
}

const maxPreparedFlows = 500

// send is the round trip. Everything goes out at once, with one Sync at the end:
// the server takes it as one transaction.
func (a *applier) send(ctx context.Context, w *work) (receipt, error) {
	type sent struct {
		step step
		flow *flow
	}
	var (
		b     pgx.Batch
		steps []sent
		at    [2]string
	)
	queue := func(s step, f *flow, sql string, args ...any) *pgx.QueuedQuery {
		steps = append(steps, sent{s, f})
		return b.Queue(sql, args...)
	}
	queue(stepAwait, nil, sqlBegin, xidArray(w.xids))
	var upto *string
	if w.upto != 0 {
		s := w.upto.String()
		upto = &s
	}
	// The healer keeps the stream's transactions waiting for a moment only.
	if !a.heals {
		queue(stepFence, nil, sqlFence, upto, a.epoch)
	}
	if w.upto >= a.waypoint+waypointStep {
		queue(stepWaypoint, nil, sqlWaypoint)
		a.waypoint = w.upto
	}
	for _, l := range w.flows {
		s := a.prepared[l.flow.id]
		if t := &l.trace; len(t.wid) > 0 {
			queue(stepTrace, l.flow, s.trace, t.wid, t.version, t.state, t.trw, t.trf, t.status, t.tstmp,
				t.base, t.step, t.pending, t.err, t.healed)
		}
		if g := &l.gone; len(g.wid) > 0 {
			queue(stepWithdraw, l.flow, fmt.Sprintf(sqlWithdraw, l.flow.pool), l.flow.id, g.wid, g.tgid, g.version)
		}
		if j := &l.jobs; len(j.wid) > 0 {
			sql := s.jobs
			if w.keep {
				sql = fmt.Sprintf(sqlNewJobs, l.flow.pool)
			}
			queue(stepJobs, l.flow, sql, j.wid, j.tgid, j.transition, j.timeout, j.payload, j.firedAt, j.version, j.priority)
		}
		if t := &l.timers; len(t.wid) > 0 {
			queue(stepTimers, l.flow, sqlTimers, l.flow.id, t.wid, t.tgid, t.kind, t.version, t.from, t.after)
		}
	}
	if channel, payload := w.notifications(); len(channel) > 0 && !w.mute {
		queue(stepNotify, nil, sqlNotify, channel, payload)
	}
	if a.heals {
		queue(stepFence, nil, sqlFence, upto, a.epoch)
	}

	faultpoint.Hit(faultpoint.BatchPrepared)
	results := a.db.SendBatch(ctx, &b)
	faultpoint.Hit(faultpoint.BatchSent)
	var found receipt
	for _, s := range steps {
		var err error
		switch s.step {
		case stepAwait:
			if err = results.QueryRow().Scan(&at[0], &at[1], nil); err == nil {
				found.positions, err = parsePositions(at[0], at[1])
			}
		case stepNotify:
			err = results.QueryRow().Scan(&found.woken)
		default:
			_, err = results.Exec()
		}
		if err != nil {
			_ = results.Close() // reports the same error
			return found, &failure{err: err, step: s.step, flow: s.flow}
		}
		switch s.step {
		case stepTrace:
			faultpoint.Hit(faultpoint.TraceWritten)
		case stepJobs:
			faultpoint.Hit(faultpoint.JobsWritten)
		case stepNotify:
			faultpoint.Hit(faultpoint.Notified)
		}
	}
	if err := results.Close(); err != nil {
		return found, &failure{err: err, step: stepCommit}
	}
	faultpoint.Hit(faultpoint.BatchCommitted)
	a.measured(w)
	return found, nil
}

// positions asks for the log's positions alone.
func (a *applier) positions(ctx context.Context) (positions, error) {
	rows, err := a.db.Query(ctx, sqlPositions)
	if err != nil {
		return positions{}, &failure{err: err, step: stepPositions}
	}
	at, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (positions, error) {
		var insert, flush string
		if err := row.Scan(&insert, &flush); err != nil {
			return positions{}, err
		}
		return parsePositions(insert, flush)
	})
	if err != nil {
		return positions{}, &failure{err: err, step: stepPositions}
	}
	return at, nil
}

func parsePositions(insert, flush string) (p positions, err error) {
	if p.insert, err = parseLSN(insert); err != nil {
		return p, err
	}
	p.flush, err = parseLSN(flush)
	return p, err
}
