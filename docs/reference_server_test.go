package docs

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

//go:embed reference.md
var reference string

//go:embed settings.md
var settings string

// marker stands before what is read from the catalogs.
const marker = "<!-- From here on as the catalogs have it: TestReferenceIsWhatTheCatalogsHave prints it. -->\n"

// api are the functions that are there to be called; all others are the extension's own.
var api = []string{"create_flow", "drop_flow", "grant_worker", "revoke_worker", "grant_engine", "revoke_engine",
	"alter_flow", "suspend", "resume", "cancel", "retry", "skip", "repair", "rewind", "compensate", "rematch", "reopen", "purge", "purge_batch",
	"lease", "lease_job", "extend", "complete", "release", "fail", "signal", "rule_attributes",
	"try_lock", "sync", "stat_reset", "visible_transitions", "may_perform"}

func connect(t *testing.T) (context.Context, *pgx.Conn) {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(ctx, "create extension if not exists wed_sql"); err != nil {
		t.Fatal(err)
	}
	return ctx, conn
}

func collect[T any](ctx context.Context, t *testing.T, conn *pgx.Conn, sql string, args ...any) []T {
	t.Helper()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

type function struct{ Name, Arguments, Result, Who, What string }

func functions(ctx context.Context, t *testing.T, conn *pgx.Conn) []function {
	return collect[function](ctx, t, conn, `
select p.proname, pg_get_function_arguments(p.oid), coalesce(pg_get_function_result(p.oid), 'procedure'),
       case when has_function_privilege('public', p.oid, 'execute') then 'anybody'
            when has_function_privilege('pg_monitor', p.oid, 'execute') then 'pg_monitor'
            else 'whom it is granted to' end,
       coalesce(obj_description(p.oid, 'pg_proc'), '')
  from pg_proc p where p.pronamespace = 'wed_sql'::regnamespace order by p.proname collate "C", 2`)
}

type column struct{ Table, Kind, About, Name, Type, What string }

func columns(ctx context.Context, t *testing.T, conn *pgx.Conn, schema string) []column {
	return collect[column](ctx, t, conn, `
select c.relname, case c.relkind when 'v' then 'view' else 'table' end, coalesce(obj_description(c.oid, 'pg_class'), ''),
       a.attname, format_type(a.atttypid, a.atttypmod), coalesce(col_description(c.oid, a.attnum), '')
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'v')
 order by c.relkind desc, c.relname collate "C", a.attnum`, schema)
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func writeFunctions(b *strings.Builder, title string, list []function) {
	fmt.Fprintf(b, "\n## %s\n\n| function | returns | may be called by | |\n|---|---|---|---|\n", title)
	for _, f := range list {
		fmt.Fprintf(b, "| `%s(%s)` | `%s` | %s | %s |\n", f.Name, cell(f.Arguments), cell(f.Result), f.Who, cell(f.What))
	}
}

func writeColumns(b *strings.Builder, title, schema string, list []column) {
	fmt.Fprintf(b, "\n## %s\n", title)
	last := ""
	for _, c := range list {
		if c.Table != last {
			last = c.Table
			fmt.Fprintf(b, "\n### %s `%s.%s`\n\n%s.\n\n| column | type | |\n|---|---|---|\n", c.Kind, schema, c.Table, c.About)
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", c.Name, c.Type, cell(c.What))
	}
}

func TestReferenceIsWhatTheCatalogsHave(t *testing.T) {
	ctx, conn := connect(t)
	const flow = "docs_reference"
	for _, sql := range []string{"begin", "set local search_path = pg_catalog", "select wed_sql.create_flow('" + flow + "')"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	var public, own []function
	for _, f := range functions(ctx, t, conn) {
		if f.What == "" {
			t.Errorf("function %s has no comment", f.Name)
		}
		if slices.Contains(api, f.Name) {
			public = append(public, f)
		} else {
			own = append(own, f)
		}
	}
	kept, flows := columns(ctx, t, conn, "wed_sql"), columns(ctx, t, conn, flow)
	for _, c := range slices.Concat(kept, flows) {
		if c.About == "" {
			t.Errorf("%s %s has no comment", c.Kind, c.Table)
		}
	}
	var b strings.Builder
	writeFunctions(&b, "Functions to call", public)
	writeColumns(&b, "Tables and view of a flow", "flow", flows)
	writeColumns(&b, "Views and tables of the extension", "wed_sql", kept)
	writeFunctions(&b, "Functions of the extension's own", own)

	_, documented, ok := strings.Cut(reference, marker)
	if !ok {
		t.Fatalf("reference.md has no line %q", marker)
	}
	if diff := cmp.Diff(documented, b.String()); diff != "" {
		t.Errorf("reference.md differs from the catalogs (-reference +catalogs):\n%s\nit should be\n%s", diff, b.String())
	}
}

type setting struct{ Name, Default, Unit, Context string }

func TestEverySettingIsDocumented(t *testing.T) {
	ctx, conn := connect(t)
	when := map[string]string{"postmaster": "restart", "sighup": "reload", "superuser": "`SET`, by a superuser", "user": "`SET`"}
	want := map[string]setting{}
	for _, s := range collect[setting](ctx, t, conn, `
select name, boot_val, coalesce(unit, ''), context from pg_settings where name like 'wed\_sql.%'`) {
		s.Context = when[s.Context]
		want[s.Name] = s
	}
	row := regexp.MustCompile("(?m)^\\| `(wed_sql\\.\\w+)` \\| `([^`]*)` \\|([^|]*)\\|([^|]*)\\|")
	got := map[string]setting{}
	for _, m := range row.FindAllStringSubmatch(settings, -1) {
		s := setting{Name: m[1], Default: strings.Trim(m[2], "'"), Unit: want[m[1]].Unit, Context: strings.TrimSpace(m[4])}
		// the server converts what people write
		if s.Unit != "" {
			if err := conn.QueryRow(ctx, `
select case when $2::text in ('ms', 's')
            then (extract(epoch from $1::text::interval) * case $2::text when 'ms' then 1000 else 1 end)::bigint
            else pg_size_bytes($1::text) / case $2::text when 'kB' then 1024 else 1048576 end
       end::text`,
				s.Default, s.Unit).Scan(&s.Default); err != nil {
				t.Errorf("%s: default %q: %v", s.Name, m[2], err)
			}
		}
		got[s.Name] = s
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("settings.md differs from the server (-settings.md +server):\n%s", diff)
	}
}
