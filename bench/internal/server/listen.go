package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Listen opens sessions that listen, and throw away what they hear; the function ends them.
func (d *Database) Listen(ctx context.Context, channel string, n int) (stop func() error, err error) {
	var readers errgroup.Group
	var conns []interface{ SetDeadline(time.Time) error }
	stop = func() error {
		for _, c := range conns {
			c.SetDeadline(time.Now())
		}
		return readers.Wait()
	}
	for range n {
		conn, err := d.Connect(ctx)
		if err == nil {
			_, err = conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listening: %w", err), stop())
		}
		raw, err := conn.PgConn().Hijack()
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		conns = append(conns, raw.Conn)
		readers.Go(func() error {
			defer raw.Conn.Close()
			// it ends with the deadline, which is no error
			if _, err := io.Copy(io.Discard, raw.Conn); err != nil && !isTimeout(err) {
				return err
			}
			return nil
		})
	}
	return stop, nil
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
