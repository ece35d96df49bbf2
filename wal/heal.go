package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/fold"
	"github.com/wed-sql/wed_sql/internal/faultpoint"
)

const (
	// healPage is how many instances are looked at in a statement, and healChunk how many
	// are healed in a transaction, which bounds the memory.
	healPage  = 10000
	healChunk = 500
	// A flow that can be healed is found at the latest after lookInterval, and none is
	// tried again within restInterval.
	lookInterval = time.Minute
	restInterval = time.Second
	// Few enough instances to have the stream wait for them.
	fewMissed = 50
)

// What keeps a flow's owner from keeping others waiting: how long a lock and a statement
// that reads his table may take. The stream waits for the last step.
const (
	healLimits     = "begin; set local lock_timeout = '1s'; set local statement_timeout = '30s'"
	handoverLimits = "begin; set local lock_timeout = '100ms'; set local statement_timeout = '1s'"
)

// healer makes up from the tables for states that no stream will bring: those of flows
// that are not followed. It has a session of its own, so that the stream goes on: a
// flow's states are discarded there until it is healed, but the healer learns of which
// instances. At the end it handles these while the stream waits, and from then on the
// flow is followed. A state that both have seen is known by its version (flow.since).
type healer struct {
	conn    *pgx.ConnConfig
	log     *slog.Logger
	epoch   int64
	stream  *applier
	recheck <-chan struct{}
	warn    func(string)
	admit   func(context.Context, *pgx.Conn) error
	sender  uint32          // pid of the walsender
	warned  map[string]bool // texts
	private []int32         // flows with row security, as the stream knows them
}

// run heals whatever there is, calls healed after the first look, and goes on looking
// until something fails that concerns all flows.
func (h *healer) run(ctx context.Context, healed func()) error {
	timer := time.NewTimer(lookInterval)
	defer timer.Stop()
	failing := newLimiter(10 * lookInterval)
	for first := true; ; first = false {
		err := h.round(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (first || errors.Is(err, errFenced) || errors.Is(err, errSynchronous)):
			return err
		case err != nil && failing.allow(time.Now()):
			// No connection, as a rule. Streaming does not need it.
			h.log.Warn("cannot look for flows to heal, will try again", "err", err)
		}
		if first {
			healed()
		}
		timer.Reset(restInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Reset(lookInterval)
		select {
		case <-timer.C:
		case <-h.recheck:
		case <-h.stream.again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// round tries to heal each flow that is not followed.
func (h *healer) round(ctx context.Context) (err error) {
	conn, err := Connect(ctx, h.conn, h.admit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeConn(conn.PgConn())) }()
	if err := checkSynchronous(ctx, conn, h.sender); err != nil {
		return err
	}
	if err := h.lookForPrivate(ctx, conn); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, "select flow_id, name, coalesce(obstacle, '') from wed_sql.unhealed()")
	if err != nil {
		return fmt.Errorf("list the flows that are not followed: %w", err)
	}
	type unhealed struct {
		ID             int32
		Name, Obstacle string
	}
	flows, err := pgx.CollectRows(rows, pgx.RowToStructByPos[unhealed])
	if err != nil {
		return fmt.Errorf("list the flows that are not followed: %w", err)
	}
	a := newApplier(conn, h.log, h.epoch)
	a.dedupe, a.heals = false, true
	a.sweeper, a.meter = h.stream.sweeper, h.stream.meter
	for _, f := range flows {
		if f.Obstacle != "" {
			continue // wed_sql.warnings() says so by itself
		}
		start := time.Now()
		n, err := h.heal(ctx, conn, a, f.ID)
		if err == nil {
			h.log.Info("a WED-flow was healed", "flow", f.Name, "states", n, "duration", time.Since(start).Round(time.Millisecond))
			continue
		}
		if conn.IsClosed() || ctx.Err() != nil || errors.Is(err, errFenced) {
			return fmt.Errorf("heal flow %s: %w", f.Name, err)
		}
		if conn.PgConn().TxStatus() != 'I' {
			if _, err := conn.Exec(ctx, "rollback"); err != nil {
				return fmt.Errorf("heal flow %s: %w", f.Name, err)
			}
		}
		if _, err := conn.Exec(ctx, sqlUnfollow, f.ID, reason(err)); err != nil {
			return fmt.Errorf("heal flow %s: %w", f.Name, err)
		}
	}
	return h.warnings(ctx, conn)
}

// reason is what an error says to a user.
func reason(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return validText(server.Message)
	}
	return validText(err.Error())
}

// warnings passes on what is wrong, and logs what is new of it.
func (h *healer) warnings(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select * from wed_sql.warnings()")
	if err != nil {
		return fmt.Errorf("ask for warnings: %w", err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("ask for warnings: %w", err)
	}
	now := make(map[string]bool, len(texts))
	for _, text := range texts {
		if now[text] = true; !h.warned[text] {
			h.log.Warn(text)
		}
	}
	h.warned = now
	if h.warn != nil {
		h.warn(strings.Join(texts, "\n"))
	}
	return nil
}

// heal heals a flow, has the stream follow it, and returns the number of states.
func (h *healer) heal(ctx context.Context, conn *pgx.Conn, a *applier, id int32) (int, error) {
	h.stream.watchMissed(id)
	defer h.stream.unwatchMissed(id)
	total := 0
	for page := (page{last: -1, looked: healPage}); page.looked == healPage; {
		if err := h.unseen(ctx, conn, id, &page); err != nil {
			return 0, err
		}
		faultpoint.Hit(faultpoint.PageRead)
		n, err := h.states(ctx, conn, a, id, page.unseen, healLimits)
		if err != nil {
			return 0, err
		}
		total += n
	}
	const maxLaps = 10 // of a flow whose states come as fast as they are healed
	for range maxLaps {
		missed := h.stream.takeMissed(id, fewMissed)
		if missed == nil {
			break
		}
		n, err := h.states(ctx, conn, a, id, missed, healLimits)
		if err != nil {
			return 0, err
		}
		total += n
	}
	n, err := h.handOver(ctx, conn, a, id)
	return total + n, err
}

// lookForPrivate has the stream hear of flows that were given row security: it changes
// what is said in notifications, but makes no new version of the definition.
func (h *healer) lookForPrivate(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `
select f.flow_id from wed_sql.flow f join pg_class c on c.oid = f.wed_flow where c.relrowsecurity order by 1`)
	if err != nil {
		return fmt.Errorf("look for row security: %w", err)
	}
	now, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return fmt.Errorf("look for row security: %w", err)
	}
	if !slices.Equal(now, h.private) {
		h.stream.mu.Lock()
		h.stream.catalog.forget()
		h.stream.mu.Unlock()
		h.private = now
	}
	return nil
}

// handOver heals what the stream has missed since, and has it go on from there.
func (h *healer) handOver(ctx context.Context, conn *pgx.Conn, a *applier, id int32) (int, error) {
	h.stream.mu.Lock()
	defer h.stream.mu.Unlock()
	n, err := h.states(ctx, conn, a, id, slices.Sorted(maps.Keys(h.stream.missed[id])), handoverLimits)
	if err != nil {
		return 0, err
	}
	faultpoint.Hit(faultpoint.HandingOver)
	// Whatever was seen by now was committed below the position at which the log is.
	tag, err := conn.Exec(ctx, `
insert into wed_sql.followed as w (flow_id, since)
select $1, pg_current_wal_insert_lsn() from wed_sql.follower where epoch = $2 for update
on conflict (flow_id) do update set since = excluded.since, error = null, whole = true`, id, h.epoch)
	if err != nil {
		return 0, fmt.Errorf("follow it: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return 0, errFenced
	}
	faultpoint.Hit(faultpoint.FlowFollowed)
	h.stream.catalog.forget()
	return n, nil
}

// page is what was found out about the instances behind the last page.
type page struct {
	looked int // their number
	last   int64
	unseen []int64 // those whose state has no trace line, sorted
}

func (h *healer) unseen(ctx context.Context, conn *pgx.Conn, id int32, p *page) error {
	err := reading(ctx, conn, id, healLimits, func() error {
		return conn.QueryRow(ctx, "select looked, coalesce(last, 0), wids from wed_sql.unseen($1, $2, $3)", id, p.last, healPage).
			Scan(&p.looked, &p.last, &p.unseen)
	})
	if err != nil {
		return fmt.Errorf("look for instances: %w", err)
	}
	return nil
}

// reading calls f in a transaction that reads a flow's wed_flow.
func reading(ctx context.Context, conn *pgx.Conn, id int32, limits string, f func() error) error {
	if _, err := conn.Exec(ctx, limits); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "select wed_sql.lock_instances($1)", id); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "commit")
	return err
}

// states writes the lines and the jobs of instances, sorted, as they are now. What is
// read and what is written need not be one transaction: a job that is missing is nobody's
// to complete, and a later state comes by the stream.
func (h *healer) states(ctx context.Context, conn *pgx.Conn, a *applier, id int32, wids []int64, limits string) (int, error) {
	total := 0
	for len(wids) > 0 {
		var batch []Commit
		chunk := wids[:min(healChunk, len(wids))]
		last := chunk[len(chunk)-1]
		err := reading(ctx, conn, id, limits, func() (err error) {
			read := int64(-1)
			if batch, read, err = h.read(ctx, conn, id, chunk); read >= 0 {
				last = read
			}
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("read instances: %w", err)
		}
		if len(batch) > 0 {
			if _, err := a.apply(ctx, batch, 0); err != nil {
				return 0, err
			}
			faultpoint.Hit(faultpoint.ChunkHealed)
		}
		total += len(batch)
		next, found := slices.BinarySearch(wids, last)
		if found {
			next++
		}
		wids = wids[next:]
	}
	return total, nil
}

// read returns the states of instances, as far as they fit into a batch, and the last
// instance read.
func (h *healer) read(ctx context.Context, conn *pgx.Conn, id int32, wids []int64) (batch []Commit, last int64, err error) {
	last = -1
	var relid uint32
	var name string
	if err := conn.QueryRow(ctx, `select c.oid, n.nspname::text from wed_sql.flow f
  join pg_class c on c.oid = f.wed_flow join pg_namespace n on n.oid = c.relnamespace where f.flow_id = $1`, id).Scan(&relid, &name); err != nil {
		return nil, last, err
	}
	rel, err := describe(ctx, conn, relid, name)
	if err != nil {
		return nil, last, err
	}
	rows, err := conn.Query(ctx, "select wid, stamp, vals, seen, gap, tgids, versions, pooled, at from wed_sql.states($1, $2, $3)",
		id, wids, batchBytes)
	if err != nil {
		return nil, last, err
	}
	var (
		stamp string
		texts []*string
		seen  bool
		at    time.Time

		rules  []fold.Rule
		fired  []int64
		pooled []bool
	)
	v := Version{Relation: relid, heal: new(gap)}
	_, err = pgx.ForEachRow(rows, []any{&v.Wid, &stamp, &texts, &seen, &v.heal.missing, &rules, &fired, &pooled, &at}, func() (err error) {
		if last = v.Wid; seen {
			return nil
		}
		if v.Stamp, err = ParseStamp(stamp); err != nil {
			h.log.Warn("a state without a valid stamp is ignored", "flow", name, "instance", v.Wid, "err", err)
			return nil
		}
		if len(texts) != len(rel.columns)-2 {
			return fmt.Errorf("instance %d has %d attributes, want %d", v.Wid, len(texts), len(rel.columns)-2)
		}
		values := make([]datum, 2, len(rel.columns))
		for _, text := range texts {
			values = append(values, textDatum(text))
		}
		state, known := v, *v.heal
		state.State, state.heal = string(rel.appendState(nil, values)), &known
		known.fired = nil
		for i, r := range rules {
			known.fired = append(known.fired, fire{rule: r, version: fired[i], pooled: pooled[i]})
		}
		batch = append(batch, Commit{Time: at, Versions: []Version{state}})
		return nil
	})
	return batch, last, err
}

// needsHealing tells whether a flow is not followed that can be.
func (a *applier) needsHealing(ctx context.Context) (bool, error) {
	rows, err := a.db.Query(ctx, "select exists (select from wed_sql.unhealed() where obstacle is null)")
	if err != nil {
		return false, fmt.Errorf("look for flows to heal: %w", err)
	}
	needed, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	if err != nil {
		return false, fmt.Errorf("look for flows to heal: %w", err)
	}
	return needed, nil
}

// watchMissed has the stream note of which instances of a flow it discards states.
// What it has discarded before is to be seen by now: it waits for the writers.
func (a *applier) watchMissed(id int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.missed[id] = make(map[int64]struct{})
	a.catalog.forget()
}

func (a *applier) unwatchMissed(id int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.missed, id)
}

// takeMissed returns the noted instances, sorted, and begins anew; nil if there are few.
func (a *applier) takeMissed(id int32, few int) []int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.missed[id]) <= few {
		return nil
	}
	wids := slices.Sorted(maps.Keys(a.missed[id]))
	clear(a.missed[id])
	return wids
}

var _ database = (*pgx.Conn)(nil)
