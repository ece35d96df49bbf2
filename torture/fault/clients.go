package fault

import (
	"context"
	"errors"
	"fmt"
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
		{Name: "prepared transaction", Weight: 2, Down: true, Inject: prepareTransaction},
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
		const end = `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and backend_type in ('client backend', 'walsender') and pid <> pg_backend_pid()`
		if err := execute(ctx, w, database, alter+" set "+setting+" = '"+value+"'",
			end+" and application_name = '"+cluster.EngineApplication+"'"); err != nil {
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
			{"create index concurrently wed_sql_fault_index on " + f.Flow + " (wid) where wid < 10",
				"drop index " + schema(f.Flow) + ".wed_sql_fault_index"},
			{"alter table " + table + " set (fillfactor = 70)", "alter table " + table + " reset (fillfactor)"},
			{"begin; create table public.wed_sql_fault_ddl (n int); insert into public.wed_sql_fault_ddl values (1);" +
				" alter table public.wed_sql_fault_ddl add m int; drop table public.wed_sql_fault_ddl; commit"},
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
