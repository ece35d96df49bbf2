package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/group"
)

// request sends one, and returns the problem of the response.
func request(t *testing.T, method, url, body string, header ...string) (*http.Response, problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p problem
	if resp.StatusCode >= 400 {
		if err := json.Unmarshal(text, &p); err != nil || p.Status != resp.StatusCode || p.Title == "" {
			t.Errorf("%s %s: %d is no problem: %s", method, url, resp.StatusCode, text)
		}
	}
	return resp, p
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	_, server := fake(t, newFakeStore(), Config{MaxBody: 1000, MaxWait: time.Minute, MaxLease: time.Hour})
	lease, job := "/v1/flows/f/transitions/t/lease", "/v1/flows/f/jobs/1/2/"
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", lease, `{`, 400, "EOF"},
		{"POST", lease, `[]`, 400, "array"},
		{"POST", lease, `{} {}`, 400, "more than one"},
		{"POST", lease, `{"max_job":1}`, 400, "max_job"},
		{"POST", lease, `{"max_jobs":0}`, 400, "max_jobs"},
		{"POST", lease, `{"max_jobs":1000000}`, 400, "max_jobs"},
		{"POST", lease, `{"max_jobs":"many"}`, 400, "max_jobs"},
		{"POST", lease, `{"lease":"soon"}`, 400, `"soon"`},
		{"POST", lease, `{"lease":0}`, 400, "lease"},
		{"POST", lease, `{"lease":-1}`, 400, "lease"},
		{"POST", lease, `{"lease":"2h"}`, 400, "1h0m0s"},
		{"POST", lease, `{"lease":1e300}`, 400, "duration"},
		{"POST", lease, `{"lease":"NaN"}`, 400, "duration"},
		{"POST", lease, `{"wait":"2m"}`, 400, "1m0s"},
		{"POST", lease, `{"lease":"` + strings.Repeat("x", 2000) + `"}`, 413, "1000"},
		{"POST", "/v1/flows/" + strings.Repeat("f", 64) + "/transitions/t/lease", ``, 400, "63"},
		{"POST", "/v1/flows/f/transitions/a%00b/lease", ``, 400, "63"},
		{"POST", "/v1/flows/f/transitions/%ff/lease", ``, 400, "63"},
		{"GET", "/v1/flows/f/transitions/t/events?credit=0", ``, 400, "credit"},
		{"GET", "/v1/flows/f/transitions/t/events?credits=1", ``, 400, "credits"},
		{"GET", "/v1/flows/f/transitions/t/events?lease=x", ``, 400, "lease"},
		{"POST", job + "complete", `{"lckid":"x"}`, 400, "state"},
		{"POST", job + "complete", `{"lckid":"x","state":[]}`, 400, "state"},
		{"POST", job + "complete", `{"lckid":"x","state":null}`, 400, "state"},
		{"POST", job + "complete", `{"state":{}}`, 400, "lckid"},
		{"POST", job + "release", ``, 400, "lckid"},
		{"POST", "/v1/flows/f/jobs/one/2/release", `{"lckid":"x"}`, 400, "wid"},
		{"POST", "/v1/flows/f/jobs/1/99999999999/release", `{"lckid":"x"}`, 400, "tgid"},
		{"GET", lease, ``, 404, "GET"},
		{"GET", "/", ``, 404, "nothing"},
	} {
		resp, p := request(t, c.method, server.URL+c.path, c.body)
		if resp.StatusCode != c.status || !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s %s %.40s: %d %q, want %d and %q", c.method, c.path, c.body, resp.StatusCode, p.Detail, c.status, c.says)
		}
	}
	if resp, _ := request(t, "POST", server.URL+lease, `{}`, "Content-Type", "text/xml"); resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("text/xml: %d", resp.StatusCode)
	}
	for _, header := range []string{"Origin", "Sec-Fetch-Site"} { // there are no tokens
		if resp, _ := request(t, "POST", server.URL+lease, `{}`, header, "null"); resp.StatusCode != http.StatusForbidden {
			t.Errorf("from a browser: %d", resp.StatusCode)
		}
	}
	for _, body := range []string{``, ` `, `{}`, `{"lease":30,"wait":0}`} {
		if resp, _ := request(t, "POST", server.URL+lease, body); resp.StatusCode != http.StatusNoContent {
			t.Errorf("%q: %d", body, resp.StatusCode)
		}
	}
}

func TestNamesAreAnyNames(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	f.add(1)
	_, server := fake(t, f, Config{})
	resp, err := http.Post(server.URL+"/v1/flows/a%2Fb/transitions/%C3%BC%20%22%25/lease", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct{ Jobs []*Job }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Jobs[0].TrName != `ü "%` {
		t.Errorf("%v: %+v", err, answer)
	}
}

// A worker without a parser for JSON finds them by position.
func TestAJobBeginsWithWhatIdentifiesIt(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	f.add(1)
	_, server := fake(t, f, Config{})
	resp, err := http.Post(server.URL+"/v1/flows/f/transitions/t/lease", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	if !strings.HasPrefix(string(text), `{"jobs":[{"wid":1,"tgid":1,"lckid":"1",`) || strings.Count(string(text), "\n") != 1 {
		t.Errorf("%s", text)
	}
}

func TestTooManyWorkersAreSentAway(t *testing.T) {
	t.Parallel()
	g, server := fake(t, newFakeStore(), Config{MaxWorkers: 3})
	ctx, stop := context.WithCancel(t.Context())
	parts, _ := group.New(ctx)
	for range 3 {
		parts.Go("worker", func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/flows/f/transitions/t/lease", strings.NewReader(`{"wait":60}`))
			if err != nil {
				return err
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
			return nil
		})
	}
	for g.dispatch.count() < 3 {
		time.Sleep(time.Millisecond)
	}
	for _, path := range []string{"POST /v1/flows/f/transitions/t/lease", "GET /v1/flows/f/transitions/t/events"} {
		method, path, _ := strings.Cut(path, " ")
		resp, _ := request(t, method, server.URL+path, `{"wait":60}`)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d, Retry-After %q", path, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
	}
	if resp, _ := request(t, "POST", server.URL+"/v1/flows/f/jobs/1/1/complete", `{"lckid":"x","state":{}}`); resp.StatusCode != http.StatusNoContent {
		t.Errorf("a completion is held up by those who wait: %d", resp.StatusCode)
	}
	stop()
	_ = parts.Wait()
}

func TestWhatThePostgresErrorsMean(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]int{
		"WED03": 409, "WED08": 409, "WED16": 409, "WED17": 409, "WED07": 423, "55P03": 423, "42501": 403, "42704": 404, "42P01": 404,
		"WED09": 422, "22P02": 422, "23505": 422, "42703": 422, "P0001": 422, "40001": 503, "53300": 503, "57P01": 503, "08006": 503,
		"25006": 503, "XX000": 500,
	} {
		f := newFakeStore()
		f.err = fmt.Errorf("complete: %w", &pgconn.PgError{Code: state, Message: "message", Detail: "detail", Hint: "hint"})
		_, server := fake(t, f, Config{})
		resp, p := request(t, "POST", server.URL+"/v1/flows/f/jobs/1/1/complete", `{"lckid":"x","state":{}}`)
		if resp.StatusCode != want || p.SQLState != state {
			t.Errorf("%s: %d %+v, want %d", state, resp.StatusCode, p, want)
		}
		if want < 500 && (p.Message != "message" || p.Detail != "detail" || p.Hint != "hint") {
			t.Errorf("%s: %+v", state, p)
		}
		if again := resp.Header.Get("Retry-After") != ""; again != (want == 423 || want == 503) {
			t.Errorf("%s: Retry-After %q", state, resp.Header.Get("Retry-After"))
		}
	}
}

// inMemory runs a test with a gateway behind pipes, in a time of its own.
func inMemory(t *testing.T, test func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(Config{MaxBody: 100, MaxWorkers: 10, Logger: discard(), MaxLease: time.Hour, MaxWait: time.Hour, Wakeup: time.Hour}, newFakeStore())
		g.dispatch.channels = fakeChannels{}
		ctx, stop := context.WithCancel(t.Context())
		parts, _ := group.New(ctx)
		g.dispatch.begin(parts)
		pipes := newPipes()
		server := g.server(nil)
		parts.Go("server", func(context.Context) error { _ = server.Serve(pipes); return nil })
		defer func() {
			g.dispatch.drain()
			_ = server.Close()
			stop()
			_ = parts.Wait()
		}()
		test(t, pipes)
	})
}

func TestWhatDoesNotComeIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, p *pipes) {
		for name, sent := range map[string]string{
			"body":   "POST /v1/flows/f/transitions/t/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{",
			"header": "POST /v1/flows/f/transitions/t/lease HTTP/1.1\r\nHost: localhost\r\nX-A: ",
			"next":   "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
		} {
			begin := time.Now()
			conn := p.dial()
			if _, err := conn.Write([]byte(sent)); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, conn)
			if took := time.Since(begin); took > idleTimeout {
				t.Errorf("an incomplete %s holds its connection for %s", name, took)
			}
		}
	})
}

func TestWhoMayWaitLongIsLetWait(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, p *pipes) {
		poll := p.dial()
		defer poll.Close()
		begin := time.Now()
		if _, err := io.WriteString(poll, "POST /v1/flows/f/transitions/t/lease HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"wait\":3000}"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(poll), nil)
		if err != nil || resp.StatusCode != http.StatusNoContent || time.Since(begin) != 3000*time.Second {
			t.Errorf("%v: %+v after %s", err, resp, time.Since(begin))
		}
		stream := p.dial()
		defer stream.Close()
		begin = time.Now()
		if _, err := io.WriteString(stream, "GET /v1/flows/f/transitions/t/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err = http.ReadResponse(bufio.NewReader(stream), nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for beats := 0; beats < 10 && lines.Scan(); {
			if lines.Text() == ": waiting" {
				beats++
			}
		}
		if took := time.Since(begin); took != 10*beat {
			t.Errorf("ten comments in %s", took)
		}
	})
}

// pipes is a listener in memory: time passes in it as synctest likes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// Without tokens. The name of a page's host may be made to lead to this machine.
func TestOnlyThisMachineIsServedWithoutTokens(t *testing.T) {
	_, server := fake(t, newFakeStore(), Config{})
	for host, want := range map[string]int{
		"evil.example:8420": http.StatusForbidden, "evil.example": http.StatusForbidden, "127.0.0.1.evil.example": http.StatusForbidden,
		"localhost:8420": http.StatusOK, "127.0.0.1:8420": http.StatusOK, "[::1]:8420": http.StatusOK, "[::1]": http.StatusOK,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host: %s: %d, want %d", host, resp.StatusCode, want)
		}
	}
}
