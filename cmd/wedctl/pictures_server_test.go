package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// do has an instance's pending transition done, when the engine has fired it.
func do(flow string, wid int64, transition, set string) string {
	f := pgx.Identifier{flow}.Sanitize()
	return fmt.Sprintf(`do $$ begin
		perform wed_sql.sync();
		if not (select wed_sql.try_lock(wid, tgid) from %[1]s.job_pool where wid = %[2]d and trname = $x$%[3]s$x$) then
			raise 'no lock';
		end if;
		update %[1]s.wed_flow set %[4]s where wid = %[2]d;
		end $$`, f, wid, transition, set)
}

var figure2 = []string{
	"create extension if not exists wed_sql", "select wed_sql.create_flow('paper')",
	"insert into paper.wed_attr (aname, adv) values ('a1', 'ready')", "insert into paper.wed_attr (aname) values ('a2'), ('a3')",
	`insert into paper.wed_trig (trname, cpred) values ('tr_a2', $$a1 = 'ready' and a2 is null$$),
		('tr_a3', $$a1 = 'ready' and a3 is null$$), ('tr_final', $$a1 = 'ready' and a2 is not null and a3 is not null$$)`,
	"insert into paper.wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true)",
}

// graphOf draws a flow, and returns its arrows: what leads to what, with what is
// said of them but for the times, and a sign for those that are dashed.
func graphOf(t *testing.T, dsn string, args ...string) map[string]string {
	t.Helper()
	stdout, stderr, status := wedctl(t.Context(), append([]string{"flow", "graph", "--format", "dot", "-d", dsn}, args...)...)
	if status != exitOK {
		t.Fatalf("exit status %d: %s", status, stderr)
	}
	names := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\t(n\d+) \[label="(.*?)(?:\\n|", tooltip)`).FindAllStringSubmatch(stdout, -1) {
		names[m[1]] = m[2]
	}
	arrows := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\t(n\d+) -> (n\d+) \[label="(.*?)(?: · .*?)?", tooltip=.*?(, style=dashed)?(, arrowhead=empty)?\];$`).FindAllStringSubmatch(stdout, -1) {
		sign := ""
		switch {
		case m[4] != "":
			sign = "possibly "
		case m[5] != "":
			sign = "by "
		}
		arrows[names[m[1]]+" → "+names[m[2]]] = sign + m[3]
	}
	if n := strings.Count(stdout, " -> "); n != len(arrows) {
		t.Errorf("%d arrows were read, of %d:\n%s", len(arrows), n, stdout)
	}
	return arrows
}

func TestFlowGraphShowsExactlyWhatTheTraceSays(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, figure2...)
	if diff := cmp.Diff(map[string]string{}, graphOf(t, dsn, "paper")); diff != "" {
		t.Errorf("without a history: %s", diff)
	}

	execute(t, dsn, "insert into paper.wed_flow default values",
		do("paper", 1, "tr_a2", "a2 = 'done'"), do("paper", 1, "tr_a3", "a3 = 'done'"), do("paper", 1, "tr_final", "a1 = 'closed'"),
		"select wed_sql.sync()")
	want := map[string]string{
		"start → tr_a2": "1×", "start → tr_a3": "1×", "tr_a2 → tr_final": "by a2", "tr_a3 → tr_final": "1×", "tr_final → final": "1×",
	}
	if diff := cmp.Diff(want, graphOf(t, dsn, "paper")); diff != "" {
		t.Error(diff)
	}

	// an exception, its recovery, a failure that makes one, and an intervention
	execute(t, dsn, "update paper.wed_trig set max_attempts = 1 where trname = 'tr_a3'", "insert into paper.wed_flow default values",
		do("paper", 2, "tr_a2", "a2 = 'done'"), "select wed_sql.sync()",
		"select wed_sql.fail('paper', 2, tgid, 'no paper') from paper.job_pool where wid = 2 and trname = 'tr_a3'",
		"select wed_sql.sync()", "select wed_sql.retry('paper', 2)",
		do("paper", 2, "tr_a3", "a3 = 'done', a1 = null"),
		do("paper", 2, "_EXCPT", "a1 = 'ready'"), "select wed_sql.sync()")
	want = map[string]string{
		"start → tr_a2": "2×", "start → tr_a3": "2×", "tr_a2 → tr_final": "by a2", "tr_a3 → tr_final": "1×", "tr_final → final": "1×",
		"tr_a3 → _EXCPT": "2×", "interventions → tr_a3": "1×", "_EXCPT → tr_final": "1×",
	}
	if diff := cmp.Diff(want, graphOf(t, dsn, "paper")); diff != "" {
		t.Error(diff)
	}

	// only so much of it
	if diff := cmp.Diff(map[string]string{}, graphOf(t, dsn, "paper", "--states", "0")); diff != "" {
		t.Errorf("of no states: %s", diff)
	}
	if diff := cmp.Diff(want, graphOf(t, dsn, "paper", "--since", "1 day")); diff != "" {
		t.Errorf("of the last day: %s", diff)
	}
	if got := graphOf(t, dsn, "paper", "--since", "1 microsecond"); len(got) != 0 {
		t.Errorf("of the last microsecond: %v", got)
	}
	stdout, _, _ := wedctl(t.Context(), "flow", "graph", "paper", "-d", dsn, "--states", "3")
	if !strings.Contains(stdout, "3 states of 1 instance") || !strings.Contains(stdout, "there are more") {
		t.Error("it does not say that it has read a part only")
	}
}

func TestFlowGraphShowsWhatIsPossibleByData(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, figure2...)
	execute(t, dsn, "update paper.wed_trig set action = $$a2 = 'done'$$, delay = '7 days' where trname = 'tr_a2'")
	want := map[string]string{"tr_a2 → tr_final": "possibly a2"}
	if diff := cmp.Diff(want, graphOf(t, dsn, "paper")); diff != "" {
		t.Error(diff)
	}
	// a delay that has begun is an arrow from the state with which it began
	execute(t, dsn, "insert into paper.wed_flow default values", "select wed_sql.sync()")
	want["start → tr_a2"], want["start → tr_a3"] = "1×", "1×"
	if diff := cmp.Diff(want, graphOf(t, dsn, "paper")); diff != "" {
		t.Error(diff)
	}
}

func TestFlowGraphIsForWhoMayReadTheHistory(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, figure2...)
	execute(t, dsn, "drop role if exists wedctl_reader", "create role wedctl_reader login")
	defer execute(t, dsn, "drop owned by wedctl_reader", "drop role wedctl_reader")
	as := dsn + " user=wedctl_reader"
	_, stderr, status := wedctl(t.Context(), "flow", "graph", "paper", "-d", as)
	if status != exitFailure || !strings.Contains(stderr, "select on its wed_trace") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	execute(t, dsn, "grant usage on schema paper to wedctl_reader", "grant select on paper.wed_trace, paper.wed_trig to wedctl_reader")
	stdout, stderr, status := wedctl(t.Context(), "flow", "graph", "paper", "-d", as)
	if status != exitOK || !strings.Contains(stdout, "Without statistics") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	execute(t, dsn, "insert into paper.wed_flow default values", "select wed_sql.sync()", "grant select on paper.wed_event to wedctl_reader")
	stdout, stderr, status = wedctl(t.Context(), "instance", "trace", "1", "-f", "paper", "--svg", "-d", as)
	if status != exitOK || !strings.Contains(stdout, "tr_a2") {
		t.Errorf("trace: exit status %d: %s", status, stderr)
	}
}

func TestPicturesOfAnyNamesAreWellFormedFiles(t *testing.T) {
	dsn := testDatabase(t)
	names := []string{`a"b`, `<script>&amp;`, `it's`, `back\slash`, "two\nlines", "ключ", "漢字", "end"}
	flow := "'\"<&>\\\n"
	f := pgx.Identifier{flow}.Sanitize()
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	run("create extension wed_sql")
	run("select wed_sql.create_flow($1)", flow)
	for _, n := range names {
		run("insert into "+f+".wed_attr (aname) values ($1)", n)
		run("insert into "+f+".wed_trig (trname, cpred) values ($1, $2)", n, pgx.Identifier{n}.Sanitize()+" is null")
	}
	run("insert into " + f + ".wed_flow default values")
	for _, n := range names {
		run(do(flow, 1, n, pgx.Identifier{n}.Sanitize()+" = $y$"+n+"$y$"))
	}
	run("select wed_sql.sync()")

	dir := t.TempDir()
	for file, begins := range map[string]string{
		"graph.svg": "<svg ", "graph.dot": "digraph ", "graph.mmd": "flowchart ", "graph": "<svg ",
	} {
		file = filepath.Join(dir, file)
		if stdout, stderr, status := wedctl(t.Context(), "flow", "graph", flow, "-d", dsn, "--out", file); status != exitOK || stdout != "" {
			t.Fatalf("%s: exit status %d: %s%s", file, status, stdout, stderr)
		}
		got, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(got), begins) {
			t.Errorf("%s is %.40q: %v", file, got, err)
		}
		if begins == "<svg " {
			if err := xml.Unmarshal(got, new(struct{})); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	stdout, stderr, status := wedctl(t.Context(), "instance", "trace", "1", "-f", flow, "--svg", "-d", dsn)
	if err := xml.Unmarshal([]byte(stdout), new(struct{})); status != exitOK || err != nil {
		t.Errorf("trace: exit status %d: %s: %v", status, stderr, err)
	}
	if !strings.Contains(stdout, "&lt;script&gt;&amp;amp;") || strings.Contains(stdout, "<script") {
		t.Error("a name is not what it was")
	}
	for _, args := range [][]string{{"flow", "graph", "nowhere"}, {"instance", "trace", "99", "--svg", "-f", flow}} {
		if _, stderr, status := wedctl(t.Context(), append(args, "-d", dsn)...); status != exitNotFound {
			t.Errorf("%v: exit status %d: %s", args, status, stderr)
		}
	}
	file := filepath.Join(dir, "no", "such", "directory.svg")
	if _, stderr, status := wedctl(t.Context(), "flow", "graph", flow, "-d", dsn, "--out", file); status != exitFailure || !strings.Contains(stderr, file) {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	if _, stderr, status := wedctl(t.Context(), "flow", "graph", flow, "-d", dsn, "--since", "a while"); status != exitUsage || !strings.Contains(stderr, "7 days") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
}
