package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	dialFirst = 100 * time.Millisecond
	dialLimit = 10 * time.Second
)

// hints is who is told that there may be jobs.
type hints interface {
	notified(flow, transition string) // there is one
	rescan()                          // there may be any: notifications may have been lost
}

// listener holds the connection that listens, to the channels that somebody wants.
type listener struct {
	config *pgx.ConnConfig
	wakeup time.Duration
	log    *slog.Logger
	hints  hints

	mu        sync.Mutex
	wanted    map[string]*channel
	changed   bool
	interrupt context.CancelFunc // ends the wait for a notification; nil while there is none
	connected bool
}

// channel is one that is wanted.
type channel struct {
	users int
	heard chan struct{} // closed while it is listened to
	open  bool          // heard is closed
}

func newListener(config *pgx.ConnConfig, wakeup time.Duration, log *slog.Logger, h hints) *listener {
	return &listener{config: config.Copy(), wakeup: wakeup, log: log, hints: h, wanted: make(map[string]*channel)}
}

// want has a channel listened to until the same is unwanted. What is returned is
// closed as soon as it is, or was, listened to.
func (l *listener) want(name string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.wanted[name]
	if c == nil {
		c = &channel{heard: make(chan struct{})}
		l.wanted[name] = c
		l.change()
	}
	c.users++
	return c.heard
}

func (l *listener) unwant(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.wanted[name]
	c.users--
	if c.users == 0 {
		delete(l.wanted, name)
		l.change()
	}
}

func (l *listener) change() {
	l.changed = true
	if l.interrupt != nil {
		l.interrupt()
	}
}

// ready reports whether notifications arrive.
func (l *listener) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.connected
}

// run listens until ctx ends.
func (l *listener) run(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		begin := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(begin) > dialLimit {
			failures = 0
		}
		wait := backoff(dialFirst, dialLimit, failures)
		l.log.Warn("no notifications, will listen again", "error", err, "wait", wait)
		if sleep(ctx, wait) != nil {
			break
		}
	}
	return nil
}

// once listens on one connection for as long as it lasts.
func (l *listener) once(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.config.Copy())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer hangUp(conn)
	heard := make(map[string]bool)
	l.mu.Lock()
	l.changed = true
	l.mu.Unlock()
	if err := l.catchUp(ctx, conn, heard); err != nil {
		return err
	}
	l.setConnected(true)
	defer l.setConnected(false)
	l.hints.rescan()
	for {
		n, err := l.next(ctx, conn)
		if err != nil {
			return fmt.Errorf("wait for notifications: %w", err)
		}
		if n != nil {
			if flow, ok := flowOf(n.Payload); ok {
				l.hints.notified(flow, n.Channel)
			}
		}
		if err := l.catchUp(ctx, conn, heard); err != nil {
			return err
		}
	}
}

func (l *listener) setConnected(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connected = is
}

// next returns the next notification, or nil when something else is to be done. It
// makes sure that the server is there if it is silent.
func (l *listener) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	waiting, cancel := context.WithTimeout(ctx, l.wakeup)
	defer cancel()
	l.mu.Lock()
	if l.changed {
		l.mu.Unlock()
		return nil, nil
	}
	l.interrupt = cancel
	l.mu.Unlock()
	n, err := conn.WaitForNotification(waiting)
	l.mu.Lock()
	l.interrupt = nil
	l.mu.Unlock()
	if err == nil {
		return n, nil
	}
	if waiting.Err() == nil || ctx.Err() != nil || conn.IsClosed() {
		return nil, err
	}
	if waiting.Err() == context.Canceled {
		return nil, nil
	}
	ping, cancelPing := context.WithTimeout(ctx, connectTimeout)
	defer cancelPing()
	return nil, conn.Ping(ping)
}

// catchUp listens to what is wanted, and to nothing else.
func (l *listener) catchUp(ctx context.Context, conn *pgx.Conn, heard map[string]bool) error {
	l.mu.Lock()
	var statements []string
	var added []*channel
	if l.changed {
		l.changed = false
		for name, c := range l.wanted {
			if !heard[name] {
				statements = append(statements, "listen "+pgx.Identifier{name}.Sanitize())
				heard[name] = true
			}
			added = append(added, c)
		}
		for name := range heard {
			if l.wanted[name] == nil {
				statements = append(statements, "unlisten "+pgx.Identifier{name}.Sanitize())
				delete(heard, name)
			}
		}
	}
	l.mu.Unlock()
	if len(statements) > 0 {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		if _, err := conn.PgConn().Exec(ctx, strings.Join(statements, "; ")).ReadAll(); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range added {
		if !c.open {
			c.open = true
			close(c.heard)
		}
	}
	return nil
}

// flowOf returns the flow that a notification is about. Anybody may notify anything.
func flowOf(payload string) (string, bool) {
	var n struct {
		Flow string `json:"flow"`
	}
	if json.Unmarshal([]byte(payload), &n) != nil || n.Flow == "" {
		return "", false
	}
	return n.Flow, true
}

// hangUp closes a connection without waiting long.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
