package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// measureFollower starts many instances in one statement and waits until the last one is matched.
func measureFollower(ctx context.Context, conn *pgx.Conn, o options) error {
	if _, err := conn.Exec(ctx, "insert into paper.wed_flow (a1) select 'ready' from generate_series(1, $1)", o.instances); err != nil {
		return err
	}
	began := time.Now()
	if _, err := conn.Exec(ctx, "select wed_sql.sync('10 minutes')"); err != nil {
		return err
	}
	report("follower alone: states per second (2 jobs each)", "%.0f", float64(o.instances)/time.Since(began).Seconds())
	return nil
}

// measureLoad has workers do the pending transitions of all instances, as fast as they can, one job per transaction.
func measureLoad(ctx context.Context, conn *pgx.Conn, o options) error {
	jobs, err := pendingJobs(ctx, conn)
	if err != nil {
		return err
	}
	var next, done atomic.Int64
	var lag lagSampler
	deadline := time.Now().Add(o.duration)
	began := time.Now()

	group, groupCtx := errgroup.WithContext(ctx)
	for range o.clients {
		group.Go(func() error {
			c, err := connect(groupCtx)
			if err != nil {
				return err
			}
			defer c.Close(context.WithoutCancel(ctx))
			for time.Now().Before(deadline) {
				i := next.Add(1) - 1
				if i >= int64(len(jobs)) {
					return nil
				}
				if err := perform(groupCtx, c, jobs[i]); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	stopLag := lag.start(ctx, conn)
	err = group.Wait()
	took := time.Since(began)
	if lagErr := stopLag(); err == nil {
		err = lagErr
	}
	if err != nil {
		return fmt.Errorf("under load: %w", err)
	}
	behind := time.Now()
	if _, err := conn.Exec(ctx, "select wed_sql.sync('10 minutes')"); err != nil {
		return err
	}
	report(fmt.Sprintf("%d workers, one job per transaction: states per second", o.clients), "%.0f", float64(done.Load())/took.Seconds())
	report("lag of the follower meanwhile (median, most, at the end)", "%d kB  %d kB  %s",
		lag.quantile(.5)/1024, lag.quantile(1)/1024, ms(time.Since(behind)))
	return nil
}

type job struct {
	wid  int64
	tgid int32
	set  string
}

func pendingJobs(ctx context.Context, conn *pgx.Conn) ([]job, error) {
	rows, err := conn.Query(ctx, `select wid, tgid, case trname when 'tr_a2' then 'a2' else 'a3' end from paper.job_pool
	                               where trname in ('tr_a2', 'tr_a3') order by tgid, wid`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (job, error) {
		var j job
		err := row.Scan(&j.wid, &j.tgid, &j.set)
		return j, err
	})
}

// perform is the paper's protocol in two round trips: everything up to the update, then the commit.
func perform(ctx context.Context, c *pgx.Conn, j job) error {
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	var locked bool
	if err := tx.QueryRow(ctx, "select wed_sql.try_lock($1, $2)", j.wid, j.tgid).Scan(&locked); err != nil {
		return err
	}
	if !locked {
		return errors.New("a job was locked by somebody else")
	}
	if _, err := tx.Exec(ctx, "update paper.wed_flow set "+j.set+" = 'x' where wid = $1", j.wid); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

type lagSampler struct {
	mu    sync.Mutex
	bytes []time.Duration // as numbers, to share quantile
}

// start samples the lag until the function that it returns is called.
func (l *lagSampler) start(ctx context.Context, conn *pgx.Conn) func() error {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			var n int64
			if err := conn.QueryRow(context.WithoutCancel(ctx), "select lag_bytes from wed_sql.status where datname = current_database()").Scan(&n); err != nil {
				ended <- err
				return
			}
			l.mu.Lock()
			l.bytes = append(l.bytes, time.Duration(n))
			l.mu.Unlock()
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
		}
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

func (l *lagSampler) quantile(q float64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(quantile(l.bytes, q))
}

const bareScript = `
\set wid random(1, :rows)
begin;
select pg_try_advisory_xact_lock(:wid::integer, 1);
update plain set a2 = 'x' where wid = :wid;
delete from plain_job where wid = :wid and tgid = 1;
insert into plain_job (wid, tgid, trname) values (:wid, 1, 'x') on conflict do nothing;
commit;
`

// measureBare has pgbench do the bare transaction, of the statements that a transition cannot do without: lock, update
// one row, delete one row, commit. Its insert, which keeps a row there to be deleted, is what the follower does for wed_sql.
func measureBare(ctx context.Context, conn *pgx.Conn, o options) error {
	var rows int64
	if err := conn.QueryRow(ctx, `with filled as (
	        insert into plain (wid) select n from generate_series(1, $1) n on conflict do nothing)
	    select $1::bigint`, o.instances).Scan(&rows); err != nil {
		return err
	}
	for _, bench := range []struct{ name, script string }{
		{"pgbench, the bare transaction: lock, update, delete, commit", strings.Replace(bareScript, "insert into plain_job (wid, tgid, trname) values (:wid, 1, 'x') on conflict do nothing;\n", "", 1)},
		{"the same, with the insert of the next job in it", bareScript},
	} {
		if _, err := conn.Exec(ctx, "insert into plain_job (wid, tgid, trname) select n, 1, 'x' from generate_series(1, $1::integer) n on conflict do nothing", o.instances); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "pgbench", "--no-vacuum", "--protocol=prepared", "--file=-",
			fmt.Sprintf("--client=%d", o.clients), "--jobs=2", fmt.Sprintf("--time=%d", max(1, int(o.duration.Seconds()))),
			fmt.Sprintf("--define=rows=%d", rows), database)
		cmd.Stdin = strings.NewReader(bench.script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("pgbench: %w\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if tps, ok := strings.CutPrefix(line, "tps = "); ok {
				report(bench.name, "%s per second", strings.Fields(tps)[0])
			}
		}
	}
	return nil
}
