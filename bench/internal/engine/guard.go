package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/bench/internal/figures"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// guard times the same update on a plain table, on a plain table together with the delete
// of a job, and on wed_flow, in turn: each in a transaction that takes the lock first.
func guard(ctx context.Context, db *server.Database, conn *pgx.Conn, r *report.Report, z Sizes) error {
	wids, tgid, err := startInstances(ctx, conn, z.Samples)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "insert into plain (wid) select unnest($1::bigint[])", wids); err != nil {
		return fmt.Errorf("filling the plain table: %w", err)
	}
	if _, err := conn.Exec(ctx, "insert into plain_job select wid, tgid, trname, payload, fired_at from paper.job_pool"); err != nil {
		return fmt.Errorf("filling the plain job table: %w", err)
	}
	if err := db.Settle(ctx); err != nil {
		return err
	}
	ways := []struct {
		name       string
		statements []string
		took       times
	}{
		{name: "update of a plain table", statements: []string{"update plain set a3 = 'x' where wid = $1"}},
		{name: "the same, and delete of its job",
			statements: []string{"update plain set a2 = 'x' where wid = $1", "delete from plain_job where wid = $1 and tgid = $2"}},
		{name: "update of wed_flow, which does both", statements: []string{"update paper.wed_flow set a2 = 'x' where wid = $1"}},
	}
	for _, wid := range wids {
		for i := range ways {
			if err := timeTransaction(ctx, conn, &ways[i].took, wid, tgid, ways[i].statements); err != nil {
				return err
			}
		}
	}
	for _, way := range ways {
		add(r, way.name, report.StatementP50, figures.Milliseconds(figures.Quantile(way.took.statements, .5)))
		add(r, way.name, report.TransactionP50, figures.Milliseconds(figures.Quantile(way.took.transactions, .5)))
	}
	return nil
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
func startInstances(ctx context.Context, conn *pgx.Conn, n int) (wids []int64, tgid int32, err error) {
	rows, err := conn.Query(ctx, "insert into paper.wed_flow (a1) select 'ready' from generate_series(1, $1) returning wid", n)
	if err != nil {
		return nil, 0, err
	}
	if wids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return nil, 0, fmt.Errorf("starting instances: %w", err)
	}
	if _, err := conn.Exec(ctx, "select wed_sql.sync('5 minutes')"); err != nil {
		return nil, 0, err
	}
	err = conn.QueryRow(ctx, "select tgid from paper.wed_trig where trname = 'tr_a2'").Scan(&tgid)
	return wids, tgid, err
}
