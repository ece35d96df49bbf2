package flowgraph

import (
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	exceptionName = "_EXCPT" // transition that recovers exceptions
	failureName   = "_FAIL"  // writes a state for a transition that has failed too often
)

// State is a line of an instance's history.
type State struct {
	WID, Version int64
	Writer       string // transition, or with an underscore what else; empty: an initial state, or a reopened one
	Fired        []string
	Status       string
	At           time.Time
	Pending      []int32
	Changed      []string // attributes that differ from the state before
	Known        bool     // whether the state before is known, so that Changed says something
}

// History is what was seen, state by state.
type History struct {
	rules     map[int32]Rule
	reads     map[Key][]string
	states    int64
	instances int64
	from, to  time.Time

	written  map[Key]int64
	wrote    map[Key]map[string]bool // attributes
	fired    map[Key]bool
	operated map[string]int64
	arrows   map[[2]Key]*Arrow
	led      map[[2]Key]int64
	by       map[[2]Key]map[string]bool

	at instance
}

// instance is the one whose states are being added.
type instance struct {
	wid, version int64
	pending      []int32
	writer       map[string]Key // of an attribute: the last one
	open         map[Key]firing
}

type firing struct {
	by Key
	at time.Time
}

// NewHistory returns an empty history of a flow with these rules.
func NewHistory(rules []Rule) *History {
	h := &History{
		rules:    make(map[int32]Rule),
		reads:    make(map[Key][]string),
		written:  make(map[Key]int64),
		wrote:    make(map[Key]map[string]bool),
		fired:    make(map[Key]bool),
		operated: make(map[string]int64),
		arrows:   make(map[[2]Key]*Arrow),
		led:      make(map[[2]Key]int64),
		by:       make(map[[2]Key]map[string]bool),
		at:       instance{wid: -1},
	}
	for _, r := range rules {
		h.rules[r.TGID] = r
		k := Key{Transition, r.Transition}
		if r.Transition == "" {
			k = Key{Kind: Final}
		}
		for _, a := range r.Reads {
			if !slices.Contains(h.reads[k], a) {
				h.reads[k] = append(h.reads[k], a)
			}
		}
	}
	return h
}

// Add adds a state. They come instance by instance, in their order.
func (h *History) Add(s State) {
	h.states++
	if h.from.IsZero() || s.At.Before(h.from) {
		h.from = s.At
	}
	if s.At.After(h.to) {
		h.to = s.At
	}
	follows := s.Known && s.WID == h.at.wid && s.Version == h.at.version+1
	if s.WID != h.at.wid {
		h.instances++
	}
	if !follows {
		h.at = instance{wid: s.WID, writer: make(map[string]Key), open: make(map[Key]firing)}
	}
	before := h.at.pending
	h.at.version, h.at.pending = s.Version, s.Pending

	writer, known := h.writerOf(s, before, follows)
	if !known {
		return
	}
	failed := s.Writer == failureName
	if !failed {
		h.written[writer]++
		h.note(s, writer, follows)
		h.close(s, writer)
	}
	for _, name := range s.Fired {
		a := h.fire(writer, keyOf(name), s.At)
		if failed {
			a.Failed++
		}
	}
	for _, k := range h.clocksBegun(s, before, follows) {
		h.fire(writer, k, s.At).Clocked++
	}
	if s.Status == "F" {
		h.written[Key{Kind: Final}]++
		h.fire(writer, Key{Kind: Final}, s.At)
	}
}

// writerOf says which node has written a state.
func (h *History) writerOf(s State, before []int32, follows bool) (k Key, known bool) {
	switch {
	case s.Writer == "" && s.Version == 0:
		return Key{Kind: Start}, true
	case s.Writer == failureName:
		var gone []int32
		for _, t := range before {
			if !slices.Contains(s.Pending, t) {
				gone = append(gone, t)
			}
		}
		if !follows || len(gone) != 1 || h.rules[gone[0]].Transition == "" {
			return Key{}, false
		}
		return Key{Transition, h.rules[gone[0]].Transition}, true
	case s.Writer == "":
		h.operated["_REOPEN"]++
		return Key{Kind: Operator}, true
	case s.Writer != exceptionName && strings.HasPrefix(s.Writer, "_"):
		h.operated[s.Writer]++
		return Key{Kind: Operator}, true
	}
	return keyOf(s.Writer), true
}

func keyOf(transition string) Key {
	if transition == exceptionName {
		return Key{Exception, exceptionName}
	}
	return Key{Transition, transition}
}

// note takes down what a state has changed.
func (h *History) note(s State, writer Key, follows bool) {
	if !follows && s.Version > 0 {
		return
	}
	for _, a := range s.Changed {
		h.at.writer[a] = writer
		if h.wrote[writer] == nil {
			h.wrote[writer] = make(map[string]bool)
		}
		h.wrote[writer][a] = true
	}
}

// close notes how long it took from the firing of a transition to its commit.
func (h *History) close(s State, writer Key) {
	f, ok := h.at.open[writer]
	if !ok {
		return
	}
	delete(h.at.open, writer)
	a := h.arrow(f.by, writer)
	a.Timed++
	a.mean += (float64(s.At.Sub(f.at)) - a.mean) / float64(a.Timed)
}

func (h *History) arrow(from, to Key) *Arrow {
	ends := [2]Key{from, to}
	if h.arrows[ends] == nil {
		h.arrows[ends] = &Arrow{From: from, To: to}
		h.by[ends] = make(map[string]bool)
	}
	return h.arrows[ends]
}

// fire notes that a state of one node has fired another, and who else has led to that.
func (h *History) fire(by, to Key, at time.Time) *Arrow {
	h.fired[to] = true
	h.at.open[to] = firing{by, at}
	a := h.arrow(by, to)
	a.Count++
	others := make(map[Key]bool)
	for _, attribute := range h.reads[to] {
		w, ok := h.at.writer[attribute]
		switch {
		case !ok:
		case w == by:
			h.by[[2]Key{by, to}][attribute] = true
		case w != to && w.Kind != Start:
			h.arrow(w, to)
			h.by[[2]Key{w, to}][attribute] = true
			others[w] = true
		}
	}
	for w := range maps.Keys(others) {
		h.led[[2]Key{w, to}]++
	}
	return a
}

// clocksBegun returns the transitions whose delay begins with a state. They are
// not among those that it has fired: that comes with time.
func (h *History) clocksBegun(s State, before []int32, follows bool) (begun []Key) {
	if !follows && s.Version > 0 {
		return nil
	}
	for _, t := range s.Pending {
		r, ok := h.rules[t]
		if !ok || r.Delay == 0 || slices.Contains(s.Fired, r.Transition) {
			continue
		}
		if slices.Contains(before, t) && s.Writer != r.Transition {
			continue
		}
		begun = append(begun, Key{Transition, r.Transition})
	}
	return begun
}

// seen reports whether a node has an arrow.
func (h *History) seen(k Key) bool {
	for ends := range h.arrows {
		if ends[0] == k || ends[1] == k {
			return true
		}
	}
	return false
}

// keys returns the nodes with arrows, in an order.
func (h *History) keys() []Key {
	set := make(map[Key]bool)
	for ends := range h.arrows {
		set[ends[0]], set[ends[1]] = true, true
	}
	return slices.SortedFunc(maps.Keys(set), compareKeys)
}
