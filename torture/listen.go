package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// fired is a rule that was notified for an instance.
type fired struct {
	flow string
	wid  int64
	tgid int32
}

// listener counts what is notified in a database.
type listener struct {
	dsn        string
	mu         sync.Mutex
	seen       map[fired]int
	total      int
	lost       int // connections
	violations []string
	ended      chan struct{} // closed when the last word was heard
}

func newListener(dsn string) *listener {
	return &listener{dsn: dsn, seen: map[fired]int{}, ended: make(chan struct{})}
}

const lastWord = "torture_end"

// run listens until ctx ends. ready is called when it listens for the first time.
func (l *listener) run(ctx context.Context, ready func()) error {
	for ctx.Err() == nil {
		err := l.listen(ctx, ready)
		if ctx.Err() != nil {
			return nil
		}
		l.mu.Lock()
		l.lost++
		l.mu.Unlock()
		_ = err // whatever it was: the server is in trouble
		pause(ctx, 200*time.Millisecond)
	}
	return nil
}

func (l *listener) listen(ctx context.Context, ready func()) error {
	conn, err := pgx.Connect(ctx, l.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	look, err := pgx.Connect(ctx, l.dsn)
	if err != nil {
		return err
	}
	defer look.Close(context.WithoutCancel(ctx))
	for i := range 6 {
		if _, err := conn.Exec(ctx, fmt.Sprintf("listen tr_%d", i)); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, `listen "_EXCPT"; listen `+lastWord); err != nil {
		return err
	}
	ready()
	for n := 0; ; n++ {
		note, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if note.Channel == lastWord {
			close(l.ended)
			continue
		}
		var job struct {
			Flow   string `json:"flow"`
			WID    int64  `json:"wid"`
			TGID   int32  `json:"tgid"`
			TrName string `json:"trname"`
		}
		if err := json.Unmarshal([]byte(note.Payload), &job); err != nil || job.TrName != note.Channel {
			l.violation(fmt.Sprintf("a notification on %s is no job: %s", note.Channel, note.Payload))
			continue
		}
		l.mu.Lock()
		l.seen[fired{job.Flow, job.WID, job.TGID}]++
		l.total++
		l.mu.Unlock()
		if n%10 != 0 {
			continue
		}
		var visible bool
		err = look.QueryRow(ctx, fmt.Sprintf("select exists (select from %s.wed_trace where wid = $1 and $2 = any (pending))", predicate.QuoteIdent(job.Flow)),
			job.WID, job.TGID).Scan(&visible)
		if err != nil {
			return err
		}
		if !visible {
			l.violation(fmt.Sprintf("rule %d was notified for instance %d of %s, and its job could not be seen", job.TGID, job.WID, job.Flow))
		}
	}
}

func (l *listener) violation(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violations = append(l.violations, what)
}
