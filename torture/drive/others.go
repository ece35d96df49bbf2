package drive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
	"github.com/wed-sql/wed_sql/torture/record"
)

// actStart starts some instances, unless there is enough to do.
func actStart(ctx context.Context, c *client) (bool, error) {
	if c.drain.Load() {
		return false, nil
	}
	conn, err := c.get(ctx)
	if err != nil {
		return false, err
	}
	name := c.Flows[c.r.IntN(len(c.Flows))]
	var jobs int
	if err := conn.QueryRow(ctx, "select count(*) from "+table(name, "job_pool")).Scan(&jobs); err != nil {
		return false, err
	}
	if jobs > c.Most {
		return false, nil
	}
	for range 1 + c.r.IntN(10) {
		if err := c.start(ctx, conn, name); err != nil {
			return false, err
		}
	}
	return false, nil
}

func (c *client) start(ctx context.Context, conn *pgx.Conn, name string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	d := c.definition(name)
	set, accepted := d.Initial(c.r)
	var columns, values []string
	for _, column := range slices.Sorted(maps.Keys(set)) {
		columns = append(columns, predicate.QuoteIdent(column))
		_, value, _ := strings.Cut(d.SetClause(map[string]*string{column: set[column]}), predicate.QuoteIdent(column)+" = ")
		values = append(values, value)
	}
	j := job{flow: name}
	err = tx.QueryRow(ctx, fmt.Sprintf("insert into %s (%s) values (%s) returning wid", table(name, "wed_flow"),
		strings.Join(columns, ", "), strings.Join(values, ", "))).Scan(&j.wid)
	if Code(err) == "WED01" {
		c.count("instances refused")
		if err := tx.Rollback(ctx); err != nil || !accepted {
			return err
		}
		return c.wasRefused(ctx, conn, d)
	}
	if err != nil {
		return err
	}
	id, err := c.note(ctx, tx, j, c.protocol, set)
	if err != nil {
		return err
	}
	if c.r.IntN(20) == 0 {
		c.count("transactions rolled back")
		return tx.Rollback(ctx)
	}
	return c.commit(ctx, tx, id)
}

// wasRefused is called when an instance was refused that should have been accepted: unless the rules have changed meanwhile.
func (c *client) wasRefused(ctx context.Context, conn *pgx.Conn, d *flow.Definition) error {
	now, err := record.Latest(ctx, conn, d.Flow)
	if err == nil && now.Version == d.Version {
		err = errors.New("an instance was refused that satisfies a condition")
		c.count("unexpected start: " + err.Error())
	}
	return err
}

// actSignal completes a job that pends from outside.
func actSignal(ctx context.Context, c *client) (bool, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return false, err
	}
	jobs, err := c.scan(ctx, conn)
	if err != nil || len(jobs) == 0 {
		return false, err
	}
	j := jobs[c.r.IntN(len(jobs))]
	if j.transition == flow.Exception {
		return false, nil
	}
	j.tgid = 0
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	set, err := c.next(ctx, c.r, tx, j)
	if err != nil {
		return false, err
	}
	clause := c.definition(j.flow).SetClause(set)
	if clause == "" { // the definition has changed since
		return false, tx.Rollback(ctx)
	}
	id, err := c.note(ctx, tx, j, c.protocol, set)
	if err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, "select wed_sql.signal($1, $2::bigint, $3, $4)", j.flow, j.wid, j.transition, clause)
	if Code(err) == "42704" { // its rules have been disabled
		c.count("signals for what is disabled")
		return false, tx.Rollback(ctx)
	}
	if err != nil {
		return false, err
	}
	return false, c.commit(ctx, tx, id)
}

// actMistake does what must be refused, and takes it back if it is not.
func actMistake(ctx context.Context, c *client) (bool, error) {
	pause(ctx, time.Duration(c.r.IntN(100))*time.Millisecond)
	conn, err := c.get(ctx)
	if err != nil {
		return false, err
	}
	name := c.Flows[c.r.IntN(len(c.Flows))]
	d := c.definition(name)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	var wid int64
	// One that has ended may be reopened after a change of the rules, without a lock.
	err = tx.QueryRow(ctx, fmt.Sprintf(`select wid from %[1]s where wid >= (select random() * max(wid) from %[1]s) and not (_stamp).final
	                                    limit 1 for update skip locked`, table(name, "wed_flow"))).Scan(&wid)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, tx.Rollback(ctx)
	}
	if err != nil {
		return false, err
	}
	mistakes := []struct {
		what, sql string
		codes     []string
	}{
		{"an update without a lock", fmt.Sprintf("update %s set %s where wid = %d", table(name, "wed_flow"), d.SetClause(d.Next(c.r, predicate.State{}, flow.Any)), wid),
			[]string{"WED02"}},
		{"a delete", fmt.Sprintf("delete from %s where wid = %d", table(name, "wed_flow"), wid), []string{"WED06"}},
		{"another wid", fmt.Sprintf("update %s set wid = %d where wid = %d", table(name, "wed_flow"), wid+1, wid), []string{"428C9"}},
		{"another stamp", fmt.Sprintf("update %s set _stamp = _stamp where wid = %d", table(name, "wed_flow"), wid), []string{"WED05"}},
		{"the lock of what does not pend", fmt.Sprintf("select pg_try_advisory_xact_lock(%d, 2147483000); update %s set %s where wid = %d", wid,
			table(name, "wed_flow"), d.SetClause(d.Next(c.r, predicate.State{}, flow.Any)), wid), []string{"WED02", "WED03"}},
	}
	m := mistakes[c.r.IntN(len(mistakes))]
	_, err = tx.Conn().PgConn().Exec(ctx, m.sql).ReadAll()
	code := Code(err)
	rolledBack := tx.Rollback(ctx)
	switch {
	case err == nil && d == c.definition(name):
		c.count("unexpected mistake: " + m.what + " was accepted")
		return false, fmt.Errorf("%s was accepted", m.what)
	case slices.Contains(m.codes, code):
		c.count("mistakes refused")
	case err != nil && !Expected(code):
		return false, fmt.Errorf("%s: %w", m.what, err)
	}
	return false, rolledBack
}
