// Package servertest prepares a server for tests that run followers of their own: in
// the test's process, where they can be stopped at any point.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Prepare makes a database for tests to copy, with the extension and what setup adds,
// and switches the server's own engine off. dsn is a connection string of a superuser.
// restore undoes both.
func Prepare(ctx context.Context, dsn, template, setup string) (restore func() error, err error) {
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = admin.Close(ctx) }()
	name := pgx.Identifier{template}.Sanitize()
	// From a run that was killed.
	if _, err := admin.Exec(ctx, "update pg_database set datistemplate = false where datname = $1", template); err != nil {
		return nil, err
	}
	if err := execute(ctx, admin, "alter system reset wed_sql.enabled", "select pg_reload_conf()",
		"drop database if exists "+name, "create database "+name); err != nil {
		return nil, err
	}
	config := admin.Config().Copy()
	config.Database = template
	inside, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	// Once the engine follows this database, it is seen in its sessions when it no longer
	// follows any.
	err = execute(ctx, inside, "create extension wed_sql", "select wed_sql.sync('1 minute')", setup)
	if err = errors.Join(err, inside.Close(ctx)); err != nil {
		return nil, err
	}
	if err := execute(ctx, admin, "alter system set wed_sql.enabled = off", "select pg_reload_conf()"); err != nil {
		return nil, err
	}
	for sessions := 1; sessions > 0; {
		if err := admin.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name = 'wed_sql engine'").Scan(&sessions); err != nil {
			return nil, err
		}
	}
	// A template is not followed, also not by the tests.
	if err := execute(ctx, admin, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '"+template+"'",
		"alter database "+name+" is_template true"); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		admin, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = admin.Close(ctx) }()
		return execute(ctx, admin, "alter database "+name+" is_template false", "drop database "+name, "alter system reset wed_sql.enabled", "select pg_reload_conf()")
	}, nil
}

// execute executes each of the strings, which may have several commands, by itself.
func execute(ctx context.Context, conn *pgx.Conn, commands ...string) error {
	for _, sql := range commands {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return fmt.Errorf("%.60s: %w", sql, err)
		}
	}
	return nil
}
