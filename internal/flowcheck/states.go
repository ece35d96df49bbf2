package flowcheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/condition"
)

// initialState finds out whether an instance of nothing but defaults can start.
func (c *checker) initialState() {
	var state []condition.Requirement
	for _, a := range c.d.Attributes {
		if known, ok := c.states.Assigned(a.Name, defaultOf(a.Default)); ok {
			state = append(state, condition.Requirement{Condition: known, Holds: true})
		}
	}
	unknown := len(c.rules) == 0
	for _, r := range c.rules {
		if !r.Enabled {
			continue
		}
		if r.condition == nil {
			unknown = true
			continue
		}
		if c.states.Solve(append(slices.Clone(state), condition.Requirement{Condition: r.condition, Holds: true})...).Verdict != condition.Impossible {
			return // it may
		}
	}
	if unknown {
		return
	}
	c.add(Finding{
		Severity: Note, Check: "initial-state", Message: "an instance of nothing but defaults cannot start: no rule holds on it, and it is not final",
		Why: "insert into wed_flow default values is refused (WED01); instances need values when they are inserted",
		Do:  "give the attribute that tells how far an instance is a default: adv in wed_attr",
	})
}

// workers looks at what is said of attempts, and who may perform what.
func (c *checker) workers() {
	granted := make(map[string]bool)
	for _, w := range c.d.Workers {
		granted[w.Transition] = true
	}
	told := make(map[string]bool)
	var forEver []string
	for i, r := range c.rules {
		if r.Final || !r.Enabled {
			continue
		}
		if r.MaxAttempts == nil && r.Action != nil {
			forEver = append(forEver, r.Label())
		}
		if len(granted) > 0 && r.Action == nil && !granted[*r.Transition] && !told[*r.Transition] {
			told[*r.Transition] = true
			c.add(about(Note, "no-worker-role", i, fmt.Sprintf("no worker role was granted transition %s", *r.Transition),
				"others of this flow were granted; this one can be performed by the owner of the flow alone, and by whom he lets update the whole of wed_flow",
				fmt.Sprintf("select wed_sql.grant_worker(current_schema(), '%s', '...')", *r.Transition)))
		}
	}
	if len(forEver) > 0 {
		c.add(Finding{
			Severity: Note, Check: "no-max-attempts", Message: "an action that fails is tried again for ever: " + strings.Join(forEver, ", "),
			Why: "max_attempts is not set: the instance waits, and nobody is called", Do: "set max_attempts: after so many the instance becomes an exception",
		})
	}
	for _, w := range c.d.Workers {
		if w.Transition != "_EXCPT" && !slices.ContainsFunc(c.rules, func(r rule) bool { return r.Transition != nil && *r.Transition == w.Transition }) {
			c.add(Finding{
				Severity: Warning, Check: "no-such-transition", Message: fmt.Sprintf("role %s was granted transition %s, which no rule has", w.Role, w.Transition),
				Why: "there will be no job of it", Do: "revoke it (wed_sql.revoke_worker), or look at how the transition is written",
			})
		}
	}
}

// attributes finds those that nothing of the flow reads.
func (c *checker) attributes() {
	read := make(map[string]bool)
	note := func(e condition.Expr) {
		for _, n := range condition.Names(e) {
			read[n] = true
		}
	}
	for _, r := range c.rules {
		if r.condition == nil {
			return // it may read any
		}
		note(r.condition)
		if r.Action == nil {
			continue
		}
		sets, err := condition.ParseSet(*r.Action)
		if err != nil {
			return
		}
		for _, a := range sets {
			if a.Value != nil {
				note(a.Value)
			}
		}
	}
	if s := c.d.Settings.Consistent; s != nil {
		e, err := condition.Parse(*s)
		if err != nil {
			return
		}
		note(e)
	}
	if read["wed_flow"] {
		return // all of them: to_jsonb(wed_flow)
	}
	var unread []string
	for _, a := range c.d.Attributes {
		if !read[a.Name] {
			unread = append(unread, a.Name)
		}
	}
	if len(unread) > 0 {
		c.add(Finding{
			Severity: Note, Check: "not-read", Message: "no condition and no action reads " + strings.Join(unread, ", "),
			Why: "they decide nothing; workers may need them all the same", Do: "remove what nobody needs",
		})
	}
}

// history tells what was seen of transitions that workers perform, and what is not known
// of the others.
func (c *checker) history() {
	var unknown []string
	for i, r := range c.rules {
		if r.Final || !r.Enabled || r.Action != nil || r.never {
			continue
		}
		s, seen := c.seen[*r.Transition]
		if !seen || s.Times == 0 {
			if !slices.Contains(unknown, *r.Transition) {
				unknown = append(unknown, *r.Transition)
			}
			continue
		}
		c.stillHolds(i, r, s)
	}
	if len(unknown) > 0 {
		c.add(Finding{
			Severity: Unknown, Check: "workers", Message: "what the workers of " + strings.Join(unknown, ", ") + " write",
			Why: "so whether these fire again after their own transition, and whether there is a way on after it",
			Do:  "look at it yourself, or check a flow whose history has them",
		})
	}
}

// stillHolds finds transitions that were seen to write nothing that their rule reads: the
// condition holds as before, and fires again.
func (c *checker) stillHolds(i int, r rule, s Seen) {
	if r.condition == nil {
		return
	}
	if s.Again == s.Times && s.Times > 1 {
		c.add(about(Warning, "fires-again", i, fmt.Sprintf("%s was performed %d times, and each time the state that it wrote fired it again", r.Label(), s.Times),
			"so the history says", "have the condition exclude what the transition writes: "+orNothing(s.Writes)))
		return
	}
	names := condition.Names(r.condition)
	if !slices.ContainsFunc(s.Writes, func(a string) bool { return slices.Contains(names, a) }) && s.Times > 1 {
		c.add(about(Note, "writes-nothing-read", i, fmt.Sprintf("in %d times %s was seen to write nothing that its condition reads", s.Times, r.Label()),
			"it wrote "+orNothing(s.Writes)+"; if nothing else changes meanwhile, the condition still holds and fires it again",
			"have the condition read what the transition writes"))
	}
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
