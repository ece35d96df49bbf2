package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
)

// cable is what a gateway reaches the server by, and can be pulled out.
type cable struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	conns    []net.Conn
	out      bool
}

// cable returns one, and the DSN that leads through it.
func (s *server) cable() (*cable, string) {
	s.Helper()
	config, err := pgx.ParseConfig(s.dsn)
	if err != nil {
		s.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	c := &cable{listener: listener, target: fmt.Sprintf("%s/.s.PGSQL.%d", config.Host, config.Port)}
	parts, _ := group.New(s.ctx)
	parts.Go("cable", func(context.Context) error {
		for {
			from, err := listener.Accept()
			if err != nil {
				return nil
			}
			to, err := net.Dial("unix", c.target)
			if err != nil {
				return err
			}
			if !c.add(from, to) {
				continue
			}
			parts.Go("there", func(context.Context) error { _, _ = io.Copy(to, from); return to.Close() })
			parts.Go("back", func(context.Context) error { _, _ = io.Copy(from, to); return from.Close() })
		}
	})
	s.Cleanup(func() {
		_ = listener.Close()
		c.pull()
		_ = parts.Wait()
	})
	port := listener.Addr().(*net.TCPAddr).Port
	return c, fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable", port, config.User, config.Database)
}

func (c *cable) add(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out {
		for _, conn := range conns {
			_ = conn.Close()
		}
		return false
	}
	c.conns = append(c.conns, conns...)
	return true
}

func (c *cable) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func (c *cable) plug() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = false
}

func TestWhileTheDatabaseIsAwayWhoWaitsGoesOnWaiting(t *testing.T) {
	s := newServer(t, oneStep)
	cable, dsn := s.cable()
	g := s.start(Config{DSN: dsn, Logger: discard()})
	w := s.worker(g.url)
	got := make(chan *Job, 1)
	parts, _ := group.New(s.ctx)
	parts.Go("worker", func(ctx context.Context) error {
		jobs, status, p, err := w.lease(ctx, `{"wait":"2m"}`)
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("lease: %d %+v, %w", status, p, err)
		}
		got <- jobs[0]
		return nil
	})
	s.untilWaiting(g, 1)
	cable.pull()
	for g.listener.ready() {
		time.Sleep(time.Millisecond)
	}
	for _, body := range []string{``, `{"wait":"1m"}`} {
		_, status, p, err := w.lease(s.ctx, body)
		s.refused("lease"+body, status, p, err, http.StatusServiceUnavailable, "")
	}
	status, p, err := w.do(s.ctx, &Job{WID: 1, TGID: 1, Lckid: "x"}, "complete", `,"state":{}`)
	s.refused("complete", status, p, err, http.StatusServiceUnavailable, "")
	for path, want := range map[string]int{"/readyz": http.StatusServiceUnavailable, "/healthz": http.StatusOK} {
		resp, err := http.Get(g.url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	s.exec("insert into wed_flow default values") // whose notification nobody hears
	s.exec("select wed_sql.sync()")
	cable.plug()
	if err := parts.Wait(); err != nil {
		t.Fatal(err)
	}
	s.mustDo(w, <-got, "complete", `,"state":{"v":1}`)
	s.untilAllFinal()
}

func TestWhatTheDatabaseCannotKeepUpWithIsSentAway(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{Connections: 1, Logger: discard()})
	w := s.worker(g.url)
	s.exec("insert into wed_flow select from generate_series(1, $1)", 2*queueFactor)
	s.exec("select wed_sql.sync()")
	jobs, _, _, err := w.lease(s.ctx, fmt.Sprintf(`{"max_jobs":%d,"wait":"1m"}`, 2*queueFactor))
	if err != nil || len(jobs) != 2*queueFactor {
		t.Fatalf("%v: %d jobs", err, len(jobs))
	}
	other := s.connect()
	for _, sql := range []string{"begin", "lock table " + s.flow + ".wed_flow in share mode"} {
		if _, err := other.Exec(s.ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	answers := make(map[int]int)
	parts, _ := group.New(s.ctx)
	for _, j := range jobs {
		parts.Go("completion", func(ctx context.Context) error {
			status, p, err := w.do(ctx, j, "complete", `,"state":{"v":1}`)
			mu.Lock()
			defer mu.Unlock()
			answers[status]++
			if status == http.StatusServiceUnavailable && p.Title != "The gateway is overloaded" {
				return fmt.Errorf("%+v", p)
			}
			return err
		})
	}
	refused := func() int {
		mu.Lock()
		defer mu.Unlock()
		return answers[http.StatusServiceUnavailable]
	}
	for refused() < queueFactor {
		if s.ctx.Err() != nil {
			t.Fatal("nothing is refused")
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := other.Exec(s.ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
	if answers[http.StatusNoContent] != queueFactor || answers[http.StatusServiceUnavailable] != queueFactor {
		t.Errorf("answers: %v", answers)
	}
}

func TestManyWorkersShareAConnectionByHTTP2(t *testing.T) {
	const many = 200
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	w.client = &http.Client{Transport: &http.Transport{Protocols: protocols}}
	parts, _ := group.New(s.ctx)
	for range many {
		parts.Go("worker", func(ctx context.Context) error {
			jobs, status, p, err := w.lease(ctx, `{"wait":"1m"}`)
			if err != nil || len(jobs) != 1 {
				return fmt.Errorf("lease: %d %+v, %w", status, p, err)
			}
			if status, p, err := w.do(ctx, jobs[0], "complete", `,"state":{"v":1}`); err != nil || status != http.StatusNoContent {
				return fmt.Errorf("complete: %d %+v, %w", status, p, err)
			}
			return nil
		})
	}
	s.untilWaiting(g, many)
	ctx, leave := context.WithCancel(s.ctx)
	parts.Go("who leaves", func(context.Context) error {
		_, _, _, _ = w.lease(ctx, `{"wait":"1m"}`)
		return nil
	})
	s.untilWaiting(g, many+1)
	leave()
	s.untilWaiting(g, many)
	s.exec("insert into wed_flow select from generate_series(1, $1)", many)
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
	s.untilAllFinal()
}
