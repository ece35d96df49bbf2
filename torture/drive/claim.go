package drive

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// actClaim performs several jobs of a transition, of different instances, in one transaction: they are claimed together, and
// completed together.
func actClaim(ctx context.Context, c *client) (bool, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return false, err
	}
	found, err := c.scan(ctx, conn)
	if err != nil || len(found) == 0 {
		return false, err
	}
	var wids []int64
	var tgids []int32
	named := map[int64]bool{}
	for _, j := range found {
		if j.transition == found[0].transition && !named[j.wid] {
			wids, tgids, named[j.wid] = append(wids, j.wid), append(tgids, j.tgid), true
		}
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	rows, err := tx.Query(ctx, "select wid, tgid from wed_sql.claim_jobs($1, $2, $3, $4, $5)", found[0].flow, found[0].transition, wids, tgids, 1+c.r.IntN(5))
	if err != nil {
		return false, err
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (job, error) {
		j := job{flow: found[0].flow, transition: found[0].transition}
		return j, row.Scan(&j.wid, &j.tgid)
	})
	if err != nil {
		return false, err
	}
	if len(jobs) == 0 {
		return false, tx.Rollback(ctx)
	}
	return true, c.completeAll(ctx, tx, jobs)
}

func (c *client) completeAll(ctx context.Context, tx pgx.Tx, jobs []job) error {
	var wids []int64
	var states, ids []string
	for _, j := range jobs {
		set, err := c.next(ctx, c.r, tx, j)
		if err != nil {
			return err
		}
		id, err := c.note(ctx, tx, j, c.protocol, set)
		if err != nil {
			return err
		}
		state, err := json.Marshal(c.definition(j.flow).Values(set))
		if err != nil {
			return err
		}
		wids, states, ids = append(wids, j.wid), append(states, string(state)), append(ids, id)
	}
	if _, err := tx.Exec(ctx, "select wed_sql.complete_jobs($1, $2, $3::jsonb[])", jobs[0].flow, wids, states); err != nil {
		return err
	}
	if !c.drain.Load() && c.r.IntN(20) == 0 {
		c.count("transactions rolled back")
		return tx.Rollback(ctx)
	}
	return c.commit(ctx, tx, ids...)
}
