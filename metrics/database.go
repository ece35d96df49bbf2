package metrics

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wed-sql/wed_sql/fold"
	"github.com/wed-sql/wed_sql/wal"
)

// Database is the numbers of one database. It is safe for concurrent use, and none of
// its methods blocks, but Keep.
type Database struct {
	exporter *Exporter
	name     string

	counted chan struct{} // takes a signal when there is something to flush
	asked   chan struct{} // takes a signal when there is something to look up

	mu          sync.Mutex
	shown       bool // somebody has said how it is
	retired     bool
	up          bool
	failures    uint64
	lastError   time.Time
	applied     wal.LSN
	latency     histogram
	batch       histogram
	flows       map[string]*flow
	transitions map[transitionKey]*transition

	deltas deltas
	look   look
}

type transitionKey struct{ flow, name string }

// flow is what is shown of a flow.
type flow struct {
	touched                                          time.Time // when it was counted last
	instances, states, exceptions, finals, cancelled uint64
}

// transition is what is shown of a transition.
type transition struct {
	touched                time.Time // when it was counted last
	fired, done, withdrawn uint64
	failed, timedOut, lost uint64
	wait, run              histogram
	seen                   *jobs // nil: it has not been looked up
}

// jobs is what is looked up of a transition.
type jobs struct {
	waiting, running, leased *int64 // nil: not known
	oldest                   time.Time
}

func newDatabase(e *Exporter, name string) *Database {
	return &Database{
		exporter:    e,
		name:        strings.ToValidUTF8(name, "�"),
		counted:     make(chan struct{}, 1),
		asked:       make(chan struct{}, 1),
		flows:       make(map[string]*flow),
		transitions: make(map[transitionKey]*transition),
	}
}

// retire ends the counting and gives back the room that was taken for it.
func (d *Database) retire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.retired {
		return
	}
	d.retired, d.shown = true, false
	for name := range d.flows {
		d.forgetFlow(name)
	}
	for key := range d.transitions {
		d.forgetTransition(key)
	}
}

// forgetFlow needs the lock, as forgetTransition does.
func (d *Database) forgetFlow(name string) {
	delete(d.flows, name)
	if name != other {
		d.exporter.room.giveBack(1, 0)
	}
}

func (d *Database) forgetTransition(key transitionKey) {
	delete(d.transitions, key)
	if key.name != other {
		d.exporter.room.giveBack(0, 1)
	}
}

// Up tells whether the follower streams.
func (d *Database) Up(up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown, d.up = !d.retired, up
}

// Gone tells that there is nothing to follow any more.
func (d *Database) Gone() { d.retire() }

// Failed tells that the follower has to begin again.
func (d *Database) Failed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures++
	d.lastError = time.Now()
}

// Applied tells up to where everything is matched.
func (d *Database) Applied(lsn wal.LSN) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied = lsn
}

// Wrote implements [wal.Meter].
func (d *Database) Wrote(states []wal.Measured) {
	now := time.Now()
	f := &d.exporter.families
	d.mu.Lock()
	d.batch.observe(f.batch.bounds, float64(len(states)))
	for i := range states {
		s := &states[i]
		if !s.Healed {
			d.latency.observe(f.latency.bounds, max(now.Sub(s.Committed), 0).Seconds())
		}
		d.count(s, now)
		d.deltas.count(s)
	}
	d.mu.Unlock()
	signal(d.counted)
}

// count needs the lock.
func (d *Database) count(s *wal.Measured, now time.Time) {
	flow := d.flow(s.FlowName)
	flow.touched = now
	flow.states++
	if s.Initial {
		flow.instances++
	}
	switch s.Status {
	case fold.Exception:
		flow.exceptions++
	case fold.Final:
		flow.finals++
	case fold.Cancelled:
		flow.cancelled++
	}
	for _, name := range s.Fired {
		t := d.transition(s.FlowName, name)
		t.touched = now
		t.fired++
	}
	for _, name := range s.Withdrawn {
		t := d.transition(s.FlowName, name)
		t.touched = now
		t.withdrawn++
	}
	if s.Done == "" {
		return
	}
	t := d.transition(s.FlowName, s.Done)
	t.touched = now
	t.done++
	if s.Timed {
		t.wait.observe(d.exporter.families.wait.bounds, s.Wait.Seconds())
		t.run.observe(d.exporter.families.run.bounds, s.Run.Seconds())
	}
}

// event is what other sessions have counted.
type event struct {
	Flow, Transition, Event string
	N                       int64
}

// happened counts events.
func (d *Database) happened(events []event) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range events {
		t := d.transition(e.Flow, e.Transition)
		t.touched = now
		switch n := uint64(e.N); e.Event {
		case "fired":
			t.fired += n
		case "failed":
			t.failed += n
		case "timed out":
			t.timedOut += n
		case "lost":
			t.lost += n
		}
	}
}

// flow returns the numbers of a flow, or of all those that there is no room for. It needs
// the lock, as transition does.
func (d *Database) flow(name string) *flow {
	f := d.flows[name]
	if f == nil && name != other && (d.retired || !d.exporter.room.take(1, 0)) {
		return d.flow(other)
	}
	if f == nil {
		f = new(flow)
		d.flows[name] = f
	}
	return f
}

func (d *Database) transition(flow, name string) *transition {
	key := transitionKey{flow, name}
	t := d.transitions[key]
	if t == nil && name != other && (d.retired || !d.exporter.room.take(0, 1)) {
		return d.transition(other, other)
	}
	if t == nil {
		t = new(transition)
		d.transitions[key] = t
	}
	return t
}

// collect sends all metrics of the database.
func (d *Database) collect(metrics chan<- prometheus.Metric) {
	f := &d.exporter.families
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shown {
		return
	}
	send(metrics, f.up, truth(d.up), d.name)
	send(metrics, f.failures, float64(d.failures), d.name)
	if !d.lastError.IsZero() {
		send(metrics, f.lastError, seconds(d.lastError), d.name)
	}
	sendHistogram(metrics, f.latency, &d.latency, d.name)
	sendHistogram(metrics, f.batch, &d.batch, d.name)
	d.look.collect(metrics, f, d.name, d.applied, time.Now())
	for name, n := range d.flows {
		name = strings.ToValidUTF8(name, "�")
		send(metrics, f.instances, float64(n.instances), d.name, name)
		send(metrics, f.states, float64(n.states), d.name, name)
		send(metrics, f.exceptions, float64(n.exceptions), d.name, name)
		send(metrics, f.finals, float64(n.finals), d.name, name)
		send(metrics, f.cancelled, float64(n.cancelled), d.name, name)
	}
	for key, t := range d.transitions {
		flow, name := strings.ToValidUTF8(key.flow, "�"), strings.ToValidUTF8(key.name, "�")
		send(metrics, f.fired, float64(t.fired), d.name, flow, name)
		send(metrics, f.done, float64(t.done), d.name, flow, name)
		send(metrics, f.withdrawn, float64(t.withdrawn), d.name, flow, name)
		send(metrics, f.failed, float64(t.failed), d.name, flow, name)
		send(metrics, f.timedOut, float64(t.timedOut), d.name, flow, name)
		send(metrics, f.lost, float64(t.lost), d.name, flow, name)
		if t.wait.counts != nil {
			sendHistogram(metrics, f.wait, &t.wait, d.name, flow, name)
			sendHistogram(metrics, f.run, &t.run, d.name, flow, name)
		}
		t.seen.collect(metrics, f, d.name, flow, name)
	}
}

func (j *jobs) collect(metrics chan<- prometheus.Metric, f *families, labels ...string) {
	if j == nil {
		return
	}
	for _, g := range []struct {
		family family
		value  *int64
	}{{f.waiting, j.waiting}, {f.running, j.running}, {f.leased, j.leased}} {
		if g.value != nil {
			send(metrics, g.family, float64(*g.value), labels...)
		}
	}
	if !j.oldest.IsZero() {
		send(metrics, f.oldest, seconds(j.oldest), labels...)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // the last one has not been seen yet
	}
}
