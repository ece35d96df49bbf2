package worker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	dialFirst   = 100 * time.Millisecond
	dialLimit   = 15 * time.Second
	dialTimeout = 15 * time.Second

	silence = time.Minute // of a server that has vanished, until its connections are given up
)

// dialer opens the connections of one worker. Only one is being opened at a
// time: a server that is away is asked once, not once per connection.
type dialer struct {
	config *pgx.ConnConfig
	log    *slog.Logger
	turn   chan struct{} // holds one token
}

func newDialer(dsn string, log *slog.Logger) (*dialer, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the connection settings: %w", err)
	}
	// pgx does not ask for it, and a database may have another one. Go's texts, and JSON, are UTF-8.
	config.RuntimeParams["client_encoding"] = "UTF8"
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = dialTimeout
	}
	config.DialFunc = (&net.Dialer{
		Control:         boundSilence,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 6, Count: 3},
	}).DialContext
	d := &dialer{config: config, log: log, turn: make(chan struct{}, 1)}
	d.turn <- struct{}{}
	return d, nil
}

// name sets the application name of the sessions, if the connection settings do
// not say another one.
func (d *dialer) name(application string) {
	if d.config.RuntimeParams["application_name"] == "" {
		d.config.RuntimeParams["application_name"] = application
	}
}

// once tries to connect one time.
func (d *dialer) once(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, d.config.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	// A transition may take as long as its rule says, idle between statements.
	if _, err = conn.Exec(ctx, "set idle_in_transaction_session_timeout = 0"); err != nil {
		conn.Close(ctx)
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// connect tries until it succeeds or ctx ends.
func (d *dialer) connect(ctx context.Context) (*pgx.Conn, error) {
	select {
	case <-d.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { d.turn <- struct{}{} }()

	for attempt := 0; ; attempt++ {
		conn, err := d.once(ctx)
		if err == nil {
			if attempt > 0 {
				d.log.Info("connected again", "attempt", attempt+1)
			}
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		wait := backoff(dialFirst, dialLimit, attempt)
		d.log.Warn("could not connect, will try again", "error", err, "attempt", attempt+1, "wait", wait)
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
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

// hangUp closes a connection, which may be nil, without waiting long.
func hangUp(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx)
}
