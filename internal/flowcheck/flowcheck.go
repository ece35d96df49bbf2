// Package flowcheck finds what the author of a flow's rules got wrong, before instances
// run into it. What it says it has proved; what it cannot prove it says it does not know.
package flowcheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/condition"
	"github.com/wed-sql/wed_sql/internal/definition"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"   // the database refuses it, or no instance can do anything
	Warning Severity = "warning" // hardly what was meant
	Note    Severity = "note"    // may be meant
	Unknown Severity = "unknown" // could not be found out
)

func (s Severity) rank() int {
	return slices.Index([]Severity{Error, Warning, Note, Unknown}, s)
}

// Part is what of a definition a finding is about.
type Part int

// The parts of a definition.
const (
	Flow Part = iota
	InCondition
	InAction
)

// Finding is something that an author should look at.
type Finding struct {
	Severity Severity
	Check    string // which check has found it, for programs
	Part     Part
	Index    int // of the rule
	At       int // in the condition or action, in bytes
	Message  string
	Why      string
	Do       string
}

// Seen is what the history of a flow tells of a transition.
type Seen struct {
	Transition string
	Times      int64    // that it was performed
	Again      int64    // times that the state it wrote fired it again
	Writes     []string // attributes that it was seen to change
}

// Check looks at a definition, and at what was seen of its transitions, which may be
// nothing.
func Check(d *definition.Definition, seen []Seen) []Finding {
	c := newChecker(d, seen)
	for _, check := range []func(){
		c.whole, c.understood, c.names, c.traps, c.satisfiable, c.pairs, c.initialState, c.actions, c.loops, c.workers, c.attributes, c.history,
	} {
		check()
	}
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(order(a), order(b)), cmp.Compare(a.Index, b.Index))
	})
	return c.findings
}

// order has what is about rules told before what is about the whole.
func order(f Finding) int {
	return slices.Index([]Part{InCondition, InAction, Flow}, f.Part)
}

// rule is one as far as it is understood.
type rule struct {
	definition.Rule
	condition condition.Expr // nil: not understood
	never     bool
	shadowed  bool    // there is no state on which it holds, and the final condition does not
	effect    *effect // of its action; nil if it has none that is understood
}

type checker struct {
	d        *definition.Definition
	types    map[string]string
	states   *condition.States
	rules    []rule
	final    int // -1: none
	seen     map[string]Seen
	findings []Finding
}

func newChecker(d *definition.Definition, seen []Seen) *checker {
	c := &checker{d: d, types: make(map[string]string), final: -1, seen: make(map[string]Seen)}
	for _, a := range d.Attributes {
		c.types[a.Name] = a.Type
	}
	for _, s := range seen {
		c.seen[s.Transition] = s
	}
	c.states = condition.NewStates(c.types)
	for i, r := range d.Rules {
		parsed, err := condition.Parse(r.Condition)
		if err != nil {
			parsed = nil
		}
		c.rules = append(c.rules, rule{Rule: r, condition: parsed})
		if r.Final && r.Enabled {
			c.final = i
		}
	}
	for i := range c.rules {
		c.rules[i].effect = c.effectOf(c.rules[i])
	}
	return c
}

func (c *checker) add(f Finding) { c.findings = append(c.findings, f) }

// about makes a finding about the condition of a rule.
func about(severity Severity, check string, i int, message, why, do string) Finding {
	return Finding{Severity: severity, Check: check, Part: InCondition, Index: i, Message: message, Why: why, Do: do}
}

// whole looks at the flow as such.
func (c *checker) whole() {
	working := slices.ContainsFunc(c.rules, func(r rule) bool { return r.Enabled && !r.Final })
	if !working {
		c.add(Finding{
			Severity: Warning, Check: "no-rules", Message: "no rule has a transition",
			Why: "nothing ever becomes due", Do: "insert into wed_trig (trname, cpred) values ...",
		})
	}
	if c.final < 0 {
		c.add(Finding{
			Severity: Warning, Check: "no-final", Message: "there is no final condition",
			Why: "no instance ever ends: when nothing is left to do, it becomes an exception",
			Do:  "insert into wed_trig (cpred, cfinal) values ('...', true)",
		})
	}
	for i, r := range c.rules {
		if !r.Enabled {
			c.add(about(Note, "disabled", i, r.Label()+" is disabled", "its condition is not looked at", "update wed_trig set enabled = true, or remove it"))
		}
	}
}

// understood tells of the conditions that could not be parsed.
func (c *checker) understood() {
	for i, r := range c.rules {
		_, err := condition.Parse(r.Condition)
		if err != nil && r.Enabled {
			c.add(about(Unknown, "not-understood", i, "what the condition of "+r.Label()+" means is not known", "it is SQL that flow check does not read: "+err.Error(),
				"look at it yourself: when it holds, and that it stops holding"))
		}
		if r.Action == nil || r.effect != nil {
			continue
		}
		if _, err := condition.ParseSet(*r.Action); err != nil {
			c.add(Finding{
				Severity: Unknown, Check: "not-understood", Part: InAction, Index: i, Message: "what the action of " + r.Label() + " does is not known",
				Why: "it is SQL that flow check does not read: " + err.Error(), Do: "look at it yourself: whether its condition stops holding",
			})
		}
	}
}

// names finds transitions whose names are hard to tell apart.
func (c *checker) names() {
	first := make(map[string]int)
	for i, r := range c.rules {
		if r.Transition == nil {
			continue
		}
		key := strings.ToLower(strings.TrimSpace(*r.Transition))
		j, ok := first[key]
		if !ok {
			first[key] = i
			continue
		}
		if a, b := *c.rules[j].Transition, *r.Transition; a != b {
			c.add(about(Warning, "similar-names", i, fmt.Sprintf("the transitions %q and %q are two", a, b),
				"names count letter by letter, as they stand in the row: a worker of one does not get the jobs of the other", "write both in the same way, or make them more different"))
		}
	}
}

// satisfiable finds conditions that hold on no state, or on each.
func (c *checker) satisfiable() {
	undoes := make(map[string]bool)
	for _, r := range c.rules {
		if r.Undo != nil {
			undoes[*r.Undo] = true
		}
	}
	for i := range c.rules {
		r := &c.rules[i]
		if r.condition == nil || !r.Enabled {
			continue
		}
		switch {
		case c.states.Never(r.condition):
			r.never = true
			if c.has("null-comparison", i) {
				continue // that is why
			}
			if r.Transition != nil && undoes[*r.Transition] {
				continue // it is there to undo another
			}
			severity, why := Warning, "there is no state on which it is true"
			if k, ok := r.condition.(*condition.Const); ok && k.Kind == condition.Bool && !r.Final {
				severity = Note // it says so itself
			}
			if r.Final {
				why += ": no instance ever ends"
			} else {
				why += ": nothing ever fires " + *r.Transition
			}
			c.add(about(severity, "never-holds", i, "the condition of "+r.Label()+" never holds", why, "change the condition, or remove the rule"))
		case c.states.Always(r.condition):
			f := about(Warning, "always-holds", i, "the condition of "+r.Label()+" always holds",
				fmt.Sprintf("each state fires %s again, that of its own transition, too: for ever, or until the final condition holds", r.Label()),
				"add what its transition changes, such as ... and result is null")
			if r.Final {
				f.Severity, f.Why, f.Do = Error, "each instance ends as it starts", "say when an instance has ended"
			}
			c.add(f)
		}
	}
}

// has reports whether a check has found something in the condition of a rule.
func (c *checker) has(check string, i int) bool {
	return slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Check == check && f.Part == InCondition && f.Index == i })
}

// pairs finds rules that are in each other's way.
func (c *checker) pairs() {
	for i, r := range c.rules {
		if r.Final || !r.Enabled || r.condition == nil || r.never {
			continue
		}
		final := c.finalCondition()
		c.rules[i].shadowed = final != nil &&
			c.states.Solve(condition.Requirement{Condition: r.condition, Holds: true}, condition.Requirement{Condition: final}).Verdict == condition.Impossible
		if c.final >= 0 && c.rules[c.final].condition != nil && !c.has("always-holds", c.final) && c.states.Implies(r.condition, c.rules[c.final].condition) {
			c.add(about(Warning, "shadowed", i, r.Label()+" never fires: where its condition holds, the final condition does, too",
				"a final state fires nothing", "exclude these states from the final condition, or remove the rule"))
		}
		for j := range i {
			c.pair(j, i)
		}
	}
}

// pair looks at two rules of the same transition: each fires a job of its own.
func (c *checker) pair(j, i int) {
	a, b := c.rules[j], c.rules[i]
	if a.Final || !a.Enabled || a.condition == nil || a.never || *a.Transition != *b.Transition {
		return
	}
	const why, do = "each of the two rules fires a job of its own: the transition is performed twice", "keep one of them, or have their conditions exclude each other"
	forward, back := c.states.Implies(a.condition, b.condition), c.states.Implies(b.condition, a.condition)
	switch {
	case forward && back:
		c.add(about(Warning, "same-condition", i, fmt.Sprintf("two rules of transition %s have the same condition", *b.Transition), why, do))
	case forward:
		c.add(about(Warning, "implied", j, fmt.Sprintf("where this condition holds, that of another rule of transition %s does, too: %s", *b.Transition, b.Condition), why, do))
	case back:
		c.add(about(Warning, "implied", i, fmt.Sprintf("where this condition holds, that of another rule of transition %s does, too: %s", *b.Transition, a.Condition), why, do))
	}
}
