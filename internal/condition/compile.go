package condition

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// column is an attribute as a variable: its values, and after them null.
type column struct {
	variable  int
	domain    domain
	constants []value
	values    []value
}

// compiler turns expressions into formulas. It sees all of them first, to know which
// constants an attribute is compared with.
type compiler struct {
	types    map[string]string
	columns  map[string]*column
	opaques  map[string]int // by text
	values   []int          // how many each variable has
	isColumn []bool
	mayFail  bool // something may be an error on some state
}

func (c *compiler) variable(values int, isColumn bool) int {
	c.values = append(c.values, values)
	c.isColumn = append(c.isColumn, isColumn)
	return len(c.values) - 1
}

// collect notes the constants that attributes are compared with.
func (c *compiler) collect(e Expr) {
	Walk(e, func(e Expr) {
		switch e := e.(type) {
		case *Compare:
			c.note(e.L, e.R)
			c.note(e.R, e.L)
		case *Distinct:
			c.note(e.L, e.R)
			c.note(e.R, e.L)
		case *In:
			c.note(e.X, e.List...)
		case *Between:
			c.note(e.X, e.Low, e.High)
		case *Column:
			c.column(e)
		case *Call:
			if scalar, ok := c.scalar(e); ok && scalar.instead != nil { // null becomes a value
				c.constant(scalar.column, *scalar.instead)
			}
		}
	})
}

func (c *compiler) note(x Expr, constants ...Expr) {
	scalar, ok := c.scalar(x)
	if !ok {
		return
	}
	for _, e := range constants {
		if v, ok := scalar.column.domain.constant(e); ok {
			c.constant(scalar.column, scalar.shifted(v, -1))
		}
	}
}

func (c *compiler) constant(col *column, v value) {
	if !slices.ContainsFunc(col.constants, v.equal) {
		col.constants = append(col.constants, v)
	}
}

// column returns the variable of an attribute; nil if there is no such attribute.
func (c *compiler) column(e *Column) *column {
	if col := c.columns[e.Name]; col != nil {
		return col
	}
	typ, ok := c.types[e.Name]
	if !ok {
		return nil
	}
	col := &column{variable: c.variable(0, true), domain: domainOf(typ)}
	c.columns[e.Name] = col
	return col
}

// finish fixes the values of a column, once all constants are known.
func (c *compiler) finish(col *column) {
	if col.values == nil {
		col.values = col.domain.representatives(col.constants)
		c.values[col.variable] = len(col.values) + 1
	}
}

// scalar is an attribute, coalesce(attribute, constant), or attribute + constant.
type scalar struct {
	column    *column
	instead   *value   // of null
	shift     *big.Rat // that is added; nil for nothing
	performed bool     // the sum is known to have been no error
}

// shifted returns a value and so many times the shift.
func (s scalar) shifted(v value, times int64) value {
	if s.shift == nil || v.num == nil {
		return v
	}
	shift := new(big.Rat).Mul(s.shift, big.NewRat(times, 1))
	return value{num: shift.Add(shift, v.num)}
}

func (c *compiler) scalar(e Expr) (scalar, bool) {
	switch e := e.(type) {
	case *Column:
		col := c.column(e)
		return scalar{column: col}, col != nil
	case *Call:
		if e.Name != "coalesce" || len(e.Args) != 2 {
			break
		}
		attribute, ok := e.Args[0].(*Column)
		if !ok {
			break
		}
		col := c.column(attribute)
		if col == nil {
			break
		}
		v, ok := col.domain.constant(e.Args[1])
		return scalar{column: col, instead: &v}, ok
	case *Operate:
		return c.sum(e)
	}
	return scalar{}, false
}

// sum understands an attribute plus or minus a constant, of numbers that are not rounded.
func (c *compiler) sum(e *Operate) (scalar, bool) {
	attribute, ok := e.L.(*Column)
	k, ok2 := e.R.(*Const)
	if !ok || !ok2 || k.Kind != Number || e.Op != "+" && e.Op != "-" {
		return scalar{}, false
	}
	col := c.column(attribute)
	if col == nil || !col.domain.exact || col.domain.class != integerClass && col.domain.class != numericClass {
		return scalar{}, false
	}
	v, ok := col.domain.parse(k)
	if !ok || col.domain.class == integerClass && !v.num.IsInt() {
		return scalar{}, false
	}
	if e.Op == "-" {
		v.num = new(big.Rat).Neg(v.num)
	}
	return scalar{column: col, shift: v.num, performed: e.performed}, true
}

// Sum returns an attribute plus or minus a constant, as it is after that was computed
// without an error; nil if the value is not known to be that, but may be rounded.
func (s *States) Sum(e Expr) Expr {
	o, ok := e.(*Operate)
	if !ok {
		return nil
	}
	c := compiler{types: s.types, columns: make(map[string]*column), opaques: make(map[string]int)}
	if _, ok := c.sum(o); !ok {
		return nil
	}
	return &Operate{Op: o.Op, L: o.L, R: o.R, performed: true}
}

// constant reads a constant as a value of the domain, also one with a cast to it.
func (d domain) constant(e Expr) (value, bool) {
	if cast, ok := e.(*Cast); ok {
		if target := domainOf(cast.Type); target.class != d.class || !target.exact {
			return value{}, false
		}
		e = cast.X
		if k, ok := e.(*Const); ok && k.Kind == Number && d.class == integerClass && !integerText.MatchString(k.Text) {
			return value{}, false // it would be rounded
		}
	}
	k, ok := e.(*Const)
	if !ok {
		return value{}, false
	}
	return d.parse(k)
}

// table returns the formula of what f says of each value of a scalar.
func (c *compiler) table(s scalar, f func(v value, null bool) outcome) formula {
	c.finish(s.column)
	outcomes := make([]outcome, len(s.column.values)+1)
	c.mayFail = c.mayFail || s.shift != nil && !s.performed
	for i, v := range s.column.values {
		sum := s.shifted(v, 1)
		if d := s.column.domain; s.shift != nil && d.min != nil && (sum.num.Cmp(d.min) < 0 || sum.num.Cmp(d.max) > 0) {
			c.mayFail = true
		}
		outcomes[i] = f(sum, false)
	}
	if s.instead != nil {
		outcomes[len(s.column.values)] = f(*s.instead, false)
	} else {
		outcomes[len(s.column.values)] = f(value{}, true)
	}
	return newAtom(s.column.variable, outcomes)
}

// compile turns a condition into a formula.
func (c *compiler) compile(e Expr) formula {
	switch e := e.(type) {
	case *And:
		return conjunction(c.compileAll(e.List))
	case *Or:
		return disjunction(c.compileAll(e.List))
	case *Not:
		return negation{c.compile(e.X)}
	case *Const:
		switch {
		case e.Kind == Null:
			return constant(isNull)
		case e.Kind == Bool:
			return constant(truth(e.Text == "true"))
		}
	case *Column:
		if s, ok := c.scalar(e); ok && s.column.domain.class == boolClass {
			return c.table(s, func(v value, null bool) outcome {
				if null {
					return isNull
				}
				return truth(v.truth)
			})
		}
	case *Compare:
		return c.compare(e.Op, e.L, e.R, e)
	case *Distinct:
		return c.distinct(e)
	case *Is:
		return c.is(e)
	case *In:
		var list disjunction
		for _, x := range e.List {
			list = append(list, c.compare("=", e.X, x, &Compare{Op: "=", L: e.X, R: x}))
		}
		if e.Not {
			return negation{list}
		}
		return list
	case *Between:
		if e.Symmetric {
			break
		}
		f := conjunction{
			c.compare(">=", e.X, e.Low, &Compare{Op: ">=", L: e.X, R: e.Low}),
			c.compare("<=", e.X, e.High, &Compare{Op: "<=", L: e.X, R: e.High}),
		}
		if e.Not {
			return negation{f}
		}
		return f
	case *Like:
		if e.Not {
			positive := *e
			positive.Not = false
			return negation{c.opaque(&positive, anything)}
		}
	}
	return c.opaque(e, anything)
}

func (c *compiler) compileAll(list []Expr) []formula {
	all := make([]formula, len(list))
	for i, e := range list {
		all[i] = c.compile(e)
	}
	return all
}

var mirrored = map[string]string{"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

func isNullConstant(e Expr) bool {
	if cast, ok := e.(*Cast); ok {
		e = cast.X
	}
	k, ok := e.(*Const)
	return ok && k.Kind == Null
}

// compare decides a comparison of an attribute with a constant, and of constants.
func (c *compiler) compare(op string, l, r, whole Expr) formula {
	if isNullConstant(l) || isNullConstant(r) {
		if c.harmless(l) && c.harmless(r) {
			return constant(isNull)
		}
		return c.opaque(whole, isNull)
	}
	if f := c.compareConstants(op, l, r); f != nil {
		return f
	}
	s, ok := c.scalar(l)
	v, known := value{}, false
	if ok {
		v, known = s.column.domain.constant(r)
	}
	if !known {
		if s, ok = c.scalar(r); ok {
			v, known = s.column.domain.constant(l)
			op = mirrored[op]
		}
	}
	if !known || !s.column.domain.ordered() && op != "=" && op != "<>" {
		return c.opaque(whole, anything)
	}
	return c.table(s, func(x value, null bool) outcome {
		if null {
			return isNull
		}
		return x.compare(op, v)
	})
}

func (v value) compare(op string, w value) outcome {
	switch op {
	case "=":
		return truth(v.equal(w))
	case "<>":
		return truth(!v.equal(w))
	}
	sign := v.num.Cmp(w.num)
	switch op {
	case "<":
		return truth(sign < 0)
	case "<=":
		return truth(sign <= 0)
	case ">":
		return truth(sign > 0)
	}
	return truth(sign >= 0)
}

// compareConstants decides 1 = 1 and its like; nil if it cannot.
func (c *compiler) compareConstants(op string, l, r Expr) formula {
	left, ok := l.(*Const)
	right, ok2 := r.(*Const)
	if !ok || !ok2 || left.Kind != right.Kind {
		return nil
	}
	d := domain{class: numericClass}
	switch left.Kind {
	case String:
		if op != "=" && op != "<>" {
			return nil
		}
		d = domain{class: textClass}
	case Bool:
		if op != "=" && op != "<>" {
			return nil
		}
		d = domain{class: boolClass}
	}
	v, ok := d.parse(left)
	w, ok2 := d.parse(right)
	if !ok || !ok2 {
		return nil
	}
	return constant(v.compare(op, w))
}

func (c *compiler) distinct(e *Distinct) formula {
	l, r := e.L, e.R
	if _, ok := c.scalar(l); !ok {
		l, r = r, l
	}
	s, ok := c.scalar(l)
	v, known := value{}, false
	isNull := isNullConstant(r)
	if ok && !isNull {
		v, known = s.column.domain.constant(r)
	}
	if !ok || !known && !isNull {
		positive := *e
		positive.Not = false
		f := c.opaque(&positive, isTrue|isFalse)
		if e.Not {
			return negation{f}
		}
		return f
	}
	return c.table(s, func(x value, null bool) outcome {
		same := null && isNull || !null && !isNull && x.equal(v)
		return truth(same == e.Not)
	})
}

// is decides the tests for null and for truth.
func (c *compiler) is(e *Is) formula {
	wanted := map[string]outcome{"null": isNull, "unknown": isNull, "true": isTrue, "false": isFalse}[e.What]
	if e.Not {
		wanted = anything &^ wanted
	}
	if e.What == "null" && c.mayBeRow(e.X) {
		mayFail := c.mayFail
		f := c.opaque(e, isTrue|isFalse) // IS NOT NULL is no negation of IS NULL
		if _, ok := c.scalar(e.X); ok {
			c.mayFail = mayFail
		}
		return f
	}
	if s, ok := c.scalar(e.X); ok && e.What == "null" {
		return c.table(s, func(_ value, null bool) outcome { return truth(null != e.Not) })
	}
	if k, ok := e.X.(*Const); ok && e.What == "null" {
		return constant(truth((k.Kind == Null) != e.Not))
	}
	if e.What != "null" || isCondition(e.X) {
		return test{c.compile(e.X), wanted}
	}
	positive := *e
	positive.Not = false
	f := c.opaque(&positive, isTrue|isFalse)
	if e.Not {
		return negation{f}
	}
	return f
}

// mayBeRow reports whether an expression may come to a row.
func (c *compiler) mayBeRow(e Expr) bool {
	found := false
	Walk(e, func(e Expr) {
		if column, ok := e.(*Column); ok {
			col := c.column(column)
			found = found || col == nil || col.domain.row
		}
	})
	return found
}

func isCondition(e Expr) bool {
	switch e.(type) {
	case *And, *Or, *Not, *Compare, *In, *Between, *Is, *Distinct, *Like:
		return true
	}
	return false
}

// opaque makes a variable of what is not looked into. The same text is the same
// variable, if it comes to the same on the same state.
func (c *compiler) opaque(e Expr, possible outcome) formula {
	c.mayFail = c.mayFail || !c.harmless(e)
	key := Print(e)
	if !Repeatable(e) {
		key = fmt.Sprintf("%s #%d", key, len(c.values))
	}
	v, ok := c.opaques[key]
	if !ok {
		v = c.variable(3, false)
		c.opaques[key] = v
	}
	return newAtom(v, []outcome{restrict(isTrue, possible), restrict(isFalse, possible), restrict(isNull, possible)})
}

// restrict returns an outcome, or another if it is not possible.
func restrict(o, possible outcome) outcome {
	if o&possible != 0 {
		return o
	}
	for _, other := range []outcome{isTrue, isFalse, isNull} {
		if other&possible != 0 {
			return other
		}
	}
	return o
}

// harmless reports whether it is known that an expression is an error on no state.
func (c *compiler) harmless(e Expr) bool {
	switch e := e.(type) {
	case *Column, *Const, *And, *Or, *Not, *Is, *Distinct, *Compare, *In, *Between:
	case *Like:
		if k, ok := e.Pattern.(*Const); !ok || strings.Contains(k.Text, `\`) || e.Escape != nil || e.Op == "similar to" {
			return false
		}
	case *Call:
		if e.Name != "coalesce" && e.Name != "lower" && e.Name != "upper" && e.Name != "length" {
			return false
		}
	default:
		return false
	}
	for _, o := range e.operands() {
		if !c.harmless(o) {
			return false
		}
	}
	if column, ok := e.(*Column); ok {
		col := c.column(column)
		return col != nil && col.domain.class != opaqueClass
	}
	return true
}
