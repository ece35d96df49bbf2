package wal

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
)

func TestSessionsThatListenAreCounted(t *testing.T) {
	s := newServer(t)
	// on channels of both, but it is all sessions that would wake which are counted
	count := func() int { return get[int](s, "select wed_sql.notify_listeners('{a, c}', '{x, x}')") }
	if n := count(); n != 0 {
		t.Fatalf("%d sessions listen in a new database", n)
	}
	one, two := s.connect(), s.connect()
	s.execute(one, "listen a; listen b")
	s.execute(two, "do $$ begin execute 'listen c'; end $$")
	if n := count(); n != 2 {
		t.Errorf("%d of 2 are counted", n)
	}
	for _, sql := range []string{"unlisten *", "discard all"} {
		s.execute(one, sql)
		if n := count(); n != 1 {
			t.Errorf("after %s: %d of 1", sql, n)
		}
		s.execute(one, "listen a")
	}
	for _, sql := range []string{"begin; unlisten *; rollback", "begin; savepoint s; unlisten *; rollback to s; commit"} {
		s.execute(one, sql)
		if n := count(); n != 2 {
			t.Errorf("after %s: %d of 2", sql, n)
		}
	}
	s.must(one.Close(s.ctx))
	s.must(two.Close(s.ctx))
	for count() != 0 { // the server notices it in its own time; the test's ends it otherwise
		s.must(s.ctx.Err())
	}
}

// fill has the server notify of as much as fills some pages of its queue.
func (s *server) fill(channel string) {
	s.Helper()
	s.execute(s.conn, "select wed_sql.notify_listeners(array_fill('"+channel+"'::text, '{100}'), array_agg(i::text || repeat('x', 500))) from generate_series(1, 100) i")
}

func TestNobodyIsNotifiedOfWhatNobodyListensTo(t *testing.T) {
	s := newServer(t)
	usage := func() float64 { return get[float64](s, "select pg_notification_queue_usage()") }
	// who is in a transaction does not read, so what is sent stays
	reader, listener := s.connect(), s.connect()
	s.execute(reader, "listen something")
	s.execute(reader, "begin")
	before := usage()
	s.fill("written")
	if now := usage(); now > before {
		t.Errorf("the queue has grown from %g to %g", before, now)
	}
	s.execute(listener, "listen written")
	s.fill("written")
	if usage() <= before {
		t.Error("nothing was sent though somebody listens")
	}
	if n, err := listener.WaitForNotification(s.ctx); err != nil || n.Channel != "written" {
		t.Errorf("the listener gets %+v, %v", n, err)
	}
	s.execute(reader, "rollback")
}

func TestNotificationsEndWithTheirTransaction(t *testing.T) {
	s := newServer(t)
	listener := s.connect()
	s.execute(listener, "listen c")
	notify := func(payload string) string { return "select wed_sql.notify_listeners('{c}', '{" + payload + "}');" }
	s.execute(s.conn, "begin;"+notify("rolled back")+"rollback")
	if _, err := s.conn.Exec(s.ctx, "begin;"+notify("prepared")+"prepare transaction 'p'"); err == nil {
		t.Error("a transaction with notifications was prepared")
	}
	s.execute(s.conn, "rollback")
	s.execute(s.conn, "begin; savepoint s;"+notify("rolled back to")+"rollback to s;"+notify("committed")+"commit")
	if n, err := listener.WaitForNotification(s.ctx); err != nil || n.Payload != "committed" {
		t.Errorf("notified of %+v, %v", n, err)
	}
	for _, bad := range []string{"''", "repeat('c', 64)"} {
		if _, err := s.conn.Exec(s.ctx, "select wed_sql.notify_listeners(array["+bad+"], '{x}')"); !hasCode(err, "22023") {
			t.Errorf("channel %s: %v", bad, err)
		}
	}
	if _, err := s.conn.Exec(s.ctx, "select wed_sql.notify_listeners('{c}', array[repeat('x', 8000)])"); !hasCode(err, "22023") {
		t.Errorf("a payload of 8000 bytes: %v", err)
	}
	s.execute(s.conn, "select wed_sql.notify_listeners('{c}', array[repeat('x', 7999)])")
}

// Whoever has begun to listen, and looks then at what is there, misses nothing: it is
// there, or he is notified of it.
func TestWhoBeginsToListenMissesNothing(t *testing.T) {
	s := newServer(t)
	s.exec("create table public.written (n bigint); create index on public.written (n)")
	ctx, cancel := context.WithCancel(s.ctx)
	writers, _ := group.New(ctx)
	for range 2 {
		conn := s.connect()
		writers.Go("writer", func(context.Context) error {
			for ctx.Err() == nil {
				if _, err := conn.Exec(s.ctx, `with w as (insert into written select coalesce(max(n), 0) + 1 from written returning n)
					select wed_sql.notify_listeners(array['written'], array[w.n::text]) from w`); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 300 {
		conn := s.connect()
		s.execute(conn, "listen written")
		var seen int64
		if err := conn.QueryRow(s.ctx, "select coalesce(max(n), 0) from written").Scan(&seen); err != nil {
			t.Fatal(err)
		}
		// The next one is committed after that, by whomever.
		waitCtx, done := context.WithTimeout(s.ctx, time.Minute)
		n, err := conn.WaitForNotification(waitCtx)
		done()
		if err != nil {
			t.Fatalf("after %d: %v", seen, err)
		}
		if first, err := strconv.ParseInt(strings.TrimSpace(n.Payload), 10, 64); err != nil || first > seen+1 {
			t.Errorf("saw %d, and was notified of %s first", seen, n.Payload)
		}
		s.must(closeConn(conn.PgConn()))
	}
	cancel()
	s.must(writers.Wait())
}

// The commit of a notification on one channel is held up by somebody else's, who waits for
// a standby that there is not: it has decided by then that nobody listens to another one.
func TestWhoBeginsToListenWaitsForWhoHasDecided(t *testing.T) {
	s := newServer(t)
	const standbys = "synchronous_standby_names"
	s.exec("create table public.written (n bigint)")
	other, holder, writer, listener := s.connect(), s.connect(), s.connect(), s.connect()
	for _, conn := range []*pgx.Conn{s.conn, other, writer, listener} {
		s.execute(conn, "set synchronous_commit = local")
	}
	s.execute(other, "listen other")
	alter := func(to string) {
		t.Helper()
		s.execute(s.conn, "alter system "+to)
		s.execute(s.conn, "select pg_reload_conf()")
	}
	waits := func(conn *pgx.Conn, event, statement string) {
		t.Helper()
		for {
			switch get[string](s, "select case when wait_event = $2 then 'waits' when query = $3 and state = 'idle' then 'ended' else '' end from pg_stat_activity where pid = $1",
				conn.PgConn().PID(), event, statement) {
			case "waits":
				return
			case "ended":
				t.Errorf("%s did not wait for %s", statement, event)
				return
			}
			s.must(s.ctx.Err())
		}
	}
	sessions, ctx := group.New(s.ctx)
	held, release := context.WithCancel(ctx)
	defer release()
	defer alter("reset " + standbys)
	alter("set " + standbys + " = 'nobody'")
	do := func(conn *pgx.Conn, sql string) {
		sessions.Go(sql, func(context.Context) error {
			_, err := conn.Exec(s.ctx, sql)
			return err
		})
	}
	sessions.Go("holder", func(context.Context) error {
		for held.Err() == nil { // until the server has heard of its standby
			if _, err := holder.Exec(s.ctx, "notify something"); err != nil {
				return err
			}
		}
		return nil
	})
	waits(holder, "SyncRep", "")
	const write, listen = "insert into public.written values (1); select wed_sql.notify_listeners('{other, written}', '{x, x}')", "listen written"
	do(writer, write)
	waits(writer, "object", write)
	do(listener, listen)
	waits(listener, "Extension", listen)
	release()
	alter("reset " + standbys)
	s.must(sessions.Wait())
	var n int
	if err := listener.QueryRow(s.ctx, "select count(*) from public.written").Scan(&n); err != nil || n != 1 {
		t.Errorf("what was decided without the listener is not there for him: %d rows, %v", n, err)
	}
}
