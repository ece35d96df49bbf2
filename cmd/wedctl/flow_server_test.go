package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/wed-sql/wed_sql/internal/definition"
)

const ordersFile = `-- from the first click to the parcel
begin;
insert into wed_attr (aname, atype, adv) values
    ('status', 'text', 'new'),
    ('total', 'numeric', null);
insert into wed_trig (tgname, trname, cpred, timeout) values
    ('t1', 'charge', $$status = 'new'$$, '30 seconds'),
    ('t2', 'ship', $$status = 'paid'$$, default);
insert into wed_trig (cpred, cfinal) values ($$status in ('shipped', 'refused')$$, true);
select wed_sql.alter_flow('orders', max_states => 100);
commit;
`

// flowFile writes a file into a directory of the test's own.
func flowFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ok runs a command that has to be done.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, status := wedctl(t.Context(), args...)
	if status != exitOK {
		t.Fatalf("%v: exit status %d\n%s%s", args, status, stderr, stdout)
	}
	return stdout
}

// fails runs a command that has to fail with this status, and returns what it says.
func fails(t *testing.T, want int, args ...string) string {
	t.Helper()
	stdout, stderr, status := wedctl(t.Context(), args...)
	if status != want {
		t.Fatalf("%v: exit status %d, want %d\n%s%s", args, status, want, stderr, stdout)
	}
	return stdout + stderr
}

func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("it does not say %q:\n%s", w, text)
		}
	}
}

func TestApplyMakesTheFlowAndTwiceChangesNothing(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	file := flowFile(t, "any.sql", ordersFile)

	says(t, fails(t, exitUsage, "flow", "apply", file, "-d", dsn), "nobody to ask", "--yes")
	says(t, fails(t, exitDiffers, "flow", "apply", file, "--dry-run", "--exit-code", "-d", dsn), "the flow is new", "rule t1 (charge)  when status = 'new', timeout 00:00:30")
	if n := value(t, dsn, "select count(*) from pg_namespace where nspname in ('orders', 'any')"); n != "0" {
		t.Fatal("--dry-run has made the flow")
	}
	says(t, ok(t, "flow", "apply", file, "--yes", "-d", dsn), `flow "orders"`, "applied")
	version := value(t, dsn, "select rules_version from wed_sql.flow")
	says(t, ok(t, "flow", "apply", file, "--yes", "-d", dsn), "nothing to do")
	says(t, ok(t, "flow", "apply", file, "--dry-run", "--exit-code", "-d", dsn), "nothing to do")
	if now := value(t, dsn, "select rules_version from wed_sql.flow"); now != version {
		t.Errorf("the definition has version %s, and had %s", now, version)
	}
	if n := value(t, dsn, "select max_states from wed_sql.flow"); n != "100" {
		t.Errorf("max_states is %s", n)
	}
	says(t, ok(t, "flow", "show", "orders", "-d", dsn), "t1 (charge)", "(final)", "numeric")
}

func TestApplyAndDropDoWhatTheUserAnswers(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	file := flowFile(t, "orders.sql", ordersFile)
	answer := func(text string, args ...string) (stdout, stderr string, status int) {
		var out, err bytes.Buffer
		con := &console{in: strings.NewReader(text), out: &out, err: &err, asks: true}
		status = run(t.Context(), append([]string{"wedctl", "-d", dsn, "flow"}, args...), con)
		return out.String(), err.String(), status
	}
	exists := func() string { return value(t, dsn, "select count(*) from wed_sql.flow") }
	for _, no := range []string{"", "\n", "no\n", "yep\n"} {
		if stdout, stderr, status := answer(no, "apply", file); status != exitFailure || exists() != "0" || !strings.Contains(stderr, "nothing was changed") {
			t.Errorf("answer %q: exit status %d, %s flows\n%s%s", no, status, exists(), stdout, stderr)
		}
	}
	if stdout, stderr, status := answer("y\n", "apply", file); status != exitOK || exists() != "1" || !strings.Contains(stdout, "+ rule t1") {
		t.Errorf("exit status %d, %s flows\n%s%s", status, exists(), stdout, stderr)
	}
	if stdout, stderr, status := answer("", "apply", file); status != exitOK || strings.Contains(stderr, "Apply?") {
		t.Errorf("asks though there is nothing to do: exit status %d\n%s%s", status, stdout, stderr)
	}
	if _, stderr, status := answer("n\n", "drop", "orders"); status != exitFailure || exists() != "1" {
		t.Errorf("exit status %d, %s flows\n%s", status, exists(), stderr)
	}
	if _, stderr, status := answer("yes\n", "drop", "orders"); status != exitOK || exists() != "0" {
		t.Errorf("exit status %d, %s flows\n%s", status, exists(), stderr)
	}
}

func TestApplyChangesWhatDiffersAndKeepsTheRest(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	ok(t, "flow", "apply", flowFile(t, "orders.sql", ordersFile), "--yes", "-d", dsn)
	execute(t, dsn, "insert into orders.wed_flow (total) values (1), (null)", "insert into orders.wed_flow (status) values ('paid')", "select wed_sql.sync()")
	charge := value(t, dsn, "select tgid from orders.wed_trig where tgname = 't1'")

	changed := strings.NewReplacer(
		"('t1', 'charge', $$status = 'new'$$, '30 seconds')", "('t1', 'charge', $$status = 'fresh' and total > 5$$, '1 minute')",
		"('t2', 'ship', $$status = 'paid'$$, default)", "(null, 'pack', $$total = 1$$, default)",
		"'numeric'", "'integer'", "100", "200").Replace(ordersFile)
	file := flowFile(t, "orders.sql", changed)
	out := ok(t, "flow", "apply", file, "--dry-run", "-d", dsn)
	says(t, out, "~ attribute total", "numeric -> integer", "- rule t2 (ship)", "+ rule pack", "timeout      00:00:30 -> 00:01:00", "max_states   100 -> 200",
		"1 job of the removed rule t2 (ship)", "1 instance: fire pack")
	ok(t, "flow", "apply", file, "--yes", "-d", dsn)
	if now := value(t, dsn, "select tgid from orders.wed_trig where tgname = 't1'"); now != charge {
		t.Error("the rule is another one")
	}
	if n := value(t, dsn, "select count(*) from orders.job_pool where trname = 'pack'"); n != "0" {
		t.Error("instances were matched anew, though nobody has asked for it")
	}
	says(t, ok(t, "flow", "apply", file, "--yes", "--rematch", "-d", dsn), "1 instance: fire pack")
	execute(t, dsn, "select wed_sql.sync()")
	if n := value(t, dsn, "select count(*) from orders.job_pool where trname = 'pack'"); n != "1" {
		t.Errorf("%s jobs of pack", n)
	}
}

func TestApplyLosesNothingUnlessAllowedTo(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	ok(t, "flow", "apply", flowFile(t, "orders.sql", ordersFile), "--yes", "-d", dsn)
	execute(t, dsn, "insert into orders.wed_flow (total) values (1)")
	file := flowFile(t, "orders.sql", strings.Replace(strings.Replace(ordersFile, ",\n    ('total', 'numeric', null)", "", 1), "'30 seconds'", "'1 day'", 1))
	says(t, fails(t, exitFailure, "flow", "apply", file, "--yes", "-d", dsn), `"total" (1 value)`, "--allow-drop")
	if v := value(t, dsn, "select timeout from orders.wed_trig where tgname = 't1'"); v != "00:00:30" {
		t.Error("the rest was applied")
	}
	ok(t, "flow", "apply", file, "--yes", "--allow-drop", "-d", dsn)
	if n := value(t, dsn, "select count(*) from orders.wed_attr"); n != "1" {
		t.Errorf("%s attributes", n)
	}
}

func TestWhatIsWrongWithAFileIsSaidAtOnceAndWhere(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	file := flowFile(t, "wrong.sql", `insert into wed_attr (aname, atype, adv) values ('Status', 'text', 'new'), ('n', 'intger', null), ('m', 'integer', 'abc');
insert into wed_attr (aname, atype) values ('k', 'integer');
insert into wed_trig (trname, cpred) values
   ('a', 'status = ''new'''),
   ('b', 'k > 1 and'),
   ('c', 'k > 1
       and "Status" = nu'),
   ('_d', 'k = 1'),
   ('not told', 'm = 7');
insert into wed_trig (trname, cpred, action) values ('f', 'k = 3', 'k = "Status"');
insert into wed_trig (cpred, cfinal) values ('k = 4', true), ('k = 5', true);
insert into wed_trig (trname, cond) values ('x', 'y');
select wed_sql.alter_flow(current_schema(), consistent => 'k = kk');
`)
	want := []string{
		":1:83: type \"intger\" does not exist", ":1:101: invalid input syntax for type integer", ":4:11: column \"status\" does not exist",
		":5:11: WED-condition is not a single expression", ":7:23: column \"nu\" does not exist", ":8:12: name of WED-transition is reserved",
		":10:73: column \"k\" is of type integer but expression is of type text", ":11:64: a WED-flow can have only one final condition",
		":12:31: column \"cond\" of relation \"wed_trig\" does not exist", ":13:64: column \"kk\" does not exist",
	}
	for _, command := range [][]string{{"flow", "apply", "--yes"}, {"flow", "check"}} {
		out := strings.ReplaceAll(fails(t, exitFailure, append(command, file, "-d", dsn)...), "error: ", "")
		says(t, out, want...)
		if strings.Contains(out, "m = 7") {
			t.Errorf("a rule is said to be wrong for its attribute:\n%s", out)
		}
	}
	if n := value(t, dsn, "select count(*) from wed_sql.flow"); n != "0" {
		t.Error("something has stayed")
	}
}

func TestATypeChangesWithTheConditionsThatUseIt(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	const before = `insert into wed_attr (aname, atype, adv) values ('stage', 'text', 'new'), ('n', 'text', '5');
insert into wed_trig (tgname, trname, cpred, undo) values
    ('b', 'book', $$stage = 'new' and n = '5'$$, 'unbook'), ('u', 'unbook', 'false', null), ('o', 'other', $$stage = 'x'$$, 'unbook');
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
select wed_sql.alter_flow(current_schema(), consistent => $$n = '5'$$);`
	ok(t, "flow", "apply", flowFile(t, "a.sql", before), "--yes", "-d", dsn)
	execute(t, dsn, "insert into a.wed_flow default values", "select wed_sql.sync()")
	after := flowFile(t, "a.sql", strings.NewReplacer("'n', 'text'", "'n', 'integer'", "n = '5'", "n = 5", "'book'", "'reserve'").Replace(before))
	says(t, ok(t, "flow", "apply", after, "--yes", "-d", dsn), "text -> integer", "~ setting consistent", "book -> reserve")
	ok(t, "flow", "apply", after, "--dry-run", "--exit-code", "-d", dsn)
	if u := value(t, dsn, "select string_agg(undo, ' ') from a.wed_trig"); u != "unbook unbook" {
		t.Errorf("undone by %s", u)
	}
	wrong := flowFile(t, "a.sql", strings.NewReplacer("'stage', 'text', 'new'", "'stage', 'integer', '0'", "stage = 'new'", "stage = 0", "stage = 'x'", "stage = 1", "stage = 'done'", "stage = 2",
		"'n', 'text'", "'n', 'integer'", "n = '5'", "n = 5", "'book'", "'reserve'").Replace(before))
	says(t, fails(t, exitFailure, "flow", "apply", wrong, "--yes", "-d", dsn), "invalid input syntax for type integer", "what instances have")
}

func TestApplyDoesNotQueueForEver(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	file := flowFile(t, "orders.sql", ordersFile)
	ok(t, "flow", "apply", file, "--yes", "-d", dsn)
	conn := open(t.Context(), t, dsn+" application_name=greedy")
	defer hangUp(conn)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "lock table orders.wed_trig"); err != nil {
		t.Fatal(err)
	}
	says(t, fails(t, exitFailure, "flow", "apply", file, "--yes", "--lock-timeout", "100ms", "-d", dsn), "others use flow", "greedy", "idle in transaction", "--lock-timeout")
}

func TestWhatSomebodyElseHasChangedMeanwhileIsNotOverwritten(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	ok(t, "flow", "apply", flowFile(t, "orders.sql", ordersFile), "--yes", "-d", dsn)
	file, err := definition.ParseFile("orders.sql", strings.Replace(ordersFile, "'30 seconds'", "'1 day'", 1))
	if err != nil {
		t.Fatal(err)
	}
	a := application{file: file, flow: "orders", lockTimeout: time.Minute}
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	shown, err := a.attempt(t.Context(), conn, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, dsn, "update orders.wed_trig set timeout = '2 days' where tgname = 't1'")
	if _, err := a.attempt(t.Context(), conn, true, shown.plan); err == nil || !strings.Contains(err.Error(), "meanwhile") {
		t.Errorf("%v", err)
	}
	if v := value(t, dsn, "select timeout from orders.wed_trig where tgname = 't1'"); v != "2 days" {
		t.Errorf("timeout is %s", v)
	}
}

func TestGrantsOfAFileAreMadeAndOthersLeftAlone(t *testing.T) {
	dsn := testDatabase(t)
	roles := []string{"wedctl_till", "wedctl_porter"}
	execute(t, dsn, "create extension wed_sql")
	for _, r := range roles {
		execute(t, dsn, "drop role if exists "+r, "create role "+r)
	}
	file := flowFile(t, "orders.sql", ordersFile+"select wed_sql.grant_worker(current_schema(), 'charge', 'wedctl_till');\n")
	ok(t, "flow", "apply", file, "--yes", "-d", dsn)
	execute(t, dsn, "select wed_sql.grant_worker('orders', 'ship', 'wedctl_porter')")
	says(t, ok(t, "flow", "apply", file, "--yes", "-d", dsn), "nothing to do", "ship to wedctl_porter")
	says(t, ok(t, "flow", "export", "orders", "--grants", "-d", dsn), "grant_worker(current_schema(), 'charge', 'wedctl_till')")
	if strings.Contains(ok(t, "flow", "export", "orders", "-d", dsn), "grant") {
		t.Error("grants are exported, though nobody has asked for them")
	}
	ok(t, "flow", "apply", file, "--yes", "--revoke", "-d", dsn)
	if r := value(t, dsn, "select string_agg(role, ' ') from wed_sql.flow_worker"); r != "wedctl_till" {
		t.Errorf("granted: %s", r)
	}
	execute(t, dsn, "select wed_sql.drop_flow('orders')", "drop owned by wedctl_till, wedctl_porter", "drop role wedctl_till, wedctl_porter")
}

func TestTheTablesThatAFileIsRunOnAreThoseOfAFlow(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql", "select wed_sql.create_flow('f')")
	conn := open(t.Context(), t, dsn)
	defer hangUp(conn)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), definition.ScratchTables); err != nil {
		t.Fatal(err)
	}
	const columns = `select string_agg(format('%s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)), E'\n' order by a.attnum)
		from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
		where a.attrelid = $1::regclass and a.attnum > 0 and a.attname not in ('_row', '_statement')`
	for _, table := range []string{"wed_attr", "wed_trig"} {
		var ours, theirs string
		if err := tx.QueryRow(t.Context(), columns, "pg_temp."+table).Scan(&ours); err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), columns, "f."+table).Scan(&theirs); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(theirs, ours); d != "" {
			t.Errorf("%s:\n%s", table, d)
		}
	}
}

// flowFiles draws files that define flows.
func flowFiles() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
		name := func(i int) string {
			return rapid.SampledFrom([]string{"a", "B", "with space", `q"uote`, "it's", "ünder", "select", "x$y"}).Draw(t, "name") + fmt.Sprint(i)
		}
		var attributes, rules, names []string
		for i := range rapid.IntRange(1, 4).Draw(t, "attributes") {
			n := name(i)
			kind := rapid.SampledFrom([]string{"text', 'x", "text', 'it''s a \\ $$ 'tr", "int', '1", "numeric(10,2)', '1.5", "timestamptz', '2026-01-01", "varchar(20)', '", "jsonb', '{}"}).Draw(t, "type")
			kind = strings.TrimSuffix(kind, "'tr")
			if strings.Contains(kind, "20") || strings.Contains(kind, "{") {
				n += kind[:2] // nothing casts to these
			}
			names = append(names, n)
			attributes = append(attributes, fmt.Sprintf("(%s, '%s')", quote(n), kind))
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "rules") {
			a := `"` + strings.ReplaceAll(rapid.SampledFrom(names).Draw(t, "attribute"), `"`, `""`) + `"`
			cpred := rapid.SampledFrom([]string{a + " is null", a + "::text = 'it''s'", "false or\n\t" + a + " is not null", a + "::text <> $$a$b$$", a + `::text like E'\\%'`}).Draw(t, "cpred")
			rules = append(rules, fmt.Sprintf("(%s, %s, %s, %s, %s, %s, %s, %s)",
				rapid.SampledFrom([]string{"null", quote(name(i))}).Draw(t, "tgname"), quote(name(i)), quote(cpred),
				rapid.SampledFrom([]string{"default", "'90 seconds'", "'1 mon 2 days'"}).Draw(t, "timeout"),
				rapid.SampledFrom([]string{"null", "'3 days'"}).Draw(t, "delay"), rapid.SampledFrom([]string{"default", "false"}).Draw(t, "enabled"),
				rapid.SampledFrom([]string{"0", "-5"}).Draw(t, "priority"), rapid.SampledFrom([]string{"null", "3"}).Draw(t, "max_attempts")))
		}
		file := "insert into wed_attr (aname, atype, adv) values " + strings.Join(attributes, ", ") + ";\n"
		if len(rules) > 0 {
			file += "insert into wed_trig (tgname, trname, cpred, timeout, delay, enabled, priority, max_attempts) values " + strings.Join(rules, ",\n") + ";\n"
		}
		if rapid.Bool().Draw(t, "final") {
			file += "insert into wed_trig (cpred, cfinal) values ('wid > 5', true);\n"
		}
		if rapid.Bool().Draw(t, "settings") {
			file += "select wed_sql.alter_flow(current_schema, 'wid is not null', 7);\n"
		}
		return file
	})
}

// Any flow, exported and applied elsewhere, is the same flow; whatever was there before
// becomes it.
func TestWhatIsExportedIsTheFlow(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	dir := t.TempDir()
	path := filepath.Join(dir, "f.sql")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	do := func(args ...string) string {
		stdout, stderr, status := wedctl(t.Context(), append(args, "-d", dsn)...)
		if status != exitOK {
			text, _ := os.ReadFile(path)
			t.Fatalf("%v: %s\n%s", args, stderr, text)
		}
		return stdout
	}
	for seed := range 12 {
		write(flowFiles().Example(seed))
		do("flow", "apply", path, "--flow", "one", "--yes")
		do("flow", "apply", path, "--flow", "one", "--dry-run", "--exit-code")
		exported := do("flow", "export", "one")
		write(exported)
		do("flow", "apply", path, "--flow", "one", "--dry-run", "--exit-code")
		do("flow", "apply", path, "--flow", "two", "--yes")
		if d := cmp.Diff(normal(exported), normal(do("flow", "export", "two"))); d != "" {
			t.Fatal(d)
		}
	}
}

// normal is an export without the order of its lines: rules and attributes that stay keep
// their places.
func normal(export string) []string {
	lines := strings.FieldsFunc(export, func(r rune) bool { return r == '\n' })
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, ",;")
	}
	slices.Sort(lines)
	return lines
}

func TestCheckKnowsTheHistory(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	ok(t, "flow", "apply", flowFile(t, "orders.sql", strings.Replace(ordersFile, "status = 'new'", "status <> 'paid'", 1)), "--yes", "-d", dsn)
	says(t, ok(t, "flow", "check", "orders", "-d", dsn), "unknown: what the workers of charge, ship write")
	execute(t, dsn, "insert into orders.wed_flow default values", "select wed_sql.sync()")
	for range 3 {
		execute(t, dsn, "begin; select wed_sql.try_lock(wid, tgid) from orders.job_pool; update orders.wed_flow set total = coalesce(total, 0) + 1; commit", "select wed_sql.sync()")
	}
	out := fails(t, exitFailure, "flow", "check", "orders", "-o", "json", "-d", dsn)
	var findings []finding
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&findings); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !slices.ContainsFunc(findings, func(f finding) bool { return f.Check == "fires-again" && f.Rule == "t1 (charge)" }) {
		t.Errorf("%s", out)
	}
}

func TestDropSaysWhatIsLost(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql")
	says(t, ok(t, "flow", "create", "f", "-d", dsn), `"f"`)
	says(t, fails(t, exitFailure, "flow", "create", "f", "-d", dsn), "already")
	ok(t, "flow", "apply", flowFile(t, "orders.sql", ordersFile), "--yes", "-d", dsn)
	execute(t, dsn, "insert into orders.wed_flow default values")
	says(t, fails(t, exitUsage, "flow", "drop", "orders", "-d", dsn), "--yes")
	says(t, ok(t, "flow", "drop", "orders", "--yes", "-d", dsn), "1 running", "gone")
	fails(t, exitNotFound, "flow", "drop", "orders", "--yes", "-d", dsn)
	fails(t, exitNotFound, "flow", "show", "orders", "-d", dsn)
	fails(t, exitNotFound, "flow", "export", "orders", "-d", dsn)
	fails(t, exitNotFound, "flow", "check", "orders", "-d", dsn)
}

func TestTheOwnerOfAFlowNeedsNoMoreThanThat(t *testing.T) {
	dsn := testDatabase(t)
	execute(t, dsn, "create extension wed_sql", "drop role if exists wedctl_author", "create role wedctl_author login",
		"drop role if exists wedctl_stranger", "create role wedctl_stranger login",
		"do $$ begin execute format('grant create on database %I to wedctl_author', current_database()); end $$",
		"grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wedctl_author")
	author, stranger := strings.Replace(dsn, "user=postgres", "user=wedctl_author", 1), strings.Replace(dsn, "user=postgres", "user=wedctl_stranger", 1)
	file := flowFile(t, "orders.sql", ordersFile)
	ok(t, "flow", "apply", file, "--yes", "-d", author)
	ok(t, "flow", "apply", file, "--yes", "-d", author)
	ok(t, "flow", "check", file, "-d", author)
	says(t, ok(t, "flow", "show", "orders", "-d", author), "owned by wedctl_author")
	ok(t, "flow", "export", "orders", "-d", author)
	says(t, fails(t, exitFailure, "flow", "apply", file, "--yes", "-d", stranger), "the rights of the flow's owner")
	says(t, fails(t, exitFailure, "flow", "export", "orders", "-d", stranger), "another role")
	ok(t, "flow", "drop", "orders", "--yes", "-d", author)
	execute(t, dsn, "drop owned by wedctl_author", "drop role wedctl_author, wedctl_stranger")
}
