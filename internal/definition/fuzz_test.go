package definition

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// What is exported is read as it was, whatever the names and conditions are.
func FuzzAnExportedDefinitionIsReadAsItWas(f *testing.F) {
	f.Add("a", "text", "x", "t", "a = 'x'", "a is null", "role", int64(5))
	f.Add(`"; drop table x; --`, "pg_catalog.int4", "$$", "it's", `a = $$b\$$`, "", "$sql$'\\", int64(-1))
	f.Add("\u202e", "t", "'\\$", "é\n", "--", "/*", "\"", int64(0))
	f.Fuzz(func(t *testing.T, aname, atype, adv, trname, cpred, consistent, role string, states int64) {
		all := []string{aname, atype, adv, trname, cpred, consistent, role}
		if states < 0 || slices.ContainsFunc(all, func(s string) bool { return !utf8.ValidString(s) || strings.Contains(s, "\x00") }) || consistent == "" {
			return
		}
		d := Definition{
			Attributes: []Attribute{{Name: aname, Type: atype, Default: &adv}},
			Rules:      []Rule{{Transition: &trname, Condition: cpred, Enabled: true, Action: &adv}},
			Settings:   Settings{Consistent: &consistent, MaxStates: &states},
			Workers:    []Worker{{Transition: trname, Role: role}},
		}
		text := d.SQL(true)
		file, err := ParseFile("f", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff(d.Settings, file.Settings) + cmp.Diff(d.Workers, file.Workers); diff != "" || file.Flow != "" || len(file.rows) != 2 {
			t.Fatalf("%s\n%s", diff, text)
		}
		attribute := []string{aname, strings.TrimPrefix(atype, "pg_catalog."), adv}
		if attribute[1] == "text" {
			attribute = slices.Delete(attribute, 1, 2) // need not be said
		}
		for i, want := range [][]string{attribute, {trname, cpred, adv}} {
			var got []string
			for _, token := range file.rows[i].Tokens {
				if token.Kind == sqllex.String {
					got = append(got, token.Value)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s\n%s", diff, text)
			}
		}
	})
}

// An error is shown at its place, in a text of any kind.
func FuzzAnExcerptShowsThePlace(f *testing.F) {
	f.Add("insert into x\n\tvalues ('"+strings.Repeat("é", 200)+"')", 30)
	f.Add("", -1)
	f.Add("\r\n\r", 2)
	f.Fuzz(func(t *testing.T, text string, at int) {
		file := &File{Name: "f", Text: text}
		said := file.Describe(&Problem{At: at, Message: "m"})
		if at < 0 {
			if said != "f: m" {
				t.Fatal(said)
			}
			return
		}
		place := sqllex.PlaceOf(text, at)
		lines := strings.Split(Excerpt(text, place), "\n")
		if caret := lines[len(lines)-1]; strings.TrimLeft(caret, " ") != "^" || len(caret) > 4+3+widestExcerpt+4 {
			t.Fatalf("place %+v of %q:\n%s", place, text, said)
		}
	})
}

func FuzzTheActionIsFoundInItsStatement(f *testing.F) {
	f.Add("update only \"set\".wed_flow set a = 1")
	f.Add("update only 'set")
	f.Fuzz(func(t *testing.T, query string) {
		if at := indexAfterSet(query); at > len(query)+1 {
			t.Fatalf("%d of %q", at, query)
		}
	})
}
