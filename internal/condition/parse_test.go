package condition

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConditionsAreUnderstoodAsPostgreSQLDoes(t *testing.T) {
	for sql, want := range map[string]string{
		"a = 1 or b = 2 and c = 3":                     "a = 1 or b = 2 and c = 3",
		"(a = 1 or b = 2) and c = 3":                   "(a = 1 or b = 2) and c = 3",
		"((a)) = (('x'))":                              "a = 'x'",
		"not a is null":                                "not a is null",
		"(not a) is null":                              "(not a) is null",
		"a != 'it''s'":                                 "a <> 'it''s'",
		"A = $$x$$":                                    "a = 'x'",
		`"A" = E'x\ny'`:                                "\"A\" = 'x\ny'",
		"a = b is null":                                "a = b is null",
		"a = (b is null)":                              "a = (b is null)",
		"a not in (1, 2)":                              "a not in (1, 2)",
		"a in (select x from y where z in (1))":        "a in ( select x from y where z in ( 1 ) )",
		"a between 1 and 2 and b":                      "a between 1 and 2 and b",
		"a not between symmetric 1 and 2":              "a not between symmetric 1 and 2",
		"a like 'x%' escape '!'":                       "a like 'x%' escape '!'",
		"a is not distinct from b":                     "a is not distinct from b",
		"a isnull or b notnull":                        "a is null or b is not null",
		"-1 + 2 * -3 < a":                              "-1 + 2 * -3 < a",
		"- a ^ 2 > -(-1)":                              "- a ^ 2 > - (-1)",
		"a - (b - c) = 1":                              "a - (b - c) = 1",
		"a - b - c = 1":                                "a - b - c = 1",
		"a || b = 'xy'":                                "a || b = 'xy'",
		"a || (b = c)::text = 'x'":                     "a || (b = c)::text = 'x'",
		"cast(a as numeric(10,2)) > 1":                 "a::numeric ( 10 , 2 ) > 1",
		"date '2026-01-01' <= d":                       "'2026-01-01'::date <= d",
		"d at time zone 'utc' > now()":                 "d at time zone 'utc' > now()",
		"d > current_date - 7":                         "d > current_date - 7",
		"coalesce(a, 'x') = lower(b)":                  "coalesce(a, 'x') = lower(b)",
		"f.g(1, a)":                                    "f.g(1, a)",
		"case when a then b else c end":                "case when a then b else c end",
		"doc->>'k' = 'v'":                              "doc ->> 'k' = 'v'",
		"doc @> '{\"a\": 1}'::jsonb":                   "doc @> '{\"a\": 1}'::jsonb",
		"a = any (array['x','y'])":                     "a = any ( array [ 'x' , 'y' ] )",
		"exists (select from t where (t.a) = a)":       "exists ( select from t where ( t . a ) = a )",
		"arr[1] = 2":                                   "arr [ 1 ] = 2",
		"count(distinct a) > 1":                        "count ( distinct a ) > 1",
		"wed_flow.a = 1":                               "a = 1",
		"extract(year from d) = 2026":                  "extract ( year from d ) = 2026",
		"(a, b) = (1, 2)":                              "( a , b ) = ( 1 , 2 )",
		"not not a":                                    "not not a",
		"a = 'x' -- why\n /* and */ and b":             "a = 'x' and b",
		"a::timestamp with time zone is null":          "a::timestamp with time zone is null",
		"a collate \"C\" < 'x'":                        "a collate \"C\" < 'x'",
		"a is true and b is not false or c is unknown": "a is true and b is not false or c is unknown",
	} {
		e, err := Parse(sql)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if d := cmp.Diff(want, Print(e)); d != "" {
			t.Errorf("%s:\n%s", sql, d)
		}
	}
}

func TestWhatIsNotUnderstoodIsSaid(t *testing.T) {
	for sql, at := range map[string]int{
		"":                        0,
		"a =":                     3,
		"a = 1 = 2":               6,
		"a and":                   5,
		"a b":                     2,
		"a = 'x":                  4,
		"(a":                      2,
		"a in ()":                 7,
		"select 1":                0,
		"a; b":                    1,
		"case when a":             11,
		"a is new":                5,
		"interval '1' day > i":    0,
		"a between 1 or 2":        12,
		"a like any (array['x'])": 7,
	} {
		_, err := Parse(sql)
		if err == nil {
			t.Errorf("%q is understood", sql)
			continue
		}
		if e, ok := errors.AsType[*Error](err); ok && e.At != at {
			t.Errorf("%q: %v at %d, want %d", sql, e, e.At, at)
		}
	}
}

func TestAssignmentsAreUnderstood(t *testing.T) {
	list, err := ParseSet(`a = 'x', "B c" = n + 1, d = default`)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 3 || list[0].Name != "a" || list[1].Name != "B c" || list[2].Value != nil || Print(list[1].Value) != "n + 1" {
		t.Errorf("%+v", list)
	}
	for _, sql := range []string{"", "a", "a =", "(a, b) = (1, 2)", "a = 1,", "a = 1 where true", "a.b = 1"} {
		if list, err := ParseSet(sql); err == nil {
			t.Errorf("%q: %+v", sql, list)
		}
	}
}

func TestNamesAreThoseThatAreRead(t *testing.T) {
	e, err := Parse(`a = 1 and "B" is null or lower(c) = 'd' or x = (select e from f)`)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"B", "a", "c", "e", "f", "from", "select", "x"}, Names(e)); d != "" {
		t.Error(d)
	}
}

// What is understood, however odd, means the same when it has been written again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"a = 1 or not b and c is null", "- - 1 + - -2", "a = any (array[1])", "((1)).x", "case when case when a end end",
		"x[1][2]", "'a'::text collate \"C\"", "@ a * b", "a not in (1,(2),'3')", "interval '1'", "f(a => 1)", "cast(1 as int)[1]",
		"a between - 1 and @ 2", "timestamp with time zone 'x'", "-(1)::int", "\"select\" = 1", "a at time zone b at time zone c",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		if list, err := ParseSet(sql); err == nil && len(list) == 0 {
			t.Fatal("nothing is assigned")
		}
		e, err := Parse(sql)
		if err != nil {
			return
		}
		once := Print(e)
		again, err := Parse(once)
		if tooDeep, ok := errors.AsType[*Error](err); ok && tooDeep.Msg == "nested too deeply" {
			return // parentheses count
		}
		if err != nil {
			t.Fatalf("%q is written %q: %v", sql, once, err)
		}
		if twice := Print(again); twice != once {
			t.Fatalf("%q is written %q, and that %q", sql, once, twice)
		}
		if d := cmp.Diff(Print(Substitute(e, nil)), once); d != "" {
			t.Fatal(d)
		}
	})
}
