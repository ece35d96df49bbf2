package definition

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// Change is a part of the difference between two definitions. Old is the number of what
// it concerns among the old ones, -1 if it is added; New that among the new ones, -1 if it
// is removed.
type Change struct {
	Old, New int
	Columns  []Column // that differ, when it is changed
}

// Column is one that differs. Nil stands for null.
type Column struct {
	Name string  `json:"column"`
	Old  *string `json:"old"`
	New  *string `json:"new"`
}

// Plan is the difference between two definitions.
type Plan struct {
	Old, New   *Definition
	Attributes []Change
	Rules      []Change
	Settings   []Column
	Grants     []Worker // that are new
	Revokes    []Worker // that the new definition does not have
}

// Empty reports whether there is no difference. Grants that are only in the old one do
// not count: see Revokes.
func (p *Plan) Empty() bool {
	return len(p.Attributes)+len(p.Rules)+len(p.Settings)+len(p.Grants) == 0
}

// Compare returns the difference between two definitions.
func Compare(old, desired *Definition) *Plan {
	p := &Plan{Old: old, New: desired}
	for i, a := range old.Attributes {
		j := slices.IndexFunc(desired.Attributes, func(b Attribute) bool { return b.Name == a.Name })
		if j < 0 {
			p.Attributes = append(p.Attributes, Change{Old: i, New: -1})
		} else if columns := differences(a.columns(), desired.Attributes[j].columns()); len(columns) > 0 {
			p.Attributes = append(p.Attributes, Change{i, j, columns})
		}
	}
	for j, b := range desired.Attributes {
		if !slices.ContainsFunc(old.Attributes, func(a Attribute) bool { return a.Name == b.Name }) {
			p.Attributes = append(p.Attributes, Change{Old: -1, New: j})
		}
	}
	p.Rules = compareRules(old.Rules, desired.Rules)
	p.Settings = differences(old.Settings.columns(), desired.Settings.columns())
	p.Grants = without(desired.Workers, old.Workers)
	p.Revokes = without(old.Workers, desired.Workers)
	return p
}

func without(list, others []Worker) []Worker {
	var rest []Worker
	for _, w := range list {
		if !slices.Contains(others, w) {
			rest = append(rest, w)
		}
	}
	return rest
}

func (a Attribute) columns() []Column {
	return []Column{{Name: "atype", New: &a.Type}, {Name: "adv", New: a.Default}}
}

func (s Settings) columns() []Column {
	columns := []Column{{Name: "consistent", New: s.Consistent}, {Name: "max_states"}}
	if s.MaxStates != nil {
		n := strconv.FormatInt(*s.MaxStates, 10)
		columns[1].New = &n
	}
	return columns
}

// columns returns what a rule's row has, in the order in which it is told.
func (r Rule) columns() []Column {
	number := func(n *int) *string {
		if n == nil {
			return nil
		}
		s := strconv.Itoa(*n)
		return &s
	}
	flag := func(b bool) *string {
		s := strconv.FormatBool(b)
		return &s
	}
	return []Column{
		{Name: "tgname", New: r.Name},
		{Name: "trname", New: r.Transition},
		{Name: "cname", New: r.CName},
		{Name: "cpred", New: &r.Condition},
		{Name: "cfinal", New: flag(r.Final)},
		{Name: "enabled", New: flag(r.Enabled)},
		{Name: "timeout", New: r.Timeout},
		{Name: "delay", New: r.Delay},
		{Name: "action", New: r.Action},
		{Name: "withdrawable", New: flag(r.Withdrawable)},
		{Name: "priority", New: number(&r.Priority)},
		{Name: "max_attempts", New: number(r.MaxAttempts)},
		{Name: "backoff", New: r.Backoff},
		{Name: "max_backoff", New: r.MaxBackoff},
		{Name: "undo", New: r.Undo},
	}
}

// differences returns the columns whose values differ.
func differences(old, desired []Column) []Column {
	var columns []Column
	for i, c := range desired {
		if was := old[i].New; !reflect.DeepEqual(was, c.New) {
			columns = append(columns, Column{Name: c.Name, Old: was, New: c.New})
		}
	}
	return columns
}

// compareRules finds which rule has become which.
func compareRules(old, desired []Rule) []Change {
	became := matchRules(old, desired)
	var changes []Change
	taken := make([]bool, len(desired))
	for i, j := range became {
		if j < 0 {
			changes = append(changes, Change{Old: i, New: -1})
			continue
		}
		taken[j] = true
		if columns := differences(old[i].columns(), desired[j].columns()); len(columns) > 0 {
			changes = append(changes, Change{i, j, columns})
		}
	}
	for j := range desired {
		if !taken[j] {
			changes = append(changes, Change{Old: -1, New: j})
		}
	}
	return changes
}

// matchRules says of each old rule which of the desired ones it is, -1 for none: the
// final one is the final one; then those of the same name; then those that are the same;
// then those of the same transition and condition; then those that are the only ones of
// their transition that are left on either side.
func matchRules(old, desired []Rule) []int {
	became := slices.Repeat([]int{-1}, len(old))
	taken := make([]bool, len(desired))
	// match pairs rules that have the same key, in their order; if only is set, those alone
	// that are the only ones with it.
	match := func(only bool, key func(Rule) string) {
		left, right := make(map[string][]int), make(map[string][]int)
		var order []string
		for i, r := range old {
			if k := key(r); became[i] < 0 && k != "" {
				if left[k] == nil {
					order = append(order, k)
				}
				left[k] = append(left[k], i)
			}
		}
		for j, r := range desired {
			if k := key(r); !taken[j] && k != "" {
				right[k] = append(right[k], j)
			}
		}
		for _, k := range order {
			if len(right[k]) == 0 || only && (len(left[k]) != 1 || len(right[k]) != 1) {
				continue
			}
			if a, b := old[left[k][0]], desired[right[k][0]]; only && !a.Final && a.Name != nil && b.Name != nil && *a.Name != *b.Name {
				continue // two rules, by their names
			}
			for n := range min(len(left[k]), len(right[k])) {
				became[left[k][n]], taken[right[k][n]] = right[k][n], true
			}
		}
	}
	match(true, func(r Rule) string {
		if r.Final {
			return "final"
		}
		return ""
	})
	ofTransition := func(r Rule, more ...string) string {
		if r.Final || r.Transition == nil {
			return ""
		}
		return fmt.Sprintf("%q %q", *r.Transition, more)
	}
	match(true, func(r Rule) string {
		if r.Name == nil || r.Final {
			return ""
		}
		return *r.Name
	})
	match(false, func(r Rule) string {
		if r.Final {
			return ""
		}
		var all []string
		for _, c := range r.columns() {
			if c.New == nil {
				all = append(all, "null")
			} else {
				all = append(all, strconv.Quote(*c.New))
			}
		}
		return fmt.Sprint(all)
	})
	match(false, func(r Rule) string { return ofTransition(r, r.Condition) })
	match(true, func(r Rule) string { return ofTransition(r) })
	return became
}
