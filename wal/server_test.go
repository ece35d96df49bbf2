package wal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/servertest"
)

// What the tests against a server share. They run when WED_SQL_TEST_CONN is a
// connection string of a superuser, in a server with wed_sql preloaded and
// wal_level = logical. The server's own engine is switched off meanwhile: here the
// followers run in the test, which can stop them where it likes.

const template = "wal_test_template"

// figure2 is the paper's Figure 2, with a column for whatever a test needs.
const figure2 = `
insert into wed_attr (aname, adv) values ('a1', 'ready');
insert into wed_attr (aname) values ('a2'), ('a3');
insert into wed_trig (tgname, trname, cpred, timeout) values
    ('t1', 'tr_a2', $$a1 = 'ready' and a2 is null$$, '3d18h'),
    ('t2', 'tr_a3', $$a1 = 'ready' and a3 is null$$, '00:00:30'),
    ('tf', 'tr_final', $$a1 = 'ready' and a2 is not null and a3 is not null$$, '00:00:10');
insert into wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true);`

func TestMain(m *testing.M) {
	flag.Parse()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" || flag.Lookup("test.fuzz").Value.String() != "" { // which runs in several processes, and needs no database of its own
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	restore, err := servertest.Prepare(ctx, dsn, template, "select wed_sql.create_flow('travel'); set search_path = travel;"+figure2)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the server:", err)
		os.Exit(1)
	}
	status := m.Run()
	if err := restore(); err != nil {
		fmt.Fprintln(os.Stderr, "restore the server:", err)
		status = 1
	}
	os.Exit(status)
}

// server is a database of a test's own, with the extension and the flow travel.
type server struct {
	*testing.T
	ctx    context.Context
	config *pgx.ConnConfig
	oid    uint32
	conn   *pgx.Conn
	log    *recorder
}

func newServer(t *testing.T) *server {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(t.Name())
	name = name[:min(len(name), 60)]
	quoted := pgx.Identifier{name}.Sanitize()
	for _, sql := range []string{"drop database if exists " + quoted + " with (force)", "create database " + quoted + " template " + template} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := whileInUse(ctx, func() error { // until the server has noticed that a follower is gone
			_, err := admin.Exec(ctx, "drop database "+quoted+" with (force)")
			return err
		}); err != nil {
			t.Error(err)
		}
		if err := admin.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{T: t, ctx: ctx, config: config, log: &recorder{t: t}}
	s.config.Database = name
	s.conn = s.connect()
	s.oid = get[uint32](s, "select oid from pg_database where datname = current_database()")
	s.exec("set search_path = travel, wed_sql, public")
	return s
}

func (s *server) connect() *pgx.Conn {
	s.Helper()
	conn, err := pgx.ConnectConfig(s.ctx, s.config.Copy())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = closeConn(conn.PgConn()) })
	return conn
}

func (s *server) exec(sql string, args ...any) {
	s.Helper()
	if len(args) == 0 { // several commands, perhaps
		if _, err := s.conn.PgConn().Exec(s.ctx, sql).ReadAll(); err != nil {
			s.Fatalf("%s: %v", sql, err)
		}
		return
	}
	s.execute(s.conn, sql, args...)
}

func (s *server) execute(conn *pgx.Conn, sql string, args ...any) {
	s.Helper()
	if _, err := conn.Exec(s.ctx, sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

// end executes commands when the test, and its time, is over.
func (s *server) end(sql string) {
	conn, err := pgx.ConnectConfig(context.Background(), s.config.Copy())
	if err != nil {
		s.Error(err)
		return
	}
	defer func() { _ = closeConn(conn.PgConn()) }()
	if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		s.Errorf("%s: %v", sql, err)
	}
}

// get returns the only value of a query.
func get[T any](s *server, sql string, args ...any) T {
	s.Helper()
	var v T
	if err := s.conn.QueryRow(s.ctx, sql, args...).Scan(&v); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return v
}

// begin starts an instance.
func (s *server) begin() int64 {
	s.Helper()
	return get[int64](s, "insert into travel.wed_flow default values returning wid")
}

// complete performs a transition, as a worker does: it takes the job's lock and
// updates the instance.
func (s *server) complete(conn *pgx.Conn, wid int64, transition, set string) error {
	return pgx.BeginFunc(s.ctx, conn, func(tx pgx.Tx) error {
		var got bool
		if err := tx.QueryRow(s.ctx, "select wed_sql.try_lock(wid, tgid) from travel.job_pool where wid = $1 and trname = $2",
			wid, transition).Scan(&got); err != nil {
			return fmt.Errorf("lock %s of %d: %w", transition, wid, err)
		}
		_, err := tx.Exec(s.ctx, "update travel.wed_flow set "+set+" where wid = $1", wid)
		return err
	})
}

func (s *server) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// trace returns an instance's trace, a line for a line.
func (s *server) trace(wid int64) []string {
	s.Helper()
	rows, err := s.conn.Query(s.ctx, `
select format('%s %s by %s fires %s%s', version, status, coalesce(trw, '-'), trf, case when healed then ' healed' end)
  from travel.wed_trace where wid = $1 order by version`, wid)
	s.must(err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	return lines
}

func (s *server) jobs(wid int64) []string {
	s.Helper()
	rows, err := s.conn.Query(s.ctx, "select trname from travel.job_pool where wid = $1 order by tgid", wid)
	s.must(err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	s.must(err)
	return names
}

// running is a follower.
type running struct {
	s         *server
	cancel    context.CancelFunc
	done      chan struct{}
	err       error // of Follow, when done
	streaming chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	applied LSN
	flushed LSN
	states  uint64
}

func (r *running) Applied(lsn LSN, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = lsn
	r.changed.Broadcast()
}

func (r *running) Progress(flushed LSN, states uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushed, r.states = flushed, states
	r.changed.Broadcast()
}

// follow starts a follower.
func (s *server) follow(change ...func(*Settings)) *running {
	s.Helper()
	r := &running{s: s, done: make(chan struct{}), streaming: make(chan struct{})}
	r.changed = sync.NewCond(&r.mu)
	settings := Settings{
		Conn: s.config, Database: s.oid, BatchSize: func() int { return 1000 },
		Log: slog.New(s.log), Observer: r,
		Phase: func(streaming bool) {
			if streaming {
				close(r.streaming)
			}
		},
	}
	for _, c := range change {
		c(&settings)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.err = Follow(ctx, settings)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed.Broadcast()
	}()
	s.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.cancel()
	<-r.done
}

// ready waits until it streams.
func (r *running) ready() {
	r.s.Helper()
	select {
	case <-r.streaming:
	case <-r.done:
		r.s.log.show()
		r.s.Fatalf("the follower ended: %v", r.err)
	}
}

// over tells whether the follower has ended.
func (r *running) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// ended returns the error that the follower ends with.
func (r *running) ended() error {
	r.s.Helper()
	select {
	case <-r.done:
		return r.err
	case <-r.s.ctx.Done():
		r.s.Fatal("the follower does not end")
		return nil
	}
}

// until waits for the follower's progress.
func (r *running) until(what string, reached func() bool) {
	r.s.Helper()
	stop := context.AfterFunc(r.s.ctx, r.changed.Broadcast)
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !reached() {
		select {
		case <-r.done:
			r.s.Fatalf("%s: the follower ended: %v", what, r.err)
		case <-r.s.ctx.Done():
			r.s.Fatalf("%s: not within the test's time", what)
		default:
		}
		r.changed.Wait()
	}
}

// sync waits until everything that is committed now has been matched.
func (r *running) sync() {
	r.s.Helper()
	lsn := r.s.position()
	r.until("sync", func() bool { return r.applied >= lsn })
}

// position makes the server's log end in a record that is flushed, and returns the
// position behind it.
func (s *server) position() LSN {
	s.Helper()
	lsn, err := parseLSN(get[string](s, "select pg_logical_emit_message(true, 'wal_test', '')::text"))
	s.must(err)
	return lsn
}

// recorder keeps what is logged.
type recorder struct {
	t     *testing.T
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r *recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *recorder) WithGroup(string) slog.Handler            { return r }
func (r *recorder) Handle(_ context.Context, rec slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", rec.Level, rec.Message)
	rec.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s=%v", a.Key, a.Value); return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, b.String())
	return nil
}

func (r *recorder) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if strings.Contains(l, text) {
			return true
		}
	}
	return false
}

func (r *recorder) show() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		r.t.Log(l)
	}
}

func code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
