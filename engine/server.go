package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/wal"
)

const extensionName = "wed_sql"

// SQLSTATEs of the server.
const (
	invalidCatalogName   = "3D000"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	cannotConnectNow     = "57P03"
	tooManyConnections   = "53300"
	configurationLimit   = "53400"
	prerequisiteState    = "55000"
	internalError        = "XX000"
	invalidAuthorization = "28000"
	invalidPassword      = "28P01"
)

// Why a database is left alone.
const (
	isTemplate    = "the database is a template, which the engine must not be connected to"
	isUnreachable = "the database does not allow connections"
	isHalfDropped = "DROP DATABASE was interrupted: drop the database again"
)

const (
	maxOthers        = 5 // databases to try besides the usual ones
	discoveryTimeout = 30 * time.Second
	queryTimeout     = 10 * time.Second
	goodbyeTimeout   = time.Second
)

// maintenance are databases to connect to for what concerns the whole server.
var maintenance = [...]string{"postgres", "template1"}

// entry is a database.
type entry struct {
	oid   uint32
	name  string
	slot  bool   // a slot of ours is there
	alone string // why it is not to be connected to, or ""
}

// server is the way to the server.
type server struct{ config Config }

// with connects to a database for the time of f. What f asks is short, so its context
// does not end with ours: a query that is cancelled is an error in the server's log.
func (s server) with(ctx context.Context, database string, f func(context.Context, *pgx.Conn) error) error {
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
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
		defer cancel()
		_ = conn.Close(bye)
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout)
	defer cancel()
	if err := admit(short, conn); err != nil {
		return err
	}
	return f(short, conn)
}

// reservedError says that the connection that we got is one of those that are reserved.
type reservedError struct{ used, limit, reserved int }

func (e *reservedError) Error() string {
	return fmt.Sprintf("%d of %d connections are in use, and the last %d are reserved", e.used, e.limit, e.reserved)
}

// admit fails if a new session sits in the connections that are reserved for people:
// the engine is a superuser as a rule, so the server would let it take the last one.
func admit(ctx context.Context, conn *pgx.Conn) error {
	e := new(reservedError)
	err := conn.QueryRow(ctx, `
select (select count(*)::int from pg_stat_activity where backend_type = 'client backend'),
       current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0)`).
		Scan(&e.used, &e.limit, &e.reserved)
	if err != nil {
		return fmt.Errorf("count the connections: %w", err)
	}
	if e.used > e.limit-e.reserved {
		return e
	}
	return nil
}

// anywhere connects to any database but those that are avoided. others are databases
// that are known, for a server that lacks the usual ones.
func (s server) anywhere(ctx context.Context, others []string, avoid map[string]bool, f func(context.Context, *pgx.Conn) error) error {
	err := errors.New("there is no database to connect to")
	first := true
	for _, name := range append(maintenance[:], others[:min(len(others), maxOthers)]...) {
		if avoid[name] {
			continue
		}
		reached := false
		now := s.with(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
			reached = true
			return f(ctx, conn)
		})
		if reached || !isRefused(now) {
			return now
		}
		if first {
			err, first = now, false
		}
	}
	return err
}

// isRefused tells errors of a database from errors of the server: another database
// may do.
func isRefused(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code != cannotConnectNow && server.Code != tooManyConnections
}

// isClosing tells whether the server takes no new connections: it starts, or waits for
// the last ones to end.
func isClosing(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == cannotConnectNow
}

// isStarting tells whether the server will be there in a moment, or has just gone: if it
// is more than that, the next try fails in another way, or for long.
func isStarting(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code == cannotConnectNow || server.Code == adminShutdown || server.Code == crashShutdown
	}
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isUndecodable tells whether the server cannot read the log as the slot wants it. It
// cannot when the database has moved to another tablespace since: the log names files
// by where they were. (The message is translated, the function's name is not.)
func isUndecodable(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == internalError && server.Routine == "ReorderBufferProcessTXN"
}

// databases lists all databases.
func (s server) databases(ctx context.Context, known []string, avoid map[string]bool) ([]entry, error) {
	var list []entry
	err := s.anywhere(ctx, known, avoid, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
select d.oid, d.datname::text, s.slot_name is not null,
       case when d.datconnlimit = -2 then $1::text when not d.datallowconn then $2::text when d.datistemplate then $3::text else '' end
  from pg_database d
  left join pg_replication_slots s on s.slot_name = 'wed_sql_' || d.oid::text and s.datoid = d.oid
 order by d.oid`, isHalfDropped, isUnreachable, isTemplate)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
			return e, row.Scan(&e.oid, &e.name, &e.slot, &e.alone)
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
	err = s.with(ctx, database, func(ctx context.Context, conn *pgx.Conn) error {
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
	return s.with(ctx, database, func(ctx context.Context, conn *pgx.Conn) error {
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
	return s.with(ctx, e.name, func(_ context.Context, conn *pgx.Conn) error { return wal.DropSlot(ctx, conn, e.oid) })
}
