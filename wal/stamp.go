package wal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/fold"
)

// Stamp is what the guard wrote into a row, in the transaction that wrote the
// row: all that the follower must know of a state but the state itself.
type Stamp struct {
	Version int64       // k: 0 for s_0
	Rules   int64       // version of the flow's definition in force
	By      fold.Rule   // rule whose transition wrote the state, fold.None if there is none
	Pending []fold.Rule // P_{k-1}, By included
	Matched []fold.Rule // M(s_k)
	Final   bool
	Failed  bool   // a condition could not be evaluated
	Error   string // why, if Failed

	// Transition is the name under which the job that By fired was known; nil if
	// there is no By.
	Transition *string

	Withdrawn        []fold.Rule // pending rules that the state withdraws
	FiredAt, BeganAt *time.Time  // of the completed job, and of the transaction that did it
}

const stampFields = 8

// ParseStamp reads the text of a wed_sql.stamp as PostgreSQL's record_out writes it:
//
//	(version,rules,written_by,pending,matched,final,error,trw)
//
// Fields that a later version of the extension may add behind these are ignored.
func ParseStamp(text string) (Stamp, error) {
	fields, err := splitRecord(text)
	if err != nil {
		return Stamp{}, fmt.Errorf("stamp %q: %w", text, err)
	}
	if len(fields) < stampFields {
		return Stamp{}, fmt.Errorf("stamp %q has %d fields, want %d", text, len(fields), stampFields)
	}
	p := stampParser{text: text, fields: fields}
	s := Stamp{
		Version: p.integer(0, 64),
		Rules:   p.integer(1, 64),
		Pending: p.rules(3),
		Matched: p.rules(4),
		Final:   p.boolean(5),

		Transition: fields[7],
	}
	if fields[2] != nil {
		s.By = fold.Rule(p.integer(2, 32))
	}
	if fields[6] != nil {
		s.Failed, s.Error = true, *fields[6]
	}
	if p.err != nil {
		return Stamp{}, p.err
	}
	return s, nil
}

type stampParser struct {
	text   string
	fields []*string
	err    error // the first one
}

func (p *stampParser) fail(i int, why error) {
	if p.err == nil {
		p.err = fmt.Errorf("stamp %q, field %d: %w", p.text, i+1, why)
	}
}

var errNullField = errors.New("is null")

func (p *stampParser) integer(i, bits int) int64 {
	if p.fields[i] == nil {
		p.fail(i, errNullField)
		return 0
	}
	n, err := strconv.ParseInt(*p.fields[i], 10, bits)
	if err != nil {
		p.fail(i, err)
	}
	return n
}

func (p *stampParser) boolean(i int) bool {
	switch f := p.fields[i]; {
	case f == nil:
		p.fail(i, errNullField)
	case *f == "t":
		return true
	case *f != "f":
		p.fail(i, fmt.Errorf("%q is no boolean", *f))
	}
	return false
}

func (p *stampParser) rules(i int) []fold.Rule {
	if p.fields[i] == nil {
		p.fail(i, errNullField)
		return nil
	}
	text := *p.fields[i]
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		p.fail(i, fmt.Errorf("%q is no array", text))
		return nil
	}
	inner := text[1 : len(text)-1]
	if inner == "" {
		return nil
	}
	rules := make([]fold.Rule, 0, strings.Count(inner, ",")+1)
	for element := range strings.SplitSeq(inner, ",") {
		n, err := strconv.ParseInt(element, 10, 32)
		if err != nil {
			p.fail(i, err)
			return nil
		}
		rules = append(rules, fold.Rule(n))
	}
	return rules
}

// splitRecord splits the text of a composite value into its fields, nil for null.
// The grammar is that of record_in: a field may be quoted, in whole or in part; in
// quotes, a quote is doubled; a backslash takes the next character as it is; and
// only a field with nothing at all between its commas is null.
func splitRecord(text string) ([]*string, error) {
	if len(text) < 2 || text[0] != '(' {
		return nil, errors.New("does not begin with a parenthesis")
	}
	var (
		fields []*string
		field  strings.Builder
		quoted bool // inside quotes
		seen   bool // the field has something, be it only a pair of quotes
	)
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			if i++; i == len(text) {
				return nil, errors.New("ends in a backslash")
			}
			field.WriteByte(text[i])
			seen = true
		case c == '"' && quoted && i+1 < len(text) && text[i+1] == '"':
			field.WriteByte('"')
			i++
		case c == '"':
			quoted, seen = !quoted, true
		case quoted || c != ',' && c != ')':
			field.WriteByte(c)
			seen = true
		default: // the end of a field
			if seen {
				s := field.String()
				fields = append(fields, &s)
			} else {
				fields = append(fields, nil)
			}
			field.Reset()
			seen = false
			if c == ')' {
				if i != len(text)-1 {
					return nil, errors.New("has something behind its end")
				}
				return fields, nil
			}
		}
	}
	return nil, errors.New("does not end")
}
