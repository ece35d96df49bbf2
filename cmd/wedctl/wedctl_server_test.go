package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// testDatabase creates a database for the test and returns how to connect to it.
func testDatabase(t *testing.T) (dsn string) {
	t.Helper()
	server := os.Getenv("WED_SQL_TEST_CONN")
	if server == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	t.Setenv(asWedctl, "1") // for the processes that wedctl starts
	name := "wedctl_" + strings.ReplaceAll(strings.ToLower(t.Name()), "/", "_")
	name = name[:min(len(name), 60)]
	execute(t, server, "drop database if exists "+name, "create database "+name)
	t.Cleanup(func() { dropDatabase(t, server, name) })
	return server + " dbname=" + name
}

// dropDatabase waits for the engine to leave a database, and drops it.
func dropDatabase(t *testing.T, server, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn := open(ctx, t, server+" dbname="+name)
	_, err := conn.Exec(ctx, "drop extension if exists wed_sql cascade")
	hangUp(conn)
	if err != nil {
		t.Errorf("drop the extension: %v", err)
	}
	conn = open(ctx, t, server)
	defer hangUp(conn)
	for {
		var streaming bool
		err := conn.QueryRow(ctx, "select exists (select from pg_replication_slots where active and database = $1)", name).Scan(&streaming)
		if err != nil {
			t.Errorf("the engine does not leave database %s: %v", name, err)
			return
		}
		if !streaming {
			break
		}
	}
	if _, err := conn.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
		t.Errorf("drop database %s: %v", name, err)
	}
}

func open(ctx context.Context, t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// execute runs statements one by one.
func execute(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// value returns the only value of a query, as text.
func value(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	var v string
	if err := conn.QueryRow(t.Context(), "select ("+sql+")::text").Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestDemoEndsEveryTripAndLeavesNothing(t *testing.T) {
	dsn := testDatabase(t)
	stdout, stderr, status := wedctl(t.Context(), "demo", "--pace", "0s", "-d", dsn)
	if status != exitOK || stderr != "" {
		t.Fatalf("exit status %d: %s\n%s", status, stderr, stdout)
	}
	for _, want := range []string{
		"customer_status = 'valid' and hotel_status is null", // the rules
		"6 customers ask for a trip", "All 6 trips have ended: 4 confirmed, 2 cancelled.",
		"Where to go next", "hotel_status=full",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not say %q:\n%s", want, stdout)
		}
	}
	// One line for each state, in commit order.
	line := regexp.MustCompile(`(?m)^ *(\d+\.\d\d)s +\d+ \w+ +([REF]) +(\S+)`)
	count, last := make(map[string]int), 0.0
	for _, m := range line.FindAllStringSubmatch(stdout, -1) {
		count[m[2]]++
		at, err := strconv.ParseFloat(m[1], 64)
		if err != nil || at < last {
			t.Errorf("%s is not in commit order: %v", m[0], err)
		}
		last = at
	}
	if count["F"] != 6 || count["E"] != 3 || count["R"] != 21 {
		t.Errorf("states by status: %v", count)
	}
	if strings.Contains(stdout, "\x1b") {
		t.Error("colours without a terminal")
	}
	if n := value(t, dsn, "select count(*) from pg_namespace where nspname in ('travel', 'wed_sql')"); n != "0" {
		t.Error("the flow or the extension is still there")
	}
}

func TestDemoKeepsTheFlowIfAskedTo(t *testing.T) {
	dsn := testDatabase(t)
	if stdout, stderr, status := wedctl(t.Context(), "demo", "--pace", "0s", "--keep", "-d", dsn); status != exitOK {
		t.Fatalf("exit status %d: %s\n%s", status, stderr, stdout)
	}
	if n := value(t, dsn, "select count(*) from travel.wed_instance where status = 'F'"); n != "6" {
		t.Errorf("%s trips have ended, want 6", n)
	}

	// Not over a flow that is there.
	if _, stderr, status := wedctl(t.Context(), "demo", "-d", dsn); status != exitFailure || !strings.Contains(stderr, "drop_flow") {
		t.Errorf("a second demo: exit status %d: %s", status, stderr)
	}
	if n := value(t, dsn, "select count(*) from travel.wed_flow"); n != "6" {
		t.Errorf("%s trips are left, want 6", n)
	}

	stdout, stderr, status := wedctl(t.Context(), "instance", "trace", "2", "--flow", "travel", "-o", "json", "-d", dsn)
	var lines []traceLine
	if err := json.Unmarshal([]byte(stdout), &lines); err != nil || status != exitOK {
		t.Fatalf("trace: exit status %d: %s: %v", status, stderr, err)
	}
	var history []string
	for _, l := range lines {
		history = append(history, l.Status+" "+writer(l))
	}
	got := strings.Join(history, ", ")
	want := regexp.MustCompile(`^R \(new\), R check_customer, (R book_flight, E book_hotel|R book_hotel, E book_flight), ` +
		`R _EXCPT, R book_hotel, F close_trip$`)
	if !want.MatchString(got) {
		t.Errorf("the history of trip 2 is %s", got)
	}
	for wid, status := range map[string]int{"2": exitOK, "99": exitNotFound} {
		if _, stderr, got := wedctl(t.Context(), "instance", "trace", wid, "-f", "travel", "-d", dsn); got != status {
			t.Errorf("trace %s: exit status %d, want %d: %s", wid, got, status, stderr)
		}
	}
	if _, stderr, status := wedctl(t.Context(), "status", "-d", dsn); status != exitOK {
		t.Errorf("status: exit status %d: %s", status, stderr)
	}
}

func TestWhatIsNotThereIsNotFound(t *testing.T) {
	dsn := testDatabase(t)
	for _, args := range [][]string{
		{"status"}, {"instance", "trace", "1", "-f", "travel"}, {"worker", "run", "-f", "travel", "-t", "t", "--", "true"},
	} {
		_, stderr, status := wedctl(t.Context(), append([]string{"-d", dsn}, args...)...)
		if status != exitNotFound || !strings.Contains(stderr, "create extension wed_sql") {
			t.Errorf("%v: exit status %d, without the extension: %s", args, status, stderr)
		}
	}
	execute(t, dsn, "create extension wed_sql", "select wed_sql.create_flow('travel')")
	for _, args := range [][]string{
		{"instance", "trace", "1", "-f", "travel"}, {"instance", "trace", "1", "-f", "nowhere"},
		{"worker", "run", "-f", "nowhere", "-t", "t", "--", "true"},
		{"worker", "run", "-f", "travel", "-t", "t", "--", "true"},
	} {
		if _, stderr, status := wedctl(t.Context(), append([]string{"-d", dsn}, args...)...); status != exitNotFound {
			t.Errorf("%v: exit status %d: %s", args, status, stderr)
		}
	}
}

func TestWorkerRunOncePerformsACommand(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql", "select wed_sql.create_flow('f')",
		"insert into f.wed_attr (aname, atype) values ('n', 'integer'), ('seen', 'text')",
		"insert into f.wed_trig (trname, cpred) values ('count', 'seen is null')",
		"insert into f.wed_trig (cpred, cfinal) values ('seen is not null', true)",
		"insert into f.wed_flow (n) values (1), (2), (3)", "select wed_sql.sync()")
	once := func(script string) (stderr string, status int) {
		_, stderr, status = wedctl(t.Context(), "worker", "run", "--once", "-f", "f", "-t", "count", "-d", dsn, "--", "sh", "-c", script)
		return stderr, status
	}
	if stderr, status := once(`echo sorry >&2; test $WED_WID != 2 && echo '{"seen": "yes"}'`); status != exitFailure || !strings.Contains(stderr, "sorry") {
		t.Errorf("exit status %d, though a job was rolled back: %s", status, stderr)
	}
	if n := value(t, dsn, "select count(*) from f.wed_flow where seen = 'yes'"); n != "2" {
		t.Errorf("%s states were written, want 2", n)
	}
	if stderr, status := once(`echo '{"seen": "yes"}'`); status != exitOK {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	execute(t, dsn, "select wed_sql.sync()")
	if n := value(t, dsn, "select count(*) from f.wed_instance where status = 'F'"); n != "3" {
		t.Errorf("%s instances have ended, want 3", n)
	}
}

// start runs wedctl as a process of its own. Its standard output is read by the
// caller; what it holds is closed when no process of it is left.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, stdout io.Reader, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self, args...)
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	if stdout, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdout, stderr
}

// readUntil reads until what was read contains text.
func readUntil(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var all []byte
	b := make([]byte, 4096)
	for !bytes.Contains(all, []byte(text)) {
		n, err := r.Read(b)
		all = append(all, b[:n]...)
		if err != nil {
			t.Fatalf("no %q in %s: %v", text, all, err)
		}
	}
}

// processesOf returns the processes that have this in their environment.
func processesOf(t *testing.T, variable string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		env, err := os.ReadFile(f)
		if err == nil && bytes.Contains(env, []byte(variable)) {
			pids = append(pids, f)
		}
	}
	return pids
}

func TestInterruptedDemoLeavesNothing(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			dsn := testDatabase(t)
			mark := fmt.Sprintf("WEDCTL_TEST_MARK=%s-%d-%d", strings.ReplaceAll(sig.String(), " ", "-"), os.Getpid(), time.Now().UnixNano())
			name, mine, _ := strings.Cut(mark, "=")
			t.Setenv(name, mine)
			t.Setenv("TMPDIR", t.TempDir())

			cmd, stdout, stderr := start(t, "demo", "--pace", "2s", "-d", dsn)
			readUntil(t, stdout, "(new)")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(stdout)
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailure || !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("it ends with %v: %s%s", err, rest, stderr)
			}
			if pids := processesOf(t, mark); len(pids) != 0 {
				t.Errorf("still running: %v", pids)
			}
			if n := value(t, dsn, "select count(*) from pg_namespace where nspname in ('travel', 'wed_sql')"); n != "0" {
				t.Error("the flow or the extension is still there")
			}
			if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}

// Nothing can be cleaned up by a demo that is killed; but its workers end.
func TestKilledDemoLeavesNoProcess(t *testing.T) {
	dsn := testDatabase(t)
	t.Setenv("TMPDIR", t.TempDir())
	cmd, stdout, _ := start(t, "demo", "--pace", "100ms", "-d", dsn)
	readUntil(t, stdout, "(new)")
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for {
		var workers int
		err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and application_name like 'wed\_sql worker %'`).Scan(&workers)
		if err != nil {
			t.Fatal(err)
		}
		if workers == 0 {
			break
		}
	}
}

func TestTablesOfOthersAreNotTakenForThoseOfAFlow(t *testing.T) {
	o := openOffice(t)
	execute(t, o.dsn, "create schema fake",
		`create function fake.mine() returns text language plpgsql as $$ begin raise 'code of somebody else'; end $$`,
		"create table fake.wed_flow (wid bigint, _stamp text)")
	for _, table := range []string{"wed_attr", "wed_trig", "job_pool", "wed_trace", "wed_event", "wed_instance", "wed_timer"} {
		execute(t, o.dsn, "create view fake."+table+" as select fake.mine() as wid, fake.mine() as tgid, fake.mine() as trname")
	}
	for _, args := range [][]string{
		{"flow", "graph", "fake"}, {"flow", "show", "fake"}, {"flow", "export", "fake"}, {"flow", "check", "fake"}, {"job", "list", "-f", "fake"},
		{"instance", "list", "-f", "fake"}, {"instance", "show", "1", "-f", "fake"}, {"instance", "trace", "1", "-f", "fake"},
		{"instance", "start", "-f", "fake"}, {"instance", "cancel", "1", "-f", "fake"}, {"top", "-n", "1", "-f", "fake"},
	} {
		_, stderr, status := wedctl(t.Context(), append(args, "-d", o.dsn)...)
		if status != exitNotFound || strings.Contains(stderr, "somebody else") {
			t.Errorf("%q: exit status %d: %s", args, status, stderr)
		}
	}
}

func TestFunctionsOfOthersAreNotTakenForThoseOfPostgreSQL(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start")
	o.settle()
	execute(t, o.dsn, "create schema mine", `create function mine.stop() returns void language plpgsql as $$ begin raise 'code of somebody else'; end $$`)
	for _, signature := range []string{
		"array_to_string(text[], text) returns text", "cardinality(text[]) returns integer", "unnest(text[]) returns setof text", "to_jsonb(text) returns jsonb",
		"to_json(text) returns json", "array_length(text[], integer) returns integer", "format_type(oid, bigint) returns text",
	} {
		execute(t, o.dsn, "create function public."+signature+" language plpgsql as $$ begin perform mine.stop(); end $$")
	}
	for _, args := range [][]string{
		{"flow", "list"}, {"flow", "show", "desk"}, {"flow", "check", "desk"}, {"flow", "export", "desk"}, {"flow", "graph", "desk"}, {"job", "list"}, {"status"}, {"doctor"},
		{"top", "-n", "1"}, {"instance", "list"}, {"instance", "show", "1"}, {"instance", "trace", "1"}, {"instance", "start"}, {"instance", "cancel", "1"},
	} {
		if stdout, stderr, _ := wedctl(t.Context(), append(args, "-d", o.dsn)...); strings.Contains(stdout+stderr, "somebody else") {
			t.Errorf("%q: %s%s", args, stdout, stderr)
		}
	}
}
