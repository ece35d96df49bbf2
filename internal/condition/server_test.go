package condition

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// Values of each attribute that the rows have, in SQL.
var tried = []struct {
	name, typ string
	values    []string
	constants []string
}{
	{"s", "text", []string{"null", "'a'", "'b'", "'other'"}, []string{"'a'", "'b'", "$$a$$", "'b'::text", "null"}},
	{"n", "integer", []string{"null", "0", "1", "2", "3", "4"}, []string{"1", "3", "'2'", "2.5", "-1", "2::integer", "99999999999", "-99999999999", "null"}},
	{"i", "smallint", []string{"null", "-32768", "0", "32767"}, []string{"32767", "-32768", "40000", "-40000", "0"}},
	{"m", "numeric", []string{"null", "0", "1", "1.5", "2", "'NaN'"}, []string{"1", "2", "'1.5'", "1e0", "null"}},
	{"b", "boolean", []string{"null", "true", "false"}, []string{"true", "false", "'true'"}},
	{"d", "date", []string{"null", "'2026-01-01'", "'2026-01-02'", "'2026-02-01'", "'infinity'"}, []string{"'2026-01-01'", "date '2026-01-03'", "'2026-01-02'"}},
	{"ts", "timestamptz", []string{"null", "'2026-01-01'", "'2026-01-01 12:00'", "'2026-01-01 12:00:00.25'"}, []string{"'2026-01-01 12:00'", "'2026-01-01'", "'2026-01-01 12:00:00.5'"}},
}

// conditions draws conditions over these attributes.
func conditions() *rapid.Generator[string] {
	leaf := rapid.Custom(func(t *rapid.T) string {
		a := rapid.SampledFrom(tried).Draw(t, "attribute")
		k := rapid.SampledFrom(a.constants)
		not := rapid.SampledFrom([]string{"", "not "})
		op := rapid.SampledFrom([]string{"=", "<>", "!=", "<", "<=", ">", ">="})
		switch rapid.IntRange(0, 9).Draw(t, "form") {
		case 0:
			return fmt.Sprintf("%s is %snull", a.name, not.Draw(t, "not"))
		case 1:
			return fmt.Sprintf("%s %sin (%s, %s)", a.name, not.Draw(t, "not"), k.Draw(t, "k"), k.Draw(t, "k"))
		case 2:
			return fmt.Sprintf("%s %sbetween %s and %s", a.name, not.Draw(t, "not"), k.Draw(t, "k"), k.Draw(t, "k"))
		case 3:
			return fmt.Sprintf("%s is %sdistinct from %s", a.name, not.Draw(t, "not"), k.Draw(t, "k"))
		case 4:
			return fmt.Sprintf("coalesce(%s, %s) %s %s", a.name, k.Draw(t, "k"), op.Draw(t, "op"), k.Draw(t, "k"))
		case 5:
			return fmt.Sprintf("%s %s %s", k.Draw(t, "k"), op.Draw(t, "op"), a.name)
		case 6:
			return rapid.SampledFrom([]string{
				"b", "not b", "b is true", "b is not false", "b is unknown", "s like 'a%'", "s not like '_'", "lower(s) = 'a'", "true", "false", "null", "1 < 2",
				"n = m", "n < i", "n + 1 >= 3", "n - 2 = 1", "m + 0.5 in (1, 2)", "n + 1 is null", "n + 1 > 2", "n is distinct from i", "(n = 1) is unknown", "(s = 'a') is not true", "s || 'x' is null", "n > all (array[1, 2])",
			}).Draw(t, "special")
		}
		return fmt.Sprintf("%s %s %s", a.name, op.Draw(t, "op"), k.Draw(t, "k"))
	})
	var deep func(depth int) *rapid.Generator[string]
	deep = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			if depth == 0 || rapid.IntRange(0, 2).Draw(t, "leaf") == 0 {
				return leaf.Draw(t, "leaf")
			}
			x := func() string { return deep(depth-1).Draw(t, "operand") }
			switch rapid.IntRange(0, 3).Draw(t, "logic") {
			case 0:
				return "not (" + x() + ")"
			case 1:
				return "(" + x() + ") or " + x()
			case 2:
				return x() + " and (" + x() + ")"
			}
			return x() + " and " + x() + " or " + x()
		})
	}
	return deep(3)
}

// table is a query of rows in which each attribute has each of its values, with every
// pair of those of others.
func table() string {
	var from, list []string
	for _, a := range tried {
		from = append(from, fmt.Sprintf("unnest(array[%s]::%s[]) %s", strings.Join(a.values, ", "), a.typ, a.name))
		list = append(list, a.name)
	}
	return "create temp table state as select " + strings.Join(list, ", ") + " from " + strings.Join(from, " cross join ") +
		" where random() < 0.15"
}

// What is proved is so on every row that PostgreSQL is asked about, and a condition means
// the same to it when it was parsed and written again.
func TestVerdictsAreThoseOfPostgreSQL(t *testing.T) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range []string{"set timezone = 'UTC'", "select setseed(0.5)", table()} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	kinds := make(map[string]string)
	for _, a := range tried {
		kinds[a.name] = a.typ
	}
	states := NewStates(kinds)
	proofs := make(map[string]int)
	rapid.Check(t, func(rt *rapid.T) {
		first, second := conditions().Draw(rt, "first"), conditions().Draw(rt, "second")
		a, errA := Parse(first)
		b, errB := Parse(second)
		if errA != nil || errB != nil {
			rt.Fatalf("%s: %v; %s: %v", first, errA, second, errB)
		}
		var heldNever, heldAlways, implied, same, together bool
		err := conn.QueryRow(ctx, fmt.Sprintf(`
			select not bool_or(a is true), bool_and(a is true), bool_and(a is not true or b is true),
				bool_and(a is not distinct from again), bool_or(a is true and b is not true)
			from (select (%s)::boolean, (%s)::boolean, (%s)::boolean from state) s(a, b, again)`, first, second, Print(a))).
			Scan(&heldNever, &heldAlways, &implied, &same, &together)
		if err != nil {
			rt.Fatalf("%s; %s; %s: %v", first, second, Print(a), err)
		}
		if !same {
			rt.Fatalf("%s is not %s", first, Print(a))
		}
		for proof, claim := range map[string][2]bool{
			"never":   {states.Never(a), heldNever},
			"always":  {states.Always(a), heldAlways},
			"implies": {states.Implies(a, b), implied},
		} {
			if claim[0] && !claim[1] {
				rt.Fatalf("%s, %s: %s is proved, and not so", first, second, proof)
			}
			if claim[0] {
				proofs[proof]++
			}
		}
		answer := states.Solve(Requirement{a, true}, Requirement{b, false})
		if answer.Verdict == Possible {
			proofs["possible"]++
			checkState(ctx, rt, conn, kinds, answer.State, first, second)
		}
	})
	t.Log(proofs)
	if len(proofs) == 0 {
		t.Error("nothing was ever proved")
	}
}

// checkState has PostgreSQL evaluate two conditions on a state that was found.
func checkState(ctx context.Context, t *rapid.T, conn *pgx.Conn, kinds map[string]string, state []string, first, second string) {
	var columns []string
	for name, typ := range kinds {
		value := "null"
		for _, s := range state {
			is, found := strings.CutPrefix(s, name+" ")
			switch {
			case !found:
			case strings.HasPrefix(is, "= "):
				value = strings.TrimPrefix(is, "= ")
			case strings.HasPrefix(is, "is other"):
				value = "'none of these'"
			case is == "is not null":
				value = "'whatever'"
			}
		}
		columns = append(columns, fmt.Sprintf("(%s)::%s as %s", value, typ, name))
	}
	var ok bool
	sql := fmt.Sprintf("select (%s) is true and (%s) is not true from (select %s) s", first, second, strings.Join(columns, ", "))
	if err := conn.QueryRow(ctx, sql).Scan(&ok); err != nil || !ok {
		t.Fatalf("%s: %v, %v", sql, ok, err)
	}
}
