package gateway

import (
	"sync"
	"time"
)

// streams knows which jobs were delivered by which stream, and are not settled.
type streams struct {
	mu   sync.Mutex
	jobs map[string]*stream // by lckid
}

// stream is one of events.
type stream struct {
	until   map[string]time.Time // by lckid: when the lease ends, by our clock: the server's may go otherwise
	settled chan struct{}        // there may be less of them
}

func newStreams() *streams { return &streams{jobs: make(map[string]*stream)} }

func newStream() *stream {
	return &stream{until: make(map[string]time.Time), settled: make(chan struct{}, 1)}
}

// delivered notes what a stream has sent, under leases that end then or before.
func (s *streams) delivered(to *stream, jobs []*Job, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		to.until[j.Lckid] = until
		s.jobs[j.Lckid] = to
	}
}

// settle notes that a job is done with.
func (s *streams) settle(lckid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := s.jobs[lckid]; to != nil {
		s.forget(to, lckid)
		select {
		case to.settled <- struct{}{}:
		default:
		}
	}
}

// extend notes that a lease ends later.
func (s *streams) extend(lckid string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to := s.jobs[lckid]; to != nil {
		to.until[lckid] = until
	}
}

// open returns how many jobs of a stream are not settled, and when the first of
// their leases ends.
func (s *streams) open(of *stream, now time.Time) (n int, first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lckid, until := range of.until {
		switch {
		case !until.After(now):
			s.forget(of, lckid)
		case first.IsZero() || until.Before(first):
			first = until
		}
	}
	return len(of.until), first
}

// end forgets a stream.
func (s *streams) end(of *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lckid := range of.until {
		s.forget(of, lckid)
	}
}

func (s *streams) forget(of *stream, lckid string) {
	delete(of.until, lckid)
	delete(s.jobs, lckid)
}
