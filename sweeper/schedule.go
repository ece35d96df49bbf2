package sweeper

import "time"

const (
	// pollInterval is how often to look at what may be overdue any moment: an old
	// transaction may take the lock of a job whose timeout it has exceeded already.
	pollInterval = 150 * time.Millisecond
	// The shortest timeout of the pending jobs is asked for again after itself, but not
	// more often than minProbe, nor less often than maxProbe where looks are frequent.
	minProbe = time.Second
	maxProbe = time.Minute
)

// watch decides when to look for transactions that hold the lock of a job for too long.
// All times are by the server's clock.
//
// What a look finds is exact: when the transactions that hold a lock then are overdue.
// Of what comes later it is known that no transaction is older than the oldest one that
// was open at the look, or than the look itself, and that none may have less time than
// the shortest timeout of the pending jobs: until both together have passed, there is
// nothing to see.
type watch struct {
	looked   time.Time     // when the last look began; zero: never
	since    time.Time     // when the oldest of the open transactions began, or later
	deadline time.Time     // of a transaction that holds a lock; zero: none is known
	shortest time.Duration // no pending job has a shorter timeout; 0: none is pending
	probed   time.Time     // when shortest was asked for
	blind    bool          // the last look could not see everything

	noted         time.Time     // when jobs were told of since the last look began; zero: none were
	notedShortest time.Duration // the shortest of their timeouts
	unsure        time.Time     // since when there may be jobs of which nothing is known; zero: there are none
}

// glance is what a look has found.
type glance struct {
	now      time.Time     // when it began
	deadline time.Time     // when the next of the transactions that hold a lock is overdue; zero: none does
	oldest   time.Time     // when the oldest open transaction began; zero: none is open
	shortest time.Duration // if it was asked for: the shortest timeout; 0: no job is pending
	complete bool          // all flows could be looked at
}

// jobs notes that jobs are pending, and the shortest of their timeouts.
func (w *watch) jobs(now time.Time, shortest time.Duration) {
	if w.noted.IsZero() {
		w.noted = now
	}
	w.notedShortest = shorter(w.notedShortest, shortest)
}

// changed notes that there may be jobs, with any timeout.
func (w *watch) changed(now time.Time) {
	if w.unsure.IsZero() {
		w.unsure = now
	}
}

// begin is to be called before a look, and tells whether to ask for the shortest
// timeout. The look sees what was noted before.
func (w *watch) begin(now time.Time) (probe bool) {
	w.shortest = shorter(w.shortest, w.notedShortest)
	w.noted, w.notedShortest = time.Time{}, 0
	if !w.unsure.IsZero() {
		w.unsure = time.Time{}
		return true
	}
	return w.probed.IsZero() || now.Before(w.probed) ||
		now.Sub(w.probed) >= min(max(w.shortest, minProbe), maxProbe)
}

// found takes what a look has found.
func (w *watch) found(g glance, probed bool) {
	w.looked, w.deadline, w.blind = g.now, g.deadline, !g.complete
	w.since = earliest(g.oldest, g.now)
	if probed && g.complete {
		w.shortest, w.probed = g.shortest, g.now
	}
}

// next returns when to look; zero: not before jobs are noted.
func (w *watch) next(now time.Time) time.Time {
	if w.looked.IsZero() || now.Before(w.looked) { // the clock was set back
		return now
	}
	at := w.deadline
	if w.shortest > 0 {
		at = earliest(at, latest(w.since.Add(w.shortest), w.looked.Add(pollInterval)))
	}
	if !w.noted.IsZero() {
		soon := latest(w.looked, w.noted).Add(pollInterval)
		at = earliest(at, latest(w.since.Add(w.notedShortest), soon))
	}
	if !w.unsure.IsZero() {
		at = earliest(at, latest(w.looked, w.unsure).Add(pollInterval))
	}
	if w.blind {
		at = earliest(at, w.looked.Add(pollInterval))
	}
	return at
}

// alarms decides when to sweep: to do what is due by the table of timers.
type alarms struct {
	asked bool      // the table was
	due   time.Time // the first timer that was in it; zero: there was none
	rest  time.Time // no sweep before

	// Transactions that have set timers, which a sweep may not have seen yet: they are
	// read from the log, and may not have ended for others.
	unseen map[uint32]struct{}
	first  time.Time // of their timers
	pause  time.Duration
}

const (
	maxUnseen  = 1000
	firstRest  = 10 * time.Millisecond
	lastRest   = time.Second
	workToRest = 200 * time.Millisecond // what is due and was not done is in somebody's hands
)

// set notes that a transaction has set timers.
func (a *alarms) set(at time.Time, xid uint32) {
	if a.unseen == nil {
		a.unseen = make(map[uint32]struct{})
	}
	a.unseen[xid] = struct{}{}
	a.first = earliest(a.first, at)
}

// next returns when to sweep; zero: not before a timer is set.
func (a *alarms) next(now time.Time) time.Time {
	switch {
	case !a.asked:
		return now
	case len(a.unseen) > maxUnseen:
		return latest(now, a.rest)
	}
	at := earliest(a.due, a.first)
	if at.IsZero() {
		return at
	}
	return latest(at, a.rest)
}

// round is a sweep that is under way: the transactions whose timers it sees if they
// have ended.
type round struct {
	xids  []uint32
	first time.Time
}

func (a *alarms) begin() round {
	r := round{first: a.first}
	for xid := range a.unseen {
		r.xids = append(r.xids, xid)
	}
	a.unseen, a.first = nil, time.Time{}
	return r
}

// undo gives back what a sweep that failed has taken.
func (a *alarms) undo(r round) {
	for _, xid := range r.xids {
		a.set(r.first, xid)
	}
}

// swept takes the outcome of a sweep: whether one of its transactions has not ended,
// how many timers were handled, when the next one is due (zero: there is none), and
// the time.
func (a *alarms) swept(r round, running bool, handled int, due, now time.Time) {
	a.asked, a.due, a.rest = true, due, time.Time{}
	if running {
		a.undo(r)
		a.pause = min(max(2*a.pause, firstRest), lastRest)
		if a.first.Before(now.Add(a.pause)) && handled == 0 {
			a.rest = now.Add(a.pause)
		}
		return
	}
	a.pause = 0
	switch {
	case handled > 0:
		a.due = now // there may be more
	case !due.IsZero() && !due.After(now):
		a.rest = now.Add(workToRest)
	}
}

// earliest returns the earlier time; zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// shorter returns the shorter duration; 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
