package drive

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// session is a connection that is made when it is needed.
type session struct {
	dsn  string
	conn *pgx.Conn
}

func newSession(dsn string) *session { return &session{dsn: dsn} }

const patience = 20 * time.Second

func (s *session) get(ctx context.Context) (*pgx.Conn, error) {
	if s.conn != nil && !s.conn.IsClosed() {
		return s.conn, nil
	}
	config, err := pgx.ParseConfig(s.dsn)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["application_name"] = "torture"
	// definitions change under prepared statements
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.conn, err = pgx.ConnectConfig(within, config)
	return s.conn, err
}

// reset leaves no transaction open, or no session.
func (s *session) reset() {
	if s.conn == nil || s.conn.IsClosed() {
		return
	}
	if s.conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := s.conn.Exec(ctx, "rollback"); err != nil {
		s.close()
	}
}

func (s *session) close() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // it may be broken already
	s.conn = nil
}
