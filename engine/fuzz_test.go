package engine

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Whatever the worker sends, the engine has settings that it can run with, or an error.
func FuzzSettingsAreUsableOrRefused(f *testing.F) {
	for _, s := range []string{`{}`, `{"port":0,"batch_size":-1,"discovery_interval_s":0}`, `{"conninfo":"user='a\\'b'"}`, `null`, `[]`, `{"port":99999999999}`, `{"conninfo":"postgres://%zz"}`,
		`{"host":"/tmp/a b'\\","user":"x y"}`, `{"conninfo":"sslmode=verify-full sslrootcert=/none"}`, `{"conninfo":"options='-c search_path=evil'"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseConfig(raw)
		if err != nil {
			return
		}
		if c.BatchSize < 1 || c.discoveryInterval() <= 0 {
			t.Fatalf("%s: %+v", raw, c)
		}
		conn, err := c.connConfig("some database")
		if err != nil {
			return
		}
		if conn.Database != "some database" || conn.RuntimeParams["search_path"] != "pg_catalog" || len(conn.RuntimeParams) != 2 || conn.ConnectTimeout <= 0 {
			t.Fatalf("%s: %+v, %v", raw, conn.RuntimeParams, conn.Database)
		}
	})
}

// A value of a connection string is the value, and does not set another key.
func FuzzAValueOfAConnectionString(f *testing.F) {
	for _, s := range []string{"postgres", "a b", `it's`, `\`, `x' host='evil`, "é", "=", "a\nb", `\'`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if value == "" || strings.Contains(value, "\x00") {
			return
		}
		c, err := pgx.ParseConfig("host=localhost user=" + quote(value) + " password=p")
		if err != nil || c.User != value || c.Host != "localhost" || c.Password != "p" {
			t.Fatalf("%q: %v", value, err)
		}
	})
}
