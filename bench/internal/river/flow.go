package river

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
)

// The paper's figure 2 by hand. An instance is a row; a job enqueues the next one in its
// transaction; the join is a counter in the row. A job may run twice, so each step looks
// whether it was done before.
const instances = `create table instance (
	wid bigint generated always as identity primary key, a1 text not null default 'ready', a2 text, a3 text,
	joined integer not null default 0) with (fillfactor = 70)`

type stepArgs struct {
	WID int64  `json:"wid"`
	Set string `json:"set"` // a2 or a3
}

func (stepArgs) Kind() string { return "step" }

type step struct {
	river.WorkerDefaults[stepArgs]
	session *session
}

func (w *step) Work(ctx context.Context, job *river.Job[stepArgs]) error {
	return pgx.BeginFunc(ctx, w.session.pool, func(tx pgx.Tx) error {
		sql := "update instance set a2 = 'x', joined = joined + 1 where wid = $1 and a2 is null returning joined"
		if job.Args.Set == "a3" {
			sql = "update instance set a3 = 'x', joined = joined + 1 where wid = $1 and a3 is null returning joined"
		}
		var joined int
		if err := tx.QueryRow(ctx, sql, job.Args.WID).Scan(&joined); err != nil {
			if err == pgx.ErrNoRows {
				return nil
			}
			return err
		}
		if joined < 2 {
			return nil
		}
		_, err := w.session.client.InsertTx(ctx, tx, finalArgs{WID: job.Args.WID}, nil)
		return err
	})
}

type finalArgs struct {
	WID int64 `json:"wid"`
}

func (finalArgs) Kind() string { return "final" }

type final struct {
	river.WorkerDefaults[finalArgs]
	session *session
}

func (w *final) Work(ctx context.Context, job *river.Job[finalArgs]) error {
	if _, err := w.session.pool.Exec(ctx, "update instance set a1 = 'x' where wid = $1", job.Args.WID); err != nil {
		return err
	}
	w.session.counter.Done()
	return nil
}

func (o *session) Begin(ctx context.Context, instances, perTransaction int) error {
	for n := 0; n < instances; n += perTransaction {
		if _, err := o.begin(ctx, min(perTransaction, instances-n)); err != nil {
			return err
		}
	}
	return nil
}

// begin starts instances, with their first jobs, in one transaction.
func (o *session) begin(ctx context.Context, n int) (wids []int64, err error) {
	err = pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "insert into instance (a1) select 'ready' from generate_series(1, $1) returning wid", n)
		if err != nil {
			return err
		}
		if wids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		params := make([]river.InsertManyParams, 0, 2*n)
		for _, wid := range wids {
			params = append(params, river.InsertManyParams{Args: stepArgs{wid, "a2"}}, river.InsertManyParams{Args: stepArgs{wid, "a3"}})
		}
		_, err = o.client.InsertManyFastTx(ctx, tx, params)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("starting instances: %w", err)
	}
	return wids, nil
}

func (o *session) Starts(ctx context.Context, instances int, every time.Duration) (map[int64]time.Time, error) {
	return contest.Begin(ctx, instances, every, func() (int64, error) {
		wids, err := o.begin(ctx, 1)
		if err != nil {
			return 0, err
		}
		return wids[0], nil
	})
}

func (o *session) Instances() string { return "instance" }
