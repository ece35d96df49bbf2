package sweeper

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var zero time.Time

// at is a time of the test's day.
func at(d time.Duration) time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(d) }

func TestNextLook(t *testing.T) {
	t.Parallel()
	const s = time.Second
	looked := func(deadline, oldest time.Time, shortest time.Duration) func(*watch) {
		return func(w *watch) {
			w.begin(at(0))
			w.found(glance{now: at(0), deadline: deadline, oldest: oldest, shortest: shortest, complete: true}, true)
		}
	}
	tests := []struct {
		name  string
		given []func(*watch)
		now   time.Time
		want  time.Time
	}{
		{"at first it looks", nil, at(0), at(0)},
		{"nothing pends: not at all", []func(*watch){looked(zero, zero, 0)}, at(0), zero},
		{"nothing pends: not at all, whoever is there", []func(*watch){looked(zero, at(-3600*s), 0)}, at(0), zero},
		{"nobody is there: when somebody could be overdue", []func(*watch){looked(zero, zero, 10*s)}, at(0), at(10 * s)},
		{"an open transaction: when it could be overdue", []func(*watch){looked(zero, at(-4*s), 10*s)}, at(0), at(6 * s)},
		{"a holder: when it is overdue", []func(*watch){looked(at(3*s), at(-4*s), 10*s)}, at(0), at(3 * s)},
		{"a holder with more time than others would have", []func(*watch){looked(at(300*s), at(-4*s), 10*s)}, at(0), at(6 * s)},
		{"one that is older than the timeout: again and again", []func(*watch){looked(zero, at(-11*s), 10*s)}, at(0), at(pollInterval)},
		{"timeouts that are shorter than the bound", []func(*watch){looked(zero, zero, time.Millisecond)}, at(0), at(pollInterval)},
		{"a job with less time than any before", []func(*watch){looked(zero, zero, 60*s), jobs(1*s, 10*s)}, at(1 * s), at(10 * s)},
		{"a job with more time changes nothing", []func(*watch){looked(zero, zero, 10*s), jobs(1*s, 60*s)}, at(1 * s), at(10 * s)},
		{"the first job in a long time", []func(*watch){looked(zero, zero, 0), jobs(600*s, 10*s)}, at(600 * s), at(600*s + pollInterval)},
		{"the first job, and nobody can be overdue yet", []func(*watch){looked(zero, zero, 0), jobs(2*s, 10*s)}, at(2 * s), at(10 * s)},
		{"more jobs do not put it off", []func(*watch){looked(zero, zero, 0), jobs(600*s, 10*s), jobs(601*s, 5*s)}, at(601 * s), at(600*s + pollInterval)},
		{"the clock was set back", []func(*watch){looked(at(3*s), zero, 10*s)}, at(-s), at(-s)},
		{"a flow could not be looked at", []func(*watch){func(w *watch) {
			w.begin(at(0))
			w.found(glance{now: at(0)}, true)
		}}, at(0), at(pollInterval)},
		{"there may be jobs of which nothing is known", []func(*watch){looked(zero, zero, 0), func(w *watch) { w.changed(at(600 * s)) }}, at(600 * s), at(600*s + pollInterval)},
		{"what is noted during a look counts after it", []func(*watch){func(w *watch) {
			w.begin(at(0))
			w.jobs(at(0), 10*s)
			w.found(glance{now: at(0), complete: true}, true)
		}}, at(0), at(10 * s)},
		{"a look that failed has seen nothing", []func(*watch){looked(zero, zero, 0), jobs(600*s, 10*s), func(w *watch) { w.begin(at(601 * s)) }}, at(601 * s), at(10 * s)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var w watch
			for _, f := range tt.given {
				f(&w)
			}
			if got := w.next(tt.now); !got.Equal(tt.want) {
				t.Errorf("next look at %v, want %v", got, tt.want)
			}
		})
	}
}

func jobs(now, shortest time.Duration) func(*watch) {
	return func(w *watch) { w.jobs(at(now), shortest) }
}

// world is a server with jobs and with transactions that take their locks, which the
// watch watches.
type world struct {
	jobs         []*job
	transactions []*transaction
}

type job struct {
	timeout     time.Duration
	fired, done time.Time
}

type transaction struct {
	begun, locks, ends time.Time
	job                *job
	gone               time.Time // when the watch has ended it
}

func (x *transaction) open(now time.Time) bool {
	return x.gone.IsZero() && !now.Before(x.begun) && now.Before(x.ends)
}

func (x *transaction) holds(now time.Time) bool { return x.open(now) && !now.Before(x.locks) }

func (j *job) pending(now time.Time) bool { return !now.Before(j.fired) && now.Before(j.done) }

func (x *transaction) deadline() time.Time { return x.begun.Add(x.job.timeout) }

func (w *world) look(now time.Time) glance {
	g := glance{now: now, complete: true}
	for _, x := range w.transactions {
		if x.holds(now) && x.job.pending(now) {
			if x.deadline().After(now) {
				g.deadline = earliest(g.deadline, x.deadline())
			} else {
				x.gone = now
			}
		}
		if x.open(now) {
			g.oldest = earliest(g.oldest, x.begun)
		}
	}
	for _, j := range w.jobs {
		if j.pending(now) {
			g.shortest = shorter(g.shortest, j.timeout)
		}
	}
	return g
}

// run has the watch watch for so long, and returns how often it looked.
func (w *world) run(t *testing.T, length time.Duration) (looks int) {
	t.Helper()
	slices.SortFunc(w.jobs, func(a, b *job) int { return a.fired.Compare(b.fired) })
	told := 0
	var watch watch
	for now := at(0); now.Before(at(length)); {
		next := watch.next(now)
		if next.IsZero() {
			next = at(length)
		}
		if told < len(w.jobs) && !w.jobs[told].fired.After(next) {
			now = latest(now, w.jobs[told].fired)
			watch.jobs(now, w.jobs[told].timeout)
			told++
			continue
		}
		if now = latest(now, next); !now.Before(at(length)) {
			break
		}
		probed := watch.begin(now)
		g := w.look(now)
		if !probed {
			g.shortest = 0
		}
		watch.found(g, probed)
		looks++
	}
	for _, x := range w.transactions {
		from := latest(latest(x.deadline(), x.locks), x.job.fired)
		last := earliest(earliest(x.ends, x.job.done), at(length))
		switch {
		case !x.gone.IsZero() && x.gone.Before(x.deadline()):
			t.Errorf("ended %v early: %v", x.deadline().Sub(x.gone), x)
		case x.gone.IsZero() && last.Sub(from) > bound:
			t.Errorf("not ended for %v: %v", last.Sub(from), x)
		case !x.gone.IsZero() && x.gone.Sub(from) > bound:
			t.Errorf("ended %v late: %v", x.gone.Sub(from), x)
		}
	}
	return looks
}

func (x *transaction) String() string {
	return fmt.Sprintf("begun %v, locks %v, ends %v, timeout %v", x.begun.Sub(at(0)), x.locks.Sub(at(0)), x.ends.Sub(at(0)), x.job.timeout)
}

// bound is what the schedule may add to the time that a look takes.
const bound = pollInterval

func TestNobodyIsEndedLateOrEarly(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		const length = 5 * time.Minute
		within := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
		// some worlds are busy, some hardly ever have anything; timeouts of all sizes
		longest := []time.Duration{50 * time.Millisecond, time.Second, 20 * time.Second, 3 * time.Minute}[r.IntN(4)]
		var w world
		for range 1 + r.IntN(40) {
			j := &job{timeout: 1 + within(longest), fired: at(within(length))}
			j.done = j.fired.Add(within(length))
			w.jobs = append(w.jobs, j)
		}
		for range 1 + r.IntN(40) {
			x := &transaction{job: w.jobs[r.IntN(len(w.jobs))]}
			x.begun = at(within(length+longest) - longest)
			x.locks = x.begun.Add(within(1 + 2*longest))
			x.ends = x.locks.Add(within(1 + 2*longest))
			w.transactions = append(w.transactions, x)
		}
		w.run(t, length)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestLooksAreRare(t *testing.T) {
	t.Parallel()
	const length = time.Hour
	honest := func(w *world, timeout time.Duration) { // a worker that is always at it
		for d := time.Duration(0); d < length; d += 100 * time.Millisecond {
			j := &job{timeout: timeout, fired: at(d), done: at(d + 50*time.Millisecond)}
			w.jobs = append(w.jobs, j)
			w.transactions = append(w.transactions, &transaction{job: j, begun: at(d + 10*time.Millisecond), locks: at(d + 11*time.Millisecond), ends: j.done})
		}
	}
	tests := []struct {
		name  string
		world func(*world)
		most  int
	}{
		{"nothing", func(*world) {}, 1},
		{"a job that nobody takes", func(w *world) {
			w.jobs = []*job{{timeout: time.Minute, fired: at(0), done: at(length)}}
		}, 61},
		{"one job that is done at once", func(w *world) {
			w.jobs = []*job{{timeout: time.Minute, fired: at(30 * time.Minute), done: at(30*time.Minute + time.Second)}}
		}, 3},
		{"36,000 jobs", func(w *world) { honest(w, time.Minute) }, 62},
		{"36,000 jobs with little time", func(w *world) { honest(w, 10*time.Second) }, 370},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var w world
			tt.world(&w)
			if looks := w.run(t, length); looks > tt.most {
				t.Errorf("%d looks in %v, want at most %d", looks, length, tt.most)
			}
		})
	}
}

func TestNextSweep(t *testing.T) {
	t.Parallel()
	const s = time.Second
	sweep := func(running bool, handled int, due, now time.Time) func(*alarms) {
		return func(a *alarms) { a.swept(a.begin(), running, handled, due, now) }
	}
	set := func(due time.Time, xid uint32) func(*alarms) { return func(a *alarms) { a.set(due, xid) } }
	first := sweep(false, 0, zero, at(0))
	tests := []struct {
		name  string
		given []func(*alarms)
		now   time.Time
		want  time.Time
	}{
		{"at first it asks", nil, at(0), at(0)},
		{"there is no timer", []func(*alarms){first}, at(0), zero},
		{"the first timer of the table", []func(*alarms){sweep(false, 0, at(9*s), at(0))}, at(0), at(9 * s)},
		{"one that was set since", []func(*alarms){sweep(false, 0, at(9*s), at(0)), set(at(5*s), 1)}, at(0), at(5 * s)},
		{"one that is due already", []func(*alarms){first, set(at(-s), 1)}, at(0), at(-s)},
		{"one whose transaction has not ended for others", []func(*alarms){first, set(at(-s), 1), sweep(true, 0, zero, at(0))}, at(0), at(firstRest)},
		{"... it is not forgotten", []func(*alarms){first, set(at(9*s), 1), sweep(true, 0, zero, at(0))}, at(0), at(9 * s)},
		{"... and keeps no other waiting", []func(*alarms){first, set(at(9*s), 1), sweep(true, 0, at(s), at(0))}, at(0), at(s)},
		{"what was handled may not be all", []func(*alarms){sweep(false, 100, at(9*s), at(0))}, at(0), at(0)},
		{"what is due is in use", []func(*alarms){sweep(false, 0, at(-s), at(0))}, at(0), at(workToRest)},
		{"a sweep that failed has done nothing", []func(*alarms){first, set(at(5*s), 1), func(a *alarms) { a.undo(a.begin()) }}, at(0), at(5 * s)},
		{"set during a sweep", []func(*alarms){first, func(a *alarms) {
			r := a.begin()
			a.set(at(5*s), 1)
			a.swept(r, false, 0, zero, at(0))
		}}, at(0), at(5 * s)},
		{"so many transactions that they are looked after", []func(*alarms){first, func(a *alarms) {
			for xid := range uint32(maxUnseen + 1) {
				a.set(at(3600*s), xid)
			}
		}}, at(0), at(0)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var a alarms
			for _, f := range tt.given {
				f(&a)
			}
			got := a.next(tt.now)
			if !got.Equal(tt.want) {
				t.Errorf("next sweep at %v, want %v", got, tt.want)
			}
		})
	}
}

func TestTransactionsThatDoNotEndAreAskedForLessAndLess(t *testing.T) {
	t.Parallel()
	var a alarms
	a.swept(a.begin(), false, 0, zero, at(0))
	a.set(at(0), 7)
	now, sweeps := at(0), 0
	for now.Before(at(time.Minute)) {
		now = latest(now, a.next(now))
		r := a.begin()
		if !slices.Contains(r.xids, 7) {
			t.Fatalf("the transaction was forgotten after %v", now.Sub(at(0)))
		}
		a.swept(r, true, 0, zero, now)
		sweeps++
	}
	if most := 60 + 10; sweeps > most {
		t.Errorf("%d sweeps in a minute, want at most %d", sweeps, most)
	}
	a.swept(a.begin(), false, 1, zero, now)
	a.swept(a.begin(), false, 0, zero, now)
	if next := a.next(now); !next.IsZero() {
		t.Errorf("next sweep at %v", next)
	}
}

func TestShorterAndEarliestKnowNone(t *testing.T) {
	t.Parallel()
	if got := cmp.Or(shorter(0, 5), -1); got != 5 || shorter(5, 0) != 5 || shorter(5, 3) != 3 {
		t.Error("shorter")
	}
	if !earliest(zero, at(1)).Equal(at(1)) || !earliest(at(1), zero).Equal(at(1)) || !earliest(at(1), at(0)).Equal(at(0)) {
		t.Error("earliest")
	}
}
