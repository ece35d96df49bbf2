package engine_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/engine"
	"github.com/wed-sql/wed_sql/internal/link"
	"github.com/wed-sql/wed_sql/internal/servertest"
)

// The engine, with the test in the place of the worker. The server's own engine is
// switched off meanwhile.

const template = "engine_test_template"

func TestMain(m *testing.M) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	restore, err := servertest.Prepare(ctx, dsn, template, `select wed_sql.create_flow('f'); set search_path = f;
insert into wed_attr (aname, adv) values ('a', '0'); insert into wed_trig (trname, cpred) values ('go', 'a is not null')`)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the server:", err)
		os.Exit(1)
	}
	status := m.Run()
	if err := restore(); err != nil {
		fmt.Fprintln(os.Stderr, "restore the server:", err)
		status = 1
	}
	os.Exit(status)
}

type rig struct {
	*testing.T
	ctx    context.Context
	dsn    string
	admin  *pgx.Conn
	worker net.Conn
	ended  chan error
	config map[string]any
	oids   map[uint32]string
	seen   []string // what the engine has said and nobody has asked for
	logged []string
}

// start starts an engine.
func start(t *testing.T) *rig {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.New(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "worker")
	worker, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	r := &rig{T: t, ctx: ctx, dsn: dsn, admin: admin, worker: worker, ended: make(chan error, 1), oids: map[uint32]string{},
		config: map[string]any{"conninfo": dsn, "discovery_interval_s": 3600, "enabled": true}}
	r.exec("drop database if exists " + template + "_none") // the connection works
	go func() {
		err := engine.Run(context.Background(), r.json(), l)
		_ = l.Close()
		r.ended <- err
	}()
	t.Cleanup(r.end)
	return r
}

func (r *rig) json() []byte {
	raw, err := json.Marshal(r.config)
	if err != nil {
		r.Fatal(err)
	}
	return raw
}

// end hangs up and expects the engine to end for that.
func (r *rig) end() {
	if r.ended == nil {
		return
	}
	_ = r.worker.Close()
	select {
	case err := <-r.ended:
		if err != nil {
			r.Errorf("Run: %v", err)
		}
	case <-time.After(10 * time.Second):
		r.Error("the engine does not end when the worker is gone")
	}
	r.ended = nil
}

func (r *rig) exec(sql string) {
	r.Helper()
	if _, err := r.admin.PgConn().Exec(r.ctx, sql).ReadAll(); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
}

// in executes commands in another database.
func (r *rig) in(database, sql string) {
	r.Helper()
	config := r.admin.Config().Copy()
	config.Database = database
	conn, err := pgx.ConnectConfig(r.ctx, config)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := conn.PgConn().Exec(r.ctx, sql).ReadAll(); err != nil {
		r.Fatalf("%s: %s: %v", database, sql, err)
	}
	if err := conn.Close(r.ctx); err != nil {
		r.Fatal(err)
	}
}

// database makes a copy of the template, which is dropped with the test's engine gone.
func (r *rig) database(name string) {
	r.Helper()
	name = "engine_test_" + name
	r.exec("drop database if exists " + name + " with (force)")
	r.exec("create database " + name + " template " + template)
	var oid uint32
	if err := r.admin.QueryRow(r.ctx, "select oid from pg_database where datname = $1", name).Scan(&oid); err != nil {
		r.Fatal(err)
	}
	r.oids[oid] = strings.TrimPrefix(name, "engine_test_")
	r.Cleanup(func() {
		r.end()
		for {
			_, err := r.admin.Exec(context.Background(), "drop database if exists "+name+" with (force)")
			if err == nil || !strings.Contains(err.Error(), "active logical replication slot") {
				return
			}
		}
	})
}

func (r *rig) oid(name string) uint32 {
	for oid, n := range r.oids {
		if n == name {
			return oid
		}
	}
	r.Fatalf("no database %s", name)
	return 0
}

func (r *rig) send(kind byte, body []byte) {
	r.Helper()
	if _, err := r.worker.Write(append([]byte{kind}, body...)); err != nil {
		r.Fatal(err)
	}
}

// leave asks the engine to leave a database, or to come back ('E').
func (r *rig) leave(kind byte, name string, ticket uint32) {
	r.Helper()
	r.send(kind, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, r.oid(name)), ticket))
}

// until reads what the engine says until it has said what is wanted, in any order:
// "s one" is database one in state s.
func (r *rig) until(want ...string) {
	r.Helper()
	missing := map[string]bool{}
	for _, w := range want {
		missing[w] = true
	}
	buf := make([]byte, link.MaxPacket)
	deadline, _ := r.ctx.Deadline()
	if err := r.worker.SetReadDeadline(deadline.Add(-10 * time.Second)); err != nil {
		r.Fatal(err)
	}
	for len(missing) > 0 {
		n, err := r.worker.Read(buf)
		if err != nil {
			r.Fatalf("waiting for %v: %v; seen %q; logged %q", missing, err, r.seen, r.logged)
		}
		p := buf[:n]
		switch p[0] {
		case 'L':
			r.logged = append(r.logged, strings.Split(string(p[2:]), "\x00")[0])
		case 'D':
			if name, ours := r.oids[binary.BigEndian.Uint32(p[1:])]; ours {
				delete(missing, fmt.Sprintf("left %s %d", name, binary.BigEndian.Uint32(p[5:])))
			}
		case 'S':
			if name, ours := r.oids[binary.BigEndian.Uint32(p[1:])]; ours {
				said := string(p[5]) + " " + name
				r.seen = append(r.seen, said)
				delete(missing, said)
			}
		}
	}
}

func (r *rig) count(sql string) (n int) {
	r.Helper()
	if err := r.admin.QueryRow(r.ctx, sql).Scan(&n); err != nil {
		r.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (r *rig) slots(name string) int {
	r.Helper()
	return r.count(fmt.Sprintf("select count(*) from pg_replication_slots where slot_name = 'wed_sql_%d'", r.oid(name)))
}

func TestDatabasesAreFoundWhenTheEngineStartsAndWhenItIsToldTo(t *testing.T) {
	r := start(t)
	r.database("early")
	r.send('R', nil)
	r.until("s early")
	r.database("late")
	r.send('R', nil)
	r.until("s late")
	r.in("engine_test_late", "drop extension wed_sql cascade")
	r.send('R', nil)
	r.until("x late")
	if r.slots("late") != 0 {
		t.Error("DROP EXTENSION leaves a slot")
	}
	r.in("engine_test_late", "create extension wed_sql")
	r.send('R', nil)
	r.until("s late")
}

func TestADropOfTheExtensionThatIsRolledBackIsNone(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	r.in("engine_test_one", "begin; drop extension wed_sql cascade; rollback")
	r.send('R', nil)
	// Another one's story shows that the engine has looked.
	r.database("two")
	r.send('R', nil)
	r.until("s two")
	if r.slots("one") != 1 || strings.Contains(strings.Join(r.seen, ","), "x one") {
		t.Errorf("seen %q", r.seen)
	}
}

func TestAnotherExtensionInThePlaceOfTheFirstIsFollowed(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	r.in("engine_test_one", "drop extension wed_sql cascade; drop schema f cascade; create extension wed_sql")
	r.send('R', nil)
	r.until("h one", "s one")
}

func TestADatabaseThatIsLeftCanBeDropped(t *testing.T) {
	r := start(t)
	r.database("one")
	r.database("two")
	r.send('R', nil)
	r.until("s one", "s two")
	r.leave('D', "one", 1)
	r.until("x one", "left one 1")
	if r.slots("one") != 1 {
		t.Error("the slot is gone, though the database may stay")
	}
	one := r.oid("one")
	for r.count(fmt.Sprintf("select count(*) from pg_replication_slots where active and slot_name = 'wed_sql_%d'", one)) > 0 {
		// its walsender takes a moment to notice; DROP DATABASE waits for that in the module
	}
	r.exec("drop database engine_test_one")
	if r.count(fmt.Sprintf("select count(*) from pg_replication_slots where slot_name = 'wed_sql_%d'", one)) != 0 {
		t.Error("the slot outlives the database")
	}
	// One that is not dropped after all is found again.
	r.leave('D', "two", 2)
	r.leave('D', "two", 3)
	r.until("x two", "left two 2", "left two 3")
	r.leave('E', "two", 2)
	r.database("three")
	r.send('R', nil)
	r.until("s three") // everywhere, but not where somebody still needs it for himself
	if strings.HasSuffix(strings.Join(r.seen, ","), "two") || r.count("select count(*) from pg_stat_activity where datname = 'engine_test_two' and backend_type = 'client backend'") > 0 {
		t.Errorf("back too early: seen %q", r.seen)
	}
	r.leave('E', "two", 3)
	r.until("s two")
}

func TestADatabaseThatTheEngineDoesNotKnowIsLeftToo(t *testing.T) {
	r := start(t)
	r.database("new")
	r.leave('D', "new", 1)
	r.until("left new 1")
	r.send('R', nil)
	r.database("other")
	r.send('R', nil)
	r.until("s other")
	if strings.Contains(strings.Join(r.seen, ","), "s new") {
		t.Errorf("followed all the same: seen %q", r.seen)
	}
	r.leave('E', "new", 1)
	r.until("s new")
}

func TestALookAtOneDatabaseLooksAtNoOther(t *testing.T) {
	r := start(t)
	for _, name := range []string{"one", "two"} {
		r.database(name)
	}
	r.send('R', nil)
	r.until("s one", "s two")
	r.in("engine_test_one", "drop extension wed_sql cascade")
	r.in("engine_test_two", "drop extension wed_sql cascade")
	r.send('R', nil)
	r.until("x one", "x two")
	r.in("engine_test_one", "create extension wed_sql")
	r.in("engine_test_two", "create extension wed_sql")
	before := len(r.seen)
	r.send('R', binary.BigEndian.AppendUint32(nil, r.oid("one")))
	r.until("s one")
	// Another one's story shows that it has had the time.
	r.database("three")
	r.send('R', binary.BigEndian.AppendUint32(nil, 0))
	r.until("s three")
	if seen := strings.Join(r.seen[before:], ","); strings.Contains(seen, "two") {
		t.Errorf("the other database was looked at: %s", seen)
	}
	r.send('R', binary.BigEndian.AppendUint32(nil, r.oid("two")))
	r.until("s two")
}

func TestATemplateIsLeftAloneAndASlotOfItsIsShown(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	r.exec("update pg_database set datallowconn = false where datname = 'engine_test_one'")
	r.send('R', binary.BigEndian.AppendUint32(nil, 0))
	r.until("a one")
	for r.count("select count(*) from pg_stat_activity where datname = 'engine_test_one' and backend_type = 'client backend'") > 0 {
	}
	r.exec("update pg_database set datallowconn = true where datname = 'engine_test_one'")
	r.send('R', binary.BigEndian.AppendUint32(nil, 0))
	r.until("s one")
}

func TestADatabaseThatVanishesIsForgotten(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	for {
		r.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'engine_test_one'")
		if _, err := r.admin.Exec(r.ctx, "drop database engine_test_one with (force)"); err == nil {
			break
		}
	}
	r.send('R', nil)
	r.until("x one")
}

func TestAFollowerThatFailsBacksOffAlone(t *testing.T) {
	r := start(t)
	r.database("good")
	r.database("bad")
	r.in("engine_test_bad", "alter table wed_sql.follower rename to elsewhere")
	r.send('R', nil)
	r.until("s good", "b bad")
	r.in("engine_test_bad", "alter table wed_sql.elsewhere rename to follower")
	r.until("s bad")
	told := 0
	for _, l := range r.logged {
		if strings.Contains(l, "cannot follow the database") && strings.Contains(l, "engine_test_bad") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the error was told %d times: %q", told, r.logged)
	}
	if strings.Contains(strings.Join(r.seen, ","), "b good") {
		t.Error("the good one was disturbed")
	}
}

func TestASwitchedOffEngineFollowsNothingAndKeepsItsSlots(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	r.config["enabled"] = false
	r.send('C', r.json())
	r.until("x one")
	for r.count("select count(*) from pg_stat_activity where application_name = 'wed_sql engine' and datname like 'engine_test%'") > 0 {
	}
	if r.slots("one") != 1 {
		t.Error("its slot is gone")
	}
	r.in("engine_test_one", "insert into f.wed_flow default values")
	r.config["enabled"] = true
	r.send('C', r.json())
	r.until("s one")
	r.in("engine_test_one", "do $$ begin while not exists (select from f.job_pool) loop commit; end loop; end $$")
	r.send('C', []byte("no JSON"))
	r.config["batch_size"] = 5
	r.send('C', r.json()) // nothing to restart for
	r.database("two")
	r.send('R', nil)
	r.until("s two")
	if n := strings.Count(strings.Join(r.seen, ","), "s one"); n == 0 {
		t.Errorf("seen %q", r.seen)
	}
}

func TestSessionsThatAreTerminatedComeBack(t *testing.T) {
	r := start(t)
	r.database("one")
	r.send('R', nil)
	r.until("s one")
	for range 3 {
		r.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'engine_test_one'")
		r.until("w one", "s one")
	}
}
