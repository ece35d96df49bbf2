package wal

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/stall"
)

// The server has read a part of a batch, and waits for the rest, when the follower is to
// leave the database.
func TestASessionWhoseBatchIsCutOffEndsAtOnce(t *testing.T) {
	s := newServer(t)
	machine := stall.Watch(t)
	text := strings.Repeat("x", 1<<20)
	var longest time.Duration
	cut := 0
	for i := range 20 {
		conn, err := pgx.ConnectConfig(s.ctx, sessionConfig(s.config))
		s.must(err)
		pid := conn.PgConn().PID()
		ctx, cancel := context.WithCancel(s.ctx)
		time.AfterFunc(time.Duration(60+10*i)*time.Millisecond, cancel)
		var batch pgx.Batch
		for range 50 {
			batch.Queue("select length($1::text)", text)
		}
		if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
			cut++
		}
		start := time.Now()
		s.must(closeConn(conn.PgConn()))
		for get[bool](s, "select exists (select from pg_stat_activity where pid = $1)", pid) {
			s.must(s.ctx.Err())
		}
		longest = max(longest, time.Since(start))
		cancel()
	}
	t.Logf("of 20, %d were cut off, and it took %v at most", cut, longest)
	if cut == 0 {
		t.Error("no batch was cut off")
	}
	if longest > machine.Patience(time.Second) {
		t.Errorf("a session was there for %v", longest)
	}
}
