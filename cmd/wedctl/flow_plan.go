package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/definition"
)

// writeApplied shows what applying a file does, or has done.
func (c *console) writeApplied(a *application, r *applied, done bool) {
	p := r.plan
	fmt.Fprintf(c.out, "flow %q: %s and %s in %s", a.flow, several(int64(len(p.New.Attributes)), "attribute"), several(int64(len(p.New.Rules)), "rule"), a.file.Name)
	if r.created {
		fmt.Fprint(c.out, "; the flow is new")
	}
	fmt.Fprintln(c.out)
	if !r.changes(a) {
		fmt.Fprintln(c.out, "nothing to do: the flow is what the file says")
		c.writeUngranted(a, r)
		return
	}
	fmt.Fprintln(c.out)
	for _, change := range p.Attributes {
		c.writeAttributeChange(p, change)
	}
	for _, change := range p.Rules {
		c.writeRuleChange(p, change)
	}
	for _, s := range p.Settings {
		fmt.Fprintf(c.out, "  %s setting %s\n", c.yellow("~"), s.Name)
		c.writeColumn(s)
	}
	for _, g := range p.Grants {
		fmt.Fprintf(c.out, "  %s grant of %s to role %s\n", c.green("+"), g.Transition, g.Role)
	}
	if a.revoke {
		for _, g := range p.Revokes {
			fmt.Fprintf(c.out, "  %s grant of %s to role %s\n", c.red("-"), g.Transition, g.Role)
		}
	}
	c.writeUngranted(a, r)
	c.writePreview(r, done)
	if done {
		fmt.Fprintln(c.out, "\n"+c.green("applied")+a.rematched(r))
	}
}

// writeUngranted tells of grants that the file does not have.
func (c *console) writeUngranted(a *application, r *applied) {
	if a.revoke || len(r.plan.Revokes) == 0 {
		return
	}
	var list []string
	for _, g := range r.plan.Revokes {
		list = append(list, g.Transition+" to "+g.Role)
	}
	fmt.Fprintf(c.out, "  %s\n", c.dim("not in the file, and left as they are (--revoke): grants of "+strings.Join(list, ", ")))
}

func (c *console) writeAttributeChange(p *definition.Plan, change definition.Change) {
	describe := func(a definition.Attribute) string {
		s := fmt.Sprintf("attribute %s  %s", a.Name, shortType(a.Type))
		if a.Default != nil {
			s += fmt.Sprintf(", default '%s'", *a.Default)
		}
		return s
	}
	switch {
	case change.Old < 0:
		fmt.Fprintf(c.out, "  %s %s\n", c.green("+"), describe(p.New.Attributes[change.New]))
	case change.New < 0:
		fmt.Fprintf(c.out, "  %s %s\n", c.red("-"), describe(p.Old.Attributes[change.Old]))
	default:
		fmt.Fprintf(c.out, "  %s attribute %s\n", c.yellow("~"), p.New.Attributes[change.New].Name)
		for _, col := range change.Columns {
			c.writeColumn(col)
		}
	}
}

// shortType is a type as it is written by hand.
func shortType(typ string) string { return strings.TrimPrefix(typ, "pg_catalog.") }

func (c *console) writeRuleChange(p *definition.Plan, change definition.Change) {
	switch {
	case change.Old < 0:
		fmt.Fprintf(c.out, "  %s %s\n", c.green("+"), describeRule(p.New.Rules[change.New]))
	case change.New < 0:
		fmt.Fprintf(c.out, "  %s %s\n", c.red("-"), describeRule(p.Old.Rules[change.Old]))
	default:
		r := p.New.Rules[change.New]
		name := "rule " + r.Label()
		if r.Final {
			name = r.Label()
		}
		fmt.Fprintf(c.out, "  %s %s\n", c.yellow("~"), name)
		for _, col := range change.Columns {
			c.writeColumn(col)
		}
	}
}

// describeRule says a rule in a line.
func describeRule(r definition.Rule) string {
	var b strings.Builder
	if r.Final {
		b.WriteString(r.Label())
	} else {
		b.WriteString("rule " + r.Label())
	}
	b.WriteString("  when " + onOneLine(r.Condition))
	for _, setting := range ruleSettings(r) {
		b.WriteString(", " + setting)
	}
	return b.String()
}

// ruleSettings says what of a rule is not as usual.
func ruleSettings(r definition.Rule) []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if !r.Enabled {
		add("disabled")
	}
	if r.Delay != nil {
		add("after %s", *r.Delay)
	}
	if r.Action != nil {
		add("set %s", onOneLine(*r.Action))
	}
	if r.Timeout != nil && *r.Timeout != "01:00:00" && !r.Final {
		add("timeout %s", *r.Timeout)
	}
	if r.Withdrawable {
		add("withdrawable")
	}
	if r.Priority != 0 {
		add("priority %d", r.Priority)
	}
	if r.MaxAttempts != nil {
		add("at most %s", several(int64(*r.MaxAttempts), "attempt"))
	}
	if r.Backoff != nil && *r.Backoff != "00:00:00" {
		add("backoff %s", *r.Backoff)
	}
	if r.MaxBackoff != nil && *r.MaxBackoff != "01:00:00" {
		add("backoff at most %s", *r.MaxBackoff)
	}
	if r.Undo != nil {
		add("undone by %s", *r.Undo)
	}
	return list
}

func onOneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (c *console) writeColumn(col definition.Column) {
	show := func(s *string) string {
		if s == nil {
			return "null"
		}
		if col.Name == "atype" {
			return shortType(*s)
		}
		return onOneLine(*s)
	}
	old, desired := show(col.Old), show(col.New)
	const most = 60
	if len(old)+len(desired) <= most {
		fmt.Fprintf(c.out, "      %-12s %s %s %s\n", col.Name, c.red(old), c.dim("->"), c.green(desired))
		return
	}
	fmt.Fprintf(c.out, "      %-12s %s\n      %12s %s %s\n", col.Name, c.red(old), "", c.dim("->"), c.green(desired))
}

// writePreview says what a change means for the instances that there are.
func (c *console) writePreview(r *applied, done bool) {
	v := r.preview
	dropped := "would be dropped"
	if done {
		dropped = "dropped"
	}
	for _, l := range v.Losses {
		fmt.Fprintf(c.out, "\n%s %s with attribute %s: %s\n", c.red("loss:"), dropped, l.Attribute, several(l.Values, "value"))
	}
	if len(v.Left) > 0 {
		fmt.Fprintln(c.out)
	}
	for _, l := range v.Left {
		fmt.Fprintf(c.out, "%s of the removed rule %s: still pending, until they are done, or skipped (wed_sql.skip)\n", several(l.Jobs, "job"), l.Rule)
	}
	if r.anew != nil {
		fmt.Fprintln(c.out, "\nThe instances are matched anew (--rematch):")
		c.writeAnew(*r.anew)
		return
	}
	if v.Looked == 0 {
		return
	}
	fmt.Fprintf(c.out, "\n%s not ended, and each goes on by these rules from its next state on.\n", hasOrHave(v.Running))
	of := "If they were matched anew now (--rematch):"
	if v.Looked < v.Running {
		of = fmt.Sprintf("If the newest %d were matched anew now (--rematch does all):", v.Looked)
	}
	if v.Anew.Changed == 0 && len(v.Anew.Failed) == 0 {
		fmt.Fprintln(c.out, strings.TrimSuffix(of, ":")+", nothing would change for them.")
		return
	}
	fmt.Fprintln(c.out, of)
	c.writeAnew(v.Anew)
}

func hasOrHave(n int64) string {
	if n == 1 {
		return "1 instance has"
	}
	return fmt.Sprintf("%d instances have", n)
}

func (c *console) writeAnew(a definition.Anew) {
	for _, t := range slices.Sorted(maps.Keys(a.Fires)) {
		fmt.Fprintf(c.out, "  %s: %s\n", several(a.Fires[t], "instance"), "fire "+t)
	}
	if a.Ends > 0 {
		fmt.Fprintf(c.out, "  %s: ended\n", several(a.Ends, "instance"))
	}
	if a.Leads > 0 {
		fmt.Fprintf(c.out, "  %s: an exception before, now led on\n", several(a.Leads, "instance"))
	}
	if n := len(a.Stuck); n > 0 {
		fmt.Fprintf(c.out, "  %s: %s: %s\n", several(int64(n), "instance"), c.red("stuck, an exception"), someNumbers(a.Stuck))
	}
	for i, f := range a.Failed {
		if i == 5 {
			fmt.Fprintf(c.out, "  and %d more\n", len(a.Failed)-i)
			break
		}
		fmt.Fprintf(c.out, "  not known: %s\n", f)
	}
	if a.Changed == 0 && len(a.Failed) == 0 {
		fmt.Fprintln(c.out, "  nothing changes for them")
	}
}

func someNumbers(wids []int64) string {
	var list []string
	for i, w := range wids {
		if i == 10 {
			list = append(list, "...")
			break
		}
		list = append(list, fmt.Sprint(w))
	}
	return strings.Join(list, ", ")
}

// rematched says how many instances were matched anew, if they were.
func (a *application) rematched(r *applied) string {
	if r.anew == nil {
		return ""
	}
	return fmt.Sprintf("; %s changed by matching anew", several(r.anew.Changed, "instance"))
}
