package flowgraph

import (
	"fmt"
	"strings"

	"github.com/wed-sql/wed_sql/internal/picture"
)

// DOT returns the graph in the language of Graphviz.
func (g *Graph) DOT() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph flow {\n\tlabel=%s; labelloc=t;\n", dotString("WED-flow "+g.Flow, g.caption()...))
	b.WriteString("\tnode [shape=box, style=rounded, fontname=\"Helvetica\"];\n\tedge [fontname=\"Helvetica\", fontsize=10];\n")
	for i := range g.Nodes {
		n := &g.Nodes[i]
		attributes := ""
		switch {
		case n.Kind == Start:
			attributes = ", shape=oval"
		case n.Kind == Final:
			attributes = ", shape=oval, peripheries=2"
		case n.Kind == Exception:
			attributes = ", color=\"#b3261e\""
		case n.Kind == Operator, n.disabled():
			attributes = ", style=\"rounded,dashed\""
		}
		fmt.Fprintf(&b, "\tn%d [label=%s, tooltip=%s%s];\n", i, dotString(n.title(), n.plainLines()...), dotString(n.tooltip()), attributes)
	}
	for i := range g.Arrows {
		a := &g.Arrows[i]
		from, to := g.place(a.From), g.place(a.To)
		attributes := ""
		switch a.Sort {
		case Led:
			attributes = ", arrowhead=empty"
		case Possible:
			attributes = ", style=dashed, arrowhead=empty"
		}
		fmt.Fprintf(&b, "\tn%d -> n%d [label=%s, tooltip=%s%s];\n", from, to, dotString(a.label()),
			dotString(a.tooltip(&g.Nodes[from], &g.Nodes[to])), attributes)
	}
	b.WriteString("}\n")
	return []byte(b.String())
}

// dotString quotes lines for DOT, where a label has escapes and entities of its own.
func dotString(first string, others ...string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, line := range append([]string{first}, others...) {
		if i > 0 {
			b.WriteString(`\n`)
		}
		for _, r := range line {
			switch {
			case r == '"' || r == '\\':
				b.WriteByte('\\')
				b.WriteRune(r)
			case r == '&':
				b.WriteString("&amp;")
			case r == '\n':
				b.WriteString(`\n`)
			default:
				b.WriteString(picture.Label(string(r)))
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// plainLines are those of a node below its title, as text.
func (n *Node) plainLines() (lines []string) {
	for _, r := range n.Rules {
		lines = append(lines, picture.Font{Size: 1}.Clip(picture.OneLine(r.Predicate), 40))
	}
	var marks []string
	for _, m := range n.marks() {
		marks = append(marks, m.long)
	}
	if len(marks) > 0 {
		lines = append(lines, picture.Font{Size: 1}.Clip(picture.OneLine(strings.Join(marks, "; ")), 40))
	}
	if s := n.counts(); s != "" {
		lines = append(lines, s)
	}
	if s := n.times(); s != "" {
		lines = append(lines, s)
	}
	return lines
}
