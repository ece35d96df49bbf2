package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

// fakeStore has as many jobs as it is told, of any transition.
type fakeStore struct {
	mu       sync.Mutex
	pending  int
	last     int64
	asked    []int // of each lease, how many jobs
	leased   map[string]bool
	released int
	err      error                     // of everything
	ahead    time.Duration             // of its clock, to ours
	hold     func(ctx context.Context) // called by the next lease, before it answers
}

func newFakeStore() *fakeStore { return &fakeStore{leased: make(map[string]bool)} }

func (f *fakeStore) check(context.Context) error { return nil }
func (f *fakeStore) close()                      {}

// seen is what a test sees of it.
type seen struct {
	asked                     []int
	pending, released, leased int
}

func (f *fakeStore) seen() seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	return seen{slices.Clone(f.asked), f.pending, f.released, len(f.leased)}
}

// forget forgets what it was asked for so far, and fails from now on with err.
func (f *fakeStore) forget(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked, f.err = nil, err
}

func (f *fakeStore) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending += n
}

func (f *fakeStore) lease(ctx context.Context, l lane, duration time.Duration, most int) ([]*Job, error) {
	f.mu.Lock()
	hold := f.hold
	f.hold = nil
	f.mu.Unlock()
	if hold != nil {
		hold(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, most)
	var jobs []*Job
	for ; f.err == nil && f.pending > 0 && len(jobs) < most; f.pending-- {
		f.last++
		j := &Job{WID: f.last, TGID: 1, Lckid: fmt.Sprint(f.last), TrName: l.transition, LeasedUntil: time.Now().Add(f.ahead + duration), Payload: json.RawMessage(`{}`)}
		f.leased[j.Lckid] = true
		jobs = append(jobs, j)
	}
	return jobs, f.err
}

func (f *fakeStore) transition(context.Context, handle) (string, error) { return "work", f.err }

func (f *fakeStore) extend(_ context.Context, _ handle, d time.Duration) (time.Time, error) {
	return time.Now().Add(d), f.err
}

func (f *fakeStore) complete(_ context.Context, h handle, _ json.RawMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.leased, h.lckid)
	return f.err
}

func (f *fakeStore) fail(context.Context, handle, string) (bool, error) { return true, f.err }

func (f *fakeStore) release(_ context.Context, _ lane, jobs []*Job) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released += len(jobs)
	f.pending += len(jobs)
	for _, j := range jobs {
		delete(f.leased, j.Lckid)
	}
	return len(jobs), f.err
}

// fakeChannels are always listened to.
type fakeChannels struct{}

func (fakeChannels) ready() bool   { return true }
func (fakeChannels) unwant(string) {}
func (fakeChannels) want(string) <-chan struct{} {
	heard := make(chan struct{})
	close(heard)
	return heard
}

// fake is a gateway without a database, that runs until the test ends.
func fake(t testing.TB, f *fakeStore, cfg Config) (*Gateway, *httptest.Server) {
	t.Helper()
	if err := cfg.check(); err != nil {
		t.Fatal(err)
	}
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	g := newGateway(cfg, f)
	g.dispatch.channels = fakeChannels{}
	ctx, stop := context.WithCancel(context.Background())
	parts, _ := group.New(ctx)
	g.dispatch.begin(parts)
	server := httptest.NewUnstartedServer(nil)
	server.Config = g.server(nil)
	server.Start()
	t.Cleanup(func() {
		g.dispatch.drain()
		server.Close()
		stop()
		if err := parts.Wait(); err != nil {
			t.Error(err)
		}
	})
	return g, server
}
