package drive

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
	"github.com/wed-sql/wed_sql/torture/record"
)

// job is what is known of one.
type job struct {
	flow       string
	wid        int64
	tgid       int32
	transition string
	lckid      string
	timeout    float64 // seconds
}

func table(flow, name string) string { return predicate.QuoteIdent(flow) + "." + name }

// goal draws what is to become of an instance of which others pend.
func (c *crew) goal(r *rand.Rand, others int) flow.Goal {
	switch {
	case c.drain.Load() && others == 0:
		return flow.End
	case c.drain.Load():
		return flow.Quiet
	}
	switch n := r.IntN(100); {
	case n < 8:
		return flow.Any
	case n < 45 && others == 0:
		return flow.End
	case n < 55:
		return flow.Quiet
	}
	return flow.OnGo
}

// next draws the next state of an instance, from what it is now.
func (c *crew) next(ctx context.Context, r *rand.Rand, db record.Querier, j job) (map[string]*string, error) {
	var state []byte
	var others int
	err := db.QueryRow(ctx, fmt.Sprintf(`select to_jsonb(f) - 'wid' - '_stamp', (select count(*) from %s j where j.wid = f.wid and j.tgid <> $2)
	                                       from %s f where f.wid = $1`, table(j.flow, "job_pool"), table(j.flow, "wed_flow")), j.wid, j.tgid).Scan(&state, &others)
	if err != nil {
		return nil, err
	}
	return c.draw(r, j.flow, state, others), nil
}

// draw draws the next state of an instance from a state.
func (c *crew) draw(r *rand.Rand, name string, state []byte, others int) map[string]*string {
	d := c.definition(name)
	s, err := d.State(state)
	if err != nil { // it has been changed since
		return d.Next(r, predicate.State{}, flow.Any)
	}
	return d.Next(r, s, c.goal(r, others))
}

// write writes the next state of an instance whose job this transaction has, and notes it.
func (c *client) write(ctx context.Context, tx pgx.Tx, j job) (id string, err error) {
	set, err := c.next(ctx, c.r, tx, j)
	if err != nil {
		return "", err
	}
	return c.writeSet(ctx, tx, j, set)
}

func (c *client) writeSet(ctx context.Context, tx pgx.Tx, j job, set map[string]*string) (id string, err error) {
	id, err = c.note(ctx, tx, j, c.protocol, set)
	if err != nil {
		return "", err
	}
	clause := c.definition(j.flow).SetClause(set)
	if clause == "" { // the definition has changed since: a state in which nothing is new
		clause = "wid = wid"
	}
	tag, err := tx.Exec(ctx, fmt.Sprintf("update %s set %s where wid = $1", table(j.flow, "wed_flow"), clause), j.wid)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("an update of instance %d wrote %d rows", j.wid, tag.RowsAffected())
	}
	return id, err
}

func (c *crew) note(ctx context.Context, db record.Querier, j job, protocol string, set map[string]*string) (id string, err error) {
	id = c.id()
	return id, record.Note(ctx, db, record.Write{ID: id, Flow: j.flow, WID: j.wid, TGID: j.tgid, Transition: j.transition,
		Protocol: protocol, Worker: c.Name, Set: set})
}

// commit commits and, if it is not known whether it has, says so later.
func (c *client) commit(ctx context.Context, tx pgx.Tx, ids ...string) error {
	err := tx.Commit(ctx)
	if err != nil && Code(err) == "connection" {
		c.count("commits whose outcome was not known")
		for _, id := range ids {
			c.unresolved(ctx, id)
		}
	}
	return err
}

// unresolved notes that it is not known whether a write was committed. Who looks at torture.written in the end, knows.
func (c *client) unresolved(ctx context.Context, id string) {
	for range 20 {
		conn, err := c.get(ctx)
		if err == nil {
			if _, err = conn.Exec(ctx, "insert into torture.unresolved values ($1, $2)", id, c.protocol); err == nil {
				return
			}
		}
		if !pause(ctx, patience/100) {
			return
		}
	}
}
