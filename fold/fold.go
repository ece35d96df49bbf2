// Package fold is Algorithm 1 of the WED-SQL paper ("WED-server", section 4),
// written as what it is: a fold over the states of one instance.
//
// The paper runs the algorithm on an instance and its job pool. Here the job
// pool is the accumulator and a state, with the rule whose transition wrote it,
// is the element. With M(s) the rules whose conditions hold on s, by_k the rule
// whose transition wrote s_k, and P_k the rules pending after s_k:
//
//	P_0     = M(s_0)
//	P_k     = (P_{k-1} \ {by_k}) ∪ M(s_k)      ∅ once s_k is final
//	fired_k = P_k \ (P_{k-1} \ {by_k})
//
// A rule may be declared to be withdrawn when its condition does not hold any more,
// and an intervention may withdraw others. What a state withdraws leaves P_{k-1}, too.
//
// Read beside the paper: lines 3 to 12 collect M(s_k), and are the guard's work,
// done in the transaction that writes the state; what remains is [Next].
//
// Nothing here knows of a database. Next is a pure function, so a state that is
// read again after a crash gives the same outcome again.
package fold

import "slices"

// Rule is the identity of a WED-trigger, the pair of a condition and the
// transition that it fires: its tgid.
type Rule = int32

// None stands for "no rule": the writer of an initial state.
const None Rule = 0

// Status labels a state as the paper's WED_trace does.
type Status byte

const (
	Regular   Status = 'R' // something is pending
	Exception Status = 'E' // nothing was left to do, or a condition failed: recovery is pending
	Final     Status = 'F' // the end: nothing is pending
	Suspended Status = 'S' // nothing is pending until it is resumed
	Cancelled Status = 'C' // the end, by an intervention
)

// String returns the letter that wed_trace shows.
func (s Status) String() string { return string(rune(s)) }

// State is what must be known of a state s_k to fold it in, as it was judged in
// the transaction that wrote it.
type State struct {
	// By is the rule whose transition wrote the state, None for s_0 and for the
	// state that reopens a final instance.
	By Rule
	// Matched is M(s_k), the enabled rules whose conditions hold on the state.
	Matched []Rule
	// Final says that the final condition holds (line 23 of the algorithm).
	Final bool
	// Failed says that a condition could not be evaluated. The state is then an
	// exception whatever else is pending: nobody can say what it should have fired.
	Failed bool
	// Withdrawn are rules that pended before and do not any more, though their
	// transitions have not been performed.
	Withdrawn []Rule
	// Status is Suspended or Cancelled, or 0 if neither.
	Status Status
}

// Outcome is what a state leaves behind.
type Outcome struct {
	Pending []Rule // P_k, ascending: what the job pool holds now
	Fired   []Rule // fired_k, ascending: the part of P_k that this state put there
	Status  Status
}

// Next folds s into an instance whose pending rules were prev (P_{k-1}, empty for
// s_0). excpt is the flow's own rule for the transition _EXCPT, which calls for
// recovery. Neither prev nor s.Matched need be sorted; neither is changed, and the
// outcome shares no memory with them.
//
// A rule that is already pending is not fired again; the rule that wrote the state
// is, if its condition still holds.
func Next(prev []Rule, s State, excpt Rule) Outcome {
	if s.Status != 0 {
		return Outcome{Pending: []Rule{}, Fired: []Rule{}, Status: s.Status}
	}
	if s.Final { // lines 23 to 31; that nothing else was pending is the guard's promise
		return Outcome{Pending: []Rule{}, Fired: []Rule{}, Status: Final}
	}

	kept := without(prev, s.By) // the transition that wrote the state has left the pool
	if len(s.Withdrawn) > 0 {
		kept = minus(kept, union(s.Withdrawn, nil))
	}
	pending := union(kept, s.Matched)
	status := Regular

	// Lines 17 to 19: nothing to do, and not the end.
	if s.Failed || len(pending) == 0 {
		status = Exception
		pending = union(pending, []Rule{excpt})
	}
	return Outcome{Pending: pending, Fired: minus(pending, kept), Status: status}
}

// without returns set \ {r}, sorted and free of duplicates.
func without(set []Rule, r Rule) []Rule {
	out := make([]Rule, 0, len(set)+1)
	for _, x := range set {
		if x != r || r == None {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// union returns a ∪ b, sorted and free of duplicates.
func union(a, b []Rule) []Rule {
	out := make([]Rule, 0, len(a)+len(b)+1)
	out = append(append(out, a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}

// minus returns a \ b for sorted a and b.
func minus(a, b []Rule) []Rule {
	out := make([]Rule, 0, len(a))
	for _, x := range a {
		if _, found := slices.BinarySearch(b, x); !found {
			out = append(out, x)
		}
	}
	return out
}
