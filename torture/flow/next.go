package flow

import (
	"math/rand/v2"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// Goal is what a worker would like the next state to be.
type Goal int

// Goals. Exceptions come by themselves.
const (
	Any   Goal = iota // whatever comes
	OnGo              // rules are due on it
	End               // final
	Quiet             // as few rules as possible are due on it, and none fails
)

// candidates is how many states are tried for a goal.
const candidates = 40

// Next draws values that lead from a state to one that suits the goal, if one is found.
func (d *Definition) Next(r *rand.Rand, s predicate.State, goal Goal) map[string]*string {
	best, fewest := d.drawSet(r, 1), -1
	if goal == Any {
		return best
	}
	for i := range candidates {
		set := d.drawSet(r, 1+i/8)
		next, err := d.Apply(s, set)
		if err != nil {
			return best // of another definition
		}
		v, err := d.Judge(next)
		switch {
		case err != nil:
			return best
		case v.Failed:
		case goal == End && v.Final, goal == OnGo && len(v.Due) > 0:
			return set
		case goal != OnGo && !v.Final && (fewest < 0 || len(v.Due) < fewest):
			best, fewest = set, len(v.Due)
		}
	}
	return best
}

// Initial draws the first state of an instance, or one that is to be refused.
func (d *Definition) Initial(r *rand.Rand) (set map[string]*string, accepted bool) {
	for range candidates {
		set = map[string]*string{}
		for _, c := range d.Columns {
			set[c.Name] = value(r, c.Type)
		}
		s, err := d.Apply(predicate.State{}, set)
		if err != nil {
			panic(err) // of the generator
		}
		v, err := d.Judge(s)
		if err != nil {
			panic(err)
		}
		accepted = v.Failed || v.Final || len(v.Due) > 0
		if len(v.Due) > 0 || r.IntN(20) == 0 {
			break
		}
	}
	return set, accepted
}

func (d *Definition) drawSet(r *rand.Rand, n int) map[string]*string {
	set := map[string]*string{}
	for range n {
		c := pick(r, d.Columns)
		set[c.Name] = value(r, c.Type)
	}
	return set
}
