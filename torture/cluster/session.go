package cluster

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Session is a session of a client with the server.
type Session struct {
	PID         int
	Application string
	Database    string
	State       string // "active", "idle" and so on
}

// EngineApplication is the name that the engine's own sessions have.
const EngineApplication = "wed_sql engine"

// Connect opens a session of the superuser, which no settings of roles or databases end.
func (c *Cluster) Connect(ctx context.Context, database string) (*pgx.Conn, error) {
	return connect(ctx, c.ConnString(database))
}

func connect(ctx context.Context, connString string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	for _, limit := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} {
		config.RuntimeParams[limit] = "0"
	}
	return pgx.ConnectConfig(ctx, config)
}

// Sessions is the sessions of clients, without the one that asks.
func (c *Cluster) Sessions(ctx context.Context) ([]Session, error) {
	conn, err := c.Connect(ctx, "postgres")
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `select pid, coalesce(application_name, ''), coalesce(datname, ''), coalesce(state, '')
		from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()`)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Session])
}

// EnginePID is what wed_sql.status says, which has to be asked in a database with the extension; 0: none runs.
func (c *Cluster) EnginePID(ctx context.Context, database string) (int, error) {
	conn, err := c.Connect(ctx, database)
	if err != nil {
		return 0, fmt.Errorf("ask for the engine: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var pid int
	if err := conn.QueryRow(ctx, "select coalesce(max(engine_pid), 0) from wed_sql.status").Scan(&pid); err != nil {
		return 0, fmt.Errorf("ask for the engine: %w", err)
	}
	return pid, nil
}

// Streaming waits until each of the databases is followed, by an engine that is not of one of the pids.
func (c *Cluster) Streaming(ctx context.Context, databases []string, not ...int) error {
	for {
		state, err := c.state(ctx, databases, not)
		if err == nil && state == "" {
			return nil
		}
		if wait(ctx) != nil {
			return fmt.Errorf("the engine does not follow: %s: %w", state, err)
		}
	}
}

// state is what is missing until all databases are followed.
func (c *Cluster) state(ctx context.Context, databases []string, not []int) (string, error) {
	if not == nil {
		not = []int{} // not null
	}
	for _, database := range databases {
		conn, err := c.Connect(ctx, database)
		if err != nil {
			return "no session", err
		}
		var missing string
		err = conn.QueryRow(ctx, `select coalesce((
			select case when engine_pid = any($1) then 'the old engine' when state = 'streaming' then ''
			            else state || coalesce(': ' || last_error, '') end
			  from wed_sql.status where datname = current_database()), 'unknown')`, not).Scan(&missing)
		_ = conn.Close(ctx)
		if err != nil || missing != "" {
			return fmt.Sprintf("database %s: %s", database, missing), err
		}
	}
	return "", nil
}
