package wal

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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

// sqlUnseen selects the instances to heal: who wrote them, whether the line before
// is missing, and the columns.
const sqlUnseen = `declare unseen no scroll cursor for
select f.xmin, not exists (select from %[2]s b where b.wid = f.wid and b.version = (f._stamp).version - 1),
       f.wid, f._stamp%[3]s
  from only %[1]s f
 where (f._stamp).version is not null
   and not exists (select from %[2]s t where t.wid = f.wid and t.version = (f._stamp).version)`

func (h *healer) flow(ctx context.Context, f *flow) (int, error) {
	rel, err := describe(ctx, h.conn, f)
	if err != nil {
		return 0, err
	}
	var columns strings.Builder
	for _, c := range rel.columns[2:] {
		columns.WriteString(", f." + ident(c.name))
	}
	if err := h.exec(ctx, fmt.Sprintf(sqlUnseen, f.table, f.trace, columns.String())); err != nil {
		return 0, err
	}
	total := 0
	for {
		n, err := h.chunk(ctx, f, rel)
		if err != nil {
			return 0, err
		}
		if total += n; n < healChunk {
			return total, h.exec(ctx, "close unseen")
		}
	}
}

func (h *healer) exec(ctx context.Context, sql string) error {
	_, err := h.conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func (h *healer) chunk(ctx context.Context, f *flow, rel *relation) (int, error) {
	// Not through pgx: it would ask for binary values, and a state has the text.
	results, err := h.conn.PgConn().Exec(ctx, "fetch "+strconv.Itoa(healChunk)+" unseen").ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read instances: %w", err)
	}
	batch := make([]Commit, 0, healChunk)
	gaps := make([]bool, 0, healChunk)
	var buf []byte
	for _, row := range results[0].Rows {
		v := Version{Relation: f.relation}
		if v.Wid, err = strconv.ParseInt(string(row[2]), 10, 64); err != nil {
			return 0, fmt.Errorf("wid: %w", err)
		}
		if v.Stamp, err = ParseStamp(string(row[3])); err != nil {
			return 0, fmt.Errorf("instance %d: %w", v.Wid, err)
		}
		values := make([]datum, len(rel.columns))
		for i, text := range row[2:] {
			if values[i].kind = datumText; text == nil {
				values[i].kind = datumNull
			}
			values[i].text = text
		}
		buf = rel.appendState(buf[:0], values)
		v.State = string(buf)
		xid, err := strconv.ParseUint(string(row[0]), 10, 32)
		if err != nil {
			return 0, fmt.Errorf("xmin: %w", err)
		}
		batch = append(batch, Commit{XID: uint32(xid), Time: h.now, Versions: []Version{v}})
		gaps = append(gaps, v.Stamp.Version > 0 && len(row[1]) == 1 && row[1][0] == 't')
	}
	if len(batch) == 0 {
		return 0, nil
	}
	w, err := h.healed(ctx, f, batch, gaps)
	if err != nil {
		return 0, err
	}
	if _, err := h.send(ctx, w); err != nil {
		return 0, err
	}
	h.clock.settle()
	return len(batch), nil
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
