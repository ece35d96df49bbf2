package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// listen turns notifications into hints for the queue, until ctx ends.
func (w *Worker) listen(ctx context.Context, q *queue) error {
	for ctx.Err() == nil {
		err := w.listenOnce(ctx, q)
		if ctx.Err() != nil {
			return nil
		}
		w.log.Warn("lost the notifications, will listen again", "error", err)
		// The dialer waits between failing attempts, but not when each one
		// connects and breaks at once.
		if err := sleep(ctx, backoff(dialFirst, dialLimit, 0)); err != nil {
			return nil
		}
	}
	return nil
}

// listenOnce listens on one connection for as long as it lasts.
func (w *Worker) listenOnce(ctx context.Context, q *queue) error {
	conn, err := w.dial.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{w.cfg.Transition}.Sanitize()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	q.rescan() // for what was fired before

	for {
		n, err := waitNotification(ctx, conn, w.cfg.Wakeup)
		if err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
		if n == nil { // silence: is the server still there?
			if err := ping(ctx, conn); err != nil {
				return fmt.Errorf("ping: %w", err)
			}
			continue
		}
		if k, ok := parseNotification(n.Payload, w.cfg.Flow); ok {
			q.notified(k)
		}
	}
}

// parseNotification returns the job that a notification is about. Transitions
// of other flows may have the same name, and so the same channel; and anybody
// may notify anything.
func parseNotification(payload, flow string) (key, bool) {
	var n struct {
		Flow string `json:"flow"`
		WID  *int64 `json:"wid"`
		TGID *int32 `json:"tgid"`
	}
	if json.Unmarshal([]byte(payload), &n) != nil || n.Flow != flow || n.WID == nil || n.TGID == nil {
		return key{}, false
	}
	return key{*n.WID, *n.TGID}, true
}

// waitNotification returns the next notification, or nil after wait.
func waitNotification(ctx context.Context, conn *pgx.Conn, wait time.Duration) (*pgconn.Notification, error) {
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	n, err := conn.WaitForNotification(waitCtx)
	if err != nil && waitCtx.Err() != nil && ctx.Err() == nil && !conn.IsClosed() {
		return nil, nil
	}
	return n, err
}

// ping asks the server for an answer, which must not take long.
func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return conn.Ping(ctx)
}
