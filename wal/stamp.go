package wal

import (
	"errors"
	"fmt"
	"slices"
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

	// Transition is the name under which the job that By fired was known, or that of an
	// intervention; nil if there is neither.
	Transition *string

	// Since are the versions that fired those of Pending which pend on, in their order.
	Since     []int64
	Withdrawn []fold.Rule // of Pending
	Status    fold.Status // Suspended or Cancelled, or 0
	FiredAt   *time.Time  // when the job of By fired
	BeganAt   *time.Time  // start of the transaction that wrote the state
	Clocks    []fold.Rule // of those that pend after the state, what pends with a delay
}

const stampFields = 16

// ParseStamp reads the text of a wed_sql.stamp as PostgreSQL's record_out writes it:
//
//	(version,rules,written_by,pending,matched,final,error,trw,
//	 since,withdrawn,status,undo,run,fired_at,began_at,clocks)
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
	if fields[8] != nil {
		s.Since = integers[int64](&p, 8, 64)
	}
	if fields[9] != nil {
		s.Withdrawn = p.rules(9)
	}
	if f := fields[10]; f != nil && len(*f) == 1 {
		s.Status = fold.Status((*f)[0])
	}
	s.FiredAt, s.BeganAt = p.time(13), p.time(14)
	if fields[15] != nil {
		s.Clocks = p.rules(15)
	}
	if p.err != nil {
		return Stamp{}, p.err
	}
	return s, nil
}

// since returns the version that fired a rule which pends after the state.
func (s *Stamp) since(r fold.Rule) int64 {
	i := 0
	for _, p := range s.Pending {
		if p == s.By || slices.Contains(s.Withdrawn, p) {
			continue
		}
		if i == len(s.Since) {
			break
		}
		if p == r {
			return s.Since[i]
		}
		i++
	}
	return s.Version
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

// timestampLayout is how PostgreSQL writes a timestamp with time zone, in ISO and UTC.
const timestampLayout = "2006-01-02 15:04:05.999999Z07"

// time returns nil for null, and for a time that Go has none for.
func (p *stampParser) time(i int) *time.Time {
	if p.fields[i] == nil {
		return nil
	}
	t, err := time.Parse(timestampLayout, *p.fields[i])
	if err != nil {
		return nil
	}
	return &t
}

func (p *stampParser) rules(i int) []fold.Rule { return integers[fold.Rule](p, i, 32) }

// integers reads a field that is an array.
func integers[T ~int32 | ~int64](p *stampParser, i, bits int) []T {
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
	elements := make([]T, 0, strings.Count(inner, ",")+1)
	for element := range strings.SplitSeq(inner, ",") {
		n, err := strconv.ParseInt(element, 10, bits)
		if err != nil {
			p.fail(i, err)
			return nil
		}
		elements = append(elements, T(n))
	}
	return elements
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
