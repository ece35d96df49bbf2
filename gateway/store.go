package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Job is one that is leased, as workers get it. Its first three members identify
// it, and stay the first: a worker that has no parser for JSON finds them.
type Job struct {
	WID         int64           `json:"wid"`
	TGID        int32           `json:"tgid"`
	Lckid       string          `json:"lckid"`
	TrName      string          `json:"trname"`
	FiredAt     time.Time       `json:"fired_at"`
	Attempts    int32           `json:"attempts"`
	LastError   *string         `json:"last_error"`
	LeasedUntil time.Time       `json:"leased_until"`
	Payload     json.RawMessage `json:"payload"`
}

// lane names the jobs that are leased together: those of a transition, with the
// rights of one role.
type lane struct{ flow, transition, role string }

// handle is what a worker shows of the job that it deals with.
type handle struct {
	flow  string
	wid   int64
	tgid  int32
	lckid string
	role  string
}

// store is the database. The calls return the errors of PostgreSQL, errOverloaded,
// errRole, or that the database could not be reached.
type store interface {
	check(ctx context.Context) error
	lease(ctx context.Context, l lane, duration time.Duration, most int) ([]*Job, error)
	transition(ctx context.Context, h handle) (string, error) // "": not leased so
	extend(ctx context.Context, h handle, duration time.Duration) (time.Time, error)
	complete(ctx context.Context, h handle, state json.RawMessage) error
	fail(ctx context.Context, h handle, reason string) (bool, error)
	release(ctx context.Context, l lane, jobs []*Job) (int, error)
	close()
}

// ErrNoExtension is wrapped by Run's error when there is nothing to work for.
var ErrNoExtension = errors.New("the extension wed_sql is not installed in this database")

var errOverloaded = errors.New("too many requests wait for the database")

// roleError means that the gateway may not act as the role of a token.
type roleError struct{ err error }

func (e *roleError) Error() string { return "act as the token's role: " + e.err.Error() }
func (e *roleError) Unwrap() error { return e.err }

const (
	applicationName = "wed_sql gateway"
	connectTimeout  = 10 * time.Second
	callTimeout     = 30 * time.Second
	serverTimeout   = "25s" // before callTimeout, so that the server says why
	queueFactor     = 100   // calls that may wait for a connection, per connection
	raceTries       = 4
)

// database is the store of a PostgreSQL.
type database struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	calls   atomic.Int64 // that wait or run
	maximum int64
}

func newDatabase(cfg Config) (*database, error) {
	config, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("read the connection settings: %w", err)
	}
	params := config.ConnConfig.RuntimeParams
	params["client_encoding"] = "UTF8" // pgx does not ask for it, and a database may have another one
	orDefaultParam(params, "application_name", applicationName)
	orDefaultParam(params, "statement_timeout", serverTimeout)
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// Statements are parsed each time, and only when the role is set: what a role may
	// not use it may not name either. And a plan that was made while the job pool was
	// empty would read all of it, ever after.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns = int32(cfg.Connections)
	config.MinConns = 1
	config.MaxConnIdleTime = 5 * time.Minute
	config.MaxConnLifetime = time.Hour
	config.MaxConnLifetimeJitter = 10 * time.Minute
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("prepare the connections: %w", err)
	}
	return &database{pool: pool, log: cfg.Logger, maximum: int64(cfg.Connections) * queueFactor}, nil
}

func orDefaultParam(params map[string]string, name, value string) {
	if params[name] == "" {
		params[name] = value
	}
}

func (d *database) close() { d.pool.Close() }

// check finds out whether there is something to work for, and warns of a role that
// could do more than it should.
func (d *database) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var extension, super bool
	var role string
	err := d.pool.QueryRow(ctx, `select exists (select from pg_catalog.pg_extension where extname = 'wed_sql'), rolsuper, rolname
		from pg_catalog.pg_roles where rolname = session_user`).Scan(&extension, &super, &role)
	switch {
	case err != nil:
		return fmt.Errorf("look for the extension: %w", err)
	case !extension:
		return ErrNoExtension
	case super:
		d.log.Warn("the gateway's role is a superuser: whatever the owner of a flow has put on its table runs as such", "role", role)
	}
	return nil
}

// call executes a statement as a role, "" being the gateway's own, in a transaction
// of its own and one round trip. scan may be nil. An error means that nothing was
// done, unless the connection has broken.
func (d *database) call(ctx context.Context, role, sql string, args []any, scan func(pgx.Rows) error) error {
	n := d.calls.Add(1)
	defer d.calls.Add(-1)
	if n > d.maximum {
		return errOverloaded
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := d.once(ctx, role, sql, args, scan)
		switch state := sqlState(err); {
		case err == nil, try == raceTries, ctx.Err() != nil:
			return err
		case state == stateSerialization, state == stateDeadlock:
		case state == "" && pgconn.SafeToRetry(err): // a connection that broke while it was idle
		default:
			return err
		}
		if sleep(ctx, rand.N(10*time.Millisecond<<try)) != nil {
			return err
		}
	}
}

func (d *database) once(ctx context.Context, role, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	if role == "" {
		role = "none"
	}
	// Until the end of the transaction, which is that of the batch. Also to be oneself:
	// an owner's trigger may have set another role, for the session.
	acts := false
	var batch pgx.Batch
	batch.Queue("select pg_catalog.set_config('role', $1, true)", role).Exec(func(pgconn.CommandTag) error {
		acts = true
		return nil
	})
	statement := batch.Queue(sql, args...)
	if scan != nil {
		statement.Query(scan)
	}
	err = conn.SendBatch(ctx, &batch).Close()
	if err != nil && !acts && sqlState(err) != "" && !isDatabaseAway(err) {
		return &roleError{err}
	}
	return err
}

func (d *database) lease(ctx context.Context, l lane, duration time.Duration, most int) ([]*Job, error) {
	var jobs []*Job
	err := d.call(ctx, l.role, `select wid, tgid, lckid, trname, fired_at, attempts, last_error, leased_until, payload
		from wed_sql.lease($1, $2, pg_catalog.make_interval(secs => $3), $4)`,
		[]any{l.flow, l.transition, duration.Seconds(), int32(most)}, func(rows pgx.Rows) error {
			jobs = nil
			for rows.Next() {
				j := new(Job)
				var payload []byte
				err := rows.Scan(&j.WID, &j.TGID, &j.Lckid, &j.TrName, &j.FiredAt, &j.Attempts, &j.LastError, &j.LeasedUntil, &payload)
				if err != nil {
					return err
				}
				j.Payload = payload
				jobs = append(jobs, j)
			}
			return rows.Err()
		})
	if err != nil {
		return nil, err
	}
	return jobs, nil
}

// isFlow finds out whether a schema is a flow: what others have made to look like
// one must not be touched, for what they have put into a view would run as us.
const isFlow = `select exists (select from pg_catalog.pg_extension e
		join pg_catalog.pg_namespace n on n.nspowner operator(pg_catalog.=) e.extowner
		join pg_catalog.pg_class j on j.relnamespace operator(pg_catalog.=) n.oid and j.relowner operator(pg_catalog.=) e.extowner
	where e.extname operator(pg_catalog.=) 'wed_sql' and j.relname operator(pg_catalog.=) 'job_pool'
		and j.relkind operator(pg_catalog.=) 'r' and n.nspname operator(pg_catalog.=) $1)`

func (d *database) transition(ctx context.Context, h handle) (string, error) {
	var name string
	var is bool
	if err := d.call(ctx, h.role, isFlow, []any{h.flow}, one(&is)); err != nil {
		return "", err
	}
	if !is {
		return "", &pgconn.PgError{Code: stateUndefinedObject, Message: fmt.Sprintf("WED-flow %q does not exist", h.flow)}
	}
	jobs := pgx.Identifier{h.flow, "job_pool"}.Sanitize()
	err := d.call(ctx, h.role, "select trname from "+jobs+
		" where wid operator(pg_catalog.=) $1 and tgid operator(pg_catalog.=) $2 and lckid operator(pg_catalog.=) $3",
		[]any{h.wid, h.tgid, h.lckid}, one(&name))
	return name, err
}

func (d *database) extend(ctx context.Context, h handle, duration time.Duration) (until time.Time, err error) {
	err = d.call(ctx, h.role, "select wed_sql.extend($1, $2, $3, $4, pg_catalog.make_interval(secs => $5))",
		[]any{h.flow, h.wid, h.tgid, h.lckid, duration.Seconds()}, one(&until))
	return until, err
}

func (d *database) complete(ctx context.Context, h handle, state json.RawMessage) error {
	return d.call(ctx, h.role, "select wed_sql.complete($1, $2, $3, $4, $5::pg_catalog.jsonb)",
		[]any{h.flow, h.wid, h.tgid, h.lckid, string(state)}, nil)
}

func (d *database) fail(ctx context.Context, h handle, reason string) (noted bool, err error) {
	err = d.call(ctx, h.role, "select wed_sql.fail($1, $2, $3, $4, $5)",
		[]any{h.flow, h.wid, h.tgid, reason, h.lckid}, one(&noted))
	return noted, err
}

// release gives jobs back that are leased, and says how many there were.
func (d *database) release(ctx context.Context, l lane, jobs []*Job) (n int, err error) {
	wids, tgids, lckids := make([]int64, len(jobs)), make([]int32, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		wids[i], tgids[i], lckids[i] = j.WID, j.TGID, j.Lckid
	}
	err = d.call(ctx, l.role, `select pg_catalog.count(*) filter (where released) from (
			select wed_sql.release($1, wid, tgid, lckid) as released
			  from rows from (pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::integer[]), pg_catalog.unnest($4::text[])) j (wid, tgid, lckid)
			offset 0) r`, []any{l.flow, wids, tgids, lckids}, one(&n))
	return n, err
}

// one scans the only column of at most one row.
func one(v any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(v); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// sleep waits for d, or returns ctx's error when it ends before.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// backoff is how long to wait before another try: twice as long after each
// failure, up to a limit, and never quite the same.
func backoff(first, limit time.Duration, failures int) time.Duration {
	d := limit
	if failures < 20 {
		d = min(first<<failures, limit)
	}
	return d/2 + rand.N(d/2+1)
}
