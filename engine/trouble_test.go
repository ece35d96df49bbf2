package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/wal"
)

func TestWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	socket := Config{Host: "/run/postgresql", Port: 5432, User: "postgres"}
	tcp := Config{Port: 5432, User: "postgres"}
	other := Config{Host: "/run/postgresql", Port: 5432, User: "postgres", Conninfo: "user='an engine'"}
	refused := &pgconn.PgError{Code: "28000", Message: "no entry", Routine: "ClientAuthentication"}
	for name, tt := range map[string]struct {
		config Config
		err    error
		hint   string
		lacks  resource
	}{
		"by socket":          {socket, refused, `"local all postgres peer"`, ""},
		"by password":        {socket, &pgconn.PgError{Code: "28P01", Routine: "auth_failed"}, `"local all postgres peer"`, ""},
		"by network":         {tcp, refused, `"host all postgres samehost scram-sha-256"`, ""},
		"as another role":    {other, refused, `"local all "an engine" peer map=wed_sql"`, ""},
		"no role":            {socket, &pgconn.PgError{Code: "28000", Routine: "InitializeSessionUserId"}, "CREATE ROLE postgres", ""},
		"no logical WAL":     {socket, fmt.Errorf("%w but %q", wal.ErrNotLogical, "replica"), "wal_level", ""},
		"no walsender":       {socket, &pgconn.PgError{Code: "53300", Message: `exceeds "max_wal_senders" (10)`}, "", walsenders},
		"no connection":      {socket, &pgconn.PgError{Code: "53300", Message: "sorry"}, "", connections},
		"reserved":           {socket, fmt.Errorf("x: %w", &reservedError{8, 10, 3}), "", connections},
		"no slot":            {socket, &pgconn.PgError{Code: "53400", Hint: "increase max_replication_slots."}, "", slots},
		"slots not possible": {socket, &pgconn.PgError{Code: "55000", Message: "only if max_replication_slots > 0"}, "", slots},
		"anything else":      {socket, &pgconn.PgError{Code: "55000", Message: "no"}, "", ""},
		"no server's error":  {socket, errors.New("max_wal_senders"), "", ""},
	} {
		got := explain(tt.err, tt.config)
		if !strings.Contains(got.hint, tt.hint) || tt.hint == "" && got.hint != "" || got.lacks != tt.lacks || got.text == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAShortageIsCountedByDatabase(t *testing.T) {
	t.Parallel()
	s := newShortages(slog.New(slog.DiscardHandler))
	s.note(slots, 1, "none is free")
	s.note(slots, 1, "none is free")
	if got := s.note(slots, 2, "none is free"); got != "none is free: max_replication_slots is too low by 2" {
		t.Error(got)
	}
	s.over(1)
	if got := s.note(slots, 3, "none is free"); !strings.HasSuffix(got, "by 2") {
		t.Error(got)
	}
	if got := s.note(walsenders, 3, "none is free"); !strings.HasSuffix(got, "max_wal_senders is too low by 1") {
		t.Error(got)
	}
}
