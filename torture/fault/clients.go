package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

// clientFaults are what other clients, and administrators, do to a server.
func clientFaults() []Fault {
	return []Fault{
		{Name: "statement timeout", Weight: 2, Inject: limitTime("statement_timeout", "2ms")},
		{Name: "lock timeout", Weight: 2, Inject: limitTime("lock_timeout", "1ms")},
		{Name: "idle in transaction timeout", Weight: 2, Inject: limitTime("idle_in_transaction_session_timeout", "1ms")},
		{Name: "idle session timeout", Weight: 2, Inject: limitTime("idle_session_timeout", "5ms")},
		{Name: "DDL", Weight: 4, Inject: changeTables},
		{Name: "long transaction", Weight: 2, Inject: longTransaction},
		// With little memory the server takes minutes to decode so many subtransactions: it looks at all of them for each change.
		{Name: "a hundred thousand subtransactions", Weight: 1, Inject: hugeTransaction("64MB", `
do $$ begin for i in 1 .. 100000 loop
    begin insert into public.wed_sql_fault_scratch (n) values (i); exception when division_by_zero then null; end;
end loop; end $$`)},
		{Name: "large transaction", Weight: 1, Inject: hugeTransaction("64kB",
			"insert into public.wed_sql_fault_scratch select i, repeat('x', 500) from generate_series(1, 20000) i")},
		{Name: "savepoints and rollbacks", Weight: 4, Inject: rollBack},
		{Name: "prepared transaction", Weight: 2, Inject: prepareTransaction},
	}
}

// limitTime has the sessions that begin now, the engine's among them, be ended by a setting of their database.
func limitTime(setting, value string) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		database, err := anyDatabase(w)
		if err != nil {
			return err
		}
		alter := "alter database " + pgx.Identifier{database}.Sanitize()
		end := fmt.Sprintf("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and backend_type in ('client backend', 'walsender') and pid <> pg_backend_pid()",
			"'"+database+"'")
		if err := execute(ctx, w, database, alter+" set "+setting+" = '"+value+"'", end+" and application_name = '"+cluster.EngineApplication+"'"); err != nil {
			return err
		}
		err = rest(ctx, between(w, 500*time.Millisecond, 3*time.Second))
		// Who has it keeps it, and gets nothing done.
		if err := errors.Join(err, execute(ctx, w, database, alter+" reset "+setting, end)); err != nil {
			return err
		}
		return healed(ctx, w)
	}
}

// tables are a flow's.
type tables struct{ Flow, Pool, Trace string }

func anyFlow(ctx context.Context, w World, conn *pgx.Conn) (tables, error) {
	rows, err := conn.Query(ctx, "select wed_flow::text, job_pool::text, wed_trace::text from wed_sql.flow order by flow_id")
	if err != nil {
		return tables{}, err
	}
	flows, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tables])
	if err != nil {
		return tables{}, err
	}
	f, ok := pick(w, flows)
	if !ok {
		return f, skipped("there is no flow")
	}
	return f, nil
}

// changeTables does what an administrator does to tables in use.
func changeTables(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		f, err := anyFlow(ctx, w, conn)
		if err != nil {
			return err
		}
		table := []string{f.Flow, f.Pool, f.Trace}[w.Rand().Intn(3)]
		changes := [][]string{
			{"reindex table " + table},
			{"vacuum (full, analyze) " + f.Pool},
			{"vacuum (full, analyze) " + f.Trace},
			{"vacuum (freeze, analyze) " + table},
			{"create index wed_sql_fault_index on " + f.Trace + " (tstmp)", "drop index " + schema(f.Trace) + ".wed_sql_fault_index"},
			{"create index concurrently wed_sql_fault_index on " + f.Flow + " (wid) where wid < 10", "drop index " + schema(f.Flow) + ".wed_sql_fault_index"},
			{"alter table " + table + " set (fillfactor = 70)", "alter table " + table + " reset (fillfactor)"},
			{"begin; create table public.wed_sql_fault_ddl (n int); insert into public.wed_sql_fault_ddl values (1); alter table public.wed_sql_fault_ddl add m int; drop table public.wed_sql_fault_ddl; commit"},
			{"begin; lock table " + table + " in access exclusive mode; select pg_sleep(0.5); commit"},
		}
		change, _ := pick(w, changes)
		for _, sql := range change {
			if err := persist(ctx, conn, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("change tables: %w", err)
	}
	return healed(ctx, w)
}

// schema is that of a table's name as regclass has it for a search_path without it.
func schema(table string) string {
	quoted := false
	for i, c := range table {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '.' && !quoted:
			return table[:i]
		}
	}
	return "public"
}

// persist tries again what loses a race for a lock.
func persist(ctx context.Context, conn *pgx.Conn, sql string) error {
	if _, err := conn.Exec(ctx, "set lock_timeout = '1s'"); err != nil {
		return err
	}
	done, err := until(ctx, healTime, func() (bool, error) {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		if isCode(err, "40P01", "55P03") {
			_, err = conn.Exec(ctx, "rollback")
			return false, err
		}
		return err == nil, err
	})
	if err == nil && !done {
		err = errors.New("it never got its locks")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// longTransaction keeps a transaction open while the engine is killed.
func longTransaction(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		if _, err := conn.PgConn().Exec(ctx, scratch+"; begin; insert into public.wed_sql_fault_scratch values (1)").ReadAll(); err != nil {
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
	err = conn.QueryRow(ctx, "select wid from (select wid, tgid from "+f.Pool+" order by random() limit 1) j where wed_sql.try_lock(wid, tgid)").Scan(&wid)
	if errors.Is(err, pgx.ErrNoRows) {
		err = skipped("there is no job to be had")
	}
	return f, wid, err
}

// touch writes the next state, which is as the last one, and does not mind if that is refused.
func touch(ctx context.Context, conn *pgx.Conn, f tables, wid int64) error {
	var attribute string
	err := conn.QueryRow(ctx, "select quote_ident(attname) from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attname not in ('wid', '_stamp') limit 1",
		f.Flow).Scan(&attribute)
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
			if err != nil && !isCode(err, "57P01") { // its time was over
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
		if _, err := conn.PgConn().Exec(ctx, scratch+"; begin; insert into public.wed_sql_fault_scratch values (1); prepare transaction 'wed_sql_fault_commit'").ReadAll(); err != nil {
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
		rows, err := conn.Query(ctx, `select case gid when 'wed_sql_fault_commit' then 'commit' else 'rollback' end || ' prepared ' || quote_literal(gid)
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
