package judge

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
)

// Flow is what must be known of a flow.
type Flow struct {
	Definitions map[int64]*flow.Definition // by version of the rules
	Exception   int32                      // its own rule for _EXCPT
	MaxStates   int
	Gaps        bool // lines may be missing that a later one makes up for: the follower has lost its place
	Clock       bool // the server's clock was moved: times that are not of wed_trace say nothing
}

// State is one that was recorded when it was written.
type State struct {
	XID   string
	State json.RawMessage
	Rules int64 // version of the rules by which it says it was judged
	Low   int64 // version whose commit had returned before
	High  int64 // version that could be seen after
	By    int32 // the rule that it says it is by: used only to tell those apart that might be
	At    time.Time
}

// Write is what a worker says that it has written.
type Write struct {
	XID        string
	TGID       int32  // 0: by the transition's name, or an initial state
	Transition string // "": an initial state
	Set        map[string]*string
	Protocol   string
}

// Line of wed_trace.
type Line struct {
	Version int64
	State   json.RawMessage
	Trw     *string
	Trf     []string
	Status  string
	At      time.Time
	Pending []int32
	Error   *string
	Healed  bool
}

// Job is a row of job_pool.
type Job struct {
	TGID       int32
	Transition string
	Version    int64
	Payload    json.RawMessage
}

// Event is a line of wed_event.
type Event struct {
	TGID    int32
	Version int64
	Event   string
	Held    time.Duration // how long somebody had had the job
	At      time.Time
}

// Instance is all that there is of one, at one moment.
type Instance struct {
	WID    int64
	States []State // in the order in which they were written
	Writes []Write // in the order in which they were written
	Lines  []Line
	Jobs   []Job
	Events []Event
	Status string // of wed_instance
}

// Finding is what the judge has found out of an instance.
type Finding struct {
	Violations []string
	Judged     int            // states
	Lines      int            // that were compared
	Notify     map[int32]int  // how often workers must have been told of a rule, at the least
	Pended     map[int32]bool // rules that pended at some time
	ByProtocol map[string]int
	Status     string // of the last state
	Unfinished bool   // lines are missing without which it could not be judged to its end
	Events     map[string]int
}

func (f *Flow) transition(d *flow.Definition, tgid int32) string {
	if tgid == f.Exception {
		return flow.Exception
	}
	return f.rule(d, tgid).Transition
}

// rule is a rule as it is in force or, if it is not, as it was last.
func (f *Flow) rule(d *flow.Definition, tgid int32) *flow.Rule {
	find := func(d *flow.Definition) *flow.Rule {
		i := slices.IndexFunc(d.Rules, func(r *flow.Rule) bool { return r.TGID == tgid })
		if i < 0 {
			return nil
		}
		return d.Rules[i]
	}
	if r := find(d); r != nil {
		return r
	}
	var last *flow.Definition
	for _, other := range f.Definitions {
		if other.Version < d.Version && (last == nil || other.Version > last.Version) && find(other) != nil {
			last = other
		}
	}
	if last == nil {
		return &flow.Rule{TGID: tgid, Transition: fmt.Sprintf("unknown rule %d", tgid)}
	}
	return find(last)
}

// trial is the judgement of one instance.
type trial struct {
	*Flow
	of    *Instance
	lines map[int64]*Line
	found Finding
	last  int64 // version of the last line
	prior predicate.State
	// writes that belong to no state yet, by transaction
	writes map[string][]Write
}

// Judge compares all that there is of an instance. If quiet, the engine is said to have seen all of it.
func (f *Flow) Judge(of *Instance, quiet bool) Finding {
	t := &trial{Flow: f, of: of, lines: map[int64]*Line{}, last: -1, writes: map[string][]Write{}}
	t.found.Pended, t.found.Notify, t.found.ByProtocol, t.found.Events = map[int32]bool{}, map[int32]int{}, map[string]int{}, map[string]int{}
	for _, e := range of.Events {
		t.found.Events[e.Event]++
		if e.Event == "timed out" && !f.Clock && e.Held < t.shortestTimeout() {
			t.said(int(e.Version), "a transaction with a job of rule %d was ended after %v, before the time of any job was up", e.TGID, e.Held)
		}
	}
	for _, w := range of.Writes {
		t.writes[w.XID] = append(t.writes[w.XID], w)
	}
	t.takeLines()
	i := &instance{flow: f, pool: map[int32]pending{}, withdrawn: map[job]bool{}}
	complete := true
	for k := range of.States {
		if complete = t.state(i, k); !complete {
			break // it cannot be known who wrote it before the engine has seen it
		}
	}
	if quiet && !complete && t.Gaps {
		t.found.Unfinished = true
	} else if quiet && !complete {
		t.said(len(of.States)-1, "it is not known who wrote a state that was to be seen by now")
	}
	if complete {
		t.leftOver(i)
	}
	return t.found
}

func (t *trial) said(version int, format string, args ...any) {
	t.found.Violations = append(t.found.Violations, fmt.Sprintf("state %d: ", version)+fmt.Sprintf(format, args...))
}

// takeLines finds lines that are there twice, out of order in time, or of no state.
func (t *trial) takeLines() {
	var before time.Time
	for i := range t.of.Lines {
		l := &t.of.Lines[i]
		if t.lines[l.Version] != nil {
			t.said(int(l.Version), "it has two lines in wed_trace")
		}
		if l.Version < 0 || l.Version >= int64(len(t.of.States)) {
			t.said(int(l.Version), "it has a line in wed_trace, and was never written")
		}
		if i > 0 && !l.At.After(before) {
			t.said(int(l.Version), "its time %v is not after that of the line before it, %v", l.At, before)
		}
		before = l.At
		t.lines[l.Version] = l
		t.last = max(t.last, l.Version)
	}
}

// state judges the k-th state; false if that is not possible yet.
func (t *trial) state(i *instance, k int) bool {
	s := &t.of.States[k]
	line := t.lines[int64(k)]
	rules := t.Definitions[s.Rules]
	if rules == nil {
		t.said(k, "it was judged by version %d of the rules, which was never in force", s.Rules)
		return true
	}
	if s.Rules < s.Low || s.Rules > s.High {
		t.said(k, "it was judged by version %d of the rules; in force were those from %d to %d", s.Rules, s.Low, s.High)
	}
	values, err := rules.State(s.State)
	if err != nil {
		t.said(k, "%v", err)
		return true
	}
	judged, err := rules.Judge(values)
	if err != nil {
		t.said(k, "the judge does not understand a condition: %v", err)
		return true
	}

	st := step{number: k, at: s.At, rules: rules, state: verdict{judged.Final, judged.Failed, judged.Due}}
	st.said = func(what string) { t.said(k, "%s", what) }
	st.fired = func(j job) bool { return t.delayOver(j, s.At) || line == nil && t.actionDue(j, s.At) }
	st.remains = func(p job) bool {
		if line == nil {
			return t.delayOver(p, s.At) || t.actionDue(p, s.At) && t.goesOn(p.tgid, k)
		}
		return slices.Contains(line.Pending, p.tgid)
	}
	known := t.writer(i, k, line, values, rules, &st)
	if !known {
		return false
	}
	if k == 0 && !judged.Final && !judged.Failed && len(judged.Due) == 0 {
		t.said(k, "an instance was started in a state that satisfies no condition")
	}
	if line == nil && int64(k) > t.last && i.hasClock() {
		return false // which of them had run down is not known yet
	}
	before := maps.Clone(i.pool)
	out := i.next(st)
	t.prior = values
	t.found.Judged++
	t.found.Status = out.status
	t.compare(k, line, out)
	for _, tgid := range out.pending {
		t.found.Pended[tgid] = true
	}
	for _, tgid := range out.notify {
		if line != nil && !line.Healed {
			t.found.Notify[tgid]++
		}
	}
	for tgid, p := range before { // the engine may have read both at once
		if i.withdrawn[job{tgid, p.since}] && t.found.Notify[tgid] > 0 {
			t.found.Notify[tgid]--
		}
	}
	return true
}

func (i *instance) hasClock() bool {
	for _, p := range i.pool {
		if p.clock {
			return true
		}
	}
	return false
}

// delayOver says whether a job is known to have been fired after its delay, before a time.
func (t *trial) delayOver(j job, before time.Time) bool {
	for _, e := range t.of.Events {
		if e.Event == "timer fired" && e.TGID == j.tgid && e.Version == int64(j.version) && (t.Clock || !e.At.After(before)) {
			rule := t.rule(t.Definitions[t.of.States[j.version].Rules], j.tgid)
			if early := rule.Delay - e.At.Sub(t.of.States[j.version].At); early > 0 && !t.Clock {
				t.said(j.version, "the delay of rule %d was over %v too early", j.tgid, early)
			}
			return true
		}
	}
	return false
}

// actionDue says whether a job is an action's whose delay was over at a time.
func (t *trial) actionDue(j job, at time.Time) bool {
	rule := t.rule(t.Definitions[t.of.States[j.version].Rules], j.tgid)
	return rule.Action != nil && at.Sub(t.of.States[j.version].At) >= rule.Delay
}

// goesOn says whether a job of an action that was due at the k-th state, whose line is missing, had been fired: then it pends in
// the line that ends the gap, or was performed before that. The engine may have come too late, or not at all. What is due
// anew within the gap pends there for that reason.
func (t *trial) goesOn(tgid int32, k int) bool {
	for n := k + 1; n < len(t.of.States); n++ {
		if t.of.States[n].By == tgid {
			return true
		}
		if t.isDue(tgid, n) {
			return false
		}
		if line := t.lines[int64(n)]; line != nil {
			return slices.Contains(line.Pending, tgid)
		}
	}
	return false
}

// isDue says whether the condition of a rule holds at the n-th state.
func (t *trial) isDue(tgid int32, n int) bool {
	rules := t.Definitions[t.of.States[n].Rules]
	if rules == nil {
		return false
	}
	values, err := rules.State(t.of.States[n].State)
	if err != nil {
		return false
	}
	judged, err := rules.Judge(values)
	return err == nil && slices.ContainsFunc(judged.Due, func(r *flow.Rule) bool { return r.TGID == tgid })
}

// writer finds out who wrote the k-th state; false if that cannot be known yet.
func (t *trial) writer(i *instance, k int, line *Line, values predicate.State, rules *flow.Definition, st *step) bool {
	s := &t.of.States[k]
	mine := t.writes[s.XID]
	if len(mine) > 0 {
		w := mine[0]
		t.writes[s.XID] = mine[1:]
		t.found.ByProtocol[w.Protocol]++
		t.checkSet(k, w.Set, values, rules)
		if (k == 0) != (w.Transition == "") {
			t.said(k, "it was written as %q by %s", w.Transition, w.Protocol)
			return true
		}
		if k == 0 {
			return true
		}
		st.by = w.TGID
		if st.by == 0 {
			st.by = t.anyOf(i, st, func(r *flow.Rule) bool { return r.Transition == w.Transition })
			if st.by == 0 {
				t.said(k, "it was written by a signal for %q, which was not pending", w.Transition)
			}
		}
		return true
	}
	if k == 0 {
		t.said(k, "nobody says that he has started the instance")
		return true
	}
	if line == nil {
		return t.Gaps && t.actionInGap(i, values, st)
	}
	t.engine(i, k, line, values, st)
	return true
}

// actionInGap finds the action that wrote a state whose line is missing; false if it was none.
func (t *trial) actionInGap(i *instance, values predicate.State, st *step) bool {
	by := t.of.States[st.number].By
	if _, pends := i.pool[by]; !pends || by == t.Exception || !t.didSet(by, values, st.rules) {
		return false
	}
	st.by = by
	t.found.ByProtocol["action"]++
	return true
}

// engine finds out what the engine has done, where no worker says that he has written the state.
func (t *trial) engine(i *instance, k int, line *Line, values predicate.State, st *step) {
	s, rules := &t.of.States[k], st.rules
	switch {
	case line.Trw == nil:
		t.said(k, "nobody has written it, and the history does not say who")
	case *line.Trw == "_FAIL":
		t.found.ByProtocol["attempts used up"]++
		t.checkSet(k, nil, values, rules)
		for tgid := range i.pool {
			if tgid != t.Exception && t.mostAttempts(tgid) > 0 && !slices.Contains(line.Pending, tgid) {
				st.gaveUp = tgid
			}
		}
		if st.gaveUp == 0 {
			t.said(k, "attempts are said to be used up, but of no rule that was pending")
		}
	default:
		t.found.ByProtocol["action"]++
		st.fired = func(j job) bool { // an action notes it when it is done
			return t.Clock || t.delayOver(j, s.At) || t.actionDue(j, s.At)
		}
		st.by = t.anyOf(i, st, func(r *flow.Rule) bool {
			return r.Transition == *line.Trw && t.didSet(r.TGID, values, st.rules)
		})
		if st.by == 0 {
			t.said(k, "it was written by %q, says the history, but no worker says so, and no action that was pending does it", *line.Trw)
		}
	}
}

// mostAttempts is the largest number of attempts that a rule has ever had; 0: it had no limit.
func (t *trial) mostAttempts(tgid int32) int {
	most := 0
	for _, d := range t.Definitions {
		for _, r := range d.Rules {
			if r.TGID == tgid {
				most = max(most, r.MaxAttempts)
			}
		}
	}
	return most
}

// shortestTimeout is the shortest that a rule of the flow has ever had: one transaction may have had jobs of several.
func (t *trial) shortestTimeout() time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, d := range t.Definitions {
		for _, r := range d.Rules {
			shortest = min(shortest, r.Timeout)
		}
	}
	return shortest
}

// didSet says whether an action that the rule has had leads from the state before to these values.
func (t *trial) didSet(tgid int32, values predicate.State, rules *flow.Definition) bool {
	for _, d := range t.Definitions {
		for _, r := range d.Rules {
			if r.TGID != tgid || r.Action == nil {
				continue
			}
			set := map[string]*string{}
			for name, text := range r.Action {
				set[name] = &text
			}
			if t.differs(set, values, rules) == "" {
				return true
			}
		}
	}
	return false
}

// anyOf is one of the pending rules that fit. If there are several, as those of one transition are when it is signalled, it is
// the one that the state says.
func (t *trial) anyOf(i *instance, st *step, fits func(*flow.Rule) bool) int32 {
	var found []int32
	for _, tgid := range i.tgids() {
		if tgid != t.Exception && fits(t.rule(st.rules, tgid)) {
			found = append(found, tgid)
		}
	}
	if slices.Contains(found, t.of.States[st.number].By) {
		return t.of.States[st.number].By
	}
	if len(found) > 0 {
		return found[0]
	}
	return 0
}

// checkSet compares a state with what was to be written.
func (t *trial) checkSet(k int, set map[string]*string, values predicate.State, d *flow.Definition) {
	if what := t.differs(set, values, d); what != "" {
		t.said(k, "%s", what)
	}
}

func (t *trial) differs(set map[string]*string, values predicate.State, d *flow.Definition) string {
	for name, v := range values {
		c := d.Column(name)
		text, isSet := set[name]
		before, had := t.prior[name]
		if !isSet && had {
			if !predicate.Same(before, v) {
				return fmt.Sprintf("attribute %q was %v, and became %v, which nobody has written", name, before, v)
			}
			continue
		}
		if !isSet {
			text = c.Default
		}
		var want predicate.Value
		if text != nil {
			var err error
			if want, err = predicate.Parse(c.Type, *text); err != nil {
				return fmt.Sprintf("attribute %q: %v", name, err)
			}
		}
		if !predicate.Same(want, v) {
			return fmt.Sprintf("attribute %q is %v, and %v was written", name, v, want)
		}
	}
	return ""
}

// compare compares a state's line with what it must be.
func (t *trial) compare(k int, line *Line, want outcome) {
	if line == nil {
		if int64(k) < t.last && !t.Gaps {
			t.said(k, "it has no line in wed_trace, and later ones have")
		}
		return
	}
	t.found.Lines++
	if line.Healed && !t.Gaps {
		t.said(k, "its line is healed, and nothing was lost")
	}
	if !sameState(t.Definitions[t.of.States[k].Rules], line.State, t.of.States[k].State, t.Gaps) {
		t.said(k, "wed_trace has the state %s, and %s was written", line.State, t.of.States[k].State)
	}
	trw := ""
	if line.Trw != nil {
		trw = *line.Trw
	}
	if trw != want.by {
		t.said(k, "trw is %q, and %q wrote it", trw, want.by)
	}
	trf := slices.Sorted(slices.Values(line.Trf))
	if !line.Healed && !slices.Equal(trf, want.fired) || line.Healed && !isPart(want.fired, trf) {
		t.said(k, "trf is %v, not %v", trf, want.fired)
	}
	if line.Status != want.status {
		t.said(k, "status is %s, not %s", line.Status, want.status)
	}
	if p := slices.Sorted(slices.Values(line.Pending)); !slices.Equal(p, want.pending) {
		t.said(k, "pending are %v, not %v", p, want.pending)
	}
	if (line.Error != nil) != want.failed && !line.Healed {
		t.said(k, "error is %v, and failed is %v", line.Error != nil, want.failed)
	}
}

// isPart says whether all elements of part are in whole.
func isPart(part, whole []string) bool {
	for _, p := range part {
		if !slices.Contains(whole, p) {
			return false
		}
	}
	return true
}

// leftOver judges what is there besides the history: jobs, the status, and what workers say of states that are none.
func (t *trial) leftOver(i *instance) {
	last := len(t.of.States) - 1
	for _, rest := range t.writes {
		for _, w := range rest {
			t.said(last, "%s has committed a state by %q, which is none of the instance's", w.Protocol, w.Transition)
		}
	}
	if t.of.Status != t.found.Status {
		t.said(last, "wed_instance has status %s, not %s", t.of.Status, t.found.Status)
	}
	seen := map[int32]bool{}
	for _, j := range t.of.Jobs {
		p, pends := i.pool[j.TGID]
		if i.withdrawn[job{j.TGID, int(j.Version)}] {
			continue
		}
		switch {
		case !pends || int64(p.since) != j.Version:
			t.said(last, "job_pool has a job of rule %d since state %d, which does not pend", j.TGID, j.Version)
			continue
		case seen[j.TGID]:
			t.said(last, "job_pool has two jobs of rule %d", j.TGID)
		case p.clock && !t.delayOver(job{j.TGID, p.since}, time.Now()):
			t.said(last, "job_pool has a job of rule %d, whose delay is not over", j.TGID)
		case !p.clock && !sameState(t.Definitions[t.of.States[p.since].Rules], j.Payload, t.of.States[p.since].State, t.Gaps) && !t.fromClock(j) && !t.inGap(p.since):
			t.said(last, "the job of rule %d has the payload %s, not the state that fired it, %s", j.TGID, j.Payload, t.of.States[p.since].State)
		}
		if want := t.transition(t.Definitions[t.of.States[last].Rules], j.TGID); j.Transition != want {
			t.said(last, "the job of rule %d is %q, not %q", j.TGID, j.Transition, want)
		}
		seen[j.TGID] = true
	}
	for tgid, p := range i.pool {
		if !seen[tgid] && !p.clock && int64(p.since) <= t.last {
			t.said(last, "rule %d pends since state %d, and job_pool has no job of it", tgid, p.since)
		}
	}
}

// fromClock says whether a job was fired after a delay: then its payload is the state of that time.
func (t *trial) fromClock(j Job) bool {
	return slices.ContainsFunc(t.of.Events, func(e Event) bool {
		return e.Event == "timer fired" && e.TGID == j.TGID && e.Version == j.Version
	})
}

// inGap says whether the line of a state is missing, as it may: then its jobs were healed, with the state of that time.
func (t *trial) inGap(version int) bool { return t.Gaps && t.lines[int64(version)] == nil }

// sameState compares two states as they are written down. What is no state of the definition is the same as nothing else;
// but what was healed was read later, and may have other attributes besides.
func sameState(d *flow.Definition, a, b json.RawMessage, healed bool) bool {
	if healed {
		a, b = common(a, b), common(b, a)
		d = d.Only(b)
	}
	x, err := d.State(a)
	if err != nil {
		return false
	}
	y, err := d.State(b)
	if err != nil {
		return false
	}
	return maps.EqualFunc(x, y, predicate.Same)
}

// common is what an object has in common with another one.
func common(object, other json.RawMessage) json.RawMessage {
	var fields, others map[string]json.RawMessage
	if json.Unmarshal(object, &fields) != nil || json.Unmarshal(other, &others) != nil {
		return object
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool { _, has := others[name]; return !has })
	rest, err := json.Marshal(fields)
	if err != nil {
		return object
	}
	return rest
}
