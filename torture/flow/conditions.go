package flow

import (
	"math/rand/v2"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// domains are the values that states are made of: few, so that conditions hold often.
var domains = map[predicate.Type][]string{
	predicate.Boolean:   {"true", "false"},
	predicate.Integer:   {"-1", "0", "1", "2", "3", "7", "100", "2147483647"},
	predicate.Numeric:   {"0", "1", "1.5", "2.50", "-3.25", "1000000.001"},
	predicate.Text:      {"new", "open", "done", "paid", "12", " 7 ", "abc", "", "it's", "漢字"},
	predicate.Timestamp: {"1999-12-31T23:59:59.5Z", "2026-01-01T00:00:00Z", "2026-06-15T12:30:00+02:00", "2030-02-28T00:00:00Z"},
	predicate.JSON:      {"{}", `{"k": 1}`, `{"k": "x", "v": 2}`, `{"k": null}`, `{"k": "7"}`, `{"v": true}`, `{"k": 2.50}`},
	predicate.TextArray: {"{}", "{x}", "{x,y}", "{y,NULL}", "{z,x,y}"},
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func constant(r *rand.Rand, t predicate.Type) *predicate.Node {
	return predicate.Const(t, pick(r, domains[t]))
}

func integer(text string) *predicate.Node { return predicate.Const(predicate.Integer, text) }

func text(s string) *predicate.Node { return predicate.Const(predicate.Text, s) }

var (
	comparisons = []predicate.Op{predicate.Equal, predicate.NotEqual, predicate.Less, predicate.LessEqual, predicate.Greater,
		predicate.GreaterEqual}
	equalities = []predicate.Op{predicate.Equal, predicate.NotEqual, predicate.Distinct, predicate.NotDistinct}
)

// condition draws a condition over the columns.
func condition(r *rand.Rand, columns []Column, depth int) *predicate.Node {
	if depth == 0 {
		return leaf(r, columns)
	}
	sub := func() *predicate.Node { return condition(r, columns, depth-1) }
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		n := predicate.New(predicate.And, sub(), sub())
		if r.IntN(4) == 0 {
			n.Args = append(n.Args, sub())
		}
		return n
	case 4, 5:
		return predicate.New(predicate.Or, sub(), sub())
	case 6:
		return predicate.New(predicate.Not, sub())
	case 7:
		return predicate.New(pick(r, []predicate.Op{predicate.IsTrue, predicate.IsNotTrue, predicate.IsFalse, predicate.IsUnknown}), sub())
	}
	return leaf(r, columns)
}

func leaf(r *rand.Rand, columns []Column) *predicate.Node {
	c := pick(r, columns)
	a := predicate.Attr(c.Name, c.Type)
	switch r.IntN(6) {
	case 0:
		return predicate.New(predicate.IsNull, a)
	case 1:
		return predicate.New(predicate.IsNotNull, a)
	}
	switch c.Type {
	case predicate.Boolean:
		return booleanLeaf(r, a)
	case predicate.Integer:
		return integerLeaf(r, a, columns)
	case predicate.Numeric:
		return numericLeaf(r, a)
	case predicate.Text:
		return textLeaf(r, a)
	case predicate.Timestamp:
		return timestampLeaf(r, a)
	case predicate.JSON:
		return jsonLeaf(r, a)
	}
	return arrayLeaf(r, a)
}

func booleanLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	switch r.IntN(3) {
	case 0:
		return a
	case 1:
		return predicate.New(pick(r, []predicate.Op{predicate.IsTrue, predicate.IsNotTrue, predicate.IsFalse, predicate.IsUnknown}), a)
	}
	return predicate.New(pick(r, equalities), a, constant(r, predicate.Boolean))
}

// ordered are the conditions on a value of a type that has an order.
func ordered(r *rand.Rand, a *predicate.Node, t predicate.Type) *predicate.Node {
	switch r.IntN(5) {
	case 0:
		return predicate.New(predicate.Between, a, constant(r, t), constant(r, t))
	case 1:
		n := predicate.New(pick(r, []predicate.Op{predicate.In, predicate.NotIn}), a, constant(r, t), constant(r, t), constant(r, t))
		if r.IntN(4) == 0 {
			n.Args = append(n.Args, predicate.Null(t))
		}
		return n
	case 2:
		return predicate.New(pick(r, equalities), a, constant(r, t))
	}
	return predicate.New(pick(r, comparisons), a, constant(r, t))
}

func integerLeaf(r *rand.Rand, a *predicate.Node, columns []Column) *predicate.Node {
	switch r.IntN(9) {
	case 0: // fails where it overflows
		return ordered(r, predicate.New(pick(r, []predicate.Op{predicate.Add, predicate.Subtract, predicate.Multiply}), a, integer("2")), predicate.Integer)
	case 1: // fails on 0
		return ordered(r, predicate.New(pick(r, []predicate.Op{predicate.Divide, predicate.Modulo}), integer("100"), a), predicate.Integer)
	case 2:
		return predicate.New(predicate.Equal, predicate.New(predicate.Modulo, a, integer("2")), integer("1"))
	case 3:
		return ordered(r, predicate.New(predicate.Abs, a), predicate.Integer)
	case 4:
		return ordered(r, predicate.New(predicate.Coalesce, a, integer("1")), predicate.Integer)
	case 5:
		return ordered(r, predicate.New(predicate.NullIf, a, integer("0")), predicate.Integer)
	case 6:
		var others []Column
		for _, c := range columns {
			if c.Type == predicate.Integer || c.Type == predicate.Numeric {
				others = append(others, c)
			}
		}
		other := pick(r, others)
		return predicate.New(pick(r, comparisons), a, predicate.Attr(other.Name, other.Type))
	case 7:
		return ordered(r, predicate.New(predicate.Case, leaf(r, columns), a, integer("3")), predicate.Integer)
	}
	return ordered(r, a, predicate.Integer)
}

func numericLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	switch r.IntN(4) {
	case 0:
		return ordered(r, predicate.New(pick(r, []predicate.Op{predicate.Add, predicate.Subtract, predicate.Multiply}), a,
			constant(r, predicate.Numeric)), predicate.Numeric)
	case 1:
		return ordered(r, predicate.New(predicate.Abs, a), predicate.Numeric)
	}
	return ordered(r, a, predicate.Numeric)
}

func textLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	switch r.IntN(8) {
	case 0:
		return predicate.New(predicate.Like, a, text(pick(r, []string{"%e%", "n%", "%n", "done", "%", "%1%"})))
	case 1:
		return ordered(r, predicate.New(predicate.Length, a), predicate.Integer)
	case 2: // fails on what is no integer
		return ordered(r, predicate.New(predicate.ToInteger, a), predicate.Integer)
	case 3: // does not
		return predicate.New(predicate.Case, predicate.New(predicate.In, a, text("12"), text(" 7 ")),
			ordered(r, predicate.New(predicate.ToInteger, a), predicate.Integer), predicate.Const(predicate.Boolean, "false"))
	case 4:
		return predicate.New(pick(r, equalities), predicate.New(predicate.Upper, a), text(pick(r, []string{"NEW", "DONE", "ABC"})))
	}
	return ordered(r, a, predicate.Text)
}

func timestampLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	if r.IntN(3) == 0 {
		return predicate.New(pick(r, comparisons), predicate.New(predicate.Year, a), integer(pick(r, []string{"1999", "2026", "2030"})))
	}
	return ordered(r, a, predicate.Timestamp)
}

func jsonLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	k := predicate.New(predicate.Field, a, text("k"))
	switch r.IntN(6) {
	case 0:
		return predicate.New(predicate.HasKey, a, text(pick(r, []string{"k", "v"})))
	case 1:
		return predicate.New(predicate.Contains, a, constant(r, predicate.JSON))
	case 2:
		return predicate.New(pick(r, equalities), a, constant(r, predicate.JSON))
	case 3: // fails on x
		return ordered(r, predicate.New(predicate.ToInteger, k), predicate.Integer)
	case 4:
		return predicate.New(pick(r, []predicate.Op{predicate.IsNull, predicate.IsNotNull}), k)
	}
	return predicate.New(pick(r, equalities), k, text(pick(r, []string{"1", "7", "x"})))
}

func arrayLeaf(r *rand.Rand, a *predicate.Node) *predicate.Node {
	switch r.IntN(4) {
	case 0:
		return predicate.New(predicate.AnyOf, text(pick(r, []string{"x", "y", "z"})), a)
	case 1:
		return predicate.New(predicate.Contains, a, constant(r, predicate.TextArray))
	case 2:
		return ordered(r, predicate.New(predicate.Cardinality, a), predicate.Integer)
	}
	return predicate.New(pick(r, equalities), a, constant(r, predicate.TextArray))
}
