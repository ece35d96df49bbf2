package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	crowd      = 5000 // idle workers
	mostOf     = 10   // connections to the database
	jobsOfTest = 500
	perSecond  = 75
)

// times is when things happened to jobs, by wid.
type times struct {
	mu sync.Mutex
	at map[int64]time.Time
}

func (t *times) note(wid int64) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.at[wid]; !known {
		t.at[wid] = now
	}
}

func (t *times) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.at)
}

// since returns how long it took from one thing to the other, sorted.
func (t *times) since(from *times) (took []time.Duration) {
	for wid, at := range t.at {
		if began, ok := from.at[wid]; ok {
			took = append(took, at.Sub(began))
		}
	}
	slices.Sort(took)
	return took
}

func percentiles(took []time.Duration) string {
	at := func(p float64) time.Duration { return took[int(p*float64(len(took)-1))].Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, longest %s, of %d", at(.5), at(.9), at(.99), at(1), len(took))
}

// idler is a worker as small as can be: thousands of them are in this process.
type idler struct {
	conn net.Conn
	in   *bufio.Reader
	s    *server
	got  *times
}

func (s *server) idler(url string, got *times) (*idler, error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	s.Cleanup(func() { _ = conn.Close() })
	return &idler{conn: conn, in: bufio.NewReaderSize(conn, 1024), s: s, got: got}, nil
}

func (i *idler) post(path, body string) error {
	_, err := fmt.Fprintf(i.conn, "POST /v1/flows/%s%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", i.s.flow, path, len(body), body)
	return err
}

// answer reads a response, and its job, if there is one.
func (i *idler) answer() (*Job, error) {
	resp, err := http.ReadResponse(i.in, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusNoContent {
		return nil, err
	}
	var answer struct{ Jobs []*Job }
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Jobs) != 1 {
		return nil, fmt.Errorf("%d: %s", resp.StatusCode, body)
	}
	return answer.Jobs[0], nil
}

func (i *idler) complete(j *Job) error {
	err := i.post(fmt.Sprintf("/jobs/%d/%d/complete", j.WID, j.TGID), fmt.Sprintf(`{"lckid":%q,"state":{"v":1}}`, j.Lckid))
	if err == nil {
		_, err = i.answer()
	}
	return err
}

// poll leases by long polls, until the connection is closed.
func (i *idler) poll(context.Context) error {
	for {
		err := i.post("/transitions/work/lease", `{"wait":"5m"}`)
		var j *Job
		if err == nil {
			j, err = i.answer()
		}
		if err == nil && j != nil {
			i.got.note(j.WID)
			err = i.complete(j)
		}
		if err != nil {
			return ended(err)
		}
	}
}

// stream leases by server-sent events, and completes by a client that all share.
func (i *idler) stream(ctx context.Context, w *worker) error {
	_, err := fmt.Fprintf(i.conn, "GET /v1/flows/%s/transitions/work/events HTTP/1.1\r\nHost: localhost\r\n\r\n", i.s.flow)
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(i.in, nil)
	if err != nil {
		return ended(err)
	}
	lines := bufio.NewReaderSize(resp.Body, 1024)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return ended(err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		j := new(Job)
		if err := json.Unmarshal([]byte(data), j); err != nil || j.WID == 0 {
			return fmt.Errorf("event: %s, %w", data, err)
		}
		i.got.note(j.WID)
		if status, p, err := w.do(ctx, j, "complete", `,"state":{"v":1}`); err != nil || status != http.StatusNoContent {
			return fmt.Errorf("complete: %d %+v, %w", status, p, err)
		}
	}
}

// ended is nil for an error that means that the connection was closed.
func ended(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	if strings.Contains(err.Error(), "reset by peer") || strings.Contains(err.Error(), "broken pipe") {
		return nil
	}
	return err
}

// memory returns what a process has in memory, in bytes, per what it is asked for.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kB, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kB << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func TestFiveThousandIdleWorkersNeedTenConnections(t *testing.T) {
	t.Run("poll", func(t *testing.T) {
		testCrowd(t, func(i *idler, _ *worker) func(context.Context) error { return i.poll })
	})
	t.Run("stream", func(t *testing.T) {
		testCrowd(t, func(i *idler, w *worker) func(context.Context) error {
			return func(ctx context.Context) error { return i.stream(ctx, w) }
		})
	})
}

func testCrowd(t *testing.T, be func(*idler, *worker) func(context.Context) error) {
	s := newServer(t, oneStep)
	name := "crowd_" + s.flow[len(s.flow)-10:]
	p := s.process(name)
	before := memory(t, p.cmd.Process.Pid)
	got := &times{at: make(map[int64]time.Time)}
	parts, _ := group.New(s.ctx)
	shared := s.worker(p.url)
	var idlers []*idler
	for range crowd {
		i, err := s.idler(p.url, got)
		if err != nil {
			t.Fatal(err)
		}
		idlers = append(idlers, i)
		parts.Go("worker", be(i, shared))
	}
	for waiting := 0; waiting < crowd; waiting = metric(s, p.url, "wed_gateway_waiting_workers") {
		if s.ctx.Err() != nil {
			t.Fatalf("%d workers wait", waiting)
		}
	}
	t.Logf("memory: %d MiB with no worker, %d MiB with %d idle ones", before>>20, memory(t, p.cmd.Process.Pid)>>20, crowd)

	notified := s.listenForJobs("work")
	committed := &times{at: make(map[int64]time.Time)}
	most := 0
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for n := range jobsOfTest {
		<-tick.C
		time.Sleep(rand.N(5 * time.Millisecond)) // not in step
		committed.note(get[int64](s, "insert into wed_flow default values returning wid"))
		if n%50 == 0 {
			most = max(most, get[int](s, "select count(*) from pg_stat_activity where application_name = $1", name))
		}
	}
	s.untilAllFinal()
	if n := get[int](s, "select count(*) from wed_trace"); n != 2*jobsOfTest || got.count() != jobsOfTest {
		t.Errorf("%d states, want %d; %d jobs delivered", n, 2*jobsOfTest, got.count())
	}
	if n := get[int](s, "select count(*) from wed_event where event <> 'leased'"); n != 0 {
		t.Errorf("%d times something went wrong with a job", n)
	}
	fromCommit, fromNotify := got.since(committed), got.since(notified)
	t.Logf("from the commit of the instance:  %s", percentiles(fromCommit))
	t.Logf("from the commit of the job:       %s", percentiles(fromNotify))
	t.Logf("connections: at most %d; memory: %d MiB", most, memory(t, p.cmd.Process.Pid)>>20)
	if most > mostOf || most == 0 {
		t.Errorf("%d connections, want at most %d", most, mostOf)
	}
	// The tail depends on what else this machine does; it is for the reader of the log.
	if p50 := fromNotify[len(fromNotify)/2]; p50 > 500*time.Millisecond {
		t.Errorf("a job takes %s", p50)
	}
	for _, i := range idlers {
		_ = i.conn.Close()
	}
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}

// listenForJobs notes when each job of a transition is announced.
func (s *server) listenForJobs(transition string) *times {
	s.Helper()
	conn := s.connect()
	if _, err := conn.Exec(s.ctx, "listen "+transition); err != nil {
		s.Fatal(err)
	}
	seen := &times{at: make(map[int64]time.Time)}
	ctx, stop := context.WithCancel(s.ctx)
	parts, _ := group.New(ctx)
	parts.Go("listener", func(ctx context.Context) error {
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return nil
			}
			var job struct {
				Flow string
				WID  int64
			}
			if json.Unmarshal([]byte(n.Payload), &job) == nil && job.Flow == s.flow {
				seen.note(job.WID)
			}
		}
	})
	s.Cleanup(func() { stop(); _ = parts.Wait() })
	return seen
}

// metric returns the value of one of a gateway's metrics.
func metric(s *server, url, name string) int {
	s.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.Fatal(err)
			}
			return int(v)
		}
	}
	return 0
}
