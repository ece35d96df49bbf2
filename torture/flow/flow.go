// Package flow draws WED-flows at random: attributes, rules, states, and changes of them.
package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/torture/predicate"
)

// Exception is the transition of those that recover instances.
const Exception = "_EXCPT"

// Column is an attribute.
type Column struct {
	Name    string         `json:"name"`
	Type    predicate.Type `json:"type"`
	Default *string        `json:"default"`
}

// Rule is a row of wed_trig.
type Rule struct {
	TGID         int32             `json:"tgid"`
	Transition   string            `json:"transition"`
	Condition    *predicate.Node   `json:"condition"`
	Final        bool              `json:"final"`
	Enabled      bool              `json:"enabled"`
	Withdrawable bool              `json:"withdrawable"`
	Timeout      time.Duration     `json:"timeout"`
	Delay        time.Duration     `json:"delay"`  // 0: none
	Action       map[string]string `json:"action"` // attributes and the texts of their values; nil: none
	Priority     int               `json:"priority"`
	MaxAttempts  int               `json:"max_attempts"` // 0: no limit
	Backoff      time.Duration     `json:"backoff"`
}

// Definition of a flow, as it is in force at a version of its rules.
type Definition struct {
	Flow    string   `json:"flow"`
	Version int64    `json:"version"`
	Columns []Column `json:"columns"`
	Rules   []*Rule  `json:"rules"`
}

// Clone is a deep enough copy: conditions are never changed.
func (d *Definition) Clone() *Definition {
	c := *d
	c.Columns = slices.Clone(d.Columns)
	c.Rules = make([]*Rule, len(d.Rules))
	for i, r := range d.Rules {
		rule := *r
		rule.Action = maps.Clone(r.Action)
		c.Rules[i] = &rule
	}
	return &c
}

// Column by name; nil if there is none.
func (d *Definition) Column(name string) *Column {
	i := slices.IndexFunc(d.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &d.Columns[i]
}

// Transitions of the rules, each once.
func (d *Definition) Transitions() []string {
	var names []string
	for _, r := range d.Rules {
		if !r.Final && !slices.Contains(names, r.Transition) {
			names = append(names, r.Transition)
		}
	}
	slices.Sort(names)
	return names
}

// Only is the definition with those columns alone that a JSON object has.
func (d *Definition) Only(object []byte) *Definition {
	var fields map[string]json.RawMessage
	if json.Unmarshal(object, &fields) != nil {
		return d
	}
	c := d.Clone()
	c.Columns = slices.DeleteFunc(c.Columns, func(c Column) bool { _, has := fields[c.Name]; return !has })
	return c
}

// State reads a state from a JSON object that has each attribute.
func (d *Definition) State(object []byte) (predicate.State, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, fmt.Errorf("read a state: %w", err)
	}
	if len(fields) != len(d.Columns) {
		return nil, fmt.Errorf("a state has %d attributes, not %d", len(fields), len(d.Columns))
	}
	s := make(predicate.State, len(fields))
	for _, c := range d.Columns {
		field, ok := fields[c.Name]
		if !ok {
			return nil, fmt.Errorf("a state has no attribute %q", c.Name)
		}
		v, err := predicate.FromJSON(c.Type, field)
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", c.Name, err)
		}
		s[c.Name] = v
	}
	return s, nil
}

// Verdict is what the conditions say of a state.
type Verdict struct {
	Final  bool
	Failed bool
	Due    []*Rule
}

// Judge evaluates the conditions on a state. If one of them fails, nothing else counts.
func (d *Definition) Judge(s predicate.State) (Verdict, error) {
	var v Verdict
	for _, r := range d.Rules {
		if !r.Enabled {
			continue
		}
		holds, err := r.Condition.Holds(s)
		switch {
		case errors.Is(err, predicate.ErrFails):
			return Verdict{Failed: true}, nil
		case err != nil:
			return Verdict{}, fmt.Errorf("rule %d: %w", r.TGID, err)
		case holds && r.Final:
			v.Final = true
		case holds:
			v.Due = append(v.Due, r)
		}
	}
	if v.Final {
		v.Due = nil
	}
	return v, nil
}

// SetClause is what stands after SET: the attributes and their values, by text.
func (d *Definition) SetClause(set map[string]*string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		c := d.Column(name)
		if c == nil {
			continue
		}
		value := "null"
		if t := set[name]; t != nil {
			value = fmt.Sprintf("%s::%s", predicate.QuoteLiteral(*t), c.Type)
		}
		parts = append(parts, predicate.QuoteIdent(name)+" = "+value)
	}
	return strings.Join(parts, ", ")
}

// Apply is the state that a set of values leads to.
func (d *Definition) Apply(s predicate.State, set map[string]*string) (predicate.State, error) {
	next := maps.Clone(s)
	for name, text := range set {
		c := d.Column(name)
		if c == nil {
			return nil, fmt.Errorf("no attribute %q", name)
		}
		if text == nil {
			next[name] = nil
			continue
		}
		v, err := predicate.Parse(c.Type, *text)
		if err != nil {
			return nil, fmt.Errorf("attribute %q: %w", name, err)
		}
		next[name] = v
	}
	return next, nil
}

// Values are a set of values as JSON has them.
func (d *Definition) Values(set map[string]*string) map[string]any {
	values := map[string]any{}
	for name, text := range set {
		c := d.Column(name)
		switch {
		case c == nil:
		case text == nil:
			values[name] = nil
		case c.Type == predicate.JSON:
			values[name] = json.RawMessage(*text)
		case c.Type == predicate.TextArray:
			v, err := predicate.Parse(c.Type, *text)
			if err != nil {
				panic(err) // of the generator
			}
			values[name] = v
		default:
			values[name] = *text
		}
	}
	return values
}
