package wal

import (
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
	Fired     []string // transitions
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
		Fired:     transitions(f, rules, fired),
		Withdrawn: transitions(f, rules, withdrawn(&v.Stamp)),
		Committed: commit,
		Healed:    v.heal != nil,
	}
	if v.Stamp.By != fold.None && v.Stamp.Transition != nil {
		m.Done = *v.Stamp.Transition
		if firedAt, beganAt := jobTimes(&v.Stamp); firedAt != nil && beganAt != nil && !m.Healed {
			m.Timed = true
			// The server's clock may have been set back meanwhile.
			m.Wait, m.Run = max(beganAt.Sub(*firedAt), 0), max(commit.Sub(*beganAt), 0)
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

func transitions(f *flow, rules ruleSet, ids []fold.Rule) []string {
	if len(ids) == 0 {
		return nil
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = rules.transition(f, id)
	}
	return names
}

// jobTimes returns when the job that a state completes was fired, and when the
// transaction that did it began.
func jobTimes(s *Stamp) (firedAt, beganAt *time.Time) { return s.FiredAt, s.BeganAt }

// withdrawn returns the rules that a state withdraws.
func withdrawn(s *Stamp) []fold.Rule { return s.Withdrawn }
