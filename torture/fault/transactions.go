package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// longTransaction keeps a transaction open while the engine is killed.
func longTransaction(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		begin := scratch + "; begin; insert into public.wed_sql_fault_scratch values (1)"
		if _, err := conn.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
			return err
		}
		if err := endEngine(syscall.SIGKILL)(ctx, w); err != nil {
			return err
		}
		if err := rest(ctx, between(w, 100*time.Millisecond, 5*time.Second)); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, []string{"commit", "rollback"}[w.Rand().Intn(2)])
		return err
	})
	if err != nil {
		return fmt.Errorf("long transaction: %w", err)
	}
	return healed(ctx, w)
}

const scratch = "create table if not exists public.wed_sql_fault_scratch (n int, x text)"

// hugeTransaction has the walsender decode, with so much memory, what a transaction does that nobody follows.
func hugeTransaction(memory, sql string) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		database, err := anyDatabase(w)
		if err != nil {
			return err
		}
		end := []string{"commit", "rollback"}[w.Rand().Intn(2)]
		err = execute(ctx, w, database, scratch, "alter system set logical_decoding_work_mem = '"+memory+"'", "select pg_reload_conf()",
			"begin; "+sql+"; "+end, "truncate public.wed_sql_fault_scratch")
		if err == nil {
			err = healed(ctx, w)
		}
		return errors.Join(err, execute(ctx, w, database, "alter system reset logical_decoding_work_mem", "select pg_reload_conf()"))
	}
}

// anyJob takes the lock of a pending job, in a transaction that is open.
func anyJob(ctx context.Context, w World, conn *pgx.Conn) (f tables, wid int64, err error) {
	if f, err = anyFlow(ctx, w, conn); err != nil {
		return f, 0, err
	}
	err = conn.QueryRow(ctx, "select wid from (select wid, tgid from "+f.Pool+" order by random() limit 1) j"+
		" where wed_sql.try_lock(wid, tgid)").Scan(&wid)
	if errors.Is(err, pgx.ErrNoRows) {
		err = skipped("there is no job to be had")
	}
	return f, wid, err
}

// touch writes the next state, which is as the last one, and does not mind if that is refused.
func touch(ctx context.Context, conn *pgx.Conn, f tables, wid int64) error {
	var attribute string
	err := conn.QueryRow(ctx, `select quote_ident(attname) from pg_attribute where attrelid = $1::text::regclass and attnum > 0
		and not attisdropped and attname not in ('wid', '_stamp') limit 1`, f.Flow).Scan(&attribute)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "savepoint touch"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("update %s set %s = %[2]s where wid = $1", f.Flow, attribute), wid); err != nil {
		_, err = conn.Exec(ctx, "rollback to touch")
		return err
	}
	return nil
}

// rollBack takes jobs, writes states, and takes it all back, in parts and as a whole.
func rollBack(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	tried, took := 5+w.Rand().Intn(20), 0
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		for range tried {
			if _, err := conn.PgConn().Exec(ctx, "begin; savepoint a").ReadAll(); err != nil {
				return err
			}
			f, wid, err := anyJob(ctx, w, conn)
			if err == nil {
				took++
				err = touch(ctx, conn, f, wid)
			} else if errors.Is(err, ErrSkipped) {
				err = nil
			}
			if isCode(err, "57P01") || conn.IsClosed() { // its time was over, and so is the session
				return nil
			}
			if err != nil {
				return err
			}
			if _, err := conn.PgConn().Exec(ctx, "rollback to a; savepoint b; rollback").ReadAll(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	if took == 0 {
		return skipped("there was no job to be had")
	}
	return healed(ctx, w)
}

// prepareTransaction prepares a transaction that has a job and has written its state, leaves it open for a while, maybe
// through a crash of the server, and rolls it back; another, which no flow knows of, is committed.
func prepareTransaction(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		var most int
		if err := conn.QueryRow(ctx, "select current_setting('max_prepared_transactions')::int").Scan(&most); err != nil {
			return err
		}
		if most < 2 {
			return skipped("the server has no prepared transactions")
		}
		prepare := scratch + "; begin; insert into public.wed_sql_fault_scratch values (1); prepare transaction 'wed_sql_fault_commit'"
		if _, err := conn.PgConn().Exec(ctx, prepare).ReadAll(); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "begin"); err != nil {
			return err
		}
		f, wid, err := anyJob(ctx, w, conn)
		if err == nil {
			err = touch(ctx, conn, f, wid)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "prepare transaction 'wed_sql_fault_job'")
		}
		if err != nil && !errors.Is(err, ErrSkipped) {
			return err
		}
		if conn.PgConn().TxStatus() != 'I' {
			_, err = conn.Exec(ctx, "rollback")
			return err
		}
		return nil
	})
	if err == nil {
		err = rest(ctx, between(w, 100*time.Millisecond, 3*time.Second))
	}
	if err == nil && w.Rand().Intn(2) == 0 {
		err = w.Cluster().Kill(ctx)
	}
	err = errors.Join(err, endPrepared(ctx, w, database))
	if err != nil {
		return fmt.Errorf("prepare transactions: %w", err)
	}
	return healed(ctx, w)
}

// endPrepared ends those of ours that are there.
func endPrepared(ctx context.Context, w World, database string) error {
	return within(ctx, w, database, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select case gid when 'wed_sql_fault_commit' then 'commit' else 'rollback' end
			|| ' prepared ' || quote_literal(gid)
			from pg_prepared_xacts where database = current_database() and gid in ('wed_sql_fault_commit', 'wed_sql_fault_job')`)
		if err != nil {
			return err
		}
		ends, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, sql := range ends {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}
