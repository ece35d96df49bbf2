package doctor

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ward is a database of its own, with a connection to it.
type ward struct {
	*testing.T
	server, dsn string
	conn        *pgx.Conn
}

func open(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	})
	return conn
}

func admit(t *testing.T) *ward {
	t.Helper()
	server := os.Getenv("WED_SQL_TEST_CONN")
	if server == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	name := "doctor_" + strings.ToLower(t.Name())
	name = name[:min(len(name), 60)]
	admin, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		defer admin.Close(ctx)
		if _, err := admin.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
	for _, sql := range []string{"drop database if exists " + name + " with (force)", "create database " + name} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	w := &ward{T: t, server: server, dsn: server + " dbname=" + name}
	w.conn = open(t, w.dsn)
	return w
}

func (w *ward) run(statements ...string) {
	w.Helper()
	for _, s := range statements {
		if _, err := w.conn.Exec(w.Context(), s); err != nil {
			w.Fatalf("%s: %v", s, err)
		}
	}
}

// examine is what the doctor says, in a new session, of one check.
func (w *ward) examine(check, dsn string) []Finding {
	w.Helper()
	conn := open(w.T, dsn)
	defer conn.Close(w.Context())
	all, err := Examine(w.Context(), conn)
	if err != nil {
		w.Fatal(err)
	}
	var found []Finding
	for _, f := range all {
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
}

// finds expects a finding, and that what it says mends it; then it is gone.
func (w *ward) finds(check string, severity Severity, says, mend string) Finding {
	w.Helper()
	for _, f := range w.examine(check, w.dsn) {
		if f.Severity == severity && strings.Contains(f.What, says) && strings.Contains(f.Mend, mend) {
			return f
		}
	}
	w.Fatalf("%s: no %s that says %q and is mended by %q, but %+v", check, severity, says, mend, w.examine(check, w.dsn))
	return Finding{}
}

// mends does what a finding says, and looks whether it is gone.
func (w *ward) mends(f Finding, says string) {
	w.Helper()
	for sql := range strings.SplitSeq(f.Mend, ";") {
		if sql = strings.TrimSpace(strings.SplitN(sql, "--", 2)[0]); sql != "" {
			w.run(sql)
		}
	}
	w.isWell(f.Check, says)
}

func (w *ward) isWell(check, says string) {
	w.Helper()
	var still []Finding
	for late := time.Now().Add(30 * time.Second); ; { // a session that is terminated takes its time to go
		still = slices.DeleteFunc(w.examine(check, w.dsn), func(f Finding) bool { return !strings.Contains(f.What, says) || f.Severity == OK })
		if len(still) == 0 || time.Now().After(late) {
			break
		}
	}
	for _, f := range still {
		w.Errorf("%s: still %+v", check, f)
	}
}

func (w *ward) newFlow() {
	w.Helper()
	w.run("create extension wed_sql", "select wed_sql.create_flow('f')",
		"insert into f.wed_attr (aname, atype) values ('n', 'integer')",
		"insert into f.wed_trig (trname, cpred) values ('work', 'n = 1'), ('act', 'n = 2')",
		"update f.wed_trig set action = 'n = 5' where trname = 'act'",
		"insert into f.wed_trig (cpred, cfinal) values ('n > 2', true)", "select wed_sql.sync()")
}

func TestDatabaseWithoutTheExtension(t *testing.T) {
	w := admit(t)
	f := w.finds("extension", Error, "is not installed", "create extension wed_sql;")
	w.mends(f, "is not installed")
	w.run("select wed_sql.sync()")
	for _, check := range []string{"engine", "slots", "guards", "warnings", "timers", "engine's role", "preload", "wal_level"} {
		if found := w.examine(check, w.dsn); len(found) != 1 || found[0].Severity != OK {
			t.Errorf("%s: %+v", check, found)
		}
	}
}

func TestGuardsThatAreSwitchedOff(t *testing.T) {
	w := admit(t)
	w.newFlow()
	w.run("alter event trigger wed_sql_published disable")
	w.mends(w.finds("guards", Error, "wed_sql_published", "enable always"), "wed_sql_published")
}

func TestTimeoutsThatEndWorkers(t *testing.T) {
	w := admit(t)
	name := w.conn.Config().Database
	for setting, severity := range map[string]Severity{
		"idle_in_transaction_session_timeout": Warning, "statement_timeout": Note, "idle_session_timeout": Note, "lock_timeout": Note,
	} {
		w.run("alter database " + name + " set " + setting + " = '100s'")
		w.mends(w.finds("timeouts", severity, setting, "reset "+setting), setting)
	}
	w.run("alter database " + name + " set session_replication_role = 'replica'")
	w.finds("session defaults", Warning, "session_replication_role", "alter system")
	w.run("alter database " + name + " set default_transaction_read_only = on")
	w.finds("session defaults", Error, "default_transaction_read_only", "")
}

func TestTransactionsThatAreForgotten(t *testing.T) {
	w := admit(t)
	idle := open(t, w.dsn+" application_name=lunch")
	if _, err := idle.Exec(t.Context(), "begin; select txid_current()"); err != nil {
		t.Fatal(err)
	}
	p, err := meet(t.Context(), w.conn)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := longTransactionsSince(t.Context(), p, 0, 0); err != nil || len(found) == 0 || !strings.Contains(found[0].Mend, "pg_terminate_backend") {
		t.Errorf("%+v: %v", found, err)
	}
	if found, err := longTransactions(t.Context(), p); err != nil || len(found) > 0 && strings.Contains(found[0].What, "lunch") {
		t.Errorf("though it is new: %+v: %v", found, err)
	}
}

func TestWhatWaitsForSomebody(t *testing.T) {
	w := admit(t)
	w.newFlow()
	w.run("insert into f.wed_flow (n) values (1), (1)", "select wed_sql.sync()", "begin",
		"select wed_sql.try_lock(2, tgid) from f.job_pool where wid = 2", "update f.wed_flow set n = 0 where wid = 2", "commit",
		"select wed_sql.sync()")
	w.finds("exceptions", Note, `exceptions of flow "f": 1`, "wedctl instance list -f f --status exception")
	w.isWell("jobs", "work") // it has just been fired
	p, err := meet(t.Context(), w.conn)
	if err != nil {
		t.Fatal(err)
	}
	found, err := waitingJobsSince(t.Context(), p, 0)
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Mend, "wedctl worker run -f f -t work") {
		t.Errorf("%+v: %v", found, err)
	}
	// A session that has it is enough.
	conn := open(t, w.dsn)
	if _, err := conn.Exec(t.Context(), `listen work`); err != nil {
		t.Fatal(err)
	}
	if found, err = waitingJobsSince(t.Context(), p, 0); err != nil || len(found) != 1 || strings.Contains(found[0].Mend, "worker run") {
		t.Errorf("though somebody listens: %+v: %v", found, err)
	}
	if names := performedByEngine(t.Context(), p); len(names) != 1 || names[0] != "f.act" {
		t.Errorf("actions: %v", names)
	}
}

func TestStrangerWithALock(t *testing.T) {
	w := admit(t)
	w.newFlow()
	w.run("drop role if exists doctor_stranger", "create role doctor_stranger login")
	t.Cleanup(func() {
		admin, err := pgx.Connect(context.Background(), w.server)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(context.Background())
		if _, err := admin.Exec(context.Background(), "drop role doctor_stranger"); err != nil {
			t.Error(err)
		}
	})
	w.run("insert into f.wed_flow (n) values (1)", "select wed_sql.sync()")
	var tgid int
	if err := w.conn.QueryRow(t.Context(), "select tgid from f.job_pool").Scan(&tgid); err != nil {
		t.Fatal(err)
	}
	stranger := open(t, w.dsn+" user=doctor_stranger")
	if _, err := stranger.Exec(t.Context(), "select pg_advisory_lock(1, $1)", tgid); err != nil {
		t.Fatal(err)
	}
	// He is a matter for a warning after five seconds.
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		if found := w.examine("warnings", w.dsn); found[0].Severity == Warning {
			if !strings.HasPrefix(found[0].Mend, "select pg_terminate_backend(") {
				t.Errorf("mended by %q", found[0].Mend)
			}
			w.mends(found[0], "doctor_stranger")
			return
		}
	}
	t.Error("nobody minds the stranger")
}

func TestFlowOfASuperuserAndDeadRows(t *testing.T) {
	w := admit(t)
	w.newFlow()
	w.finds("owners", Note, "f", "alter table f.wed_flow owner to")
	w.run("alter table f.job_pool set (autovacuum_enabled = off)")
	w.mends(w.finds("table bloat", Warning, "f.job_pool", "reset (autovacuum_enabled)"), "f.job_pool")
}

func TestRoleWithoutRightsSeesWhatItMay(t *testing.T) {
	w := admit(t)
	w.newFlow()
	w.run("drop role if exists doctor_visitor", "create role doctor_visitor login")
	dsn := w.dsn + " user=doctor_visitor"
	t.Cleanup(func() {
		admin, err := pgx.Connect(context.Background(), w.server)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(context.Background())
		if _, err := admin.Exec(context.Background(), "drop role doctor_visitor"); err != nil {
			t.Error(err)
		}
	})
	found := w.examine("rights", dsn)
	if len(found) != 1 || found[0].Severity != Note || !strings.Contains(found[0].What, "engine") || !strings.Contains(found[0].Mend, "pg_monitor") {
		t.Errorf("%+v", found)
	}
	if found := w.examine("wal_level", dsn); len(found) != 1 || found[0].Severity != OK {
		t.Errorf("%+v", found)
	}
	w.run("grant pg_monitor to doctor_visitor")
	if found := w.examine("rights", dsn); len(found) > 0 {
		t.Errorf("a member of pg_monitor: %+v", found)
	}
}

func TestEngineThatIsSwitchedOff(t *testing.T) {
	w := admit(t)
	w.newFlow()
	reset := func() {
		admin, err := pgx.Connect(context.Background(), w.server)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close(context.Background())
		for _, sql := range []string{"alter system reset wed_sql.enabled", "select pg_reload_conf()"} {
			if _, err := admin.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(reset)
	w.run("alter system set wed_sql.enabled = off", "select pg_reload_conf()")
	for state := ""; state != "off"; {
		if err := w.conn.QueryRow(t.Context(), "select state from wed_sql.status where datname = current_database()").Scan(&state); err != nil {
			t.Fatal(err)
		}
	}
	w.finds("engine", Error, "the engine is off", "wed_sql.enabled = on")
	f := w.finds("settings of wed_sql", Error, "wed_sql.enabled is off", "wed_sql.enabled = on")
	w.mends(f, "wed_sql.enabled is off")
	reset()
	w.run("select wed_sql.sync()")
	w.isWell("engine", "off")
}
