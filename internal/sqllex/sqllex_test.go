package sqllex

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestTokensMeanWhatPostgreSQLTakesThemFor(t *testing.T) {
	for _, c := range []struct {
		sql  string
		want []string // values
	}{
		{"", nil},
		{"a = 'it''s'", []string{"a", "=", "it's"}},
		{`SELECT "Weird ""Name"""`, []string{"select", `Weird "Name"`}},
		{`E'a\'b\n\x41\u00e9\101'`, []string{"a'b\nAéA"}},
		{`'a\'`, []string{`a\`}},
		{"'one'\n  'two'", []string{"onetwo"}},
		{"'one' -- why\n 'two'", []string{"onetwo"}},
		{"'one' 'two'", []string{"one", "two"}},
		{"$$it's $a$ $$", []string{"it's $a$ "}},
		{"$q$ $$;$$ $q$;", []string{" $$;$$ ", ";"}},
		{"a$b$c", []string{"a$b$c"}},
		{"/* /* ; */ ' */ a --;\n b", []string{"a", "b"}},
		{"a::text[1:2]", []string{"a", "::", "text", "[", "1", ":", "2", "]"}},
		{"1.5e-3+.5-1..2", []string{"1.5e-3", "+", ".5", "-", "1", "..", "2"}},
		{"a=-1", []string{"a", "=", "-", "1"}},
		{"a@-b", []string{"a", "@-", "b"}},
		{"a<--b\n1", []string{"a", "<", "1"}},
		{"a =/* */1", []string{"a", "=", "1"}},
		{"$1 = x'1F'", []string{"$1", "=", "1F"}},
		{"État = 'ÉTAT'", []string{"État", "=", "ÉTAT"}},
		{"U&'d' n'x'", []string{"d", "x"}},
	} {
		tokens, err := Tokens(c.sql)
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		var got []string
		for _, token := range tokens[:len(tokens)-1] {
			got = append(got, token.Value)
			if token.Text != c.sql[token.Start:token.End()] {
				t.Errorf("%s: %q is not at %d", c.sql, token.Text, token.Start)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", c.sql, d)
		}
	}
}

func TestWhatIsNotSQLIsRefusedWhereItBegins(t *testing.T) {
	for sql, at := range map[string]int{
		"a = 'x":         4,
		"a = \"x":        4,
		"a /* b":         2,
		"$q$ it $":       0,
		"\\d":            0,
		"insert\n\\q":    7,
		`a = ""`:         4,
		"a = \x01":       4,
		"a = $":          4,
		"a = E'\\'":      4,
		"/* /* */ never": 0,
	} {
		_, err := Tokens(sql)
		if e, ok := errors.AsType[*Error](err); !ok || e.At != at {
			t.Errorf("%q: %v, want an error at %d", sql, err, at)
		}
	}
}

func TestStatementsEndAtSemicolonsThatAreSQL(t *testing.T) {
	script := `-- nothing; here
insert into a values (';', $$;$$, E'\';', ";"); /* ; */ ;
select f(1; 2) -- odd
; last`
	statements, err := Statements(script)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range statements {
		got = append(got, s.Text)
		if !strings.HasPrefix(script[s.Start:], s.Text) {
			t.Errorf("%q is not at %d", s.Text, s.Start)
		}
	}
	want := []string{`insert into a values (';', $$;$$, E'\';', ";")`, "select f(1; 2)", "last"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestQuotedIsReadBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.RuneFrom([]rune("ab'\"$\\;-/*é\nq0_A"))).Draw(t, "s")
		for _, quoted := range []string{QuoteString(s), QuoteName(s)} {
			if quoted == `""` {
				continue // no name
			}
			tokens, err := Tokens(quoted)
			if err != nil || len(tokens) != 2 || tokens[0].Value != s {
				t.Fatalf("%q is written %s and read as %v, %v", s, quoted, tokens, err)
			}
		}
	})
}

func TestPlacesAreThoseThatPeopleCount(t *testing.T) {
	text := "a\nbé = 'x'\r\nc"
	if p := PlaceOf(text, strings.Index(text, "=")); p != (Place{2, 4}) {
		t.Errorf("%v", p)
	}
	if l := Line(text, 2); l != "bé = 'x'" {
		t.Errorf("%q", l)
	}
	if at := ByteOf("bé =", 4); at != 4 {
		t.Errorf("%d", at)
	}
}

// Whatever the text: no panic, and what is between tokens is nothing but white space
// and comments.
func FuzzStatements(f *testing.F) {
	for _, s := range []string{
		"insert into a values ('x;', $$y$$);", "a\\b", "E'\\", "$a$", "/*/**/", "U&\"a", "1e+", "0x", "1__2", "'a'\n'b'", "a - -1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script string) {
		tokens, err := Tokens(script)
		end := 0
		for _, token := range tokens {
			if token.Start < end || token.Kind != EOF && token.Text == "" {
				t.Fatalf("token %+v begins before %d", token, end)
			}
			gap := lexer{sql: script[end:token.Start]}
			if e := gap.skip(); e != nil || gap.at != len(gap.sql) {
				t.Fatalf("%q is left out", gap.sql)
			}
			end = token.End()
		}
		if err == nil && end != len(script) {
			t.Fatalf("the end of %q is left out", script)
		}
		if _, e := Statements(script); (e == nil) != (err == nil) {
			t.Fatalf("%v, but %v", err, e)
		}
	})
}
