package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// measureGuard times the same update on a plain table, on a plain table together with the delete of a job, and on
// wed_flow, in turn: each in a transaction that takes the lock first.
func measureGuard(ctx context.Context, conn *pgx.Conn, o options) error {
	wids, tgid, err := startInstances(ctx, conn, o.samples)
	if err != nil {
		return err
	}
	const copies = `insert into plain (wid) select unnest($1::bigint[])`
	if _, err := conn.Exec(ctx, copies, wids); err != nil {
		return fmt.Errorf("filling the plain table: %w", err)
	}
	if _, err := conn.Exec(ctx, `insert into plain_job select wid, tgid, trname, payload, fired_at from paper.job_pool`); err != nil {
		return fmt.Errorf("filling the plain job table: %w", err)
	}
	if _, err := conn.Exec(ctx, "vacuum analyze"); err != nil {
		return err
	}

	var plain, plainDelete, guarded times
	for _, wid := range wids {
		for _, v := range []struct {
			t          *times
			statements []string
		}{
			{&plain, []string{"update plain set a3 = 'x' where wid = $1"}},
			{&plainDelete, []string{"update plain set a2 = 'x' where wid = $1", "delete from plain_job where wid = $1 and tgid = $2"}},
			{&guarded, []string{"update paper.wed_flow set a2 = 'x' where wid = $1"}},
		} {
			if err := timeTransaction(ctx, conn, v.t, wid, tgid, v.statements); err != nil {
				return err
			}
		}
	}
	report("update of a plain table: statement, transaction (p50)", "%s  %s", ms(quantile(plain.statements, .5)), ms(quantile(plain.transactions, .5)))
	report("the same, and delete of its job (p50)", "%s  %s", ms(quantile(plainDelete.statements, .5)), ms(quantile(plainDelete.transactions, .5)))
	report("update of wed_flow, which does both (p50)", "%s  %s", ms(quantile(guarded.statements, .5)), ms(quantile(guarded.transactions, .5)))
	report("wed_flow over plain update: statement, transaction", "%+.0f %%  %+.0f %%",
		over(guarded.statements, plain.statements), over(guarded.transactions, plain.transactions))
	report("wed_flow over plain update and delete", "%+.0f %%  %+.0f %%",
		over(guarded.statements, plainDelete.statements), over(guarded.transactions, plainDelete.transactions))
	return nil
}

func over(a, b []time.Duration) float64 {
	return 100 * (float64(quantile(a, .5))/float64(quantile(b, .5)) - 1)
}

type times struct{ statements, transactions []time.Duration }

func timeTransaction(ctx context.Context, conn *pgx.Conn, t *times, wid int64, tgid int32, statements []string) error {
	began := time.Now()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "select wed_sql.try_lock($1, $2)", wid, tgid); err != nil {
		return err
	}
	stated := time.Now()
	for i, sql := range statements {
		args := []any{wid, tgid}[:1+i]
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	t.statements = append(t.statements, time.Since(stated))
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	t.transactions = append(t.transactions, time.Since(began))
	return nil
}

// startInstances starts n instances and returns them, and the rule of tr_a2, when their jobs are due.
func startInstances(ctx context.Context, conn *pgx.Conn, n int) ([]int64, int32, error) {
	rows, err := conn.Query(ctx, "insert into paper.wed_flow (a1) select 'ready' from generate_series(1, $1) returning wid", n)
	if err != nil {
		return nil, 0, err
	}
	wids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, 0, fmt.Errorf("starting instances: %w", err)
	}
	if _, err := conn.Exec(ctx, "select wed_sql.sync('5 minutes')"); err != nil {
		return nil, 0, err
	}
	var tgid int32
	err = conn.QueryRow(ctx, "select tgid from paper.wed_trig where trname = 'tr_a2'").Scan(&tgid)
	return wids, tgid, err
}
