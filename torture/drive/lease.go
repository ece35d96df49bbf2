package drive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// actLease takes jobs by lease, and deals with each in one of the ways there are.
func actLease(ctx context.Context, c *client) (bool, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return false, err
	}
	name := c.Flows[c.r.IntN(len(c.Flows))]
	transitions := append(c.definition(name).Transitions(), "_EXCPT")
	transition := transitions[c.r.IntN(len(transitions))]
	duration := 1 + c.r.IntN(4)
	rows, err := conn.Query(ctx, "select wid, tgid, trname, lckid from wed_sql.lease($1, $2, make_interval(secs => $3), $4)",
		name, transition, float64(duration), 1+c.r.IntN(4))
	if err != nil {
		return false, err
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (job, error) {
		j := job{flow: name}
		return j, row.Scan(&j.wid, &j.tgid, &j.transition, &j.lckid)
	})
	if err != nil {
		return false, err
	}
	for _, j := range jobs {
		if err := c.leased(ctx, conn, j); err != nil {
			if Code(err) == "connection" || !Expected(Code(err)) {
				return true, err
			}
			c.saw(ctx, c.protocol, err)
			c.reset()
		}
	}
	return len(jobs) > 0, nil
}

func (c *client) leased(ctx context.Context, conn *pgx.Conn, j job) error {
	n := c.r.IntN(100)
	if c.drain.Load() {
		n = 99
	}
	switch {
	case n < 5:
		c.count("leases left to run out")
		return nil
	case n < 10:
		c.count("leases released")
		_, err := conn.Exec(ctx, "select wed_sql.release($1, $2, $3, $4)", j.flow, j.wid, j.tgid, j.lckid)
		return err
	case n < 15:
		c.count("failures reported")
		_, err := conn.Exec(ctx, "select wed_sql.fail($1, $2, $3, 'torture', $4)", j.flow, j.wid, j.tgid, j.lckid)
		return err
	case n < 18:
		return c.stale(ctx, conn, j)
	case n < 25:
		if _, err := conn.Exec(ctx, "select wed_sql.extend($1, $2, $3, $4, '2 seconds')", j.flow, j.wid, j.tgid, j.lckid); err != nil {
			return err
		}
		c.count("leases extended")
		pause(ctx, time.Duration(c.r.IntN(1000))*time.Millisecond)
	}
	return c.complete(ctx, conn, j)
}

func (c *client) complete(ctx context.Context, conn *pgx.Conn, j job) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	set, err := c.next(ctx, c.r, tx, j)
	if err != nil {
		return err
	}
	id, err := c.note(ctx, tx, j, c.protocol, set)
	if err != nil {
		return err
	}
	d := c.definition(j.flow)
	if clause := d.SetClause(set); clause != "" && c.r.IntN(2) == 0 {
		_, err = tx.Exec(ctx, "select wed_sql.complete($1, $2, $3, $4, $5::text)", j.flow, j.wid, j.tgid, j.lckid, clause)
	} else {
		var state []byte
		if state, err = json.Marshal(d.Values(set)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "select wed_sql.complete($1, $2, $3, $4, $5::jsonb)", j.flow, j.wid, j.tgid, j.lckid, string(state))
	}
	if err != nil {
		return err
	}
	return c.commit(ctx, tx, id)
}

// stale tries to complete under a token that is none.
func (c *client) stale(ctx context.Context, conn *pgx.Conn, j job) error {
	c.count("stale tokens")
	_, err := conn.Exec(ctx, "select wed_sql.complete($1, $2, $3, $4, '{}'::jsonb)", j.flow, j.wid, j.tgid, "00000000-0000-4000-8000-000000000000")
	switch Code(err) {
	case "WED16", "WED03", "WED08", "connection":
		return err
	}
	if err == nil {
		return errors.New("a job was completed under a token that nobody has")
	}
	return fmt.Errorf("a stale token: %w", err)
}
