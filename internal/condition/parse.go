package condition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// Error says where a text is not understood. That need not mean that it is wrong.
type Error struct {
	At  int // in bytes
	Msg string
}

func (e *Error) Error() string { return e.Msg }

// deepest is how deep an expression may be nested.
const deepest = 100

// Parse parses a condition, or any expression.
func Parse(sql string) (Expr, error) {
	p, err := newParser(sql)
	if err != nil {
		return nil, err
	}
	e, err := p.expression(levelOr)
	if err != nil {
		return nil, err
	}
	if p.token().Kind != sqllex.EOF {
		return nil, p.unexpected()
	}
	return e, nil
}

// Assignment sets an attribute.
type Assignment struct {
	Name  string
	Value Expr // nil for DEFAULT
}

// ParseSet parses what stands after SET: assignments of single attributes.
func ParseSet(sql string) ([]Assignment, error) {
	p, err := newParser(sql)
	if err != nil {
		return nil, err
	}
	var list []Assignment
	for {
		name := p.token()
		if name.Kind != sqllex.Quoted && (name.Kind != sqllex.Ident || sqllex.Reserved(name.Value)) {
			return nil, p.unexpected()
		}
		p.at++
		if !p.accept("=") {
			return nil, p.unexpected()
		}
		a := Assignment{Name: name.Value}
		if !p.accept("default") {
			if a.Value, err = p.expression(levelOr); err != nil {
				return nil, err
			}
		}
		list = append(list, a)
		if !p.accept(",") {
			break
		}
	}
	if p.token().Kind != sqllex.EOF {
		return nil, p.unexpected()
	}
	return list, nil
}

type parser struct {
	tokens []sqllex.Token
	at     int
	depth  int
}

func newParser(sql string) (*parser, error) {
	tokens, err := sqllex.Tokens(sql)
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		if (t.Kind == sqllex.String || t.Kind == sqllex.Quoted) && strings.IndexByte("uU", t.Text[0]) >= 0 && strings.Contains(t.Text, `\`) {
			return nil, &Error{At: t.Start, Msg: "escapes of Unicode characters are not understood"}
		}
	}
	return &parser{tokens: tokens}, nil
}

func (p *parser) token() sqllex.Token { return p.ahead(0) }

func (p *parser) ahead(n int) sqllex.Token { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

// accept goes on if these key words or operators come next.
func (p *parser) accept(words ...string) bool {
	for i, w := range words {
		if !p.ahead(i).Is(w) {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *parser) unexpected() error {
	t := p.token()
	if t.Kind == sqllex.EOF {
		return &Error{At: t.Start, Msg: "unexpected end"}
	}
	return &Error{At: t.Start, Msg: fmt.Sprintf("%s is not understood here", t.Text)}
}

// expression parses what binds at least as tightly as a level.
func (p *parser) expression(level int) (Expr, error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > deepest {
		return nil, &Error{At: p.token().Start, Msg: "nested too deeply"}
	}
	left, err := p.prefix(level)
	if err != nil {
		return nil, err
	}
	// what cannot follow another of its level, as in a < b < c
	last := levelPrimary + 1
	for {
		op := p.infix()
		if op == nil || op.level < level || op.level == last {
			return left, nil
		}
		if left, err = op.parse(left); err != nil {
			return nil, err
		}
		if op.alone {
			last = op.level
		} else {
			last = levelPrimary + 1
		}
	}
}

// prefix parses an operand, with what stands before it.
func (p *parser) prefix(level int) (Expr, error) {
	t := p.token()
	switch {
	case t.Is("not"):
		if level > levelNot {
			return nil, p.unexpected()
		}
		p.at++
		x, err := p.expression(levelNot)
		if err != nil {
			return nil, err
		}
		return &Not{X: x}, nil
	case t.Is("+"), t.Is("-"):
		p.at++
		x, err := p.expression(levelSign + 1)
		if err != nil {
			return nil, err
		}
		if c, ok := x.(*Const); ok && c.Kind == Number && c.Text[0] != '-' && t.Is("-") {
			return &Const{Kind: Number, Text: "-" + c.Text, At: t.Start}, nil
		}
		return &Operate{Op: t.Value, R: x}, nil
	case isOperator(t) && !comparison(t.Value):
		p.at++
		x, err := p.expression(levelOther + 1)
		if err != nil {
			return nil, err
		}
		return &Operate{Op: t.Value, R: x}, nil
	}
	return p.primary()
}

func isOperator(t sqllex.Token) bool {
	return t.Kind == sqllex.Op && strings.IndexByte("()[],;.:", t.Value[0]) < 0
}

func comparison(op string) bool {
	return slices.Contains([]string{"=", "<>", "!=", "<", "<=", ">", ">="}, op)
}

// infix is what can follow an operand.
type infix struct {
	level int
	alone bool // not next to another of its level
	parse func(left Expr) (Expr, error)
}

func (p *parser) infix() *infix {
	t := p.token()
	switch {
	case t.Is("or"):
		return &infix{level: levelOr, parse: func(l Expr) (Expr, error) { return p.logic(l, "or", levelAnd) }}
	case t.Is("and"):
		return &infix{level: levelAnd, parse: func(l Expr) (Expr, error) { return p.logic(l, "and", levelNot) }}
	case t.Is("is"):
		return &infix{level: levelIs, alone: true, parse: p.is}
	case t.Is("isnull"), t.Is("notnull"):
		return &infix{level: levelIs, alone: true, parse: func(l Expr) (Expr, error) {
			p.at++
			return &Is{X: l, Not: t.Is("notnull"), What: "null"}, nil
		}}
	case t.Is("in"), t.Is("between"), t.Is("like"), t.Is("ilike"), t.Is("similar"):
		return &infix{level: levelBetween, alone: true, parse: func(l Expr) (Expr, error) { return p.belongs(l, false) }}
	case t.Is("not"):
		if n := p.ahead(1); !n.Is("in") && !n.Is("between") && !n.Is("like") && !n.Is("ilike") && !n.Is("similar") {
			return nil
		}
		return &infix{level: levelBetween, alone: true, parse: func(l Expr) (Expr, error) {
			p.at++
			return p.belongs(l, true)
		}}
	case t.Is("collate"):
		return &infix{level: levelCollate, parse: p.collate}
	case t.Is("at") && p.ahead(1).Is("time") && p.ahead(2).Is("zone"):
		return &infix{level: levelZone, parse: func(l Expr) (Expr, error) {
			p.at += 3
			return p.operate(l, "at time zone", levelZone)
		}}
	case t.Is("::"):
		return &infix{level: levelCast, parse: func(l Expr) (Expr, error) {
			p.at++
			typ, err := p.typeName()
			if err != nil {
				return nil, err
			}
			return &Cast{X: l, Type: typ}, nil
		}}
	case isOperator(t) && comparison(t.Value):
		return &infix{level: levelCompare, alone: true, parse: p.compare}
	case isOperator(t):
		return &infix{level: operatorLevel(t.Value), parse: func(l Expr) (Expr, error) {
			p.at++
			return p.operate(l, t.Value, operatorLevel(t.Value))
		}}
	}
	return nil
}

// logic parses all operands of a chain of and, or of or.
func (p *parser) logic(left Expr, word string, level int) (Expr, error) {
	list := []Expr{left}
	for p.accept(word) {
		x, err := p.expression(level)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	if word == "and" {
		return &And{List: list}, nil
	}
	return &Or{List: list}, nil
}

func (p *parser) is(left Expr) (Expr, error) {
	p.at++
	negated := p.accept("not")
	if p.accept("distinct", "from") {
		right, err := p.expression(levelIs + 1)
		if err != nil {
			return nil, err
		}
		return &Distinct{L: left, R: right, Not: negated}, nil
	}
	for _, what := range []string{"null", "true", "false", "unknown"} {
		if p.accept(what) {
			return &Is{X: left, Not: negated, What: what}, nil
		}
	}
	return nil, p.unexpected()
}

func (p *parser) compare(left Expr) (Expr, error) {
	t := p.token()
	p.at++
	op := t.Value
	if op == "!=" {
		op = "<>"
	}
	if quantified := p.token(); (quantified.Is("any") || quantified.Is("some") || quantified.Is("all")) && p.ahead(1).Is("(") {
		text, err := p.balanced(1)
		if err != nil {
			return nil, err
		}
		return &Operate{Op: op, L: left, R: &Opaque{Text: text, At: quantified.Start}}, nil
	}
	right, err := p.expression(levelCompare + 1)
	if err != nil {
		return nil, err
	}
	return &Compare{Op: op, L: left, R: right, At: t.Start}, nil
}

func (p *parser) operate(left Expr, op string, level int) (Expr, error) {
	if t := p.token(); (t.Is("any") || t.Is("some") || t.Is("all")) && p.ahead(1).Is("(") {
		return nil, p.unexpected()
	}
	right, err := p.expression(level + 1)
	if err != nil {
		return nil, err
	}
	return &Operate{Op: op, L: left, R: right}, nil
}

// belongs parses IN, BETWEEN, LIKE and what is like them.
func (p *parser) belongs(left Expr, negated bool) (Expr, error) {
	switch {
	case p.accept("in"):
		return p.in(left, negated)
	case p.accept("between"):
		b := &Between{X: left, Not: negated, Symmetric: p.accept("symmetric")}
		if !b.Symmetric {
			p.accept("asymmetric")
		}
		var err error
		if b.Low, err = p.expression(levelBetween + 1); err != nil {
			return nil, err
		}
		if !p.accept("and") {
			return nil, p.unexpected()
		}
		b.High, err = p.expression(levelBetween + 1)
		return b, err
	}
	l := &Like{X: left, Not: negated, Op: p.token().Value}
	p.at++
	if l.Op == "similar" {
		if !p.accept("to") {
			return nil, p.unexpected()
		}
		l.Op = "similar to"
	}
	if t := p.token(); t.Is("any") || t.Is("some") || t.Is("all") {
		return nil, p.unexpected()
	}
	var err error
	if l.Pattern, err = p.expression(levelBetween + 1); err != nil {
		return nil, err
	}
	if p.accept("escape") {
		l.Escape, err = p.expression(levelBetween + 1)
	}
	return l, err
}

func (p *parser) in(left Expr, negated bool) (Expr, error) {
	if !p.token().Is("(") {
		return nil, p.unexpected()
	}
	if isQuery(p.ahead(1)) {
		at := p.token().Start
		text, err := p.balanced(0)
		if err != nil {
			return nil, err
		}
		return &Operate{Op: not(negated) + "in", L: left, R: &Opaque{Text: text, At: at}}, nil
	}
	p.at++
	list, err := p.arguments()
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, p.unexpected()
	}
	return &In{X: left, Not: negated, List: list}, nil
}

// arguments parses a list up to its closing parenthesis.
func (p *parser) arguments() ([]Expr, error) {
	var list []Expr
	if p.accept(")") {
		return nil, nil
	}
	for {
		x, err := p.expression(levelOr)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		if p.accept(")") {
			return list, nil
		}
		if !p.accept(",") {
			return nil, p.unexpected()
		}
	}
}

func isQuery(t sqllex.Token) bool {
	return t.Is("select") || t.Is("with") || t.Is("values") || t.Is("table")
}

func (p *parser) collate(left Expr) (Expr, error) {
	p.at++
	var name []string
	for {
		t := p.token()
		if t.Kind != sqllex.Ident && t.Kind != sqllex.Quoted {
			return nil, p.unexpected()
		}
		name = append(name, sqllex.QuoteName(t.Value))
		p.at++
		if !p.accept(".") {
			return &Collate{X: left, Name: strings.Join(name, ".")}, nil
		}
	}
}

// text returns tokens as one text, in one form.
func text(tokens []sqllex.Token) string {
	words := make([]string, len(tokens))
	for i, t := range tokens {
		switch t.Kind {
		case sqllex.Ident:
			words[i] = t.Value
		case sqllex.String:
			words[i] = "'" + strings.ReplaceAll(t.Value, "'", "''") + "'"
		default:
			words[i] = t.Text
		}
	}
	return strings.Join(words, " ")
}

// balanced takes so many tokens, and then parentheses or brackets with all that is in
// them.
func (p *parser) balanced(before int) (string, error) {
	start := p.at
	p.at += before
	var open []string
	for {
		t := p.token()
		switch {
		case t.Is("("):
			open = append(open, ")")
		case t.Is("["):
			open = append(open, "]")
		case t.Is(")") || t.Is("]"):
			if len(open) == 0 || !t.Is(open[len(open)-1]) {
				return "", p.unexpected()
			}
			open = open[:len(open)-1]
		case t.Kind == sqllex.EOF || t.Is(";") || len(open) == 0:
			return "", p.unexpected()
		}
		p.at++
		if len(open) == 0 {
			return text(p.tokens[start:p.at]), nil
		}
	}
}
