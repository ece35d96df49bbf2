package sweeper

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// server is a [Session], and all that there is behind it.
type server struct {
	mu       sync.Mutex
	steps    int
	open     int
	opened   int
	looks    []time.Duration // since the start
	counts   int
	sweeps   []time.Duration
	start    time.Time
	overdue  func(probe bool) Overdue
	timers   []time.Time
	running  bool
	refuse   error
	panics   bool
	slow     time.Duration
	problem  string
	clock    time.Duration // ahead of ours
	handleds []int
}

func newServer() *server {
	return &server{start: time.Now(), overdue: func(bool) Overdue { return Overdue{} }}
}

func (s *server) connect(context.Context) (Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	s.open++
	s.opened++
	return s, nil
}

func (s *server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	return nil
}

func (s *server) EndOverdue(_ context.Context, probe bool) (Overdue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return Overdue{}, s.refuse
	}
	if s.panics {
		panic("a bug")
	}
	now := time.Now()
	s.looks = append(s.looks, now.Sub(s.start))
	o := s.overdue(probe)
	o.Now, o.Complete = now.Add(s.clock), true
	return o, nil
}

func (s *server) CountLost(context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts++
	return 0, s.refuse
}

func (s *server) AnyRunning(context.Context, []uint32) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running, s.refuse
}

func (s *server) Do(context.Context, Timer) (string, error) { return "", nil }

func (s *server) PutOff(context.Context, Timer) error { return nil }

func (s *server) Sweep(_ context.Context, most int, _ int32) (Swept, error) {
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	time.Sleep(slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return Swept{}, s.refuse
	}
	now := time.Now()
	w := Swept{Now: now.Add(s.clock), Problem: s.problem}
	s.sweeps = append(s.sweeps, now.Sub(s.start))
	var rest []time.Time
	for _, t := range s.timers {
		if !s.running && !t.After(w.Now) && w.Handled < most {
			w.Handled++
		} else {
			rest = append(rest, t)
			if !s.running {
				w.NextDue = earliest(w.NextDue, t)
			}
		}
	}
	s.timers = rest
	s.handleds = append(s.handleds, w.Handled)
	return w, nil
}

// in runs a sweeper for the time of f, which has a clock of its own.
func in(t *testing.T, f func(t *testing.T, s *server, w *Sweeper, log *strings.Builder, warning *string)) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var log strings.Builder
		var warning string
		w := New(Settings{
			Open: s.connect,
			Log:  slog.New(slog.NewTextHandler(&log, nil)),
			Warn: func(text string) { warning = text },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		synctest.Wait()
		f(t, s, w, &log, &warning)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		if s.open != 0 {
			t.Errorf("%d sessions are left open", s.open)
		}
	})
}

// after lets time pass. What the test has done to the server is done before.
func (s *server) after(d time.Duration) {
	s.mu.Lock()
	s.steps++
	s.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
}

func TestItAsksOnceAndLeaves(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, _ *Sweeper, _ *strings.Builder, _ *string) {
		if len(s.looks) != 1 || len(s.sweeps) != 1 || s.counts != 1 || s.open != 0 {
			t.Errorf("%d looks, %d sweeps, %d counts, %d sessions open", len(s.looks), len(s.sweeps), s.counts, s.open)
		}
		s.after(24 * time.Hour)
		if len(s.looks) != 1 || len(s.sweeps) != 1 || s.opened != 2 {
			t.Errorf("with nothing pending, %d looks and %d sweeps in a day", len(s.looks), len(s.sweeps))
		}
	})
}

func TestADeadlineIsMetExactly(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} { // the server's clock
		in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
			s.after(time.Hour)
			s.clock = ahead
			deadline := time.Now().Add(1234 * time.Millisecond)
			s.overdue = func(bool) Overdue {
				o := Overdue{Shortest: 10 * time.Second}
				if now := time.Now(); now.Before(deadline) {
					o.Deadline = deadline.Add(ahead)
				}
				return o
			}
			w.Jobs(10 * time.Second)
			s.after(2 * time.Second)
			if n := len(s.looks); n != 3 || s.looks[1] != time.Hour+pollInterval || s.looks[2] != deadline.Sub(s.start) {
				t.Errorf("with a clock that is %v ahead it looked at %v", ahead, s.looks)
			}
		})
	}
}

func TestTheSessionIsGivenBack(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		pending := 10 * time.Second
		s.overdue = func(bool) Overdue { return Overdue{Shortest: pending} }
		w.Jobs(pending)
		s.after(10 * time.Minute)
		if s.open != 1 || s.opened != 3 {
			t.Errorf("while jobs pend, %d sessions of %d are open", s.open, s.opened)
		}
		pending = 0
		s.after(10 * time.Second)
		looks := len(s.looks)
		s.after(59 * time.Second)
		if s.open != 1 {
			t.Error("the session was closed at once")
		}
		s.after(time.Second)
		if s.open != 0 || len(s.looks) != looks {
			t.Errorf("with nothing pending, %d sessions are open, and there were %d looks", s.open, len(s.looks)-looks)
		}
	})
}

func TestLostJobsAreCountedAtOnce(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		s.after(time.Hour)
		w.Lost()
		s.after(0)
		if s.counts != 2 {
			t.Errorf("%d counts", s.counts)
		}
		s.refuse = errors.New("no")
		w.Lost()
		s.after(time.Second)
		s.refuse = nil
		s.after(10 * time.Second)
		if s.counts < 3 {
			t.Error("what could not be counted was forgotten")
		}
	})
}

func TestTimersAreHandledInTime(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		due := time.Now().Add(36 * time.Hour)
		s.timers = []time.Time{due}
		w.Due(due, 7)
		s.after(36*time.Hour - time.Millisecond)
		if len(s.sweeps) != 1 || s.open != 0 {
			t.Errorf("before anything is due, %d sweeps, and %d sessions open", len(s.sweeps), s.open)
		}
		s.after(time.Millisecond)
		if len(s.timers) != 0 || s.sweeps[1] != 36*time.Hour {
			t.Errorf("%d timers left, sweeps at %v", len(s.timers), s.sweeps)
		}
	})
}

func TestTheClockIsSetForward(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		due := time.Now().Add(36 * time.Hour)
		s.timers = []time.Time{due}
		w.Due(due, 7)
		s.after(time.Second)
		w.mu.Lock()
		w.ahead = 48 * time.Hour // as if our own had been set, too
		w.mu.Unlock()
		s.clock = 48 * time.Hour
		s.after(maxSleep)
		if len(s.timers) != 0 {
			t.Error("what became due by a change of the clock was not handled")
		}
	})
}

func TestTimersOfATransactionThatIsNotOverYet(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		s.running = true
		s.timers = []time.Time{time.Now()}
		w.Due(time.Now(), 7)
		s.after(10 * time.Second)
		if n := len(s.sweeps); n > 30 {
			t.Errorf("%d sweeps in 10 s", n)
		}
		s.running = false
		s.after(lastRest)
		if len(s.timers) != 0 {
			t.Error("a timer was forgotten")
		}
	})
}

func TestSweepsAreAsLargeAsTheyMayLast(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		many := func(n int) {
			for range n {
				s.timers = append(s.timers, time.Now())
			}
			s.handleds = nil
			w.Due(time.Now(), 7)
			s.after(time.Hour)
		}
		many(20_000)
		if n := len(s.handleds); n > 20 {
			t.Errorf("%d sweeps for 20,000 timers that take no time", n)
		}
		s.slow = 2 * sweepTime
		many(1000)
		if last := s.handleds[len(s.handleds)/2]; last > 10 {
			t.Errorf("%d timers in a sweep, though one takes %v", last, s.slow)
		}
	})
}

func TestAProblemIsToldOnce(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, log *strings.Builder, _ *string) {
		s.problem = "division by zero"
		for range 20 {
			s.timers = append(s.timers, time.Now())
			w.Due(time.Now(), 7)
			s.after(time.Second)
		}
		if n := strings.Count(log.String(), "division by zero"); n != 1 {
			t.Errorf("told %d times: %s", n, log)
		}
	})
}

func TestItFailsQuietlyAndRecovers(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		in(t, func(t *testing.T, s *server, w *Sweeper, log *strings.Builder, warning *string) {
			s.overdue = func(bool) Overdue { return Overdue{Shortest: time.Second} }
			if s.panics = panics; !panics {
				s.refuse = errors.New("the connection was refused")
			}
			w.Jobs(time.Second)
			s.after(3 * time.Second)
			if log.Len() > 0 || *warning != "" {
				t.Errorf("a short trouble was told: %s %s", log, *warning)
			}
			s.after(time.Hour)
			if n := strings.Count(log.String(), "will try again"); n != 1 || !strings.Contains(*warning, "cannot see to the timeouts") {
				t.Errorf("a long one was told %d times, and as %q: %s", n, *warning, log)
			}
			s.refuse, s.panics = nil, false
			looks := len(s.looks)
			s.after(2 * lastPause)
			if len(s.looks) == looks || *warning != "" || !strings.Contains(log.String(), "again\n") && !strings.Contains(log.String(), "timeouts again") {
				t.Errorf("it did not recover: %d looks, %q, %s", len(s.looks)-looks, *warning, log)
			}
		})
	}
}

func TestJobsThatTimersHaveFiredAreLookedAt(t *testing.T) {
	t.Parallel()
	in(t, func(t *testing.T, s *server, w *Sweeper, _ *strings.Builder, _ *string) {
		s.after(time.Hour)
		fires := time.Now().Add(time.Minute)
		s.timers = []time.Time{fires}
		s.overdue = func(probe bool) (o Overdue) {
			if probe && !time.Now().Before(fires) {
				o.Shortest = time.Second
			}
			return o
		}
		w.Due(fires, 7)
		s.after(time.Minute + 2*time.Second)
		want := time.Hour + time.Minute + pollInterval
		if len(s.looks) < 3 || s.looks[1] != want || s.looks[2] != want+time.Second {
			t.Errorf("looks at %v, want them at %v and a second later", s.looks, want)
		}
	})
}
