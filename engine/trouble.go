package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/wal"
)

// trouble is an error as people are told it.
type trouble struct {
	text  string
	hint  string   // what to do about it, or ""
	lacks resource // of which the server has too few, or ""
}

// resource is named by the setting that limits it.
type resource string

const (
	slots       resource = "max_replication_slots"
	walsenders  resource = "max_wal_senders"
	connections resource = "max_connections"
)

// explain finds out what is behind an error.
func explain(err error, c Config) trouble {
	t := trouble{text: err.Error()}
	var reserved *reservedError
	var server *pgconn.PgError
	switch {
	case errors.As(err, &reserved):
		t.lacks = connections
	case errors.Is(err, wal.ErrNotLogical):
		t.hint = `Set wal_level to "logical" and restart the server.`
	case !errors.As(err, &server):
	case server.Code == invalidAuthorization || server.Code == invalidPassword:
		t.text = "the server refuses the connection: " + server.Message
		t.hint = c.wayIn(server.Routine == "InitializeSessionUserId")
	case server.Code == tooManyConnections && strings.Contains(server.Message, string(walsenders)):
		t.lacks = walsenders
	case server.Code == tooManyConnections:
		t.lacks, t.text = connections, server.Message
	case (server.Code == configurationLimit || server.Code == prerequisiteState) &&
		strings.Contains(server.Message+server.Hint, string(slots)):
		t.lacks = slots
	}
	return t
}

// wayIn says what would let the engine in. If the role itself is refused, no line of
// pg_hba.conf helps.
func (c Config) wayIn(role bool) string {
	conn, err := c.connConfig("")
	if err != nil {
		return ""
	}
	user := conn.User
	if strings.ContainsAny(user, " ,\"") {
		user = `"` + user + `"`
	}
	const orElse = ", and reload the server; or have wed_sql.conninfo name another way."
	switch socket := strings.HasPrefix(conn.Host, "/"); {
	case role:
		return fmt.Sprintf("Make the role (CREATE ROLE %s SUPERUSER LOGIN), or have wed_sql.conninfo name another one (user=...).", user)
	case socket && (c.User == "" || c.User == conn.User):
		return fmt.Sprintf(`Put the line "local all %s peer" into pg_hba.conf, before those that match`, user) + orElse
	case socket:
		return fmt.Sprintf(`Put the line "local all %s peer map=wed_sql" into pg_hba.conf, before those that match, and "wed_sql %s %s" into pg_ident.conf`,
			user, c.User, user) + orElse
	default:
		return fmt.Sprintf(`Put the line "host all %s samehost scram-sha-256" into pg_hba.conf, before those that match, and the password into a file that wed_sql.conninfo names (passfile=...)`,
			user) + orElse
	}
}

// settleTime is how long a shortage may grow before the log is told of it.
const settleTime = time.Second

// shortages knows who lacks what, so that the log is told once, and how much.
type shortages struct {
	log *slog.Logger

	mu      sync.Mutex
	lacking map[resource]map[uint32]bool // databases
	told    map[resource]int             // how many the log was told of
	pending map[resource]*time.Timer
}

func newShortages(log *slog.Logger) *shortages {
	return &shortages{
		log:     log,
		lacking: make(map[resource]map[uint32]bool),
		told:    make(map[resource]int),
		pending: make(map[resource]*time.Timer),
	}
}

// note notes that a database lacks a resource and says what to tell of it.
func (s *shortages) note(r resource, database uint32, text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lacking[r] == nil {
		s.lacking[r] = make(map[uint32]bool)
	}
	s.lacking[r][database] = true
	if s.pending[r] == nil && len(s.lacking[r]) >= max(1, 2*s.told[r]) {
		s.pending[r] = time.AfterFunc(settleTime, func() { s.tell(r, text) })
	}
	return s.describe(r, text)
}

// describe needs the lock.
func (s *shortages) describe(r resource, text string) string {
	if r == connections {
		return text + ": " + string(r) + " is too low"
	}
	return fmt.Sprintf("%s: %s is too low by %d", text, r, len(s.lacking[r]))
}

func (s *shortages) tell(r resource, text string) {
	s.mu.Lock()
	s.pending[r] = nil
	n := len(s.lacking[r])
	s.told[r] = n
	text = s.describe(r, text)
	s.mu.Unlock()
	if n == 0 {
		return
	}
	hint := fmt.Sprintf("Increase %s by at least %d, and restart the server.", r, n)
	if r == connections {
		hint = fmt.Sprintf("Increase %s and restart the server, or have fewer clients: the engine needs two connections per database and comes back when they are free.", r)
	}
	s.log.Warn("databases cannot be followed, will try again", "databases", n, "err", errors.New(text), "hint", hint)
}

// over notes that a database lacks nothing, or is not followed any more.
func (s *shortages) over(database uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, databases := range s.lacking {
		delete(databases, database)
		if len(databases) == 0 {
			s.told[r] = 0
		}
	}
}
