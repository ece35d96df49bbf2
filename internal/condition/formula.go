package condition

// outcome is a set of what an expression can come to: true, false, null.
type outcome uint8

const (
	isTrue outcome = 1 << iota
	isFalse
	isNull

	anything = isTrue | isFalse | isNull
)

func truth(b bool) outcome {
	if b {
		return isTrue
	}
	return isFalse
}

// formula is an expression made ready to be decided. unset in an assignment is a
// variable that may still have any of its values.
type formula interface {
	outcome(assignment []int) outcome
	variables(visit func(int))
}

const unset = -1

type (
	constant    outcome
	negation    struct{ x formula }
	conjunction []formula
	disjunction []formula

	// test is whether x comes to one of the outcomes; never null.
	test struct {
		x  formula
		is outcome
	}

	// atom depends on one variable: its outcome for each of its values.
	atom struct {
		variable int
		outcomes []outcome
		union    outcome
	}
)

func (c constant) outcome([]int) outcome   { return outcome(c) }
func (c constant) variables(func(int))     {}
func (n negation) variables(v func(int))   { n.x.variables(v) }
func (t test) variables(v func(int))       { t.x.variables(v) }
func (a *atom) variables(visit func(int))  { visit(a.variable) }
func (n negation) outcome(a []int) outcome { return negate(n.x.outcome(a)) }

func negate(o outcome) outcome {
	swapped := o & isNull
	if o&isTrue != 0 {
		swapped |= isFalse
	}
	if o&isFalse != 0 {
		swapped |= isTrue
	}
	return swapped
}

func (t test) outcome(a []int) outcome {
	got := t.x.outcome(a)
	var o outcome
	if got&t.is != 0 {
		o |= isTrue
	}
	if got&^t.is != 0 {
		o |= isFalse
	}
	return o
}

func newAtom(variable int, outcomes []outcome) *atom {
	a := &atom{variable: variable, outcomes: outcomes}
	for _, o := range outcomes {
		a.union |= o
	}
	return a
}

func (a *atom) outcome(assignment []int) outcome {
	if v := assignment[a.variable]; v != unset {
		return a.outcomes[v]
	}
	return a.union
}

func (c conjunction) outcome(a []int) outcome {
	all := isTrue
	for _, x := range c {
		all = conjoin(all, x.outcome(a))
	}
	return all
}

func (d disjunction) outcome(a []int) outcome {
	all := isFalse
	for _, x := range d {
		all = negate(conjoin(negate(all), negate(x.outcome(a))))
	}
	return all
}

// conjoin returns what x and y can come to, of all that each can.
func conjoin(x, y outcome) outcome {
	var o outcome
	if x&isFalse != 0 || y&isFalse != 0 {
		o |= isFalse
	}
	if x&isTrue != 0 && y&isTrue != 0 {
		o |= isTrue
	}
	if x&isNull != 0 && y&(isNull|isTrue) != 0 || y&isNull != 0 && x&(isNull|isTrue) != 0 {
		o |= isNull
	}
	return o
}

func (c conjunction) variables(v func(int)) {
	for _, x := range c {
		x.variables(v)
	}
}

func (d disjunction) variables(v func(int)) {
	for _, x := range d {
		x.variables(v)
	}
}
