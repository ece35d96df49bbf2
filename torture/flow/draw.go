package flow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// samples is how many states a condition is tried on before it is taken.
const samples = 150

// names of attributes, for those who quote too little
var strange = []string{"Größe", "order", "two words", `say "hi"`, "wid_"}

// Draw draws a flow that an instance can start in, go through and end in.
func Draw(r *rand.Rand, name string) *Definition {
	for {
		d := &Definition{Flow: name}
		// One of each type that rules can be told apart by, and some more.
		d.Columns = append(d.Columns, column(r, "stage", predicate.Text), column(r, "n", predicate.Integer))
		for i := range 1 + r.IntN(4) {
			d.Columns = append(d.Columns, column(r, fmt.Sprintf("a%d", i), pick(r, predicate.Types)))
		}
		if r.IntN(2) == 0 {
			d.Columns = append(d.Columns, column(r, pick(r, strange), pick(r, predicate.Types)))
		}
		d.Rules = append(d.Rules, &Rule{Final: true, Enabled: true, Timeout: time.Hour, Condition: d.drawCondition(r, 0.03, 0.3)})
		transitions := 3 + r.IntN(3)
		for i := range 4 + r.IntN(6) {
			d.Rules = append(d.Rules, d.drawRule(r, fmt.Sprintf("tr_%d", i%transitions)))
		}
		if d.goes(r) {
			return d
		}
	}
}

// goes says whether instances are not exceptions all the time.
func (d *Definition) goes(r *rand.Rand) bool {
	failed, due := 0, 0
	for range samples {
		v, err := d.Judge(d.drawState(r))
		if err != nil {
			panic(err) // of the generator
		}
		if v.Failed {
			failed++
		}
		if len(v.Due) > 0 {
			due++
		}
	}
	return failed < samples/5 && due > samples/2
}

func column(r *rand.Rand, name string, t predicate.Type) Column {
	c := Column{Name: name, Type: t}
	if r.IntN(2) == 0 {
		c.Default = value(r, t)
	}
	return c
}

// value draws one of a type; nil is null.
func value(r *rand.Rand, t predicate.Type) *string {
	if r.IntN(4) == 0 {
		return nil
	}
	v := pick(r, domains[t])
	return &v
}

func (d *Definition) drawState(r *rand.Rand) predicate.State {
	set := make(map[string]*string, len(d.Columns))
	for _, c := range d.Columns {
		set[c.Name] = value(r, c.Type)
	}
	s, err := d.Apply(predicate.State{}, set)
	if err != nil {
		panic(err) // of the generator
	}
	return s
}

// drawCondition draws a condition that holds on a part of all states between least and most, and seldom fails.
func (d *Definition) drawCondition(r *rand.Rand, least, most float64) *predicate.Node {
	for {
		n := condition(r, d.Columns, r.IntN(3))
		holding, failing := 0, 0
		for range samples {
			switch holds, err := n.Holds(d.drawState(r)); {
			case err != nil:
				failing++
			case holds:
				holding++
			}
		}
		if part := float64(holding) / samples; part >= least && part <= most && failing <= samples/10 {
			return n
		}
	}
}

func (d *Definition) drawRule(r *rand.Rand, transition string) *Rule {
	rule := &Rule{Transition: transition, Enabled: r.IntN(10) > 0, Condition: d.drawCondition(r, 0.05, 0.5), Timeout: time.Hour}
	d.drawManners(r, rule)
	return rule
}

// drawManners draws what a rule has besides its condition.
func (d *Definition) drawManners(r *rand.Rand, rule *Rule) {
	rule.Withdrawable = r.IntN(4) == 0
	rule.Priority = r.IntN(3)
	rule.Timeout, rule.Delay, rule.Action, rule.MaxAttempts, rule.Backoff = time.Hour, 0, nil, 0, 0
	if r.IntN(6) == 0 {
		rule.Timeout = time.Duration(1000+r.IntN(1000)) * time.Millisecond
	}
	if r.IntN(6) == 0 {
		rule.Delay = time.Duration(20+r.IntN(500)) * time.Millisecond
	}
	if r.IntN(8) == 0 {
		rule.Action = d.drawAction(r, rule.Condition)
	}
	if r.IntN(4) == 0 {
		rule.MaxAttempts = 2 + r.IntN(3)
	}
	if r.IntN(4) == 0 {
		rule.Backoff = time.Duration(50+r.IntN(200)) * time.Millisecond
	}
}

// drawAction draws values that, as a rule, undo the condition: not all actions are to run for ever.
func (d *Definition) drawAction(r *rand.Rand, condition *predicate.Node) map[string]string {
	for n := 0; ; n++ {
		action, set := map[string]string{}, map[string]*string{}
		for range 1 + r.IntN(2) {
			c := pick(r, d.Columns)
			v := pick(r, domains[c.Type])
			action[c.Name], set[c.Name] = v, &v
		}
		undone := 0
		for range 20 {
			s, err := d.Apply(d.drawState(r), set)
			if err != nil {
				panic(err) // of the generator
			}
			if holds, err := condition.Holds(s); err == nil && !holds {
				undone++
			}
		}
		if undone > 17 || n == 50 {
			return action
		}
	}
}

// Change draws a definition that differs from d in one thing, and says in what. Rules and columns that are new have no
// TGID; each transition keeps a rule.
func (d *Definition) Change(r *rand.Rand, nth int) (*Definition, string) {
	for {
		c := d.Clone()
		rule := c.Rules[r.IntN(len(c.Rules))]
		what := ""
		switch r.IntN(8) {
		case 0:
			if rule.Final {
				continue
			}
			rule.Enabled = !rule.Enabled
			what = "enabled or disabled a rule"
		case 1, 2:
			if rule.Final {
				rule.Condition = c.drawCondition(r, 0.03, 0.3)
			} else {
				rule.Condition = c.drawCondition(r, 0.05, 0.5)
			}
			what = "changed a condition"
		case 3:
			if rule.Final {
				continue
			}
			c.drawManners(r, rule)
			what = "changed a rule"
		case 4:
			if len(c.Rules) > 12 {
				continue
			}
			c.Rules = append(c.Rules, c.drawRule(r, pick(r, c.Transitions())))
			what = "added a rule"
		case 5:
			before := len(c.Transitions())
			c.Rules = slices.DeleteFunc(c.Rules, func(x *Rule) bool { return x == rule && !rule.Final })
			if len(c.Rules) == len(d.Rules) || len(c.Transitions()) < before {
				continue
			}
			what = "removed a rule"
		case 6:
			if len(c.Columns) > 9 {
				continue
			}
			c.Columns = append(c.Columns, column(r, fmt.Sprintf("new%d", nth), pick(r, predicate.Types)))
			what = "added an attribute"
		case 7:
			name := pick(r, c.Columns).Name
			if c.uses(name) {
				continue
			}
			c.Columns = slices.DeleteFunc(c.Columns, func(x Column) bool { return x.Name == name })
			what = "removed an attribute"
		}
		if c.goes(r) {
			return c, what
		}
	}
}

func (d *Definition) uses(name string) bool {
	if len(d.Columns) <= 3 {
		return true
	}
	return slices.ContainsFunc(d.Rules, func(rule *Rule) bool {
		_, sets := rule.Action[name]
		return sets || slices.Contains(rule.Condition.Attributes(), name)
	})
}
