package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
)

// What the tests against a server share: a flow of their own each, and gateways
// that end with the test. They run when WED_SQL_TEST_CONN is a connection string
// of a superuser, in a server with wed_sql preloaded.

// asGateway makes the test binary be a gateway, that can be killed. Its value is
// what the gateway's application_name is.
const asGateway = "WED_SQL_GATEWAY_TEST_AS_GATEWAY"

func TestMain(m *testing.M) {
	if name := os.Getenv(asGateway); name != "" {
		beGateway(name)
		return
	}
	os.Exit(m.Run())
}

// beGateway serves on a port of its own, which it prints, until it is killed.
func beGateway(name string) {
	ctx := context.Background()
	g, err := New(Config{DSN: os.Getenv("WED_SQL_TEST_CONN") + " application_name=" + name,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		panic(err)
	}
	listener, err := Listen(ctx, "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	if err := g.Serve(ctx, listener, nil); err != nil {
		panic(err)
	}
}

// process is a gateway that can be killed.
type process struct {
	url string
	cmd *exec.Cmd
}

func (s *server) process(name string) *process {
	s.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asGateway+"="+name)
	cmd.Stderr = testWriter{s.T}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	p := &process{cmd: cmd}
	s.Cleanup(p.kill)
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.Fatalf("the gateway does not start: %v", err)
	}
	p.url = "http://" + strings.TrimSpace(address)
	s.untilReady(p.url)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

// untilReady waits for a gateway to listen.
func (s *server) untilReady(url string) {
	s.Helper()
	for ; s.ctx.Err() == nil; time.Sleep(time.Millisecond) {
		resp, err := http.Get(url + "/readyz")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return
		}
	}
	s.Fatal("the gateway is not ready")
}

type server struct {
	*testing.T
	ctx  context.Context
	dsn  string
	conn *pgx.Conn
	flow string
}

// oneStep is a flow of one transition: work is done while v is below 1.
const oneStep = `
	insert into wed_attr (aname, atype, adv) values ('v', 'integer', '0'), ('note', 'text', null);
	insert into wed_trig (trname, cpred) values ('work', 'v < 1');
	insert into wed_trig (cpred, cfinal) values ('v >= 1', true);`

// newServer creates a flow that is defined by SQL statements, with the flow's
// schema as their search_path.
func newServer(t *testing.T, definition string) *server {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	flow := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "_"))
	s := &server{T: t, ctx: ctx, dsn: dsn, flow: flow[:min(len(flow), 60)]}
	s.conn = s.connect()
	s.exec("create extension if not exists wed_sql")
	s.exec("select wed_sql.create_flow($1)", s.flow)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			t.Error(err)
			return
		}
		defer hangUp(conn)
		if _, err := conn.Exec(ctx, "select wed_sql.drop_flow($1)", s.flow); err != nil && sqlState(err) != stateUndefinedObject {
			t.Errorf("drop flow %s: %v", s.flow, err)
		}
		if _, err := conn.Exec(ctx, "drop schema if exists "+pgx.Identifier{s.flow}.Sanitize()+" cascade"); err != nil {
			t.Errorf("drop schema %s: %v", s.flow, err)
		}
	})
	s.exec("select set_config('search_path', $1, false)", pgx.Identifier{s.flow}.Sanitize())
	if _, err := s.conn.PgConn().Exec(s.ctx, definition).ReadAll(); err != nil {
		t.Fatalf("define the flow: %v", err)
	}
	return s
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

// running is a gateway in this process.
type running struct {
	*Gateway
	url  string
	stop func() // drains it, and waits until it has ended
}

// start runs a gateway until stop is called, or the test ends. It wakes up so rarely
// that a test which needs no wake-up proves that none was needed.
func (s *server) start(cfg Config) *running {
	s.Helper()
	orDefault(&cfg.DSN, s.dsn)
	orDefault(&cfg.Wakeup, time.Hour)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{s.T}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	g, err := New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	listener, err := Listen(s.ctx, "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	parts, _ := group.New(context.Background())
	parts.Go("gateway", func(context.Context) error { return g.Serve(ctx, listener, nil) })
	r := &running{Gateway: g, url: "http://" + listener.Addr().String()}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := parts.Wait(); err != nil {
			s.Errorf("gateway: %v", err)
		}
	}
	s.Cleanup(func() {
		g.Abort()
		r.stop()
	})
	s.untilReady(r.url)
	return r
}

// untilWaiting waits until so many workers wait for jobs.
func (s *server) untilWaiting(g *running, n int) {
	s.Helper()
	for g.dispatch.count() != n {
		if s.ctx.Err() != nil {
			s.Fatalf("%d workers wait, want %d", g.dispatch.count(), n)
		}
		time.Sleep(time.Millisecond)
	}
}

// worker is a client of gateways.
type worker struct {
	url, flow, transition, token string
	client                       *http.Client
}

func (s *server) worker(url string) *worker {
	return &worker{url: url, flow: s.flow, transition: "work", client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
}

// ask sends a request, and decodes the answer into v, if there is any.
func (w *worker) ask(ctx context.Context, path string, body, v any) (status int, p problem, err error) {
	var text []byte
	switch body := body.(type) {
	case string:
		text = []byte(body)
	default:
		if text, err = json.Marshal(body); err != nil {
			return 0, p, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/flows/"+w.flow+path, bytes.NewReader(text))
	if err != nil {
		return 0, p, err
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return 0, p, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, p, err
	}
	switch {
	case resp.StatusCode >= 400:
		if kind := resp.Header.Get("Content-Type"); kind != "application/problem+json" {
			return resp.StatusCode, p, fmt.Errorf("the problem is %s: %s", kind, answer)
		}
		err = json.Unmarshal(answer, &p)
		if err == nil && p.Status != resp.StatusCode {
			err = errors.New("the problem has another status than the response")
		}
	case len(answer) > 0 && v != nil:
		err = json.Unmarshal(answer, v)
	}
	return resp.StatusCode, p, err
}

// lease leases jobs.
func (w *worker) lease(ctx context.Context, body string) (jobs []*Job, status int, p problem, err error) {
	var answer struct{ Jobs []*Job }
	status, p, err = w.ask(ctx, "/transitions/"+w.transition+"/lease", body, &answer)
	return answer.Jobs, status, p, err
}

// do asks for something about a job.
func (w *worker) do(ctx context.Context, j *Job, what string, more string) (status int, p problem, err error) {
	return w.ask(ctx, fmt.Sprintf("/jobs/%d/%d/%s", j.WID, j.TGID, what), fmt.Sprintf(`{"lckid":%q%s}`, j.Lckid, more), nil)
}

// mustLease leases exactly one job.
func (s *server) mustLease(w *worker, body string) *Job {
	s.Helper()
	jobs, status, p, err := w.lease(s.ctx, body)
	if err != nil || status != http.StatusOK || len(jobs) != 1 {
		s.Fatalf("lease %s: %d %+v, %v, %d jobs", body, status, p, err, len(jobs))
	}
	return jobs[0]
}

// mustDo does something about a job.
func (s *server) mustDo(w *worker, j *Job, what, more string) {
	s.Helper()
	if status, p, err := w.do(s.ctx, j, what, more); err != nil || status >= 300 {
		s.Fatalf("%s: %d %+v, %v", what, status, p, err)
	}
}

// refused has to be refused.
func (s *server) refused(what string, status int, p problem, err error, want int, sqlstate string) {
	s.Helper()
	if err != nil || status != want || p.SQLState != sqlstate || p.Title == "" {
		s.Errorf("%s: %d %+v, %v; want %d %s", what, status, p, err, want, sqlstate)
	}
}

// testWriter writes log lines where the test's output is.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
