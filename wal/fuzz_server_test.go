package wal

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// What is kept as JSON, because it is one of type json, is one that jsonb takes. One that it did not take would have its
// state recorded as null.
func FuzzWhatFitsIsTakenByJSONB(f *testing.F) {
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
	for _, s := range []string{`{"a": 1e3}`, `"\u0000"`, `"\ud800"`, `1e400000`, `-0.0e-999`, "1" + strings.Repeat("0", 9000) + "e999", `{"a":1,"a":2}`, `"\uD83D\uDE00"`,
		`1.` + strings.Repeat("0", 9999) + "1", `[1e1, 1E-16383]`, strings.Repeat("[", 3000) + strings.Repeat("]", 3000), ` "\/\b" `, `1E+9999`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) || strings.Contains(text, "\x00") || !fitsJSONB([]byte(text)) {
			return
		}
		var length int
		if err := conn.QueryRow(ctx, "select length($1::text::json::text)", text).Scan(&length); err != nil {
			return // no attribute has it
		}
		if err := conn.QueryRow(ctx, `select length(('{"a":' || $1::text || '}')::jsonb::text)`, text).Scan(&length); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
