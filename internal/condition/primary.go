package condition

import (
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// primary parses what no operator takes apart, with its subscripts and fields.
func (p *parser) primary() (Expr, error) {
	at := p.token().Start
	e, err := p.simple()
	if err != nil {
		return nil, err
	}
	for p.token().Is("[") {
		subscript, err := p.balanced(0)
		if err != nil {
			return nil, err
		}
		var b printer
		b.operand(e, levelPrimary)
		e = &Opaque{Text: b.String() + " " + subscript, At: at}
	}
	return e, nil
}

func (p *parser) simple() (Expr, error) {
	t := p.token()
	switch t.Kind {
	case sqllex.Number:
		p.at++
		return &Const{Kind: Number, Text: t.Value, At: t.Start}, nil
	case sqllex.String:
		p.at++
		return &Const{Kind: String, Text: t.Value, At: t.Start}, nil
	case sqllex.Quoted:
		return p.name()
	case sqllex.Op:
		if t.Is("(") {
			return p.parenthesis()
		}
	case sqllex.Ident:
		return p.word()
	}
	return nil, p.unexpected()
}

func (p *parser) parenthesis() (Expr, error) {
	start := p.at
	opaque := func() (Expr, error) {
		p.at = start
		text, err := p.balanced(0)
		if err != nil {
			return nil, err
		}
		for p.token().Is(".") { // a field of it
			field := p.ahead(1)
			if field.Kind != sqllex.Ident && field.Kind != sqllex.Quoted {
				return nil, p.unexpected()
			}
			text += " . " + sqllex.QuoteName(field.Value)
			p.at += 2
		}
		return &Opaque{Text: text, At: p.tokens[start].Start}, nil
	}
	if isQuery(p.ahead(1)) {
		return opaque()
	}
	p.at++
	e, err := p.expression(levelOr)
	if err != nil {
		return nil, err
	}
	switch {
	case p.token().Is(","):
		return opaque()
	case !p.accept(")"):
		return nil, p.unexpected()
	case p.token().Is("."):
		return opaque()
	}
	return e, nil
}

// word parses what begins with a word that is not quoted.
func (p *parser) word() (Expr, error) {
	t := p.token()
	following := p.ahead(1)
	switch t.Value {
	case "null":
		p.at++
		return &Const{Kind: Null, At: t.Start}, nil
	case "true", "false":
		p.at++
		return &Const{Kind: Bool, Text: t.Value, At: t.Start}, nil
	case "case":
		return p.caseExpression()
	case "cast":
		if following.Is("(") {
			return p.cast()
		}
	case "array":
		if following.Is("[") || following.Is("(") {
			return p.opaque(1)
		}
	case "exists", "row", "grouping":
		if following.Is("(") {
			return p.opaque(1)
		}
	case "current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user", "current_role",
		"session_user", "user", "current_catalog", "current_schema", "system_user":
		if !following.Is("(") {
			p.at++
			return &Call{Name: t.Value, Bare: true, At: t.Start}, nil
		}
	}
	if e, ok := p.typedConstant(); ok {
		return e, nil
	}
	return p.name()
}

func (p *parser) opaque(before int) (Expr, error) {
	at := p.token().Start
	text, err := p.balanced(before)
	if err != nil {
		return nil, err
	}
	return &Opaque{Text: text, At: at}, nil
}

// caseExpression takes CASE up to its END.
func (p *parser) caseExpression() (Expr, error) {
	start := p.at
	depth := 0
	for {
		t := p.token()
		switch {
		case t.Kind == sqllex.EOF || t.Is(";"):
			return nil, p.unexpected()
		case t.Is("case"):
			depth++
		case t.Is("end"):
			depth--
		}
		p.at++
		if depth == 0 {
			return &Opaque{Text: text(p.tokens[start:p.at]), At: p.tokens[start].Start}, nil
		}
	}
}

func (p *parser) cast() (Expr, error) {
	p.at += 2
	x, err := p.expression(levelOr)
	if err != nil {
		return nil, err
	}
	if !p.accept("as") {
		return nil, p.unexpected()
	}
	typ, err := p.typeName()
	if err != nil {
		return nil, err
	}
	if !p.accept(")") {
		return nil, p.unexpected()
	}
	return &Cast{X: x, Type: typ}, nil
}

// typedConstant parses a type that a string follows: date '2026-01-01'.
func (p *parser) typedConstant() (Expr, bool) {
	start := p.at
	if first := p.token(); !slices.Contains([]string{
		"date", "time", "timetz", "timestamp", "timestamptz", "interval", "bool", "boolean", "numeric", "text", "uuid", "jsonb", "json",
	}, first.Value) {
		return nil, false
	}
	typ, err := p.typeName()
	if err != nil || p.token().Kind != sqllex.String || p.tokens[p.at-1].Is("]") {
		p.at = start
		return nil, false
	}
	c := p.token()
	p.at++
	if typ == "interval" && p.token().Kind == sqllex.Ident && isIntervalField(p.token().Value) {
		p.at = start // its fields follow: interval '1' day
		return nil, false
	}
	return &Cast{X: &Const{Kind: String, Text: c.Value, At: c.Start}, Type: typ}, true
}

func isIntervalField(word string) bool {
	return slices.Contains([]string{"year", "month", "day", "hour", "minute", "second"}, word)
}

// typeName parses a type, and returns it in one form.
func (p *parser) typeName() (string, error) {
	t := p.token()
	if t.Kind != sqllex.Quoted && (t.Kind != sqllex.Ident || sqllex.Reserved(t.Value) && !isTypeWord(t.Value)) {
		return "", p.unexpected()
	}
	start := p.at
	p.at++
	switch t.Value {
	case "double":
		p.accept("precision")
	case "character", "char", "bit", "nchar", "national":
		p.accept("varying")
	}
	for p.token().Is(".") {
		if n := p.ahead(1); n.Kind != sqllex.Ident && n.Kind != sqllex.Quoted {
			return "", p.unexpected()
		}
		p.at += 2
	}
	if p.token().Is("(") {
		if _, err := p.balanced(0); err != nil {
			return "", err
		}
	}
	if strings.HasPrefix(t.Value, "time") {
		_ = p.accept("with", "time", "zone") || p.accept("without", "time", "zone")
	}
	for p.token().Is("[") {
		if _, err := p.balanced(0); err != nil {
			return "", err
		}
	}
	return text(p.tokens[start:p.at]), nil
}

func isTypeWord(word string) bool {
	return slices.Contains(strings.Fields(`bigint bit boolean char character dec decimal float int integer interval nchar national
		numeric real smallint time timestamp varchar`), word)
}

// isFunctionWord reports whether a reserved word is the name of a function, too.
func isFunctionWord(word string) bool {
	return slices.Contains(strings.Fields(`coalesce extract greatest least left right normalize nullif overlay position substring
		treat trim current_schema`), word)
}

// name parses an attribute or the call of a function.
func (p *parser) name() (Expr, error) {
	start := p.at
	first := p.token()
	var path []string
	for {
		t := p.token()
		if t.Kind != sqllex.Ident && t.Kind != sqllex.Quoted {
			return nil, p.unexpected()
		}
		path = append(path, t.Value)
		p.at++
		if !p.accept(".") {
			break
		}
	}
	isCall := p.token().Is("(")
	if len(path) == 1 && first.Kind == sqllex.Ident && sqllex.Reserved(first.Value) && !(isCall && isFunctionWord(first.Value)) {
		p.at = start
		return nil, p.unexpected()
	}
	switch {
	case isCall:
		return p.call(start, path)
	case len(path) == 1:
		return &Column{Name: path[0], At: first.Start}, nil
	case len(path) == 2 && path[0] == "wed_flow":
		return &Column{Name: path[1], At: first.Start}, nil
	}
	return &Opaque{Text: text(p.tokens[start:p.at]), At: first.Start}, nil
}

// call parses the arguments of a function; if there is more to them than expressions,
// it is opaque.
func (p *parser) call(start int, path []string) (Expr, error) {
	open := p.at
	p.at++
	args, err := p.arguments()
	for _, word := range []string{"filter", "over", "within"} {
		if err == nil && p.token().Is(word) {
			return nil, p.unexpected()
		}
	}
	if err != nil {
		p.at = start
		return p.opaque(open - start)
	}
	for i, n := range path {
		if sqllex.Reserved(n) && len(path) == 1 && isFunctionWord(n) {
			continue
		}
		path[i] = sqllex.QuoteName(n)
	}
	return &Call{Name: strings.Join(path, "."), Args: args, At: p.tokens[start].Start}, nil
}
