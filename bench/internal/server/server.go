// Package server is the server that the benchmark has for itself, and the
// databases that come and go in it: a fresh one for each measurement, so that
// none pays for what another has left.
package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Prefix is that of the names of all databases that are made here.
const Prefix = "wed_bench_"

// Server is the one that PGHOST and its like name.
type Server struct{ admin *pgx.Conn }

// Connect also removes what an earlier run may have left.
func Connect(ctx context.Context) (*Server, error) {
	admin, err := pgx.Connect(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("connecting to the server: %w", err)
	}
	s := &Server{admin: admin}
	rows, err := admin.Query(ctx, "select datname from pg_database where starts_with(datname, $1)", Prefix)
	if err != nil {
		return nil, err
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("looking for databases of an earlier run: %w", err)
	}
	for _, name := range left {
		if err := s.drop(ctx, name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) Close(ctx context.Context) error { return s.admin.Close(ctx) }

// Version is what the server calls itself.
func (s *Server) Version(ctx context.Context) (version string, err error) {
	err = s.admin.QueryRow(ctx, "select version()").Scan(&version)
	return version, err
}

// Database is one of the server's.
type Database struct {
	Name   string
	server *Server
}

// Create makes an empty database.
func (s *Server) Create(ctx context.Context, name string) (*Database, error) {
	name = Prefix + name
	if _, err := s.admin.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return nil, fmt.Errorf("creating a database: %w", err)
	}
	return &Database{Name: name, server: s}, nil
}

// With makes an empty database for f, and drops it.
func (s *Server) With(ctx context.Context, name string, f func(*Database) error) (err error) {
	db, err := s.Create(ctx, name)
	if err != nil {
		return err
	}
	defer func() {
		if e := db.Drop(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	return f(db)
}

// DSN is a connection string.
func (d *Database) DSN() string { return "dbname=" + d.Name }

// Connect opens a connection.
func (d *Database) Connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, d.DSN())
	if err != nil {
		return nil, fmt.Errorf("connecting to database %s: %w", d.Name, err)
	}
	return conn, nil
}

// Exec executes statements, in one simple query.
func (d *Database) Exec(ctx context.Context, sql string) error {
	conn, err := d.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return fmt.Errorf("%.60s: %w", sql, err)
	}
	return nil
}

// Settle has the server do now what it would do in the middle of a measurement:
// statistics, hint bits, and the writing of pages.
func (d *Database) Settle(ctx context.Context) error {
	for _, sql := range []string{"vacuum (analyze)", "checkpoint"} {
		if err := d.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// Writes is how many transactions with writes the server has seen, in all its databases.
func (d *Database) Writes(ctx context.Context) (n int64, err error) {
	err = d.server.admin.QueryRow(ctx, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&n)
	return n, err
}

// Drop removes the database, with its extension, its slot and its sessions.
func (d *Database) Drop(ctx context.Context) error { return d.server.drop(ctx, d.Name) }

func (s *Server) drop(ctx context.Context, name string) error {
	d := &Database{Name: name, server: s}
	// a slot keeps its database, and the extension takes it along
	if err := d.Exec(ctx, "drop extension if exists wed_sql cascade"); err != nil {
		return err
	}
	for {
		_, err := s.admin.Exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)")
		if err == nil {
			return nil
		}
		var active bool // the engine is on its way out
		const slots = "select exists (select from pg_replication_slots where database = $1)"
		if e := s.admin.QueryRow(ctx, slots, name).Scan(&active); e != nil || !active {
			return errors.Join(fmt.Errorf("dropping database %s: %w", name, err), e)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
