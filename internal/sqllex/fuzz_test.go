package sqllex

import (
	"context"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// texts are what is hard to write in SQL.
var texts = []string{"", "a", "A", "select", "it's", `"`, `\`, "$$", "$sql$", "a$", "$sql", "\n--", "/*", "é\u202e", "x\x01", "0a", "a b", "'$$'\\$sql$", strings.Repeat("x", 70)}

func FuzzANameIsReadAsItWas(f *testing.F) {
	for _, s := range texts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || strings.Contains(name, "\x00") {
			return
		}
		written := QuoteName(name)
		tokens, err := Tokens(written)
		if err != nil || len(tokens) != 2 || tokens[0].Value != name || tokens[0].Kind != Ident && tokens[0].Kind != Quoted {
			t.Fatalf("%q is written %s, which is %+v, %v", name, written, tokens, err)
		}
		if tokens[0].Kind == Ident && Reserved(name) {
			t.Fatalf("%s is a key word", name)
		}
	})
}

func FuzzAStringIsReadAsItWas(f *testing.F) {
	for _, s := range texts {
		f.Add(s, " and b")
		f.Add(s, "'")
	}
	f.Fuzz(func(t *testing.T, s, behind string) {
		written := QuoteString(s)
		// Whatever follows on the line is none of its business.
		tokens, _ := Tokens(written + " " + behind)
		if len(tokens) == 0 || tokens[0].Kind != String || tokens[0].Value != s && !strings.HasPrefix(strings.TrimLeft(behind, " \t\n\r\f\v"), "'") &&
			!strings.Contains(behind, "\n") && !strings.Contains(behind, "\r") {
			t.Fatalf("%q is written %s, which is %+v", s, written, tokens)
		}
	})
}

func FuzzPlacesAreThoseThatAPersonCounts(f *testing.F) {
	f.Add("a\nbé\r\n\nc", 4)
	f.Add("", 1)
	f.Add("\xff\n", 9)
	f.Fuzz(func(t *testing.T, text string, at int) {
		line, column := 1, 1
		for i, r := range text {
			if i >= at {
				break
			}
			if r == '\n' {
				line, column = line+1, 1
			} else {
				column++
			}
		}
		if !utf8.ValidString(text) || at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
			_ = PlaceOf(text, at)
			return
		}
		if got := PlaceOf(text, at); got != (Place{Line: line, Column: column}) {
			t.Fatalf("byte %d of %q is in line %d, column %d, not %+v", at, text, line, column, got)
		}
		if at >= 0 && at <= len(text) {
			if got := ByteOf(text, 1+utf8.RuneCountInString(text[:at])); got != at {
				t.Fatalf("byte %d of %q is taken for %d", at, text, got)
			}
		}
		if strings.Contains(Line(text, line), "\n") {
			t.Fatalf("line %d of %q is several", line, text)
		}
	})
}

// What is taken for one constant is one to PostgreSQL, too, and the same; so is a name.
func FuzzConstantsAreThoseOfPostgreSQL(f *testing.F) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		f.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close(ctx) })
	if _, err := conn.Exec(ctx, "set default_transaction_read_only = on"); err != nil {
		f.Fatal(err)
	}
	for _, s := range append([]string{`E'a\'b\n\x41\u00e9\101'`, "'one'\n  'two'", "'one' -- why\n 'two'", "$q$ $$;$$ $q$", "n'x'", `"Weird ""Name"""`, `E'\ud83d\ude00'`,
		"U&'d'", `"é"`, "'a'/**/'b'", "E'\\\n'", "abc", "É"}, texts...) {
		f.Add(s)
		f.Add(QuoteString(s))
	}
	f.Fuzz(func(t *testing.T, s string) {
		tokens, err := Tokens(s)
		if err != nil || len(tokens) != 2 || !utf8.ValidString(s) || strings.Contains(s, "\x00") {
			return
		}
		token := tokens[0]
		if strings.IndexByte("uU", token.Text[0]) >= 0 && strings.ContainsAny(token.Text, `\`) {
			return // those are not read: see package condition
		}
		switch token.Kind {
		case String:
			var got string
			if err := conn.QueryRow(ctx, "select "+s+"::text").Scan(&got); err != nil || got != token.Value {
				t.Fatalf("%q is %q to PostgreSQL, not %q (%v)", s, got, token.Value, err)
			}
		case Quoted, Ident:
			if len(token.Value) > 63 || Reserved(token.Value) && token.Kind == Ident {
				return
			}
			rows, err := conn.Query(ctx, "select 1 as "+s)
			if err != nil {
				t.Fatalf("%q is no name to PostgreSQL: %v", s, err)
			}
			defer rows.Close()
			if got := rows.FieldDescriptions(); len(got) != 1 || got[0].Name != token.Value {
				t.Fatalf("%q is %+v to PostgreSQL, not %q", s, got, token.Value)
			}
		}
	})
}
