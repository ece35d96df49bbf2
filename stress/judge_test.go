package stress

import (
	"fmt"
	"slices"
	"time"
)

// state is an instance of the paper's figure 2; nil is SQL's null.
type state struct {
	A1, A2, A3 *string
}

func is(a *string, v string) bool { return a != nil && *a == v }

// The rules of figure 2, as they read there.
var rules = []struct {
	transition string
	condition  func(s state) bool
}{
	{"tr_a2", func(s state) bool { return is(s.A1, "ready") && s.A2 == nil }},
	{"tr_a3", func(s state) bool { return is(s.A1, "ready") && s.A3 == nil }},
	{"tr_final", func(s state) bool { return is(s.A1, "ready") && s.A2 != nil && s.A3 != nil }},
}

func isFinal(s state) bool { return s.A1 != nil && *s.A1 != "ready" }

// line is a line of wed_trace.
type line struct {
	Version int64
	State   state
	Trw     *string
	Trf     []string
	Status  string
	Tstmp   time.Time
}

// judge runs Algorithm 1 over the recorded states of one instance, with a job pool of its own, and returns the first
// difference between what it says and what was recorded.
func judge(history []line) error {
	pool := map[string]bool{}
	var last time.Time
	for k, l := range history {
		if l.Version != int64(k) {
			return fmt.Errorf("line %d has version %d", k, l.Version)
		}
		if !l.Tstmp.After(last) {
			return fmt.Errorf("version %d: its time %v is not after %v", k, l.Tstmp, last)
		}
		last = l.Tstmp

		switch {
		case k == 0 && l.Trw != nil:
			return fmt.Errorf("version 0 was written by %s", *l.Trw)
		case k > 0 && l.Trw == nil:
			return fmt.Errorf("version %d was written by nobody", k)
		case k > 0 && !pool[*l.Trw]:
			return fmt.Errorf("version %d was written by %s, which was not pending", k, *l.Trw)
		case k > 0:
			delete(pool, *l.Trw)
		}

		var fired []string
		status := "R"
		if isFinal(l.State) {
			if len(pool) > 0 {
				return fmt.Errorf("version %d is final while %v pend", k, pool)
			}
			status = "F"
		} else {
			for _, r := range rules {
				if r.condition(l.State) && !pool[r.transition] {
					pool[r.transition] = true
					fired = append(fired, r.transition)
				}
			}
			if len(pool) == 0 {
				status, fired = "E", []string{"_EXCPT"}
				pool["_EXCPT"] = true
			}
		}
		recorded := slices.Sorted(slices.Values(l.Trf))
		if slices.Sort(fired); !slices.Equal(fired, recorded) {
			return fmt.Errorf("version %d fired %v, not %v", k, recorded, fired)
		}
		if l.Status != status {
			return fmt.Errorf("version %d has status %s, not %s", k, l.Status, status)
		}
		if status == "F" && k != len(history)-1 {
			return fmt.Errorf("version %d is final, but not the last", k)
		}
	}
	return nil
}
