package worker

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// What the tests against a server share: a flow of their own each, and workers
// that end with the test. They run when WED_SQL_TEST_CONN is a connection string
// of a superuser, in a server with wed_sql preloaded.

type server struct {
	*testing.T
	ctx  context.Context
	dsn  string
	conn *pgx.Conn
	flow string
}

// newServer creates a flow that is defined by SQL statements, with the flow's
// schema as their search_path.
func newServer(t *testing.T, definition string) *server { return newNamedServer(t, "", definition) }

func newNamedServer(t *testing.T, flow, definition string) *server {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	if flow == "" {
		flow = strings.ToLower(t.Name())
		flow = flow[:min(len(flow), 60)]
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	s := &server{T: t, ctx: ctx, dsn: dsn, flow: flow}
	s.conn = s.connect()
	s.exec("create extension if not exists wed_sql")
	s.define(flow, definition)
	return s
}

// define creates one more flow.
func (s *server) define(flow, definition string) {
	s.Helper()
	s.exec("select wed_sql.create_flow($1)", flow)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, s.dsn)
		if err != nil {
			s.Error(err)
			return
		}
		defer hangUp(conn)
		_, err = conn.Exec(ctx, "select wed_sql.drop_flow($1)", flow)
		if err != nil && sqlState(err) != "42704" {
			s.Errorf("drop flow %s: %v", flow, err)
		}
		// what the definition has put there besides
		if _, err := conn.Exec(ctx, "drop schema if exists "+pgx.Identifier{flow}.Sanitize()+" cascade"); err != nil {
			s.Errorf("drop schema %s: %v", flow, err)
		}
	})
	s.exec("select set_config('search_path', $1, false)", pgx.Identifier{flow}.Sanitize())
	if _, err := s.conn.PgConn().Exec(s.ctx, definition).ReadAll(); err != nil {
		s.Fatalf("define the flow: %v", err)
	}
}

func (s *server) connect() *pgx.Conn {
	s.Helper()
	conn, err := pgx.Connect(s.ctx, s.dsn)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { hangUp(conn) })
	return conn
}

func (s *server) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.conn.Exec(s.ctx, sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
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

// until waits until a query gives true. It asks when the engine has caught up.
func (s *server) until(sql string, args ...any) {
	s.Helper()
	for {
		s.exec("select wed_sql.sync('30 s')")
		if get[bool](s, sql, args...) {
			return
		}
	}
}

// untilAllFinal waits until every instance of the flow has ended.
func (s *server) untilAllFinal() {
	s.Helper()
	s.until("select not exists (select from wed_instance where status <> 'F' or since is null)")
}

// setup is a worker of one transition, to be.
type setup struct {
	Config
	Options
	flow, transition string
	handler          Handler
	together         BatchHandler
}

// worker is the beginning of a worker's setup. It wakes up so rarely that a test
// which needs no wake-up proves that none was needed.
func (s *server) worker(transition string, h Handler) setup {
	return setup{
		flow: s.flow, transition: transition, handler: h,
		Config: Config{
			DSN: s.dsn, Wakeup: time.Hour, RetryAfter: 10 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(testWriter{s.T}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		},
	}
}

// quiet is a logger for tests of many jobs.
var quiet = slog.New(slog.DiscardHandler)

// new makes the worker.
func (s *server) new(of setup) *Worker {
	s.Helper()
	w, err := New(of.Config)
	if err == nil && of.together != nil {
		err = w.HandleBatch(of.flow, of.transition, of.together, of.Options)
	} else if err == nil {
		err = w.Handle(of.flow, of.transition, of.handler, of.Options)
	}
	if err != nil {
		s.Fatal(err)
	}
	return w
}

// start runs a worker until stop is called, or the test ends.
func (s *server) start(of setup) (stop func()) {
	s.Helper()
	return s.startWorker(s.new(of))
}

func (s *server) startWorker(w *Worker) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	var group errgroup.Group
	group.Go(func() error { return w.Run(ctx) })
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := group.Wait(); err != nil {
			s.Errorf("worker: %v", err)
		}
	}
	s.Cleanup(stop)
	return stop
}

// run runs a worker to its end.
func (s *server) run(of setup) error {
	s.Helper()
	return s.new(of).Run(s.ctx)
}

// receive takes a value from a channel, for which it does not wait for ever.
func receive[T any](s *server, c <-chan T) T {
	s.Helper()
	select {
	case v := <-c:
		return v
	case <-s.ctx.Done():
		s.Fatal("nothing came")
		panic("unreachable")
	}
}

// testWriter writes log lines where the test's output is.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// returns is a handler that always gives the same state.
func returns(state State) Handler {
	return func(context.Context, *Job) (State, error) { return state, nil }
}
