// Package doctor finds what is wrong with a server that runs wed_sql: its
// configuration, its engine, what its flows suffer from; and says how to mend it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Severity says how bad a finding is.
type Severity string

// From nothing to do up to what stops flows or loses data.
const (
	OK      Severity = "ok"
	Note    Severity = "note"
	Warning Severity = "warning"
	Error   Severity = "error"
)

var severities = []Severity{OK, Note, Warning, Error}

// Worse reports whether s is worse than other.
func (s Severity) Worse(other Severity) bool {
	return slices.Index(severities, s) > slices.Index(severities, other)
}

// Finding is the result of a check, or one of several.
type Finding struct {
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why,omitempty"`  // it matters
	Mend     string   `json:"mend,omitempty"` // SQL, or lines of postgresql.conf
}

// check looks at one thing. No finding means that it is as it should be.
type check struct {
	name string
	// fine is what is so then.
	fine string
	// needs says what the check is about: the server, or this database's extension.
	needs func(*patient) bool
	look  func(context.Context, *patient) ([]Finding, error)
}

// Examine makes all checks, on a connection to a database that has flows or shall
// have. What the role may not look at is a note. It fails only if the connection does.
func Examine(ctx context.Context, conn *pgx.Conn) ([]Finding, error) {
	p, err := meet(ctx, conn)
	if err != nil {
		return nil, err
	}
	var all []Finding
	var hidden []string
	for _, c := range slices.Concat(serverChecks(), activityChecks(), engineChecks(), flowChecks()) {
		if c.needs != nil && !c.needs(p) {
			continue
		}
		found, err := c.look(ctx, p)
		if err != nil {
			if ctx.Err() != nil || conn.IsClosed() {
				return nil, fmt.Errorf("look at %s: %w", c.name, err)
			}
			if isDenied(err) {
				hidden = append(hidden, c.name)
				continue
			}
			found = []Finding{{Severity: Note, What: "could not be looked at: " + err.Error()}}
		}
		if len(found) == 0 {
			found = []Finding{{Severity: OK, What: c.fine}}
		}
		for _, f := range found {
			f.Check = c.name
			all = append(all, f)
		}
	}
	if len(hidden) > 0 {
		all = append(all, Finding{
			Check: "rights", Severity: Note, What: "not looked at: " + strings.Join(hidden, ", "),
			Why: "the role of this session has no right to", Mend: "grant pg_monitor to the role, or ask as a superuser",
		})
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return slices.Index(severities, b.Severity) - slices.Index(severities, a.Severity)
	})
	return all, nil
}

// isDenied reports that a right was missing.
func isDenied(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "42501"
}

// setting is a line of pg_settings.
type setting struct {
	Name    string
	Value   string
	Unit    string
	Pending bool // changed in a file, in force after a restart
	Source  string
}

// patient is a server, as it is needed by most checks.
type patient struct {
	conn      *pgx.Conn
	database  string
	oid       uint32
	version   int // as server_version_num
	standby   bool
	superuser bool
	monitor   bool
	settings  map[string]setting
	extension string // its version in this database, or ""
}

func meet(ctx context.Context, conn *pgx.Conn) (*patient, error) {
	p := &patient{conn: conn, settings: make(map[string]setting)}
	err := conn.QueryRow(ctx, `
		select current_database(), (select oid from pg_database where datname = current_database()),
			current_setting('server_version_num')::integer, pg_is_in_recovery(),
			(select rolsuper from pg_roles where rolname = current_user), pg_has_role('pg_monitor', 'usage'),
			coalesce((select extversion from pg_extension where extname = 'wed_sql'), '')`).
		Scan(&p.database, &p.oid, &p.version, &p.standby, &p.superuser, &p.monitor, &p.extension)
	if err != nil {
		return nil, fmt.Errorf("look at the server: %w", err)
	}
	settings, err := rows[setting](ctx, p, `
		select name, setting as value, coalesce(unit, '') as unit, pending_restart as pending, source from pg_settings`)
	if err != nil {
		return nil, fmt.Errorf("look at the settings: %w", err)
	}
	for _, s := range settings {
		p.settings[s.Name] = s
	}
	return p, nil
}

// installed reports that the extension is there, and can be asked.
func installed(p *patient) bool { return p.extension != "" && p.loaded() }

// primary reports that the server can be written to.
func primary(p *patient) bool { return !p.standby }

func both(a, b func(*patient) bool) func(*patient) bool {
	return func(p *patient) bool { return a(p) && b(p) }
}

// loaded reports that the server has the module: then it has its settings.
func (p *patient) loaded() bool {
	_, ok := p.settings["wed_sql.max_databases"]
	return ok
}

func (p *patient) is(name, value string) bool { return p.settings[name].Value == value }

// rows returns the rows of a query, whose columns are named as the fields of T.
func rows[T any](ctx context.Context, p *patient, sql string, args ...any) ([]T, error) {
	q, err := p.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(q, pgx.RowToStructByNameLax[T])
}

// one returns the only value of a query.
func one[T any](ctx context.Context, p *patient, sql string, args ...any) (v T, err error) {
	err = p.conn.QueryRow(ctx, sql, args...).Scan(&v)
	return v, err
}

// conf is how to change a setting that is read when the server starts.
func conf(name, value string) string {
	return fmt.Sprintf("alter system set %s = %s;  -- and restart the server", name, value)
}

// reload is how to change one that the running server reads again.
func reload(name, value string) string {
	return fmt.Sprintf("alter system set %s = %s; select pg_reload_conf();", name, value)
}

// ident writes an identifier as SQL wants it.
func ident(parts ...string) string {
	for _, s := range parts {
		if s == "" || strings.ToLower(s) != s || strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_'
		}) || s[0] >= '0' && s[0] <= '9' {
			return pgx.Identifier(parts).Sanitize()
		}
	}
	return strings.Join(parts, ".")
}

// size writes a number of bytes in the unit that fits.
func size(n int64) string {
	value, unit := float64(n), "bytes"
	for _, u := range []string{"kB", "MB", "GB", "TB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, u
	}
	if unit == "bytes" {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
