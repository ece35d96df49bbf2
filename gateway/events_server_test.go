package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/wed-sql/wed_sql/internal/group"
)

func unmarshal(text []byte, v any) error { return json.Unmarshal(text, v) }

// source is an open stream of events.
type source struct {
	s     *server
	lines *bufio.Scanner
	close func()
}

func (s *server) source(w *worker, query string) *source {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	s.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/flows/"+w.flow+"/transitions/"+w.transition+"/events"+query, nil)
	if err != nil {
		s.Fatal(err)
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		s.Fatalf("events%s: %d %s", query, resp.StatusCode, kind)
	}
	return &source{s: s, lines: bufio.NewScanner(resp.Body), close: cancel}
}

// next returns the next event.
func (e *source) next() (kind, data string) {
	e.s.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		if v, ok := strings.CutPrefix(line, "event: "); ok {
			kind = v
		}
		if v, ok := strings.CutPrefix(line, "data: "); ok {
			data = v
		}
		if line == "" && kind != "" {
			return kind, data
		}
	}
	return "", ""
}

func (e *source) job() *Job {
	e.s.Helper()
	kind, data := e.next()
	j := new(Job)
	if err := json.Unmarshal([]byte(data), j); err != nil || kind != "job" || j.WID == 0 {
		e.s.Fatalf("event %q: %s, %v", kind, data, err)
	}
	return j
}

func TestAStreamHasNoMoreJobsOutThanItsCredit(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	events := s.source(w, "?credit=2&lease=1h")
	s.exec("insert into wed_flow select from generate_series(1, 4)")
	a, b := events.job(), events.job()
	s.untilWaiting(g, 0)
	if n := get[int](s, "select count(*) from job_pool where lckid is not null"); n != 2 {
		t.Errorf("%d jobs are leased, with a credit of 2", n)
	}
	s.mustDo(w, a, "complete", `,"state":{"v":1}`)
	c := events.job()
	s.mustDo(w, b, "fail", `,"error":"no"`)
	d := events.job()
	s.mustDo(w, c, "release", ``)
	e := events.job()
	for _, j := range []*Job{d, e} {
		s.mustDo(w, j, "complete", `,"state":{"v":1}`)
	}
	s.mustDo(w, events.job(), "complete", `,"state":{"v":1}`)
	s.untilAllFinal()
}

func TestTheCreditOfALeaseThatHasEndedComesBack(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{}).url)
	events := s.source(w, "?lease=0.2")
	s.exec("insert into wed_flow default values")
	first := events.job()
	if second := events.job(); second.WID != first.WID || second.Lckid == first.Lckid || second.Attempts != 1 {
		t.Errorf("%+v after %+v", second, first)
	}
}

func TestAStreamThatEndsSaysWhy(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	idle, busy := s.source(w, ""), s.source(w, "?lease=1h")
	s.untilWaiting(g, 2)
	s.exec("insert into wed_flow default values")
	s.untilWaiting(g, 1)
	parts, _ := group.New(s.ctx)
	parts.Go("stop", func(context.Context) error { g.stop(); return nil })
	for _, e := range []*source{idle, busy} {
		kind, data := e.next()
		if kind == "job" {
			kind, data = e.next()
		}
		if kind != "end" || !strings.Contains(data, `"status":503`) {
			t.Errorf("event %q: %s", kind, data)
		}
	}
	_ = parts.Wait()
}

func TestAStreamOfAFlowThatIsNotThereSaysSo(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{}).url)
	w.flow = "no_such_flow"
	if kind, data := s.source(w, "").next(); kind != "end" || !strings.Contains(data, `"status":404`) {
		t.Errorf("event %q: %s", kind, data)
	}
}

func TestATokenThatIsTakenAwayEndsAtOnce(t *testing.T) {
	s := newServer(t, oneStep)
	tokens, file := s.tokens(entry{Name: "w", Allow: []string{"*/*"}})
	g := s.start(Config{Tokens: file})
	w := s.worker(g.url)
	w.token = tokens[0]
	events := s.source(w, "")
	s.untilWaiting(g, 1)
	write(t, file.path, "# nobody\n")
	if err := file.Reload(); err != nil {
		t.Fatal(err)
	}
	s.exec("insert into wed_flow default values")
	if kind, data := events.next(); kind != "end" || !strings.Contains(data, `"status":401`) {
		t.Errorf("event %q: %s", kind, data)
	}
	// What was leased for it is there for others.
	s.until("select exists (select from job_pool where lckid is null and attempts = 0)")
}
