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
}

// server runs Algorithm 1 after a state that satisfies the conditions in sat. by is
// the job that the writing transaction completed (Algorithm 2, line 12: the commit
// takes it out of the pool). It returns what was inserted into the pool, and false
// if the paper rejects the transaction, in which case i is unchanged.
func (i *instance) server(by fold.Rule, sat map[fold.Rule]bool, isFinal, failed bool) (fired []fold.Rule, ok bool) {
	pool := maps.Clone(i.jobPool)
	if by != fold.None {
		delete(pool, by)
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
	i.jobPool, i.isNew, i.exception, i.ended = pool, false, exception, ended
	slices.Sort(fired)
	return fired, true
}

func (i *instance) status() fold.Status {
	switch {
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
// that lead to exceptions, final initial states and reopened instances, through
// both, and compares after every state.
func TestNextIsAlgorithm1(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		i := instance{isNew: true, jobPool: map[fold.Rule]bool{}}
		var pending []fold.Rule

		for k, n := 0, rapid.IntRange(1, 40).Draw(t, "states"); k < n; k++ {
			by := fold.None
			if pool := slices.Sorted(maps.Keys(i.jobPool)); len(pool) > 0 {
				by = rapid.SampledFrom(pool).Draw(t, "by") // any pending job may commit next
			} else if !i.isNew && !i.ended {
				t.Fatalf("state %d: nothing is pending and the instance has not ended", k)
			}

			// Half of the states match what they like, the others little, so that
			// joins, final states and exceptions are met often.
			sat := map[fold.Rule]bool{}
			most := rapid.SampledFrom([]int{0, 1, 2, 6}).Draw(t, "most")
			for _, r := range rapid.SliceOfN(rapid.Int32Range(1, 6), 0, most).Draw(t, "matched") {
				sat[r] = true
			}
			isFinal := rapid.IntRange(0, 3).Draw(t, "final") == 0
			failed := !isFinal && rapid.IntRange(0, 7).Draw(t, "failed") == 0
			if failed {
				clear(sat) // the guard reports nothing of a state whose condition failed
			}

			before := pending
			fired, ok := i.server(by, sat, isFinal, failed)
			if !ok {
				continue // rejected: there is no state
			}
			matched := slices.Collect(maps.Keys(sat))
			if isFinal {
				matched = nil // likewise
			}
			got := fold.Next(before, fold.State{By: by, Matched: matched, Final: isFinal, Failed: failed}, excpt)
			pending = got.Pending

			want := fold.Outcome{
				Pending: append([]fold.Rule{}, slices.Sorted(maps.Keys(i.jobPool))...),
				Fired:   append([]fold.Rule{}, fired...),
				Status:  i.status(),
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("state %d, by %d, matched %v, final %v, failed %v, pending before %v (-paper +fold):\n%s",
					k, by, matched, isFinal, failed, before, diff)
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
		}
		got := fold.Next(prev, s, excpt)

		if !slices.IsSorted(got.Pending) || !slices.IsSorted(got.Fired) {
			t.Errorf("not sorted: %+v", got)
		}
		for _, r := range got.Fired {
			if !slices.Contains(got.Pending, r) {
				t.Errorf("%d was fired and is not pending", r)
			}
			if r != s.By && slices.Contains(prev, r) {
				t.Errorf("%d was pending and was fired again", r)
			}
		}
		for _, r := range prev {
			if r != s.By && !s.Final && !slices.Contains(got.Pending, r) {
				t.Errorf("%d was pending and got lost", r)
			}
		}
		if s.Final != (got.Status == fold.Final) {
			t.Errorf("status %v for final = %v", got.Status, s.Final)
		}
		if (got.Status == fold.Final) != (len(got.Pending) == 0) {
			t.Errorf("status %v with %v pending", got.Status, got.Pending)
		}
		if got.Status == fold.Exception && !slices.Contains(got.Pending, excpt) {
			t.Errorf("an exception that nobody is called for: %+v", got)
		}
	})
}
