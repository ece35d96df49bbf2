package wal

import (
	"slices"
	"time"

	"github.com/wed-sql/wed_sql/fold"
)

// Meter is told what a follower has written, after the commit of each batch. Its methods
// must not block, and are called from two goroutines: that of the stream, and the healer's.
type Meter interface {
	// Wrote gives the states of a batch. It must not keep the slice.
	Wrote(states []Measured)
}

// Measured is what there is to count of a state.
type Measured struct {
	Flow      int32
	FlowName  string
	Initial   bool
	Status    fold.Status
	Done      string   // the transition that wrote it, "" if none did
	Fired     []string // transitions, but those whose timers are set
	Withdrawn []string
	Committed time.Time
	Healed    bool // read from the table, so nobody knows when it was committed

	// Timed tells whether the times of Done are known: Wait from its firing to the
	// beginning of the transaction that did it, Run from there to the commit.
	Timed     bool
	Wait, Run time.Duration
}

// measure notes a state that the work writes, for after the commit.
func (a *applier) measure(w *work, f *flow, v *Version, status fold.Status, fired []fold.Rule, rules ruleSet, commit time.Time) {
	if a.meter == nil {
		return
	}
	m := Measured{
		Flow:      f.id,
		FlowName:  f.name,
		Initial:   v.Stamp.Version == 0,
		Status:    status,
		Fired:     w.transitions(f, rules, fired, v.Stamp.Clocks),
		Withdrawn: w.transitions(f, rules, v.Stamp.Withdrawn, nil),
		Committed: commit,
		Healed:    v.heal != nil,
	}
	if v.Stamp.By != fold.None && v.Stamp.Transition != nil {
		m.Done = *v.Stamp.Transition
		if fired, began := v.Stamp.FiredAt, v.Stamp.BeganAt; fired != nil && began != nil && !m.Healed {
			m.Timed = true
			// The server's clock may have been set back meanwhile.
			m.Wait, m.Run = max(began.Sub(*fired), 0), max(commit.Sub(*began), 0)
		}
	}
	w.measured = append(w.measured, m)
}

// measured tells the meter of a work that was committed.
func (a *applier) measured(w *work) {
	if a.meter != nil && len(w.measured) > 0 {
		a.meter.Wrote(w.measured)
	}
}

// transitions returns the names of rules, but those of the clocks. They lie in one slice
// for all states.
func (w *work) transitions(f *flow, rules ruleSet, ids, clocks []fold.Rule) []string {
	before := len(w.names)
	for _, id := range ids {
		if !slices.Contains(clocks, id) {
			w.names = append(w.names, rules.get(f, id).transition)
		}
	}
	return w.names[before:len(w.names):len(w.names)]
}
