package flowcheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/condition"
)

// effect is what an action makes of a state: what the attributes that it sets are in the
// state after it, in terms of the one before; or, of those that have other names there,
// what is known of them.
type effect struct {
	after map[string]condition.Expr
	known []condition.Expr
	whole bool // all is known of the state after it
}

// after is the name of an attribute in the state that an action leads to.
func after(name string) string { return name + "\x00after" }

// effectOf understands a rule's action; nil if it has none, or it is not understood.
func (c *checker) effectOf(r rule) *effect {
	if r.Action == nil || !r.Enabled {
		return nil
	}
	sets, err := condition.ParseSet(*r.Action)
	if err != nil {
		return nil
	}
	e := &effect{after: make(map[string]condition.Expr), whole: true}
	for _, a := range sets {
		if sum := c.sum(a); sum != nil {
			e.after[a.Name] = sum
			continue
		}
		e.after[a.Name] = &condition.Column{Name: after(a.Name)}
		known := false
		if k, ok := c.assigned(a); ok {
			var is condition.Expr
			if is, known = c.with().Assigned(after(a.Name), k); known {
				e.known = append(e.known, is)
			}
		}
		e.whole = e.whole && known
	}
	return e
}

// sum understands n = n + 1 and its like; nil if it is something else.
func (c *checker) sum(a condition.Assignment) condition.Expr {
	if o, ok := a.Value.(*condition.Operate); ok {
		if column, ok := o.L.(*condition.Column); ok && column.Name == a.Name {
			return c.states.Sum(o)
		}
	}
	return nil
}

// assigned returns the constant that an assignment sets.
func (c *checker) assigned(a condition.Assignment) (*condition.Const, bool) {
	if a.Value == nil {
		for _, attribute := range c.d.Attributes {
			if attribute.Name == a.Name {
				return defaultOf(attribute.Default), true
			}
		}
		return nil, false
	}
	k, ok := a.Value.(*condition.Const)
	return k, ok
}

// defaultOf returns the default of an attribute as a constant.
func defaultOf(adv *string) *condition.Const {
	if adv == nil {
		return &condition.Const{Kind: condition.Null}
	}
	return &condition.Const{Kind: condition.String, Text: *adv}
}

// with returns states that have the attributes as they are after an action, too.
func (c *checker) with() *condition.States {
	types := make(map[string]string)
	for name, typ := range c.types {
		types[name], types[after(name)] = typ, typ
	}
	return condition.NewStates(types)
}

// next asks whether an action can lead from states on which its rule's condition holds to
// some on which the given ones hold, or do not.
func (c *checker) next(r rule, requirements ...condition.Requirement) condition.Answer {
	all := []condition.Requirement{{Condition: r.condition, Holds: true}}
	if final := c.finalCondition(); final != nil {
		all = append(all, condition.Requirement{Condition: final, Holds: false})
	}
	for _, k := range r.effect.known {
		all = append(all, condition.Requirement{Condition: k, Holds: true})
	}
	for _, q := range requirements {
		all = append(all, condition.Requirement{Condition: condition.Substitute(q.Condition, r.effect.after), Holds: q.Holds})
	}
	return c.with().Solve(all...)
}

func (c *checker) finalCondition() condition.Expr {
	if c.final < 0 {
		return nil
	}
	return c.rules[c.final].condition
}

// finalIsKnown reports whether it is known when an instance ends.
func (c *checker) finalIsKnown() bool { return c.final < 0 || c.rules[c.final].condition != nil }

// cannotEnd proves that the action of a rule does not end an instance.
func (c *checker) cannotEnd(r rule) bool {
	final := c.finalCondition()
	return final == nil && c.finalIsKnown() ||
		final != nil && c.next(r, condition.Requirement{Condition: final, Holds: true}).Verdict == condition.Impossible
}

// leadsTo proves that after the action of a rule the condition of another one holds.
func (c *checker) leadsTo(r, to rule) bool {
	return to.condition != nil && c.states.Total(to.condition) &&
		c.next(r, condition.Requirement{Condition: to.condition, Holds: false}).Verdict == condition.Impossible
}

// performs reports whether a rule has an action that is understood, on states that there
// can be.
func (r rule) performs() bool {
	return r.effect != nil && r.condition != nil && !r.never && !r.shadowed && !r.Final
}

// actions finds those after which there is no way on.
func (c *checker) actions() {
	for i, r := range c.rules {
		if !r.performs() || !c.finalIsKnown() {
			continue
		}
		var nothing []condition.Requirement
		unknown := false
		anywhere := false // some rule may hold after it
		for _, to := range c.rules {
			switch {
			case !to.Enabled:
			case to.condition == nil:
				unknown = true
			default:
				nothing = append(nothing, condition.Requirement{Condition: to.condition, Holds: false})
				if c.next(r, condition.Requirement{Condition: to.condition, Holds: true}).Verdict != condition.Impossible {
					anywhere = true
				}
			}
		}
		f := Finding{Check: "dead-end", Part: InAction, Index: i, Do: "add a rule for that state, or make it final"}
		switch {
		case unknown:
		case !anywhere:
			f.Severity = Warning
			f.Message = fmt.Sprintf("after the action of %s no rule holds, and the state is not final: %s", r.Label(), *r.Action)
			f.Why = "unless something else has changed the instance, or pends, it becomes an exception"
			c.add(f)
		default:
			if a := c.next(r, nothing...); r.effect.whole && a.Verdict == condition.Possible {
				f.Severity = Note
				f.Message = fmt.Sprintf("after the action of %s there are states in which no rule holds", r.Label())
				f.Why = "if before it " + strings.Join(readable(a.State), " and ") + "; whether an instance comes to that is not known"
				c.add(f)
			}
		}
	}
}

// readable is what of a state is about the one before an action.
func readable(state []string) []string {
	var list []string
	for _, s := range state {
		if !strings.Contains(s, "\x00after") {
			list = append(list, s)
		}
	}
	return list
}

// loops finds actions that have themselves or each other be performed for ever.
func (c *checker) loops() {
	if !c.finalIsKnown() {
		return
	}
	follows := make(map[int][]int)
	for i, r := range c.rules {
		if !r.performs() || !c.cannotEnd(r) {
			continue
		}
		for j, to := range c.rules {
			if to.performs() && c.leadsTo(r, to) {
				follows[i] = append(follows[i], j)
			}
		}
	}
	told := make(map[int]bool)
	for i := range c.rules {
		cycle := shortestCycle(follows, i)
		if cycle == nil || told[slices.Min(cycle)] {
			continue
		}
		told[slices.Min(cycle)] = true
		c.tellLoop(cycle)
	}
}

func (c *checker) tellLoop(cycle []int) {
	var labels []string
	delayed := false
	for _, i := range cycle {
		labels = append(labels, c.rules[i].Label())
		delayed = delayed || c.rules[i].Delay != nil
	}
	f := Finding{
		Severity: Warning, Check: "loop", Part: InAction, Index: cycle[0],
		Message: c.rules[cycle[0]].Label() + " fires again and again: after its action its condition still holds",
		Why:     "the engine performs it without a pause, until something else changes what the condition reads, up to max_states states",
		Do:      "have the action write something that its condition excludes",
	}
	if len(cycle) > 1 {
		f.Message = fmt.Sprintf("%s fire each other again and again: after the action of each the condition of the next holds", strings.Join(labels, ", "))
		f.Do = "have one of the actions write something that the next condition excludes"
	}
	if delayed {
		f.Severity = Note
		f.Message = strings.Replace(f.Message, "again and again", "again whenever the delay is over", 1)
		f.Why = "until something else changes what the condition reads, up to max_states states; fine for a reminder"
	}
	c.add(f)
}

// shortestCycle returns the shortest way from a rule back to it, nil if there is none.
func shortestCycle(follows map[int][]int, start int) []int {
	type step struct {
		at   int
		path []int
	}
	queue := []step{{start, []int{start}}}
	visited := make(map[int]bool)
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		for _, j := range follows[s.at] {
			if j == start {
				return s.path
			}
			if !visited[j] {
				visited[j] = true
				queue = append(queue, step{j, append(slices.Clone(s.path), j)})
			}
		}
	}
	return nil
}
