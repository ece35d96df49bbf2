package condition

import (
	"context"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

var hardConditions = []string{
	"a = 1 or not b and c is null", "n = 1 and b", "s like 'a%'", "n between 1 and 2 or n is null", "m + 0.5 in (1, 2)", "not (n = 1) is unknown",
	"case n when 1 then b else s = 'x' end", "s || 'x' is distinct from 'ax'", "n > all (array[1, 2])", "- - 1 + - -2 = n", "s = 'it''s' and d < '2026-01-01'",
	"true); drop table x; --", "n = 1e999", "n / 0 = 1", "coalesce(s, 'a') <> lower(s)", "n = -2147483648", "not not b", "n = any (array[1])", "@ n * 2 = 4",
	"'a' < s collate \"C\"", "n::text = '1'", "(n, m) = (1, 2)", "n[1] = 1", "b is not true is false", "n - 1 - 1 = 0", "2 ^ 2 ^ 3 = 64", "n = 0x10", "n = 1_000",
}

var fuzzedTypes = map[string]string{"s": "text", "n": "integer", "m": "numeric", "b": "boolean", "d": "date", "ts": "timestamptz"}

// Whatever is said of a condition must fit together.
func FuzzVerdictsDoNotContradictEachOther(f *testing.F) {
	for i, s := range hardConditions {
		f.Add(s, hardConditions[(i+1)%len(hardConditions)])
	}
	states := NewStates(fuzzedTypes)
	f.Fuzz(func(t *testing.T, first, second string) {
		a, err := Parse(first)
		if err != nil {
			return
		}
		if states.Never(a) && states.Always(a) {
			t.Fatalf("%s is never so and always", first)
		}
		b, err := Parse(second)
		if err != nil {
			return
		}
		answer := states.Solve(Requirement{a, true}, Requirement{b, false})
		if answer.Verdict == Possible && (states.Implies(a, b) || states.Never(a) || states.Always(b)) {
			t.Fatalf("%s implies %s, but for %v", first, second, answer.State)
		}
		if answer.Verdict == Possible && states.Solve(Requirement{b, false}, Requirement{a, true}).Verdict == Impossible {
			t.Fatalf("%s and not %s: possible in one order, impossible in the other", first, second)
		}
	})
}

// A condition that was parsed and written again is the same to PostgreSQL: it fails where the first one fails, and comes
// to the same where it does not.
func FuzzAConditionMeansTheSameWhenItIsWrittenAgain(f *testing.F) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		f.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close(ctx) })
	if _, err := conn.Exec(ctx, "set default_transaction_read_only = on; set statement_timeout = '500ms'; set timezone = 'UTC'"); err != nil {
		f.Fatal(err)
	}
	for _, s := range hardConditions {
		f.Add(s)
	}
	const row = `(select 'a'::text as s, 1::integer as n, 1.5::numeric as m, true as b, date '2026-01-01' as d, timestamptz '2026-01-01' as ts) f`
	f.Fuzz(func(t *testing.T, sql string) {
		e, err := Parse(sql)
		if err != nil || !Repeatable(e) || !utf8.ValidString(sql) || strings.Contains(sql, "\x00") {
			return
		}
		ask := func(condition string) (value *bool, err error) {
			err = conn.QueryRow(ctx, "select (\n"+condition+"\n)::boolean from "+row).Scan(&value)
			return value, err
		}
		first, errFirst := ask(sql)
		again, errAgain := ask(Print(e))
		if (errFirst == nil) != (errAgain == nil) {
			t.Fatalf("%q: %v; %q: %v", sql, errFirst, Print(e), errAgain)
		}
		if errFirst == nil && (first == nil) != (again == nil) || first != nil && again != nil && *first != *again {
			t.Fatalf("%q is not %q", sql, Print(e))
		}
	})
}
