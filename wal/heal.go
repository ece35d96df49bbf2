package wal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/fold"
)

// healChunk is how many instances are healed at a time, which bounds the memory.
const healChunk = 500

// healer makes up from the tables for states that no stream will bring: everything
// that was committed before a new slot. What is committed after it, the stream brings.
type healer struct {
	*applier
	conn *pgx.Conn
	now  time.Time // of the transaction
	mute bool
}

// heal processes every instance whose current state has no trace line, as it stands
// in the snapshot, and stores the slot and its position, all in one transaction. It
// returns the number of instances.
func (a *applier) heal(ctx context.Context, conn *pgx.Conn, snapshot, slot string, point LSN, system int64) (int, error) {
	h := healer{applier: a, conn: conn}
	n, err := h.run(ctx, snapshot, slot, point, system)
	if err != nil && hasCode(err, programLimit) && ctx.Err() == nil {
		a.log.Warn("jobs are written without notifications", "err", err)
		h.mute = true
		n, err = h.run(ctx, snapshot, slot, point, system)
	}
	if err != nil {
		return 0, fmt.Errorf("heal at %s: %w", point, err)
	}
	return n, nil
}

func (h *healer) run(ctx context.Context, snapshot, slot string, point LSN, system int64) (healed int, err error) {
	h.forget()
	tx, err := h.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			// The caller's context may be what failed; the connection goes with it then.
			_ = tx.Rollback(ctx)
		}
	}()
	if _, err := tx.Exec(ctx, "set transaction snapshot '"+snapshot+"'"); err != nil {
		return 0, fmt.Errorf("take snapshot %s: %w", snapshot, err)
	}
	// The plans of the stream's session are for single rows; here whole tables are read.
	// And the position is acknowledged at once, so it has to be flushed.
	if _, err := tx.Exec(ctx, "set local enable_seqscan = on; set local plan_cache_mode = auto; set local synchronous_commit = local"); err != nil {
		return 0, err
	}
	if err := tx.QueryRow(ctx, "select now()").Scan(&h.now); err != nil {
		return 0, fmt.Errorf("ask for the time: %w", err)
	}
	if err := h.catalog.loadFlows(ctx, tx); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, sqlOwnersRows); err != nil {
		return 0, fmt.Errorf("make room for what is read: %w", err)
	}
	for _, f := range h.catalog.flows {
		if f.damaged() {
			h.log.Warn("a flow cannot be healed: its wed_trace or its job_pool is missing", "flow", f.name)
			continue
		}
		n, err := h.flow(ctx, f)
		if err != nil {
			return 0, fmt.Errorf("flow %s: %w", f.name, err)
		}
		healed += n
	}
	tag, err := tx.Exec(ctx, `update wed_sql.follower set slot_name = $1, applied_lsn = $2::text::pg_lsn, system_identifier = $3 where epoch = $4`,
		slot, point.String(), system, h.epoch)
	if err != nil {
		return 0, fmt.Errorf("store the applied position: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return 0, errFenced
	}
	return healed, tx.Commit(ctx)
}

// sqlSeen is the condition, on f, of an instance whose state has its trace line.
const sqlSeen = `exists (select from %s t where t.wid = f.wid and t.version = (f._stamp).version)`

// sqlUnseen selects what was read of the instances to heal, and whether the line before
// is missing.
const sqlUnseen = `declare unseen no scroll cursor for
select u.xid, u.wid, u.stamp, u.vals,
       coalesce(u.version, 0) > 0 and not exists (select from %s b where b.wid = u.wid and b.version = u.version - 1)
  from pg_temp.owners_rows u`

// flow heals a flow. One that its owner has made unreadable must not keep the others
// from being followed.
func (h *healer) flow(ctx context.Context, f *flow) (int, error) {
	rel, err := h.read(ctx, f)
	if err != nil && isOwners(err) {
		h.log.Warn("a flow cannot be healed: its wed_flow cannot be read", "flow", f.name, "err", err)
		_, err := h.conn.Exec(ctx, "rollback to savepoint flow")
		return 0, err
	}
	if err != nil {
		return 0, err
	}
	if _, err := h.conn.Exec(ctx, fmt.Sprintf(sqlUnseen, f.trace)); err != nil {
		return 0, fmt.Errorf("read instances: %w", err)
	}
	total := 0
	for {
		n, err := h.chunk(ctx, f, rel)
		if err != nil {
			return 0, err
		}
		if total += n; n < healChunk {
			_, err := h.conn.Exec(ctx, "close unseen; truncate pg_temp.owners_rows; release savepoint flow")
			return total, err
		}
	}
}

// read copies the instances to heal from the flow's table to ours.
func (h *healer) read(ctx context.Context, f *flow) (*relation, error) {
	if _, err := h.conn.Exec(ctx, "savepoint flow"); err != nil {
		return nil, err
	}
	rel, err := describe(ctx, h.conn, f)
	if err != nil {
		return nil, err
	}
	if err := h.letOwnerReadTrace(ctx, f); err != nil {
		return nil, fmt.Errorf("let the owner read wed_trace: %w", err)
	}
	return rel, readAsOwner(ctx, h.conn, f, rel, "not "+fmt.Sprintf(sqlSeen, f.trace))
}

// letOwnerReadTrace repeats a grant of create_flow if wed_flow was given to another role.
func (h *healer) letOwnerReadTrace(ctx context.Context, f *flow) error {
	var grant string
	err := h.conn.QueryRow(ctx, `
select 'grant select on ' || $2::text || ' to ' || relowner::regrole from pg_class
 where oid = $1 and not has_table_privilege(relowner, $2::text, 'select')`, f.relation, f.trace).Scan(&grant)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = h.conn.Exec(ctx, grant)
	}
	return err
}

func (h *healer) chunk(ctx context.Context, f *flow, rel *relation) (int, error) {
	rows, err := h.conn.Query(ctx, "fetch "+strconv.Itoa(healChunk)+" unseen")
	if err != nil {
		return 0, fmt.Errorf("read instances: %w", err)
	}
	batch := make([]Commit, 0, healChunk)
	gaps := make([]bool, 0, healChunk)
	fetched := 0
	var (
		xid, stamp string
		wid        int64
		texts      []*string
		gap        bool
	)
	_, err = pgx.ForEachRow(rows, []any{&xid, &wid, &stamp, &texts, &gap}, func() error {
		fetched++
		v := Version{Relation: f.relation, Wid: wid}
		if v.Stamp, err = ParseStamp(stamp); err != nil {
			h.log.Warn("a state without a valid stamp is ignored", "flow", f.name, "instance", wid, "err", err)
			return nil
		}
		writer, err := strconv.ParseUint(xid, 10, 32)
		if err != nil {
			return fmt.Errorf("xmin of instance %d: %w", wid, err)
		}
		if len(texts) != len(rel.columns)-2 {
			return fmt.Errorf("instance %d has %d attributes, want %d", wid, len(texts), len(rel.columns)-2)
		}
		values := make([]datum, 2, len(rel.columns))
		for _, text := range texts {
			values = append(values, textDatum(text))
		}
		v.State = string(rel.appendState(nil, values))
		batch = append(batch, Commit{XID: uint32(writer), Time: h.now, Versions: []Version{v}})
		gaps = append(gaps, gap)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read instances: %w", err)
	}
	if len(batch) == 0 {
		return fetched, nil
	}
	w, err := h.healed(ctx, f, batch, gaps)
	if err != nil {
		return 0, err
	}
	if _, err := h.send(ctx, w); err != nil {
		return 0, err
	}
	h.clock.settle()
	return fetched, nil
}

// healed is prepare for instances as they stand: their jobs are all that pend and
// are not in the pool, fired by whatever state that is lost.
func (h *healer) healed(ctx context.Context, f *flow, batch []Commit, gaps []bool) (*work, error) {
	w := new(work)
	wids := make([]int64, len(batch))
	for i := range batch {
		wids[i] = batch[i].Versions[0].Wid
		w.xids = append(w.xids, batch[i].XID)
	}
	if err := h.catalog.load(ctx, h.conn, versions(batch)); err != nil {
		return nil, err
	}
	present, err := h.pool(ctx, f, wids)
	if err != nil {
		return nil, err
	}
	l := &lines{flow: f}
	w.flows = []*lines{l}
	for i := range batch {
		v := &batch[i].Versions[0]
		rules := h.catalog.rules[ruleKey{f.id, v.Stamp.Rules}]
		out := outcome(v, f)
		at := h.clock.next(instance{f.id, v.Wid}, v.Stamp.Version, batch[i].Time)
		l.addState(v, out, rules, at, gaps[i])
		l.addJobs(v, without(out.Pending, present[v.Wid]), rules, at.time, &w.notes)
	}
	if h.mute {
		w.notes = notes{}
	}
	return w, h.prepareFlow(ctx, f)
}

// pool returns the jobs that the instances have in job_pool.
func (h *healer) pool(ctx context.Context, f *flow, wids []int64) (map[int64]map[fold.Rule]bool, error) {
	rows, err := h.conn.Query(ctx, `select wid, tgid from `+f.pool+` where wid = any($1)`, wids)
	if err != nil {
		return nil, fmt.Errorf("read job_pool: %w", err)
	}
	present := make(map[int64]map[fold.Rule]bool)
	var wid int64
	var id fold.Rule
	_, err = pgx.ForEachRow(rows, []any{&wid, &id}, func() error {
		if present[wid] == nil {
			present[wid] = make(map[fold.Rule]bool)
		}
		present[wid][id] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read job_pool: %w", err)
	}
	return present, nil
}

var _ database = (*pgx.Conn)(nil)
