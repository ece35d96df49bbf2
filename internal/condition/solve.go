package condition

import (
	"fmt"
	"slices"
	"strings"
)

// Requirement is what a condition must come to on a state: to hold, or not to.
type Requirement struct {
	Condition Expr
	Holds     bool
}

// Verdict is what is known of the states that meet requirements.
type Verdict int

const (
	Unknown    Verdict = iota // there may be one, or not
	Impossible                // there is none: a proof
	Possible                  // there is one: Answer.State says which
)

// Answer is a verdict. State is a state that meets the requirements, as far as it
// matters: the attributes and what they are.
type Answer struct {
	Verdict Verdict
	State   []string
}

// States knows the attributes of a flow, and decides whether there are states that meet
// requirements.
type States struct {
	types map[string]string
}

// NewStates returns the states that have attributes of these types.
func NewStates(types map[string]string) *States {
	all := map[string]string{"wid": "bigint"}
	for name, typ := range types {
		all[name] = typ
	}
	return &States{types: all}
}

// patience is the number of cases that are looked at before the answer is Unknown.
const patience = 20_000

// Solve looks for a state that meets all requirements.
func (s *States) Solve(requirements ...Requirement) Answer {
	c := compiler{types: s.types, columns: make(map[string]*column), opaques: make(map[string]int)}
	for _, r := range requirements {
		c.collect(r.Condition)
	}
	search := search{budget: patience}
	for _, r := range requirements {
		want := isTrue
		if !r.Holds {
			want = isFalse | isNull
		}
		search.goals = append(search.goals, goal{c.compile(r.Condition), want})
	}
	search.order(&c)
	switch {
	case search.run(0):
		return c.answer(&search)
	case search.budget <= 0:
		return Answer{}
	}
	return Answer{Verdict: Impossible}
}

// Never proves that a condition holds on no state.
func (s *States) Never(e Expr) bool {
	return s.Solve(Requirement{e, true}).Verdict == Impossible
}

// Always proves that a condition holds on each state.
func (s *States) Always(e Expr) bool {
	return s.Total(e) && s.Solve(Requirement{e, false}).Verdict == Impossible
}

// Implies proves that where one condition holds, the other does.
func (s *States) Implies(a, b Expr) bool {
	return s.Total(b) && s.Solve(Requirement{a, true}, Requirement{b, false}).Verdict == Impossible
}

// Total proves that a condition comes to something on each state, and not to an error.
func (s *States) Total(e Expr) bool {
	c := compiler{types: s.types, columns: make(map[string]*column), opaques: make(map[string]int)}
	c.collect(e)
	c.compile(e)
	return !c.mayFail
}

// Assigned returns the condition of the states in which an attribute has the value that
// it has after a constant was assigned to it. Not ok: that is not known, for it may be
// rounded or cut to what the type holds.
func (s *States) Assigned(name string, c *Const) (Expr, bool) {
	if c.Kind == Null {
		return &Is{X: &Column{Name: name}, What: "null"}, true
	}
	d := domainOf(s.types[name])
	v, ok := d.parse(c)
	if !ok || !d.exact || d.class == integerClass && !v.num.IsInt() {
		return nil, false
	}
	return &Compare{Op: "=", L: &Column{Name: name}, R: c}, true
}

type goal struct {
	formula formula
	want    outcome
}

// search tries the values of one variable after the other, as long as the goals can
// still be reached.
type search struct {
	goals      []goal
	sequence   []int // variables, in the order in which they are tried
	values     []int // how many each has
	assignment []int
	budget     int
}

// order has the variables that are named most often tried first, and columns before
// what is opaque: of them more is known.
func (s *search) order(c *compiler) {
	s.values = c.values
	s.assignment = slices.Repeat([]int{unset}, len(c.values))
	uses := make([]int, len(c.values))
	for _, g := range s.goals {
		g.formula.variables(func(v int) {
			if uses[v] == 0 {
				s.sequence = append(s.sequence, v)
			}
			uses[v]++
		})
	}
	slices.SortStableFunc(s.sequence, func(a, b int) int {
		if c.isColumn[a] != c.isColumn[b] {
			if c.isColumn[a] {
				return -1
			}
			return 1
		}
		return uses[b] - uses[a]
	})
}

// run reports whether the goals can be reached; then the assignment says how.
func (s *search) run(depth int) bool {
	s.budget--
	if s.budget <= 0 {
		return false
	}
	certain := true
	for _, g := range s.goals {
		o := g.formula.outcome(s.assignment)
		if o&g.want == 0 {
			return false
		}
		certain = certain && o&^g.want == 0
	}
	if certain || depth == len(s.sequence) {
		return certain
	}
	v := s.sequence[depth]
	for i := range s.values[v] {
		s.assignment[v] = i
		if s.run(depth + 1) {
			return true
		}
	}
	s.assignment[v] = unset
	return false
}

// answer says what a search has found. What rests on something opaque, or on a value
// that may not exist, is not known.
func (c *compiler) answer(s *search) Answer {
	var state []string
	for v, i := range s.assignment {
		if i == unset {
			continue
		}
		if !c.isColumn[v] {
			return Answer{}
		}
	}
	if c.mayFail {
		return Answer{}
	}
	for name, col := range c.columns {
		i := s.assignment[col.variable]
		if i == unset {
			continue
		}
		if !col.domain.exact {
			return Answer{}
		}
		state = append(state, col.describe(name, i))
	}
	slices.Sort(state)
	return Answer{Verdict: Possible, State: state}
}

func (c *column) describe(name string, i int) string {
	if i == len(c.values) {
		return name + " is null"
	}
	v := c.values[i]
	if !v.other {
		return fmt.Sprintf("%s = %s", name, c.domain.write(v))
	}
	if len(c.constants) == 0 {
		return name + " is not null"
	}
	known := make([]string, len(c.constants))
	for i, k := range c.constants {
		known[i] = c.domain.write(k)
	}
	return fmt.Sprintf("%s is other than %s", name, strings.Join(known, ", "))
}
