// Package condition understands WED-conditions: it parses the SQL that they are
// commonly written in, and proves things of them, without a server. What it cannot
// prove it says it does not know.
package condition

import (
	"slices"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// Expr is a parsed expression. At is where it stands in its text, in bytes.
type Expr interface {
	// level is that of PostgreSQL's table of precedence; operands need a higher one.
	level() int
	print(*printer)
	operands() []Expr
}

// ConstKind is what a constant is written as.
type ConstKind int

// The kinds of constants.
const (
	Null ConstKind = iota
	Bool
	Number
	String
)

type (
	// Column is an attribute, or wid.
	Column struct {
		Name string
		At   int
	}

	// Const is a constant; Text is its value as text.
	Const struct {
		Kind ConstKind
		Text string
		At   int
	}

	// Cast is X::Type, cast(X as Type) or Type 'X'.
	Cast struct {
		X    Expr
		Type string
	}

	// And and Or have two operands or more.
	And struct{ List []Expr }

	// Or is a disjunction.
	Or struct{ List []Expr }

	// Not is a negation.
	Not struct{ X Expr }

	// Is is X IS [NOT] What: null, true, false or unknown.
	Is struct {
		X    Expr
		Not  bool
		What string
	}

	// Compare is a comparison by = <> < <= > >=.
	Compare struct {
		Op   string
		L, R Expr
		At   int // of the operator
	}

	// Distinct is L IS [NOT] DISTINCT FROM R.
	Distinct struct {
		L, R Expr
		Not  bool
	}

	// In is X [NOT] IN (List).
	In struct {
		X    Expr
		Not  bool
		List []Expr
	}

	// Between is X [NOT] BETWEEN [SYMMETRIC] Low AND High.
	Between struct {
		X              Expr
		Not, Symmetric bool
		Low, High      Expr
	}

	// Like is X [NOT] LIKE, ILIKE or SIMILAR TO Pattern.
	Like struct {
		X       Expr
		Not     bool
		Op      string
		Pattern Expr
		Escape  Expr // nil if there is none
	}

	// Operate is any other operator; L is nil if it stands before its operand.
	Operate struct {
		Op   string
		L, R Expr

		performed bool // it has come to a value, and not to an error
	}

	// Collate is X COLLATE Name.
	Collate struct {
		X    Expr
		Name string
	}

	// Call calls a function. Bare ones are written without parentheses.
	Call struct {
		Name string
		Args []Expr
		Bare bool
		At   int
	}

	// Opaque is SQL that is not looked into: a subquery, CASE, an array.
	Opaque struct {
		Text string
		At   int
	}
)

// Levels of precedence, the loosest first.
const (
	levelOr = iota + 1
	levelAnd
	levelNot
	levelIs
	levelCompare
	levelBetween
	levelOther
	levelAdd
	levelMultiply
	levelPower
	levelZone
	levelCollate
	levelSign
	levelCast
	levelPrimary
)

func operatorLevel(op string) int {
	switch op {
	case "+", "-":
		return levelAdd
	case "*", "/", "%":
		return levelMultiply
	case "^":
		return levelPower
	case "at time zone":
		return levelZone
	}
	return levelOther
}

func (*Column) level() int   { return levelPrimary }
func (*Cast) level() int     { return levelCast }
func (*And) level() int      { return levelAnd }
func (*Or) level() int       { return levelOr }
func (*Not) level() int      { return levelNot }
func (*Is) level() int       { return levelIs }
func (*Compare) level() int  { return levelCompare }
func (*Distinct) level() int { return levelIs }
func (*In) level() int       { return levelBetween }
func (*Between) level() int  { return levelBetween }
func (*Like) level() int     { return levelBetween }
func (*Collate) level() int  { return levelCollate }
func (*Call) level() int     { return levelPrimary }
func (*Opaque) level() int   { return levelPrimary }

func (c *Const) level() int {
	if c.Kind == Number && c.Text[0] == '-' {
		return levelSign
	}
	return levelPrimary
}

func (o *Operate) level() int {
	if o.L == nil && (o.Op == "+" || o.Op == "-") {
		return levelSign
	}
	return operatorLevel(o.Op)
}

func (*Column) operands() []Expr     { return nil }
func (*Const) operands() []Expr      { return nil }
func (*Opaque) operands() []Expr     { return nil }
func (e *Cast) operands() []Expr     { return []Expr{e.X} }
func (e *And) operands() []Expr      { return e.List }
func (e *Or) operands() []Expr       { return e.List }
func (e *Not) operands() []Expr      { return []Expr{e.X} }
func (e *Is) operands() []Expr       { return []Expr{e.X} }
func (e *Compare) operands() []Expr  { return []Expr{e.L, e.R} }
func (e *Distinct) operands() []Expr { return []Expr{e.L, e.R} }
func (e *In) operands() []Expr       { return append([]Expr{e.X}, e.List...) }
func (e *Between) operands() []Expr  { return []Expr{e.X, e.Low, e.High} }
func (e *Collate) operands() []Expr  { return []Expr{e.X} }
func (e *Call) operands() []Expr     { return e.Args }

func (e *Like) operands() []Expr {
	if e.Escape == nil {
		return []Expr{e.X, e.Pattern}
	}
	return []Expr{e.X, e.Pattern, e.Escape}
}

func (e *Operate) operands() []Expr {
	if e.L == nil {
		return []Expr{e.R}
	}
	return []Expr{e.L, e.R}
}

// Walk visits an expression and all that is in it.
func Walk(e Expr, visit func(Expr)) {
	visit(e)
	for _, o := range e.operands() {
		Walk(o, visit)
	}
}

// Names returns every name that an expression may read as an attribute, sorted. What
// is opaque may have more of them than it reads.
func Names(e Expr) []string {
	var names []string
	Walk(e, func(e Expr) {
		switch e := e.(type) {
		case *Column:
			names = append(names, e.Name)
		case *Opaque:
			tokens, err := sqllex.Tokens(e.Text)
			if err != nil {
				return
			}
			for _, t := range tokens {
				if t.Kind == sqllex.Ident || t.Kind == sqllex.Quoted {
					names = append(names, t.Value)
				}
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}
