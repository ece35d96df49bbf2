package flowgraph

import (
	"fmt"
	"strings"

	"github.com/wed-sql/wed_sql/internal/picture"
)

// Mermaid returns the graph in the language of Mermaid, which Markdown is read with in many places.
func (g *Graph) Mermaid() []byte {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	for i := range g.Nodes {
		n := &g.Nodes[i]
		left, right := "(", ")"
		switch n.Kind {
		case Start:
			left, right = "([", "])"
		case Final:
			left, right = "(((", ")))"
		}
		fmt.Fprintf(&b, "  n%d%s%s%s\n", i, left, mermaidString(n.title(), n.plainLines()...), right)
	}
	for i := range g.Arrows {
		a := &g.Arrows[i]
		line := "-->"
		switch a.Sort {
		case Led:
			line = "--o"
		case Possible:
			line = "-.->"
		}
		label := ""
		if s := a.label(); s != "" {
			label = "|" + mermaidString(s) + "|"
		}
		fmt.Fprintf(&b, "  n%d %s%s n%d\n", g.place(a.From), line, label, g.place(a.To))
	}
	for i := range g.Nodes {
		switch n := &g.Nodes[i]; {
		case n.Kind == Exception:
			fmt.Fprintf(&b, "  style n%d stroke:#b3261e\n", i)
		case n.Kind == Operator, n.disabled():
			fmt.Fprintf(&b, "  style n%d stroke-dasharray:4\n", i)
		}
	}
	return []byte(b.String())
}

// mermaidString quotes lines for Mermaid: what is neither a letter nor a digit
// may mean something there, and is written by its number.
func mermaidString(first string, others ...string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, line := range append([]string{first}, others...) {
		if i > 0 {
			b.WriteString("<br/>")
		}
		for _, r := range picture.Label(line) {
			switch {
			case r == ' ', r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r == '_', r == ',', r == '.', r >= 0x80:
				b.WriteRune(r)
			default:
				fmt.Fprintf(&b, "#%d;", r)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}
