package condition

import (
	"slices"
	"strings"
	"unicode"
)

// repeatable are functions of PostgreSQL that come to the same for the same arguments.
var repeatable = strings.Fields(`abs array_length btrim cardinality ceil ceiling char_length coalesce concat floor greatest
	jsonb_array_length jsonb_typeof least left length lower ltrim md5 mod nullif octet_length position power regexp_replace
	repeat replace reverse right round rtrim sign split_part sqrt starts_with strpos substr substring trim trunc upper`)

// momentary are constants that mean the moment at which they are read.
var momentary = []string{"now", "today", "tomorrow", "yesterday"}

// isMomentary reports whether a constant of a time has one of them in it: 'today 12:00'.
func isMomentary(text string) bool {
	words := strings.FieldsFunc(strings.ToLower(text), func(c rune) bool { return !unicode.IsLetter(c) })
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(momentary, w) })
}

// Repeatable reports whether it is known that an expression comes to the same whenever
// it is evaluated on the same state.
func Repeatable(e Expr) bool {
	known := true
	Walk(e, func(e Expr) {
		switch e := e.(type) {
		case *Opaque:
			known = false
		case *Call:
			known = known && slices.Contains(repeatable, e.Name)
		case *Operate:
			known = known && e.Op != "in" && e.Op != "not in"
		case *Cast:
			known = known && !strings.Contains(e.Type, ".")
		case *Const:
			known = known && (e.Kind != String || !isMomentary(e.Text))
		}
	})
	return known
}

// clocks are the functions whose value changes while nobody writes.
var clocks = strings.Fields(`now current_date current_time current_timestamp localtime localtimestamp clock_timestamp
	statement_timestamp transaction_timestamp timeofday age random gen_random_uuid nextval txid_current pg_current_xact_id`)

// Moments returns the calls and constants of an expression that depend on when it is
// evaluated.
func Moments(e Expr) []string {
	var found []string
	add := func(s string) {
		if !slices.Contains(found, s) {
			found = append(found, s)
		}
	}
	Walk(e, func(e Expr) {
		switch e := e.(type) {
		case *Call:
			if name := strings.TrimPrefix(e.Name, "pg_catalog."); slices.Contains(clocks, name) && (name != "age" || len(e.Args) == 1) {
				add(Print(&Call{Name: e.Name, Bare: e.Bare}))
			}
		case *Cast:
			if k, ok := e.X.(*Const); ok && k.Kind == String && isMomentary(k.Text) && domainOf(e.Type).ordered() {
				add(Print(e))
			}
		case *Opaque:
			for _, name := range Names(e) {
				if slices.Contains(clocks, name) && name != "age" {
					add(name)
				}
			}
		}
	})
	return found
}

// Queries reports whether an expression may read other tables.
func Queries(e Expr) bool {
	found := false
	Walk(e, func(e Expr) {
		if o, ok := e.(*Opaque); ok && slices.Contains(Names(o), "select") {
			found = true
		}
	})
	return found
}
