package worker

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier runs SQL in a job's transaction. Whatever it writes commits together
// with the new state. It cannot end the transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
}

var (
	errHandlerReturned = errors.New("worker: the job's transaction is used after its handler has returned")
	errLeased          = errors.New("worker: a leased job has no transaction while its handler runs: see Job.BeforeCommit")
)

// session is a job's transaction as its handler sees it: for as long as the
// handler runs, and it is known whether it was used.
type session struct {
	conn   *pgx.Conn
	used   atomic.Bool
	closed atomic.Pointer[error]
}

func newSession(conn *pgx.Conn) *session { return &session{conn: conn} }

// closedSession returns a session that answers everything with an error.
func closedSession(err error) *session {
	s := new(session)
	s.closed.Store(&err)
	return s
}

func (s *session) close() { s.closed.Store(&errHandlerReturned) }

func (s *session) use() error {
	if err := s.closed.Load(); err != nil {
		return *err
	}
	s.used.Store(true)
	return nil
}

func (s *session) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.use(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return s.conn.Exec(ctx, sql, args...)
}

func (s *session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.use(); err != nil {
		return nil, err
	}
	return s.conn.Query(ctx, sql, args...)
}

func (s *session) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := s.use(); err != nil {
		return failedRow{err}
	}
	return s.conn.QueryRow(ctx, sql, args...)
}

func (s *session) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := s.use(); err != nil {
		return failedBatch{err}
	}
	return s.conn.SendBatch(ctx, b)
}

func (s *session) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := s.use(); err != nil {
		return 0, err
	}
	return s.conn.CopyFrom(ctx, table, columns, src)
}

// failedRow is the row of a query that could not be made.
type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// failedBatch are the results of a batch that could not be sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return nil, b.err }
func (b failedBatch) QueryRow() pgx.Row                { return failedRow(b) }
func (b failedBatch) Close() error                     { return b.err }
func (b failedBatch) Tx() pgx.Tx                       { return nil }
