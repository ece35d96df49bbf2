package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/urfave/cli/v2"
	"github.com/wed-sql/wed_sql/internal/definition"
)

const connectTimeout = 10 * time.Second

// dsnEnv names the variable that hands --dsn down to the demo's workers: other
// users of the machine can read a command line, and there may be a password in it.
const dsnEnv = "WEDCTL_DSN"

func dsnFlag() cli.Flag {
	return &cli.StringFlag{
		Name:    "dsn",
		Aliases: []string{"d"},
		Usage:   "the server: a `DSN`, as for psql",
		EnvVars: []string{dsnEnv},
	}
}

// dsn returns the connection string, whether it stands before the command or after it.
func dsn(c *cli.Context) string {
	for _, ctx := range c.Lineage() {
		if ctx.Command != nil && ctx.IsSet("dsn") {
			return ctx.String("dsn")
		}
	}
	return c.String("dsn")
}

// connect opens a connection to the server that the command line means.
func connect(ctx context.Context, dsn, applicationName string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the connection settings: %w", err)
	}
	config.RuntimeParams["client_encoding"] = "UTF8" // pgx does not ask for it, and a database may have another one
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = applicationName
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	// Whoever may create functions or operators in a schema of the usual path could have
	// them taken for those of PostgreSQL, and run as the operator who looks. And what is read is
	// text of Go, whatever encoding a role has by default.
	if _, err := conn.Exec(ctx, `select pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),
		pg_catalog.set_config('client_encoding', 'UTF8', false)`); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// hangUp closes a connection without waiting long.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}

// requireExtension fails when the extension is missing in the database.
func requireExtension(ctx context.Context, conn *pgx.Conn) (version string, err error) {
	var installed *string
	err = conn.QueryRow(ctx, `select (select extversion from pg_extension where extname = 'wed_sql')`).Scan(&installed)
	if err != nil {
		return "", fmt.Errorf("look for the extension: %w", err)
	}
	if installed == nil {
		return "", notFound(hintExtension, "the extension wed_sql is not installed in database %q", conn.Config().Database)
	}
	return *installed, nil
}

// requireFlow fails when there is no such flow.
func requireFlow(ctx context.Context, conn *pgx.Conn, flow string) error {
	if _, err := requireExtension(ctx, conn); err != nil {
		return err
	}
	found, err := definition.Exists(ctx, conn, flow)
	if err != nil {
		return err
	}
	if !found {
		return notFound(hintFlow, "there is no flow %q in database %q", flow, conn.Config().Database)
	}
	return nil
}
