package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/wal"
)

const (
	extensionName      = "wed_sql"
	invalidCatalogName = "3D000"
	cannotConnectNow   = "57P03"
)

// maintenance are databases to connect to for what concerns the whole server.
var maintenance = [...]string{"postgres", "template1"}

// entry is a database that may have the extension.
type entry struct {
	oid  uint32
	name string
	slot bool // a slot of ours is there
}

// server is the way to the server.
type server struct{ config Config }

// with connects to a database for the time of f.
func (s server) with(ctx context.Context, database string, f func(*pgx.Conn) error) error {
	config, err := s.config.connConfig(database)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect to database %s: %w", database, err)
	}
	defer func() {
		// The session ends in any case; this is only the polite way.
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bye)
	}()
	return f(conn)
}

// anywhere connects to any database. others are databases that are known, for a
// server that lacks the usual ones.
func (s server) anywhere(ctx context.Context, others []string, f func(*pgx.Conn) error) error {
	var first error
	for _, name := range append(maintenance[:], others...) {
		reached := false
		err := s.with(ctx, name, func(conn *pgx.Conn) error {
			reached = true
			return f(conn)
		})
		if reached || !isRefused(err) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// isRefused tells errors of a database from errors of the server: another database
// may do.
func isRefused(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code != cannotConnectNow
}

// isClosing tells whether the server takes no new connections: it starts, or waits for
// the last ones to end.
func isClosing(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == cannotConnectNow
}

// isStarting tells whether the server will be there in a moment.
func isStarting(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code == cannotConnectNow
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect)
}

// databases lists the databases that can be connected to.
func (s server) databases(ctx context.Context, known []string) ([]entry, error) {
	var list []entry
	err := s.anywhere(ctx, known, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
select d.oid, d.datname::text, s.slot_name is not null
  from pg_database d
  left join pg_replication_slots s on s.slot_name = 'wed_sql_' || d.oid::text
 where d.datallowconn and not d.datistemplate
 order by d.oid`)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
			return e, row.Scan(&e.oid, &e.name, &e.slot)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	return list, nil
}

// extension returns the OID of the extension in a database, 0 if it is not there.
func (s server) extension(ctx context.Context, database string) (oid uint32, err error) {
	err = s.with(ctx, database, func(conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `select oid from pg_extension where extname = $1::text`, extensionName).Scan(&oid)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look for the extension: %w", err)
	}
	return oid, nil
}

// prepare has the server log it if the extension is of another version than the module
// (the files were replaced, or updated in this database, and not both), and mends what
// pg_upgrade leaves undone, if the engine's role may.
func (s server) prepare(ctx context.Context, database string) error {
	return s.with(ctx, database, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "select wed_sql.check_version()"); err != nil {
			return fmt.Errorf("check the extension's version: %w", err)
		}
		var may bool
		err := conn.QueryRow(ctx, "select has_function_privilege('wed_sql.adopt_publication(text)', 'execute')").Scan(&may)
		if err == nil && may {
			_, err = conn.Exec(ctx, "select wed_sql.adopt_publication('wed_sql')")
		}
		if err != nil {
			return fmt.Errorf("adopt the publication: %w", err)
		}
		return nil
	})
}

// clean removes what DROP EXTENSION leaves behind: the slot.
func (s server) clean(ctx context.Context, e entry) error {
	return s.with(ctx, e.name, func(conn *pgx.Conn) error { return wal.DropSlot(ctx, conn, e.oid) })
}
