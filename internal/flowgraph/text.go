package flowgraph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/internal/picture"
)

// What nodes and arrows are said to be, in whatever form they are drawn.

// title is the name of a node.
func (n *Node) title() string {
	switch n.Kind {
	case Start:
		return "start"
	case Operator:
		return "interventions"
	case Final:
		return "final"
	}
	return n.Name
}

// counts is a line with what has become of a transition; empty if that is not known.
func (n *Node) counts() string {
	switch {
	case n.Kind == Start:
		return plural(n.Seen, "instance")
	case n.Kind == Final && n.Seen > 0:
		return plural(n.Seen, "instance")
	case n.Kind == Operator:
		var list []string
		for _, name := range slices.Sorted(maps.Keys(n.Operated)) {
			list = append(list, fmt.Sprintf("%d× %s", n.Operated[name], strings.ToLower(strings.TrimPrefix(name, "_"))))
		}
		return strings.Join(list, " · ")
	case n.Stat == nil:
		return ""
	}
	if n.Stat.Done+n.Stat.Working+n.Stat.Waiting+n.Stat.Failed == 0 {
		return ""
	}
	list := []string{fmt.Sprintf("%d done", n.Stat.Done)}
	for _, c := range []struct {
		n    int64
		what string
	}{{n.Stat.Working, "at work"}, {n.Stat.Waiting, "waiting"}, {n.Stat.Failed, "failed"}} {
		if c.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(list, " · ")
}

// times is a line with how long a transition takes; empty if that is not known.
func (n *Node) times() string {
	if n.Stat == nil || !n.Stat.Timed {
		return ""
	}
	return fmt.Sprintf("waits %s, runs %s", picture.Duration(n.Stat.MeanWait), picture.Duration(n.Stat.MeanRun))
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// mark is something that a rule says besides its condition.
type mark struct {
	icon picture.Icon
	text string // short
	long string
}

const defaultTimeout = time.Hour

// marks are those of all rules of a node, each once.
func (n *Node) marks() (list []mark) {
	add := func(m mark) {
		if !slices.ContainsFunc(list, func(o mark) bool { return o.icon == m.icon && o.text == m.text }) {
			list = append(list, m)
		}
	}
	for _, r := range n.Rules {
		if r.Transition == "" {
			continue
		}
		if r.Delay != 0 {
			add(mark{picture.Clock, picture.Duration(r.Delay), "due when its condition has held for " + picture.Duration(r.Delay)})
		}
		if r.Action != "" {
			add(mark{picture.Gear, "action", "performed by the engine: set " + r.Action})
		}
		if r.Timeout != 0 && r.Timeout != defaultTimeout {
			add(mark{picture.Hourglass, picture.Duration(r.Timeout), "a transaction may have it for " + picture.Duration(r.Timeout)})
		}
		if r.MaxAttempts > 0 {
			add(mark{picture.Again, fmt.Sprintf("%d×", r.MaxAttempts), fmt.Sprintf("an exception after %s", plural(int64(r.MaxAttempts), "failed attempt"))})
		}
		if r.Withdrawable {
			add(mark{picture.Leave, "", "withdrawn when its condition does not hold any more"})
		}
		if r.Undo != "" {
			add(mark{picture.Back, r.Undo, "undone by " + r.Undo})
		}
	}
	return list
}

// disabled reports whether no rule of a transition is in force.
func (n *Node) disabled() bool {
	return n.Kind == Transition && !slices.ContainsFunc(n.Rules, func(r Rule) bool { return r.Enabled })
}

// tooltip says all of a node.
func (n *Node) tooltip() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	switch n.Kind {
	case Start:
		line("start: instances that were inserted")
	case Exception:
		line("%s: the recovery of exceptions, by a worker that may write any state", n.Name)
	case Operator:
		line("interventions of operators")
	case Final:
		line("final: the condition of the end")
	default:
		line("%s", n.Name)
		if len(n.Rules) == 0 {
			line("no rule has this transition any more")
		}
	}
	for _, r := range n.Rules {
		name := ""
		for _, s := range []string{r.Name, r.Condition} {
			if s != "" {
				name += " " + s
			}
		}
		state := ""
		if !r.Enabled {
			state = " (disabled)"
		}
		line("rule %d%s%s: %s", r.TGID, name, state, strings.TrimSpace(r.Predicate))
		switch {
		case !r.Valid:
			line("  the condition is not valid any more")
		case len(r.Reads) > 0:
			line("  reads %s", strings.Join(r.Reads, ", "))
		}
		one := Node{Rules: []Rule{r}}
		for _, m := range one.marks() {
			line("  %s", m.long)
		}
	}
	if len(n.Unknown) > 0 {
		line("nobody is known to write %s", strings.Join(n.Unknown, ", "))
	}
	for _, s := range []string{n.counts(), n.times()} {
		if s != "" {
			line("%s", s)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// label is what stands at an arrow.
func (a *Arrow) label() string {
	if a.Sort == Fired {
		s := fmt.Sprintf("%d×", a.Count)
		if a.Timed > 0 && a.To.Kind != Final {
			s += " · " + picture.Duration(a.Mean)
		}
		return s
	}
	const most = 2
	if len(a.Attributes) > most+1 {
		return fmt.Sprintf("%s +%d", strings.Join(a.Attributes[:most], ", "), len(a.Attributes)-most)
	}
	return strings.Join(a.Attributes, ", ")
}

// tooltip says all of an arrow.
func (a *Arrow) tooltip(from, to *Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s → %s\n", from.title(), to.title())
	by := strings.Join(a.Attributes, ", ")
	switch a.Sort {
	case Fired:
		verb := "fired it"
		if to.Kind == Final {
			verb = "satisfied it"
		}
		fmt.Fprintf(&b, "a state that the one has written %s: %s\n", verb, plural(a.Count, "time"))
		if a.Failed > 0 {
			fmt.Fprintf(&b, "of these, because it had failed too often: %d\n", a.Failed)
		}
		if a.Clocked > 0 {
			fmt.Fprintf(&b, "of these, its delay began: %d\n", a.Clocked)
		}
		if a.Timed > 0 {
			fmt.Fprintf(&b, "%s from then to its commit, on average of %d\n", picture.Duration(a.Mean), a.Timed)
		}
		if by != "" {
			fmt.Fprintf(&b, "by %s, which its condition reads\n", by)
		}
	case Led:
		fmt.Fprintf(&b, "when others fired it, the one was the last that had written %s, which its condition reads: %s\n", by, plural(a.Count, "time"))
	case Possible:
		fmt.Fprintf(&b, "possible by data: the one writes %s, which the other's condition reads; that it led to anything was not seen\n", by)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// caption says what the graph was inferred from.
func (g *Graph) caption() []string {
	var lines []string
	r := g.Read
	if r.States == 0 {
		lines = append(lines, "Drawn from its rules alone: there is no history"+since(r.Since)+", and what workers write is not known.")
	} else {
		what := fmt.Sprintf("Drawn from its rules and %s of %s%s, %s", plural(r.States, "state"), plural(r.Instances, "instance"),
			since(r.Since), picture.Span(r.From, r.To))
		if r.Partly {
			what += ": those of the newest instances, there are more"
		}
		lines = append(lines, what+".")
	}
	if g.Hidden > 0 {
		lines = append(lines, plural(int64(g.Hidden), "more arrow")+" not drawn: what an indirect way says, or was possible by data and never seen (--all).")
	}
	if g.NoStats {
		lines = append(lines, "Without statistics: they are for pg_monitor to read.")
	}
	return lines
}

func since(interval string) string {
	if interval == "" {
		return ""
	}
	return " in the last " + picture.OneLine(interval)
}
