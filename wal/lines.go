package wal

import (
	"container/list"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/fold"
)

// NOTIFY takes 7,999 bytes of payload and 63 of channel.
const (
	maxPayload = 7999
	maxChannel = 63
)

// lines is what a batch writes for one flow: columns, as the statements want them.
type lines struct {
	flow *flow
	// signalled: signals may be kept for its jobs.
	signalled bool
	trace     traceColumns
	jobs      jobColumns
	// timers are what is to be done at a time.
	timers timerColumns
	// gone are the rules that were withdrawn: their jobs and timers of earlier versions.
	gone goneColumns
	// shortest of the jobs' timeouts; 0: none.
	shortest time.Duration
}

type traceColumns struct {
	wid     []int64
	version []int64
	state   []string
	trw     []*string
	trf     []string // of text arrays, as text: arrays of arrays must be rectangular
	status  []string
	tstmp   []time.Time
	base    []*int64 // version whose line tstmp must be behind
	step    []int64  // by at least so many microseconds
	pending []string // of int arrays, as text
	err     []*string
	healed  []bool
}

type jobColumns struct {
	wid        []int64
	tgid       []int32
	transition []string
	timeout    []*string
	payload    []string
	firedAt    []time.Time
	version    []int64
	priority   []int32
	note       []string // payload of the notification; "": none
}

type timerColumns struct {
	wid     []int64
	tgid    []int32
	kind    []string
	version []int64
	from    []time.Time
	after   []*string // an interval, as text
}

type goneColumns struct {
	wid     []int64
	tgid    []int32
	version []int64
}

// Kinds of timers, as wed_sql.timer.kind has them.
const (
	delayTimer  = "d"
	actionTimer = "a"
	signalTimer = "g"
)

// outcome folds a version in.
func outcome(v *Version, f *flow) fold.Outcome {
	return fold.Next(v.Stamp.Pending, fold.State{
		By:      v.Stamp.By,
		Matched: v.Stamp.Matched,
		Final:   v.Stamp.Final,
		Failed:  v.Stamp.Failed,

		Withdrawn: v.Stamp.Withdrawn,
		Status:    v.Stamp.Status,
	}, f.excpt)
}

// addState adds the trace line of a version.
func (l *lines) addState(v *Version, out fold.Outcome, rules ruleSet, at stamped, healed bool) {
	t := &l.trace
	t.wid = append(t.wid, v.Wid)
	t.version = append(t.version, v.Stamp.Version)
	t.state = append(t.state, v.State)
	var failure *string
	switch {
	case v.Stamp.Failed:
		text := validText(v.Stamp.Error)
		failure = &text
	case v.note != "":
		failure = &v.note
	}
	t.trw = append(t.trw, v.Stamp.Transition)
	names := make([]string, 0, len(out.Fired))
	for _, r := range out.Fired {
		if !slices.Contains(v.Stamp.Clocks, r) { // else it fires when its time has come
			names = append(names, rules.get(l.flow, r).transition)
		}
	}
	t.trf = append(t.trf, textArray(names))
	t.status = append(t.status, out.Status.String())
	t.tstmp = append(t.tstmp, at.time)
	t.base, t.step = append(t.base, at.base), append(t.step, at.step)
	t.pending = append(t.pending, intArray(out.Pending))
	t.err = append(t.err, failure)
	t.healed = append(t.healed, healed)
}

// addJobs adds what a state has fired: jobs and, of rules whose delay begins, their timers.
// version returns that of the state which fired a rule.
func (l *lines) addJobs(v *Version, fired []fold.Rule, version func(fold.Rule) int64, rules ruleSet, at time.Time) {
	for _, id := range fired {
		r := rules.get(l.flow, id)
		clock := slices.Contains(v.Stamp.Clocks, id)
		if !clock {
			r.delay = nil // it is due again that was before
		}
		if r.action {
			l.addTimer(v.Wid, id, actionTimer, version(id), at, r.delay)
		}
		if clock { // its job is fired when its time has come
			if !r.action {
				l.addTimer(v.Wid, id, delayTimer, version(id), at, r.delay)
			}
			continue
		}
		if l.signalled {
			l.addTimer(v.Wid, id, signalTimer, version(id), at, nil)
		}
		j := &l.jobs
		j.wid, j.tgid = append(j.wid, v.Wid), append(j.tgid, id)
		j.transition, j.timeout = append(j.transition, r.transition), append(j.timeout, r.timeout)
		j.payload, j.firedAt = append(j.payload, v.State), append(j.firedAt, at)
		j.version, j.priority = append(j.version, version(id)), append(j.priority, r.priority)
		note := ""
		if len(r.transition) <= maxChannel && !r.action { // an action has the engine for a worker
			note = notification(l.flow, v, id, r)
		}
		j.note = append(j.note, note)
		if r.limit > 0 && !r.action && (l.shortest == 0 || r.limit < l.shortest) {
			l.shortest = r.limit
		}
	}
}

func (l *lines) addTimer(wid int64, id fold.Rule, kind string, version int64, from time.Time, after *string) {
	t := &l.timers
	t.wid, t.tgid, t.kind = append(t.wid, wid), append(t.tgid, id), append(t.kind, kind)
	t.version, t.from, t.after = append(t.version, version), append(t.from, from), append(t.after, after)
}

// withdraw adds what a state has withdrawn, and takes it back if an earlier state of
// this batch has fired it.
func (l *lines) withdraw(wid int64, withdrawn []fold.Rule, version int64) {
	for _, id := range withdrawn {
		j := &l.jobs
		for i := len(j.wid) - 1; i >= 0; i-- {
			if j.wid[i] == wid && j.tgid[i] == id {
				j.remove(i)
			}
		}
		t := &l.timers
		for i := len(t.wid) - 1; i >= 0; i-- {
			if t.wid[i] == wid && t.tgid[i] == id {
				t.remove(i)
			}
		}
		l.gone.wid, l.gone.tgid = append(l.gone.wid, wid), append(l.gone.tgid, id)
		l.gone.version = append(l.gone.version, version)
	}
}

func (j *jobColumns) remove(i int) {
	j.wid, j.tgid = slices.Delete(j.wid, i, i+1), slices.Delete(j.tgid, i, i+1)
	j.transition, j.timeout = slices.Delete(j.transition, i, i+1), slices.Delete(j.timeout, i, i+1)
	j.payload, j.firedAt = slices.Delete(j.payload, i, i+1), slices.Delete(j.firedAt, i, i+1)
	j.version, j.priority = slices.Delete(j.version, i, i+1), slices.Delete(j.priority, i, i+1)
	j.note = slices.Delete(j.note, i, i+1)
}

func (t *timerColumns) remove(i int) {
	t.wid, t.tgid, t.kind = slices.Delete(t.wid, i, i+1), slices.Delete(t.tgid, i, i+1), slices.Delete(t.kind, i, i+1)
	t.version, t.from = slices.Delete(t.version, i, i+1), slices.Delete(t.from, i, i+1)
	t.after = slices.Delete(t.after, i, i+1)
}

// notifications are those of the jobs, as columns.
func (w *work) notifications() (channel, payload []string) {
	for _, l := range w.flows {
		for i, note := range l.jobs.note {
			if note != "" {
				channel, payload = append(channel, l.jobs.transition[i]), append(payload, note)
			}
		}
	}
	return channel, payload
}

// notification is the job as the payload of its notification.
// Anybody may listen on any channel: the state of a private flow is not in it.
func notification(f *flow, v *Version, id fold.Rule, r rule) string {
	b := make([]byte, 0, 128+len(v.State))
	b = append(b, `{"flow":`...)
	b = appendString(b, []byte(f.name))
	b = append(b, `,"wid":`...)
	b = strconv.AppendInt(b, v.Wid, 10)
	b = append(b, `,"tgid":`...)
	b = strconv.AppendInt(b, int64(id), 10)
	b = append(b, `,"trname":`...)
	b = appendString(b, []byte(r.transition))
	b = append(b, `,"timeout":`...)
	if r.timeout == nil {
		b = append(b, "null"...)
	} else {
		b = appendString(b, []byte(*r.timeout))
	}
	const key, omitted = `,"payload":`, `,"payload_omitted":true}`
	if f.private || len(b)+len(key)+len(v.State)+1 > maxPayload {
		return string(append(b, omitted...))
	}
	b = append(append(b, key...), v.State...)
	return string(append(b, '}'))
}

// textArray is the text of a one-dimensional text array.
func textArray(elements []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for j := range len(e) {
			if e[j] == '"' || e[j] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(e[j])
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// intArray is the text of an integer array.
func intArray(elements []fold.Rule) string {
	b := []byte{'{'}
	for i, e := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(e), 10)
	}
	return string(append(b, '}'))
}

// stamped is the time of a trace line: time, but at least step microseconds behind
// the line base, if that is not nil, or the last one before it, if base is in a gap of
// the history.
type stamped struct {
	time time.Time
	base *int64
	step int64
}

// clock makes the times of an instance's trace lines strictly increasing, though a
// transaction may write two states, and the server's clock may step back. What it
// does not remember of the line before, the statement that writes the line looks up.
type clock struct {
	max     int // instances to remember between batches
	items   map[instance]*list.Element
	order   list.List       // of *tick, the one used last in front
	guesses []*list.Element // of this batch, with a base
}

type instance struct {
	flow int32
	wid  int64
}

type tick struct {
	key     instance
	version int64
	at      stamped
}

func newClock(max int) *clock {
	return &clock{max: max, items: make(map[instance]*list.Element)}
}

// next returns the time of the line for version, whose transaction committed at.
func (c *clock) next(key instance, version int64, at time.Time) stamped {
	e := c.items[key]
	if e == nil {
		e = c.order.PushFront(&tick{key: key, version: -1})
		c.items[key] = e
	} else {
		c.order.MoveToFront(e)
	}
	t := e.Value.(*tick)
	known := t.version >= 0 && t.version < version
	if known {
		if earliest := t.at.time.Add(time.Microsecond); at.Before(earliest) {
			at = earliest
		}
	}
	switch {
	case version == 0:
		t.at = stamped{time: at}
	case known && (t.version == version-1 || t.at.base != nil):
		t.at.time = at
		t.at.step++
	default: // also behind a gap: what was healed in between was not by us
		base := version - 1
		t.at = stamped{time: at, base: &base, step: 1}
		c.guesses = append(c.guesses, e)
	}
	t.version = version
	return t.at
}

// settle ends a batch that was written. What the server looked up for it is not
// known here: the next batch asks again.
func (c *clock) settle() {
	for _, e := range c.guesses {
		if e.Value.(*tick).at.base != nil {
			c.remove(e)
		}
	}
	c.guesses = c.guesses[:0]
	for c.order.Len() > c.max {
		c.remove(c.order.Back())
	}
}

func (c *clock) remove(e *list.Element) {
	delete(c.items, e.Value.(*tick).key)
	c.order.Remove(e)
}

// forget drops what a batch that was not written has left.
func (c *clock) forget() {
	clear(c.items)
	c.order.Init()
	c.guesses = c.guesses[:0]
}
