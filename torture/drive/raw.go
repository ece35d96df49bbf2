package drive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/flow"
)

// actRaw is the paper's protocol: LISTEN, a scan, the lock, UPDATE, COMMIT; with all that may happen in a transaction.
func actRaw(ctx context.Context, c *client) (bool, error) {
	conn, err := c.listening(ctx)
	if err != nil {
		return false, err
	}
	jobs, err := c.scan(ctx, conn)
	if err != nil {
		return false, err
	}
	for _, j := range jobs {
		if ctx.Err() != nil {
			return true, nil
		}
		if err := c.try(ctx, conn, j); err != nil {
			if Code(err) == "connection" || !Expected(Code(err)) || conn.IsClosed() {
				return true, err
			}
			c.saw(ctx, c.protocol, err)
			c.reset()
		}
	}
	if len(jobs) == 0 {
		wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if _, err := conn.WaitForNotification(wait); err != nil && wait.Err() == nil {
			return false, err
		}
	}
	return true, nil
}

// listening is the connection, on which all transitions are listened to.
func (c *client) listening(ctx context.Context) (*pgx.Conn, error) {
	known := c.conn != nil && !c.conn.IsClosed()
	conn, err := c.get(ctx)
	if err != nil || known {
		return conn, err
	}
	for i := range 6 {
		if _, err := conn.Exec(ctx, fmt.Sprintf("listen tr_%d", i)); err != nil {
			return nil, err
		}
	}
	_, err = conn.Exec(ctx, `listen "`+flow.Exception+`"`)
	return conn, err
}

// scan reads a page of jobs of one flow.
func (c *client) scan(ctx context.Context, conn *pgx.Conn) ([]job, error) {
	name := c.Flows[c.r.IntN(len(c.Flows))]
	order := "priority desc, fired_at, wid, tgid"
	if c.r.IntN(2) == 0 {
		order = "random()"
	}
	rows, err := conn.Query(ctx, `select wid, tgid, trname, coalesce(extract(epoch from timeout), 3600)::float8
		from `+table(name, "job_pool")+` where lckid is null and (available_at is null or available_at <= clock_timestamp())
		order by `+order+` limit 10`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (job, error) {
		j := job{flow: name}
		return j, row.Scan(&j.wid, &j.tgid, &j.transition, &j.timeout)
	})
}

// errLeft ends an attempt that another one has been faster with.
var errLeft = errors.New("left to others")

// try performs a job in one of the ways in which a transaction can go.
func (c *client) try(ctx context.Context, conn *pgx.Conn, j job) (err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if errors.Is(err, errLeft) {
			err = tx.Rollback(ctx)
		}
	}()
	if err := c.lock(ctx, tx, j); err != nil {
		return err
	}
	var pends bool
	err = tx.QueryRow(ctx, "select exists (select from "+table(j.flow, "job_pool")+" where wid = $1 and tgid = $2)", j.wid, j.tgid).Scan(&pends)
	if err != nil {
		return err
	}
	if !pends {
		return errLeft
	}
	switch n := c.r.IntN(100); {
	case c.drain.Load():
		return c.plainly(ctx, tx, j)
	case n < 4:
		return c.changeOfMind(ctx, tx, j)
	case n < 10:
		return c.savepoint(ctx, tx, j)
	case n < 18:
		return c.prepared(ctx, conn, tx, j)
	case n < 28:
		return c.twoJobs(ctx, tx, j)
	case n < 32:
		return c.fail(ctx, conn, tx, j)
	case n < 36 && j.timeout < 3:
		return c.overstay(ctx, tx, j)
	}
	return c.plainly(ctx, tx, j)
}

// lock takes the lock of a job, as the paper has it or by the function.
func (c *client) lock(ctx context.Context, tx pgx.Tx, j job) error {
	take := "select wed_sql.try_lock($1, $2)"
	if c.r.IntN(2) == 0 {
		take = "select pg_try_advisory_xact_lock($1::integer, $2::integer)"
	}
	var locked bool
	if err := tx.QueryRow(ctx, take, j.wid, j.tgid).Scan(&locked); err != nil {
		return err
	}
	if !locked {
		return errLeft
	}
	return nil
}

func (c *client) plainly(ctx context.Context, tx pgx.Tx, j job) error {
	id, err := c.write(ctx, tx, j)
	if err != nil {
		return err
	}
	return c.commit(ctx, tx, id)
}

func (c *client) changeOfMind(ctx context.Context, tx pgx.Tx, j job) error {
	if _, err := c.write(ctx, tx, j); err != nil {
		return err
	}
	c.count("transactions rolled back")
	return tx.Rollback(ctx)
}

// savepoint writes a state, takes it back, and writes another one.
func (c *client) savepoint(ctx context.Context, tx pgx.Tx, j job) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := c.write(ctx, inner, j); err != nil && (Code(err) == "connection" || !Expected(Code(err))) {
		return err
	}
	if err := inner.Rollback(ctx); err != nil {
		return err
	}
	c.count("savepoints rolled back")
	inner, err = tx.Begin(ctx)
	if err != nil {
		return err
	}
	id, err := c.write(ctx, inner, j)
	if err != nil {
		return err
	}
	if err := inner.Commit(ctx); err != nil {
		return err
	}
	return c.commit(ctx, tx, id)
}

// prepared commits in two phases.
func (c *client) prepared(ctx context.Context, conn *pgx.Conn, tx pgx.Tx, j job) error {
	c.protocol += ", prepared"
	id, err := c.write(ctx, tx, j)
	c.protocol = "raw"
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "prepare transaction '"+id+"'"); err != nil {
		return err
	}
	if c.r.IntN(20) == 0 {
		c.count("prepared transactions left to somebody else")
		return nil
	}
	pause(ctx, time.Duration(c.r.IntN(30))*time.Millisecond)
	end := "commit prepared"
	if c.r.IntN(4) == 0 {
		end = "rollback prepared"
	}
	c.count("transactions ended by " + end)
	_, err = conn.Exec(context.WithoutCancel(ctx), end+" '"+id+"'")
	if Code(err) == "42704" { // the janitor was faster
		return nil
	}
	return err
}

// twoJobs completes two jobs of an instance in one transaction.
func (c *client) twoJobs(ctx context.Context, tx pgx.Tx, j job) error {
	other := job{flow: j.flow, wid: j.wid}
	err := tx.QueryRow(ctx, "select tgid, trname from "+table(j.flow, "job_pool")+" where wid = $1 and tgid <> $2 and lckid is null limit 1",
		j.wid, j.tgid).Scan(&other.tgid, &other.transition)
	if errors.Is(err, pgx.ErrNoRows) {
		return c.plainly(ctx, tx, j)
	}
	if err != nil {
		return err
	}
	if err := c.lock(ctx, tx, other); err != nil {
		return err
	}
	var ids []string
	for _, one := range []job{j, other} {
		if _, err := tx.Exec(ctx, "select set_config('wed_sql.completes_tgid', $1, true)", fmt.Sprint(one.tgid)); err != nil {
			return err
		}
		c.protocol = "raw, two jobs"
		id, err := c.write(ctx, tx, one)
		c.protocol = "raw"
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	c.count("transactions with two jobs of an instance")
	return c.commit(ctx, tx, ids...)
}

func (c *client) fail(ctx context.Context, conn *pgx.Conn, tx pgx.Tx, j job) error {
	if err := tx.Rollback(ctx); err != nil {
		return err
	}
	c.count("failures reported")
	_, err := conn.Exec(ctx, "select wed_sql.fail($1, $2, $3, 'torture')", j.flow, j.wid, j.tgid)
	return err
}

// A session that is in the way of others is ended soon, but not while nobody is there to do it.
const muchLater = 60

// overstay stays in the transaction until its session is ended.
func (c *client) overstay(ctx context.Context, tx pgx.Tx, j job) error {
	if _, err := c.write(ctx, tx, j); err != nil {
		return err
	}
	c.count("transactions that overstayed")
	began := time.Now()
	_, err := tx.Exec(ctx, "select pg_sleep($1)", j.timeout+muchLater)
	if err == nil && time.Since(began).Seconds() < j.timeout+muchLater {
		c.count("sleeps that ended early, by a clock that was moved")
		return tx.Rollback(ctx)
	}
	if err == nil {
		c.count(fmt.Sprintf("unexpected raw: a transaction outlived the timeout of its job by %d s", muchLater))
		return tx.Rollback(ctx)
	}
	return err
}
