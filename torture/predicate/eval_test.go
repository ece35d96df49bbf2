package predicate_test

import (
	"errors"
	"testing"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// What is special in SQL. All else is compared with PostgreSQL in each run of torture.
func TestEvalIsSQLs(t *testing.T) {
	t.Parallel()
	null := predicate.Null(predicate.Boolean)
	boolean := func(s string) *predicate.Node { return predicate.Const(predicate.Boolean, s) }
	integer := func(s string) *predicate.Node { return predicate.Const(predicate.Integer, s) }
	text := func(s string) *predicate.Node { return predicate.Const(predicate.Text, s) }
	fails := predicate.New(predicate.Equal, predicate.New(predicate.Divide, integer("1"), integer("0")), integer("1"))
	tests := []struct {
		node *predicate.Node
		want predicate.Value
		sql  string
	}{
		{predicate.New(predicate.And, null, boolean("false")), false, "(null::boolean and (false))"},
		{predicate.New(predicate.And, null, boolean("true")), nil, "(null::boolean and (true))"},
		{predicate.New(predicate.Or, null, boolean("true")), true, "(null::boolean or (true))"},
		{predicate.New(predicate.Not, null), nil, "(not null::boolean)"},
		{predicate.New(predicate.And, boolean("false"), fails), false, "((false) and (((1) / (0)) = (1)))"},
		{predicate.New(predicate.NotIn, integer("1"), integer("2"), predicate.Null(predicate.Integer)), nil, "((1) not in ((2), null::integer))"},
		{predicate.New(predicate.Distinct, null, null), false, "(null::boolean is distinct from null::boolean)"},
		{predicate.New(predicate.ToInteger, text(" 7 ")), int64(7), "(' 7 ')::integer"},
		{predicate.New(predicate.Like, text("it's"), text("%'s")), true, "('it''s' like '%''s')"},
		{predicate.New(predicate.Modulo, integer("-7"), integer("2")), int64(-1), "((-7) % (2))"},
	}
	for _, test := range tests {
		got, err := test.node.Eval(nil)
		if err != nil || got != test.want {
			t.Errorf("%s is %v, %v, and not %v", test.node.SQL(), got, err, test.want)
		}
		if sql := test.node.SQL(); sql != test.sql {
			t.Errorf("printed %s, and not %s", sql, test.sql)
		}
	}
	for _, node := range []*predicate.Node{
		fails,
		predicate.New(predicate.And, boolean("true"), fails),
		predicate.New(predicate.ToInteger, text("seven")),
		predicate.New(predicate.Add, integer("2147483647"), integer("1")),
	} {
		if _, err := node.Eval(nil); !errors.Is(err, predicate.ErrFails) {
			t.Errorf("%s: %v", node.SQL(), err)
		}
	}
}
