package fold_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/wed-sql/wed_sql/fold"
)

// The paper's Algorithm 1, line by line, on one instance: naive on purpose. It
// keeps the job pool as a set and inserts into it, as the paper does, and shares
// no line with the package under test.

const final fold.Rule = -1 // stands for _FINAL in L

type instance struct {
	isNew     bool
	jobPool   map[fold.Rule]bool
	ended     bool
	exception bool
	cancelled bool
	resting   map[fold.Rule]bool // what pended when it was suspended; nil if it is not
}

// suspend is what an operator does: nothing pends until the instance is resumed.
func (i *instance) suspend() {
	i.resting, i.jobPool = i.jobPool, map[fold.Rule]bool{}
}

// cancel is what an operator does: it ends, whatever pends.
func (i *instance) cancel() {
	i.jobPool, i.resting, i.ended, i.exception, i.cancelled = map[fold.Rule]bool{}, nil, true, false, true
}

// server runs Algorithm 1 after a state that satisfies the conditions in sat. by is
// the job that the writing transaction completed (Algorithm 2, line 12: the commit
// takes it out of the pool). It returns what was inserted into the pool, and false
// if the paper rejects the transaction, in which case i is unchanged. What is withdrawn
// is not the paper's: the jobs of these rules are taken out of the pool, undone.
func (i *instance) server(by fold.Rule, withdrawn []fold.Rule, sat map[fold.Rule]bool, isFinal, failed bool) (fired []fold.Rule, ok bool) {
	pool := maps.Clone(i.jobPool)
	if by != fold.None {
		delete(pool, by)
	}
	for _, r := range withdrawn {
		delete(pool, r)
	}

	L := map[fold.Rule]bool{} // 1
	for tg := range sat {     // 3: for tg in WED-triggers, 5: if s satisfies c
		L[tg] = true // 9
	}
	if isFinal { // 6
		L[final] = true // 7
	}

	insert := func(tr fold.Rule) {
		if !pool[tr] { // the pool's key is (wid, tgid): a job that is there is not inserted again
			pool[tr] = true
			fired = append(fired, tr)
		}
	}
	exception, ended := false, false
	switch {
	case failed: // not in the paper: a predicate that cannot be evaluated
		exception = true
		insert(excpt)
	case len(L) == 0: // 13
		if i.isNew { // 14
			return nil, false // 15, 16
		} else if len(pool) == 0 { // 17
			exception = true // 18
			insert(excpt)    // 19
		}
	case L[final]: // 23
		if len(pool) > 0 { // 24
			return nil, false // 25, 26
		}
		ended = true // 28
	default: // 32
		for tr := range L { // 33
			insert(tr) // 34, 35
		}
	}
	i.jobPool, i.isNew, i.exception, i.ended, i.cancelled, i.resting = pool, false, exception, ended, false, nil
	slices.Sort(fired)
	return fired, true
}

func (i *instance) status() fold.Status {
	switch {
	case i.cancelled:
		return fold.Cancelled
	case i.resting != nil:
		return fold.Suspended
	case i.ended:
		return fold.Final
	case i.exception:
		return fold.Exception
	default:
		return fold.Regular
	}
}

// TestNextIsAlgorithm1 drives whole histories of an instance, with parallel
// transitions in any order, rules that fire again, failing conditions, exceptions
// that lead to exceptions, final initial states, reopened instances, withdrawn jobs,
// and operators who suspend, resume and cancel, through both, and compares after every
// state.
func TestNextIsAlgorithm1(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		i := instance{isNew: true, jobPool: map[fold.Rule]bool{}}
		var pending []fold.Rule

		for k, n := 0, rapid.IntRange(1, 40).Draw(t, "states"); k < n; k++ {
			pool := slices.Sorted(maps.Keys(i.jobPool))
			if !i.isNew && !i.ended {
				status := rapid.SampledFrom([]fold.Status{0, 0, 0, 0, fold.Suspended, fold.Cancelled}).Draw(t, "operator")
				if status == fold.Suspended && i.resting != nil {
					status = 0
				}
				if status != 0 {
					if status == fold.Suspended {
						i.suspend()
					} else {
						i.cancel()
					}
					// whatever the guard reports besides
					got := fold.Next(pending, fold.State{Withdrawn: pool, Status: status, Final: status == fold.Cancelled}, excpt)
					want := fold.Outcome{Pending: []fold.Rule{}, Fired: []fold.Rule{}, Status: status}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatalf("state %d, pending before %v (-want +fold):\n%s", k, pending, diff)
					}
					pending = got.Pending
					continue
				}
			}

			by := fold.None
			var withdrawn []fold.Rule
			switch {
			case i.resting != nil: // it is resumed: what pended is due again, as if its conditions held
			case len(pool) > 0 && rapid.IntRange(0, 3).Draw(t, "intervention") == 0: // a state that is no transition's
				withdrawn = rapid.SliceOfDistinct(rapid.SampledFrom(pool), rapid.ID[fold.Rule]).Draw(t, "withdrawn")
			case len(pool) > 0:
				by = rapid.SampledFrom(pool).Draw(t, "by") // any pending job may commit next
				for _, r := range pool {
					if r != by && rapid.IntRange(0, 3).Draw(t, "withdrawable") == 0 {
						withdrawn = append(withdrawn, r)
					}
				}
			case !i.isNew && !i.ended:
				t.Fatalf("state %d: nothing is pending and the instance has not ended", k)
			}

			// Half of the states match what they like, the others little, so that
			// joins, final states and exceptions are met often.
			sat := map[fold.Rule]bool{}
			most := rapid.SampledFrom([]int{0, 1, 2, 6}).Draw(t, "most")
			for _, r := range rapid.SliceOfN(rapid.Int32Range(1, 6), 0, most).Draw(t, "matched") {
				sat[r] = true
			}
			for r := range i.resting {
				sat[r] = true
			}
			isFinal := len(i.resting) == 0 && rapid.IntRange(0, 3).Draw(t, "final") == 0
			failed := !isFinal && rapid.IntRange(0, 7).Draw(t, "failed") == 0
			if failed {
				clear(sat) // the guard reports nothing of a state whose condition failed
			}

			before := pending
			fired, ok := i.server(by, withdrawn, sat, isFinal, failed)
			if !ok {
				continue // rejected: there is no state
			}
			matched := slices.Collect(maps.Keys(sat))
			if isFinal {
				matched = nil // likewise
			}
			got := fold.Next(before, fold.State{
				By: by, Matched: matched, Final: isFinal, Failed: failed, Withdrawn: withdrawn,
			}, excpt)
			pending = got.Pending

			want := fold.Outcome{
				Pending: append([]fold.Rule{}, slices.Sorted(maps.Keys(i.jobPool))...),
				Fired:   append([]fold.Rule{}, fired...),
				Status:  i.status(),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("state %d, by %d, withdrawn %v, matched %v, final %v, failed %v, pending before %v (-paper +fold):\n%s",
					k, by, withdrawn, matched, isFinal, failed, before, diff)
			}
		}
	})
}

// TestNextKeepsItsInvariants feeds states that no guard would let pass, too.
func TestNextKeepsItsInvariants(t *testing.T) {
	t.Parallel()
	set := rapid.SliceOfN(rapid.Int32Range(1, 12), 0, 10)
	rapid.Check(t, func(t *rapid.T) {
		prev := set.Draw(t, "prev")
		s := fold.State{
			By:      rapid.Int32Range(0, 12).Draw(t, "by"),
			Matched: set.Draw(t, "matched"),
			Final:   rapid.Bool().Draw(t, "final"),
			Failed:  rapid.Bool().Draw(t, "failed"),

			Withdrawn: set.Draw(t, "withdrawn"),
			Status:    rapid.SampledFrom([]fold.Status{0, 0, fold.Suspended, fold.Cancelled}).Draw(t, "status"),
		}
		got := fold.Next(prev, s, excpt)

		if !slices.IsSorted(got.Pending) || !slices.IsSorted(got.Fired) {
			t.Errorf("not sorted: %+v", got)
		}
		for _, r := range got.Fired {
			if !slices.Contains(got.Pending, r) {
				t.Errorf("%d was fired and is not pending", r)
			}
			if r != s.By && slices.Contains(prev, r) && !slices.Contains(s.Withdrawn, r) {
				t.Errorf("%d was pending and was fired again", r)
			}
		}
		for _, r := range prev {
			if r != s.By && !s.Final && s.Status == 0 && !slices.Contains(s.Withdrawn, r) && !slices.Contains(got.Pending, r) {
				t.Errorf("%d was pending and got lost", r)
			}
		}
		for _, r := range s.Withdrawn {
			if r != excpt && !slices.Contains(s.Matched, r) && slices.Contains(got.Pending, r) {
				t.Errorf("%d was withdrawn and is pending", r)
			}
		}
		switch {
		case s.Status != 0 && got.Status != s.Status:
			t.Errorf("status %v instead of %v", got.Status, s.Status)
		case s.Status == 0 && s.Final != (got.Status == fold.Final):
			t.Errorf("status %v for final = %v", got.Status, s.Final)
		}
		rests := got.Status == fold.Final || got.Status == fold.Suspended || got.Status == fold.Cancelled
		if rests != (len(got.Pending) == 0) {
			t.Errorf("status %v with %v pending", got.Status, got.Pending)
		}
		if got.Status == fold.Exception && !slices.Contains(got.Pending, excpt) {
			t.Errorf("an exception that nobody is called for: %+v", got)
		}
	})
}
