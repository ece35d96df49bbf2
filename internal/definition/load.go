package definition

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// ScratchTables makes the tables that a file is run on: as those of a flow, without what makes a flow of
// them, so that all that is wrong can be told at once. tgid is assigned later.
const ScratchTables = `
create temp table wed_attr (
	aname text not null primary key,
	adv   text,
	atype text not null default 'text',
	_row  integer generated always as identity,
	_statement integer default current_setting('wed_sql_file.statement')::integer
) on commit drop;
create temp table wed_trig (
	tgid    integer,
	tgname  text,
	enabled boolean not null default true,
	trname  text,
	cname   text,
	cpred   text not null,
	cfinal  boolean not null default false,
	timeout interval not null default interval '1 hour',
	delay   interval,
	action  text,
	withdrawable boolean not null default false,
	priority     integer not null default 0,
	max_attempts integer,
	backoff      interval not null default interval '0',
	max_backoff  interval not null default interval '1 hour',
	undo    text,
	_row    integer generated always as identity,
	_statement integer default current_setting('wed_sql_file.statement')::integer
) on commit drop`

// Loaded is what a file defines, and where in the file.
type Loaded struct {
	Definition
	File *File

	attributes []origin // of each attribute
	rules      []origin // of each rule

	// what is wrong, as far as the rest can be looked at all the same
	problems []*Problem
	invalid  map[string]bool // attributes that cannot be made
}

// origin is the statement that has made a row, and its number among those.
type origin struct {
	Statement int `json:"_statement"`
	Number    int `json:"_number"`
}

// Load runs a file in a transaction, on tables of its own, and returns what it defines.
// Nothing of it stays. The error is *Problems if the file is so wrong that it is not known
// what it defines; what else is wrong with it, Write says.
func Load(ctx context.Context, tx pgx.Tx, f *File) (*Loaded, error) {
	sub, err := tx.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin to read %s: %w", f.Name, err)
	}
	defer func() { _ = sub.Rollback(ctx) }()
	if _, err := sub.Exec(ctx, ScratchTables); err != nil {
		return nil, fmt.Errorf("make tables to read %s into: %w", f.Name, err)
	}
	// What else the file may use has to be named with its schema, as in a condition.
	if _, err := sub.Exec(ctx, `set local search_path = pg_temp, pg_catalog`); err != nil {
		return nil, fmt.Errorf("prepare to read %s: %w", f.Name, err)
	}
	l := &Loaded{File: f, invalid: make(map[string]bool)}
	attributesKnown, rulesKnown := true, true
	for i, s := range f.rows {
		if err := f.run(ctx, sub, i, s); err != nil {
			p := problemOf(err, func(query string, at int) int { return f.locateIn(s, query, at) })
			if p == nil {
				return nil, fmt.Errorf("run %s: %w", f.Name, err)
			}
			l.problems = append(l.problems, p)
			rulesKnown = false
			attributesKnown = attributesKnown && !slices.ContainsFunc(s.Tokens, func(t sqllex.Token) bool { return t.Value == "wed_attr" })
		}
	}
	if !attributesKnown {
		return nil, &Problems{File: f, List: l.problems}
	}
	if err := l.read(ctx, sub); err != nil {
		return nil, err
	}
	l.Settings, l.Workers = f.Settings, f.Workers
	l.normalize(ctx, sub)
	l.contradictions(rulesKnown)
	return l, nil
}

// run executes a statement of the file; if it fails, the others can go on.
func (f *File) run(ctx context.Context, tx pgx.Tx, number int, s sqllex.Statement) error {
	sub, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Rollback(ctx) }()
	if _, err := sub.Exec(ctx, `select set_config('wed_sql_file.statement', $1::text, true)`, fmt.Sprint(number)); err != nil {
		return err
	}
	if _, err := sub.Exec(ctx, s.Text); err != nil {
		return err
	}
	return sub.Commit(ctx)
}

// locateIn returns where in the file a place of a statement is. What a statement's
// function was doing has no place but the statement's.
func (f *File) locateIn(s sqllex.Statement, query string, at int) int {
	if query != "" || at < 1 {
		return s.Start
	}
	return s.Start + sqllex.ByteOf(s.Text, at)
}

func (l *Loaded) read(ctx context.Context, tx pgx.Tx) error {
	type attributeRow struct {
		Attribute
		origin
	}
	type ruleRow struct {
		Rule
		origin
	}
	const from = `select to_jsonb(r) from (select *, row_number() over (partition by _statement order by _row) as _number
		from pg_temp.%s) r order by _row`
	attributes, err := readRows[attributeRow](ctx, tx, fmt.Sprintf(from, "wed_attr"))
	if err != nil {
		return fmt.Errorf("read the attributes of %s: %w", l.File.Name, err)
	}
	for _, a := range attributes {
		l.Attributes, l.attributes = append(l.Attributes, a.Attribute), append(l.attributes, a.origin)
	}
	rules, err := readRows[ruleRow](ctx, tx, fmt.Sprintf(from, "wed_trig"))
	if err != nil {
		return fmt.Errorf("read the rules of %s: %w", l.File.Name, err)
	}
	for _, r := range rules {
		l.Rules, l.rules = append(l.Rules, r.Rule), append(l.rules, r.origin)
	}
	return nil
}

// normalize writes types as the database does, so that they can be compared.
func (l *Loaded) normalize(ctx context.Context, tx pgx.Tx) {
	for i := range l.Attributes {
		a := &l.Attributes[i]
		if err := normalizeType(ctx, tx, a); err != nil {
			p := problemOf(err, func(string, int) int { return l.placeOfText(l.attributes[i], a.Type, 0) })
			if p == nil {
				p = &Problem{At: l.PlaceOfAttribute(i), Message: err.Error()}
			}
			l.problems = append(l.problems, p)
			l.invalid[a.Name] = true
		}
	}
}

func normalizeType(ctx context.Context, tx pgx.Tx, a *Attribute) error {
	sub, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Rollback(ctx) }()
	var name string
	if err := sub.QueryRow(ctx, `select wed_sql.type_name($1)`, a.Type).Scan(&name); err != nil {
		return err
	}
	a.Type = name
	return sub.Commit(ctx)
}

// contradictions finds what rows that are right by themselves make wrong together.
func (l *Loaded) contradictions(allKnown bool) {
	transitions := make(map[string]bool)
	final := -1
	for i, r := range l.Rules {
		if r.Transition != nil {
			transitions[*r.Transition] = true
		}
		if r.ID != 0 {
			l.problems = append(l.problems, &Problem{At: l.PlaceOfRule(i), Message: "tgid is assigned by wed_sql", Hint: "leave it out"})
		}
		if r.Final && final >= 0 {
			l.problems = append(l.problems, &Problem{
				At: l.PlaceOfRule(i), Message: "a WED-flow can have only one final condition", Hint: "combine several with OR, in one cpred",
			})
		}
		if r.Final {
			final = i
		}
	}
	for i, r := range l.Rules {
		if allKnown && r.Undo != nil && !transitions[*r.Undo] {
			l.problems = append(l.problems, &Problem{
				At:      l.placeOfText(l.rules[i], *r.Undo, 0),
				Message: fmt.Sprintf("there is no WED-transition %q to undo %s", *r.Undo, r.Label()),
				Hint:    "define a rule of this name; its cpred may be false, so that it fires for nothing else",
			})
		}
	}
}

// isInvalid reports whether a rule uses an attribute that cannot be made: it would be told
// to be wrong for that.
func (l *Loaded) isInvalid(r Rule) bool {
	sql := r.Condition
	if r.Action != nil {
		sql += " " + *r.Action
	}
	tokens, _ := sqllex.Tokens(sql)
	return slices.ContainsFunc(tokens, func(t sqllex.Token) bool {
		return (t.Kind == sqllex.Ident || t.Kind == sqllex.Quoted) && l.invalid[t.Value]
	})
}

// PlaceOfAttribute returns where in the file an attribute is defined.
func (l *Loaded) PlaceOfAttribute(i int) int {
	return l.placeOfText(l.attributes[i], l.Attributes[i].Name, 0)
}

// PlaceOfRule returns where in the file a rule is defined: where its condition is.
func (l *Loaded) PlaceOfRule(i int) int { return l.PlaceInCondition(i, 0) }

// PlaceInCondition returns where in the file a byte of a rule's condition is.
func (l *Loaded) PlaceInCondition(i, at int) int {
	return l.placeOfText(l.rules[i], l.Rules[i].Condition, at)
}

// PlaceInAction does so for a rule's action.
func (l *Loaded) PlaceInAction(i, at int) int {
	return l.placeOfText(l.rules[i], *l.Rules[i].Action, at)
}

// placeOfText returns where a byte of a constant is: in the part of the statement that
// has made the row, if that is known; where the statement begins if there is none.
func (l *Loaded) placeOfText(o origin, value string, at int) int {
	s := l.File.rows[o.Statement]
	tokens := valuesRow(s.Tokens, o.Number)
	if tokens == nil {
		tokens = s.Tokens
	}
	for _, t := range tokens {
		if t.Kind == sqllex.String && t.Value == value {
			return t.Start + insideString(t, at)
		}
	}
	return tokens[0].Start
}

// valuesRow returns the tokens of a row of INSERT ... VALUES, counted from 1; nil if the
// statement is of another form.
func valuesRow(tokens []sqllex.Token, number int) []sqllex.Token {
	depth, start := 0, -1
	for i, t := range tokens {
		switch {
		case depth == 0 && t.Is("values"):
			start = i
		case start >= 0 && t.Is("("):
			depth++
			if depth == 1 {
				start = i
			}
		case start >= 0 && t.Is(")"):
			depth--
			if depth > 0 {
				continue
			}
			number--
			if number == 0 {
				return tokens[start : i+1]
			}
		case start < 0 && t.Is("("):
			depth++
		case start < 0 && t.Is(")"):
			depth--
		}
	}
	return nil
}

// insideString returns where in a string constant, as it is written, a byte of its value
// is.
func insideString(t sqllex.Token, at int) int {
	if strings.HasPrefix(t.Text, "$") {
		return strings.IndexByte(t.Text[1:], '$') + 2 + at
	}
	open := strings.IndexByte(t.Text, '\'') + 1
	if strings.Count(t.Text, "\n") > strings.Count(t.Value, "\n") || open > 1 {
		return 0 // in several parts, or with escapes
	}
	i := open
	for ; at > 0 && i < len(t.Text)-1; at-- {
		if strings.HasPrefix(t.Text[i:], "''") {
			i++
		}
		i++
	}
	return i
}
