// Package timeline draws the life of one instance: which transitions it waited
// for and when, its states, what failed, and what is still to come.
package timeline

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const exceptionName = "_EXCPT"

// Life is what is known of an instance.
type Life struct {
	Flow   string
	WID    int64
	States []State // in their order; at least one
	Events []Event // in their order
	Jobs   []Job   // that pend now
	Timers []Timer // that run now
	Rules  map[int32]Rule
	Began  time.Time // when the transaction began that wrote the last state; zero if not known
	Now    time.Time
}

// Rule is as much of a rule as is shown.
type Rule struct{ Transition, Predicate string }

// State is a line of the history.
type State struct {
	Version int64
	At      time.Time
	Writer  string // empty: nobody, or who reopened it
	Fired   []string
	Pending []int32
	Status  string
	Error   string
	Changes []string // attribute=value
	Healed  bool     // states before are missing
}

// Event is a line of wed_event.
type Event struct {
	At         time.Time
	Version    int64 // -1: none
	TGID       int32 // 0: none
	Transition string
	What       string
	Role       string
	Held       time.Duration // 0: not known
	Detail     string
}

// Job is a row of job_pool.
type Job struct {
	TGID        int32
	Transition  string
	Attempts    int
	LastError   string
	AvailableAt time.Time // zero: at once
	LeasedUntil time.Time // zero: not leased
	LeasedBy    string
}

// Timer is a row of wed_timer.
type Timer struct {
	TGID  int32
	Kind  string
	DueAt time.Time
}

// Sort says what a bar shows.
type Sort int

const (
	Waiting Sort = iota // it pends, whether somebody works at it is not known
	Delayed             // its delay runs
	Working             // somebody is known to be at it
	Failed              // so was somebody, in vain
)

// Bar is a time in the life of a transition.
type Bar struct {
	Sort     Sort
	Rule     int32
	From, To time.Time
	Open     bool // goes on
	End      string
	Row      int
}

// Lane is a transition.
type Lane struct {
	Name  string
	Rules []int32
	Bars  []Bar
	Marks []Event // on it
	Rows  int
}

// Lanes returns the transitions of a life in the order in which they came to be due.
func (l *Life) Lanes() []Lane {
	b := builder{life: l, open: make(map[int32]time.Time), delayed: make(map[int32]bool), names: make(map[int32]string)}
	for tgid, r := range l.Rules {
		b.names[tgid] = r.Transition
	}
	var before []int32
	for i := range l.States {
		b.addState(&l.States[i], before)
		before = l.States[i].Pending
	}
	b.endOpen()
	b.addLeases()
	b.addEvents()
	for i := range b.lanes {
		b.lanes[i].arrange()
	}
	return b.lanes
}

// builder makes lanes of states and events.
type builder struct {
	life    *Life
	lanes   []Lane
	open    map[int32]time.Time // since when a rule pends
	delayed map[int32]bool
	names   map[int32]string
}

func (b *builder) lane(name string) *Lane {
	i := slices.IndexFunc(b.lanes, func(l Lane) bool { return l.Name == name })
	if i < 0 {
		b.lanes = append(b.lanes, Lane{Name: name})
		i = len(b.lanes) - 1
	}
	return &b.lanes[i]
}

func (b *builder) addState(s *State, before []int32) {
	var gone, again []int32
	for _, t := range before {
		switch {
		case !slices.Contains(s.Pending, t):
			gone = append(gone, t)
		case b.names[t] == s.Writer:
			again = append(again, t)
		}
	}
	byName := slices.ContainsFunc(gone, func(t int32) bool { return b.names[t] == s.Writer })
	for _, t := range gone {
		end := "withdrawn"
		switch {
		case b.names[t] == s.Writer:
			end = "done"
		case s.Status == "S":
			end = "suspended"
		case s.Writer == "_FAIL":
			end = "failed too often"
		case s.Writer == "_CANCEL":
			end = "cancelled"
		}
		b.close(t, s.At, end)
	}
	if !byName && len(again) == 1 { // it was done, and fired again
		b.close(again[0], s.At, "done")
	}
	for _, t := range s.Pending {
		if _, pends := b.open[t]; pends {
			continue
		}
		if _, known := b.names[t]; !known && slices.Contains(s.Fired, exceptionName) {
			b.names[t] = exceptionName
		}
		name := b.name(t)
		b.open[t] = s.At
		b.delayed[t] = b.life.Rules[t].Transition != "" && !slices.Contains(s.Fired, name)
		lane := b.lane(name)
		if !slices.Contains(lane.Rules, t) {
			lane.Rules = append(lane.Rules, t)
		}
	}
	if _, ok := b.life.writerName(s); ok && s.Writer != "" {
		b.lane(s.Writer)
	}
}

// writerName returns the transition that wrote a state; not ok if it was none.
func (l *Life) writerName(s *State) (name string, ok bool) {
	return s.Writer, s.Writer == exceptionName || s.Writer != "" && !strings.HasPrefix(s.Writer, "_")
}

func (b *builder) name(tgid int32) string {
	if n, ok := b.names[tgid]; ok && n != "" {
		return n
	}
	return "a rule that is gone"
}

// close ends what pends of a rule, which may have begun with its delay.
func (b *builder) close(tgid int32, at time.Time, end string) {
	from, ok := b.open[tgid]
	if !ok {
		return
	}
	b.addBars(tgid, from, at, end, false)
	delete(b.open, tgid)
}

func (b *builder) addBars(tgid int32, from, to time.Time, end string, open bool) {
	lane := b.lane(b.name(tgid))
	if b.delayed[tgid] {
		due, fired := b.fired(tgid, from, to)
		if !fired {
			lane.Bars = append(lane.Bars, Bar{Sort: Delayed, Rule: tgid, From: from, To: to, End: end, Open: open})
			return
		}
		lane.Bars = append(lane.Bars, Bar{Sort: Delayed, Rule: tgid, From: from, To: due, End: "due"})
		from = due
	}
	lane.Bars = append(lane.Bars, Bar{Sort: Waiting, Rule: tgid, From: from, To: to, End: end, Open: open})
}

// fired returns when the delay of a rule was over.
func (b *builder) fired(tgid int32, from, to time.Time) (at time.Time, ok bool) {
	for _, e := range b.life.Events {
		if e.What == "timer fired" && e.TGID == tgid && !e.At.Before(from) && !e.At.After(to) {
			return e.At, true
		}
	}
	return time.Time{}, false
}

// endOpen draws what pends still, up to now.
func (b *builder) endOpen() {
	tgids := make([]int32, 0, len(b.open))
	for t := range b.open {
		tgids = append(tgids, t)
	}
	slices.Sort(tgids)
	for _, t := range tgids {
		b.addBars(t, b.open[t], latest(b.life.Now, b.open[t]), "", true)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// addLeases adds the times in which somebody is known to have been at a job.
func (b *builder) addLeases() {
	for i, e := range b.life.Events {
		if e.What != "leased" {
			continue
		}
		to, sort, open, end := b.leaseEnd(i, e)
		lane := b.lane(b.eventName(e))
		lane.Bars = append(lane.Bars, Bar{Sort: sort, Rule: e.TGID, From: e.At, To: to, Open: open, End: end})
	}
	last := &b.life.States[len(b.life.States)-1]
	name, ok := b.life.writerName(last)
	if !ok || b.life.Began.IsZero() || !b.life.Began.Before(last.At) {
		return
	}
	lane := b.lane(name)
	for _, bar := range lane.Bars {
		if bar.Sort == Working && bar.To.Equal(last.At) { // a lease: its end is a transaction of a moment
			return
		}
	}
	for _, bar := range lane.Bars {
		if bar.Sort == Waiting && bar.End == "done" && bar.To.Equal(last.At) {
			lane.Bars = append(lane.Bars, Bar{Sort: Working, Rule: bar.Rule, From: latest(b.life.Began, bar.From), To: last.At, End: "done"})
			return
		}
	}
}

// leaseEnd returns how a lease ended.
func (b *builder) leaseEnd(i int, lease Event) (to time.Time, sort Sort, open bool, end string) {
	to, open = latest(b.life.Now, lease.At), true
	for _, l := range b.lanes {
		for _, bar := range l.Bars {
			if bar.Rule == lease.TGID && bar.Sort == Waiting && !lease.At.Before(bar.From) && !lease.At.After(bar.To) {
				to, open, end = bar.To, bar.Open, bar.End
			}
		}
	}
	for _, e := range b.life.Events[i+1:] {
		if e.TGID != lease.TGID || e.At.After(to) {
			continue
		}
		switch e.What {
		case "released":
			return e.At, Working, false, "released"
		case "failed", "lease ran out":
			return e.At, Failed, false, e.What
		}
	}
	return to, Working, open, end
}

// addEvents puts marks on the lanes, and the attempts that failed.
func (b *builder) addEvents() {
	for _, e := range b.life.Events {
		if e.Transition == "" || isIntervention(e.What) {
			continue
		}
		lane := b.lane(b.eventName(e))
		lane.Marks = append(lane.Marks, e)
		leased := slices.ContainsFunc(lane.Bars, func(bar Bar) bool { return bar.Sort == Failed && bar.To.Equal(e.At) })
		if isFailure(e.What) && e.Held > 0 && !leased {
			lane.Bars = append(lane.Bars, Bar{Sort: Failed, Rule: e.TGID, From: e.At.Add(-e.Held), To: e.At, End: e.What})
		}
	}
}

func (b *builder) eventName(e Event) string {
	if e.Transition != "" {
		return e.Transition
	}
	return b.name(e.TGID)
}

func isFailure(what string) bool {
	return slices.Contains([]string{"failed", "action failed", "timed out", "connection lost", "lease ran out"}, what)
}

func isIntervention(what string) bool {
	return slices.Contains([]string{
		"suspended", "resumed", "not resumed", "cancelled", "retried", "skipped", "repaired", "rewound", "compensated",
		"rematched", "reopened",
	}, what)
}

// arrange gives the bars of rules that pend at the same time rows of their own.
func (l *Lane) arrange() {
	slices.SortStableFunc(l.Bars, func(a, b Bar) int {
		return cmp.Or(cmp.Compare(base(a.Sort), base(b.Sort)), a.From.Compare(b.From))
	})
	l.Rows = 1
	var until []time.Time
	for i := range l.Bars {
		bar := &l.Bars[i]
		if base(bar.Sort) == 1 { // on what pends
			under := slices.IndexFunc(l.Bars[:i], func(b Bar) bool {
				return base(b.Sort) == 0 && b.Rule == bar.Rule && !bar.From.Before(b.From) && !bar.From.After(b.To)
			})
			if under >= 0 {
				bar.Row = l.Bars[under].Row
			}
			continue
		}
		at := slices.IndexFunc(until, func(t time.Time) bool { return !bar.From.Before(t) })
		if at < 0 {
			until = append(until, bar.To)
			at = len(until) - 1
		}
		until[at] = bar.To
		bar.Row = at
		l.Rows = max(l.Rows, at+1)
	}
}

// base is 0 for what pends, and 1 for what is drawn upon that.
func base(s Sort) int {
	if s == Working || s == Failed {
		return 1
	}
	return 0
}
