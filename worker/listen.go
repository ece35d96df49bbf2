package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// listen turns notifications into hints for the queues, until ctx ends. One
// connection listens for all transitions.
func (w *Worker) listen(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		begin := time.Now()
		err := w.listenOnce(ctx)
		w.listening.Store(false)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begin) > dialLimit {
			failures = 0
		}
		w.log.Warn("lost the notifications, will listen again", "error", err)
		w.direct.distrust()
		w.brief.distrust()
		// The dialer waits between failing attempts, but not when each one
		// connects and breaks at once, or is refused: a standby does not listen.
		if err := sleep(ctx, backoff(dialFirst, dialLimit, failures)); err != nil {
			return nil
		}
	}
	return nil
}

// listenOnce listens on one connection for as long as it lasts.
func (w *Worker) listenOnce(ctx context.Context) error {
	conn, err := w.dial.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	var batch pgx.Batch
	for _, channel := range w.channels() {
		batch.Queue("listen " + pgx.Identifier{channel}.Sanitize())
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	w.listening.Store(true)
	for _, d := range w.duties { // for what was fired before
		d.queue.rescan()
	}

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
		w.notified(n)
	}
}

// channels are the transitions' names: those of several flows may be the same.
func (w *Worker) channels() []string {
	var names []string
	for _, d := range w.duties {
		names = append(names, d.transition)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// notified passes on a notification to the transition that it is about.
func (w *Worker) notified(n *pgconn.Notification) {
	flow, k, ok := parseNotification(n.Payload)
	if !ok {
		return
	}
	for _, d := range w.duties {
		if d.transition == n.Channel && d.flow == flow {
			d.queue.notified(k)
		}
	}
}

// parseNotification returns the job that a notification is about, and its flow.
// Anybody may notify anything.
func parseNotification(payload string) (flow string, k key, ok bool) {
	var n struct {
		Flow string `json:"flow"`
		WID  *int64 `json:"wid"`
		TGID *int32 `json:"tgid"`
	}
	if json.Unmarshal([]byte(payload), &n) != nil || n.WID == nil || n.TGID == nil {
		return "", key{}, false
	}
	return n.Flow, key{*n.WID, *n.TGID}, true
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
