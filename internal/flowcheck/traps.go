package flowcheck

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/wed-sql/wed_sql/internal/condition"
)

// traps finds what is SQL, and hardly what was meant.
func (c *checker) traps() {
	for i, r := range c.rules {
		if r.condition == nil || !r.Enabled {
			continue
		}
		condition.Walk(r.condition, func(e condition.Expr) { c.nullTrap(i, e) })
		condition.Walk(r.condition, func(e condition.Expr) { c.textTrap(i, e) })
		if moments := condition.Moments(r.condition); len(moments) > 0 {
			c.add(about(Warning, "moment", i, fmt.Sprintf("the condition of %s depends on when it is looked at: %s", r.Label(), strings.Join(moments, ", ")),
				"it is looked at when the state is written, and not again: that time passes changes nothing",
				"use delay: the transition is due when the condition has held for so long"))
		}
		if condition.Queries(r.condition) {
			c.add(about(Note, "query", i, "the condition of "+r.Label()+" reads more than its instance",
				"it is looked at when the instance is written: when other tables change, nothing is",
				"have a transition or wed_sql.signal() write what has changed into the instances that it concerns"))
		}
	}
	c.caseTrap()
}

func isNull(e condition.Expr) bool {
	k, ok := e.(*condition.Const)
	return ok && k.Kind == condition.Null
}

// nullTrap finds comparisons with null, which are never true.
func (c *checker) nullTrap(i int, e condition.Expr) {
	add := func(at int, what, instead string) {
		f := about(Warning, "null-comparison", i, what+" is never true", "a comparison with null is neither true nor false", "write "+instead)
		f.At = at
		c.add(f)
	}
	switch e := e.(type) {
	case *condition.Compare:
		if !isNull(e.L) && !isNull(e.R) {
			return
		}
		other := e.L
		if isNull(other) {
			other = e.R
		}
		instead := condition.Print(&condition.Is{X: other, What: "null", Not: e.Op != "="})
		add(e.At, condition.Print(e), instead)
	case *condition.In:
		for _, x := range e.List {
			if k, ok := x.(*condition.Const); ok && isNull(x) {
				if e.Not {
					add(k.At, "not in a list with null", "... is not null and ... not in (...), without null")
				} else {
					add(k.At, "null in a list", "... is null or ... in (...), without null")
				}
			}
		}
	}
}

var looksLikeNumber = regexp.MustCompile(`^\s*[-+]?[0-9]+(\.[0-9]+)?\s*$`)

// textTrap finds text that is compared as if it was a number.
func (c *checker) textTrap(i int, e condition.Expr) {
	compare, ok := e.(*condition.Compare)
	if !ok || compare.Op == "=" || compare.Op == "<>" {
		return
	}
	column, isColumn := compare.L.(*condition.Column)
	k, isConst := compare.R.(*condition.Const)
	if !isColumn || !isConst {
		column, isColumn = compare.R.(*condition.Column)
		k, isConst = compare.L.(*condition.Const)
	}
	if !isColumn || !isConst || k.Kind != condition.String || !looksLikeNumber.MatchString(k.Text) || !isText(c.types[column.Name]) {
		return
	}
	f := about(Warning, "text-order", i, fmt.Sprintf("%s compares text, letter by letter", condition.Print(compare)),
		fmt.Sprintf("%s is of type text: '9' comes after '10'", column.Name), "make the attribute a number: atype = 'numeric' in wed_attr")
	f.At = compare.At
	c.add(f)
}

func isText(typ string) bool {
	typ = strings.TrimPrefix(typ, "pg_catalog.")
	return typ == "text" || strings.HasPrefix(typ, "character varying") || strings.HasPrefix(typ, "varchar")
}

// caseTrap finds values of an attribute that differ in nothing but case or white space.
func (c *checker) caseTrap() {
	type use struct {
		text string
		rule int
		at   int
	}
	seen := make(map[string]use)
	note := func(i int, column *condition.Column, e condition.Expr) {
		k, ok := e.(*condition.Const)
		if !ok || k.Kind != condition.String || !isText(c.types[column.Name]) {
			return
		}
		key := column.Name + "\x00" + strings.ToLower(strings.TrimSpace(k.Text))
		before, found := seen[key]
		if !found {
			seen[key] = use{k.Text, i, k.At}
			return
		}
		if before.text != k.Text {
			f := about(Warning, "similar-values", i, fmt.Sprintf("%s is compared with '%s' here, and with '%s' by %s", column.Name, k.Text, before.text, c.rules[before.rule].Label()),
				"the two are different values", "write both in the same way")
			f.At = k.At
			c.add(f)
		}
	}
	for i, r := range c.rules {
		if r.condition == nil {
			continue
		}
		condition.Walk(r.condition, func(e condition.Expr) {
			switch e := e.(type) {
			case *condition.Compare:
				if column, ok := e.L.(*condition.Column); ok {
					note(i, column, e.R)
				}
				if column, ok := e.R.(*condition.Column); ok {
					note(i, column, e.L)
				}
			case *condition.In:
				if column, ok := e.X.(*condition.Column); ok {
					for _, x := range e.List {
						note(i, column, x)
					}
				}
			}
		})
	}
}
