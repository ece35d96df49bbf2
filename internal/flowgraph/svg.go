package flowgraph

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/internal/layered"
	"github.com/wed-sql/wed_sql/internal/picture"
)

const (
	margin   = 24.0
	padding  = 12.0
	widest   = 300.0 // of a node's text
	iconSize = 12.0
	markGap  = 12.0
	gridGap  = 22.0
	gridWide = 900.0
	portRoom = 12.0 // that each arrow takes at a side of a node
)

var (
	plainFont = picture.Font{Size: 12}
	smallFont = picture.Font{Size: 11}
	nameFont  = picture.Font{Size: 14, Bold: true}
	headFont  = picture.Font{Size: 18, Bold: true}
	codeFont  = picture.Font{Size: 11, Fixed: true}
)

const style = `.node rect{fill:CARD;stroke:LINE;stroke-width:1.2}
.start rect{stroke:INK}
.final rect{stroke:GOOD;stroke-width:1.6}
.final .inner{fill:none;stroke-width:1}
.exception rect{stroke:BAD;fill:BADSHADE}
.operator rect,.disabled rect{stroke-dasharray:4 3}
.fired .curve{stroke:ACCENT;stroke-width:1.6}
.fired .tip{fill:ACCENT}
.often .curve{stroke-width:2.4}
.broken .curve{stroke:BAD}
.broken .tip{fill:BAD}
.led .curve{stroke:MUTED;stroke-width:1.2}
.led .tip{fill:PAPER;stroke:MUTED;stroke-width:1.2}
.possible .curve{stroke:LINE;stroke-width:1.2;stroke-dasharray:5 4}
.possible .tip{fill:PAPER;stroke:LINE;stroke-width:1.2}
.under{fill:PAPER}
.edge{pointer-events:visiblePainted}
`

// line is one of a node's.
type line struct {
	class string
	text  string
	marks []mark
	high  float64
	font  picture.Font
}

func (l line) width() float64 {
	if l.marks == nil {
		return l.font.Width(l.text)
	}
	w := 0.0
	for _, m := range l.marks {
		w += iconSize + 4 + l.font.Width(m.text) + markGap
	}
	return w - markGap
}

// lines are what stands in a node.
func (n *Node) lines() (lines []line) {
	add := func(class string, font picture.Font, high float64, text string) {
		if text != "" {
			lines = append(lines, line{class: class, text: font.Clip(text, widest), high: high, font: font})
		}
	}
	add("name", nameFont, 20, n.title())
	var marks []mark
	for _, m := range n.marks() {
		m.text = smallFont.Clip(picture.OneLine(m.text), widest/3)
		row := line{marks: append(marks, m), font: smallFont}
		if row.width() > widest {
			break
		}
		marks = append(marks, m)
	}
	if len(marks) > 0 {
		lines = append(lines, line{class: "small muted", marks: marks, high: 17, font: smallFont})
	}
	for _, text := range n.conditions() {
		add("code", codeFont, 15, text)
	}
	for _, r := range n.Rules {
		if r.Action != "" {
			add("code muted", codeFont, 15, "set "+picture.OneLine(r.Action))
		}
	}
	if n.disabled() {
		if len(n.Rules) == 0 {
			add("small warn", smallFont, 15, "no rule has it any more")
		} else {
			add("small warn", smallFont, 15, "disabled")
		}
	}
	if n.Invalid {
		add("small bad", smallFont, 15, "a condition is not valid any more")
	}
	if len(n.Unknown) > 0 {
		add("small warn", smallFont, 15, "writer not known: "+strings.Join(n.Unknown, ", "))
	}
	add("small muted", smallFont, 15, n.counts())
	add("small muted", smallFont, 15, n.times())
	return lines
}

// conditions are the texts of a node's conditions, as far as they are short.
func (n *Node) conditions() (texts []string) {
	const most = 3
	switch {
	case len(n.Rules) == 0:
		return nil
	case len(n.Rules) == 1:
		return codeFont.Wrap(n.Rules[0].Predicate, widest, 2)
	}
	for i, r := range n.Rules {
		if i == most-1 && len(n.Rules) > most {
			return append(texts, fmt.Sprintf("or %d more rules", len(n.Rules)-i))
		}
		text := picture.OneLine(r.Predicate)
		if i > 0 {
			text = "or " + text
		}
		texts = append(texts, text)
	}
	return texts
}

func size(lines []line) layered.Size {
	s := layered.Size{Height: 2*padding - 6}
	for _, l := range lines {
		s.Width = max(s.Width, l.width())
		s.Height += l.high
	}
	s.Width = math.Ceil(max(s.Width, 56)) + 2*padding
	return s
}

// SVG returns the graph as a picture.
func (g *Graph) SVG() []byte {
	lines := make([][]line, len(g.Nodes))
	sizes := make([]layered.Size, len(g.Nodes))
	for i := range g.Nodes {
		lines[i] = g.Nodes[i].lines()
		sizes[i] = size(lines[i])
		if k := g.Nodes[i].Kind; k == Exception || k == Operator { // which have a sign behind their names
			sizes[i].Width = max(sizes[i].Width, math.Ceil(lines[i][0].width()+6+iconSize)+2*padding)
		}
	}
	l := g.layout(sizes)

	c := &picture.Canvas{}
	caption := g.caption()
	top := margin + 18
	headline := "WED-flow " + g.Flow
	width := l.Size.Width
	head := headFont.Clip(headline, max(width, 700))
	c.Text("head", margin, top, head)
	width = max(width, headFont.Width(head))
	for _, s := range caption {
		top += 18
		for _, s := range plainFont.Wrap(s, max(width, 760), 4) {
			c.Text("muted", margin, top, s)
			width = max(width, plainFont.Width(s))
			top += 16
		}
		top -= 16
	}
	top += 26
	left := margin + math.Round((width-l.Size.Width)/2)
	move(&l, left, top)

	var often int64
	for _, a := range g.Arrows {
		if a.Sort == Fired {
			often = max(often, a.Count)
		}
	}
	for _, sort := range []Sort{Possible, Led, Fired} { // the last is on top
		for i := range g.Arrows {
			if g.Arrows[i].Sort == sort {
				g.drawArrow(c, &g.Arrows[i], l.Edges[i], often)
			}
		}
	}
	for i := range g.Arrows {
		g.drawLabel(c, &g.Arrows[i], l.Edges[i])
	}
	for i := range g.Nodes {
		drawNode(c, &g.Nodes[i], lines[i], l.Nodes[i])
	}
	bottom, legendWidth := g.drawLegend(c, top+l.Size.Height+30, width)
	full := layered.Size{Width: math.Ceil(max(width, legendWidth) + 2*margin), Height: math.Ceil(bottom + margin)}
	return c.Document(headline, strings.Join(caption, " ")+" "+g.inWords(), full, picture.Style(style))
}

// inWords is the graph for those who cannot see it.
func (g *Graph) inWords() string {
	var list []string
	for _, a := range g.Arrows {
		from, to := &g.Nodes[g.place(a.From)], &g.Nodes[g.place(a.To)]
		list = append(list, fmt.Sprintf("%s leads to %s (%s)", from.title(), to.title(), a.label()))
	}
	if list == nil {
		return "No arrows are known."
	}
	return strings.Join(list, "; ") + "."
}

// layout places the nodes: those that have arrows by these, the others in rows below.
func (g *Graph) layout(sizes []layered.Size) layered.Layout {
	joined := make([]int, len(g.Nodes)) // number among the nodes that have arrows, or -1
	var nodes []layered.Node
	for i, n := range g.Nodes {
		joined[i] = -1
		if !slices.ContainsFunc(g.Arrows, func(a Arrow) bool { return a.From == n.Key || a.To == n.Key }) {
			continue
		}
		joined[i] = len(nodes)
		sizes[i].Width = max(sizes[i].Width, portRoom*float64(g.mostArrows(n.Key)))
		node := layered.Node{Width: sizes[i].Width, Height: sizes[i].Height}
		switch n.Kind {
		case Start:
			node.Rank = layered.First
		case Final:
			node.Rank = layered.Last
		case Exception, Operator:
			node.Rank = layered.Aside
		}
		nodes = append(nodes, node)
	}
	var edges []layered.Edge
	for i := range g.Arrows {
		a := &g.Arrows[i]
		e := layered.Edge{From: joined[g.place(a.From)], To: joined[g.place(a.To)]}
		e.Label = layered.Size{Width: math.Ceil(a.font().Width(a.clipped())) + 8, Height: 18}
		if a.Sort == Fired && a.From.Kind != Exception && a.To.Kind != Exception {
			e.Weight = int(min(a.Count, 1<<30)) + 1
		}
		edges = append(edges, e)
	}
	l := layered.Of(nodes, edges)

	all := make([]layered.Rect, len(g.Nodes))
	x, y, high := 0.0, l.Size.Height, 0.0
	if len(nodes) > 0 {
		y += 1.5 * gridGap
	}
	rowWidth := max(gridWide, l.Size.Width)
	for i := range g.Nodes {
		if joined[i] >= 0 {
			all[i] = l.Nodes[joined[i]]
			continue
		}
		if x > 0 && x+sizes[i].Width > rowWidth {
			x, y, high = 0, y+high+gridGap, 0
		}
		all[i] = layered.Rect{X: x, Y: y, Width: sizes[i].Width, Height: sizes[i].Height}
		high = max(high, sizes[i].Height)
		x += sizes[i].Width + gridGap
		l.Size.Width = max(l.Size.Width, x-gridGap)
		l.Size.Height = y + high
	}
	l.Nodes = all
	return l
}

// mostArrows is the number of arrows that begin at a node, or of those that end there.
func (g *Graph) mostArrows(k Key) int {
	out, in := 0, 0
	for _, a := range g.Arrows {
		if a.From == k {
			out++
		}
		if a.To == k {
			in++
		}
	}
	return max(out, in)
}

// move moves a layout.
func move(l *layered.Layout, x, y float64) {
	for i := range l.Nodes {
		l.Nodes[i].X += x
		l.Nodes[i].Y += y
	}
	for i := range l.Edges {
		for k := range l.Edges[i].Points {
			l.Edges[i].Points[k].X += x
			l.Edges[i].Points[k].Y += y
		}
		l.Edges[i].Label.X += x
		l.Edges[i].Label.Y += y
	}
}

func drawNode(c *picture.Canvas, n *Node, lines []line, r layered.Rect) {
	class, radius := "node", 8.0
	switch {
	case n.Kind == Start:
		class, radius = "node start", r.Height/2
	case n.Kind == Final:
		class, radius = "node final", min(r.Height/2, 22)
	case n.Kind == Exception:
		class = "node exception"
	case n.Kind == Operator:
		class = "node operator"
	case n.disabled():
		class = "node disabled"
	}
	c.Group(class, n.tooltip(), func() {
		c.Rect("outer", r, radius)
		if n.Kind == Final {
			c.Rect("inner", layered.Rect{X: r.X + 4, Y: r.Y + 4, Width: r.Width - 8, Height: r.Height - 8}, max(radius-4, 4))
		}
		y := r.Y + padding - 3
		for i, l := range lines {
			base := y + l.high - 5
			switch {
			case l.marks != nil:
				drawMarks(c, l, r.X+padding, base)
			case n.Kind == Start || n.Kind == Final:
				c.TextMiddle(l.class, r.X+r.Width/2, base, l.text)
			default:
				c.Text(l.class, r.X+padding, base, l.text)
				if i == 0 && n.Kind == Exception {
					c.Icon("bad", picture.Warning, r.X+r.Width-padding-iconSize, base-11)
				}
				if i == 0 && n.Kind == Operator {
					c.Icon("ink", picture.Person, r.X+r.Width-padding-iconSize, base-11)
				}
			}
			y += l.high
		}
	})
}

func drawMarks(c *picture.Canvas, l line, x, base float64) {
	for _, m := range l.marks {
		c.Group("mark", m.long, func() {
			c.Icon("accent", m.icon, x, base-9.5)
			x += iconSize + 4
			if m.text != "" {
				c.Text(l.class, x, base, m.text)
			}
		})
		x += l.font.Width(m.text) + markGap
	}
}

// class is that of an arrow.
func (a *Arrow) class(often int64) string {
	switch {
	case a.Sort == Possible:
		return "edge possible"
	case a.Sort == Led:
		return "edge led"
	case a.To.Kind == Exception || a.Failed > 0:
		return "edge fired broken"
	case often > 1 && a.Count*2 >= often:
		return "edge fired often"
	}
	return "edge fired"
}

func (a *Arrow) font() picture.Font {
	if a.Sort == Fired {
		return smallFont
	}
	return codeFont
}

// clipped is the label, no longer than there is room for.
func (a *Arrow) clipped() string { return a.font().Clip(picture.OneLine(a.label()), 150) }

func (g *Graph) drawArrow(c *picture.Canvas, a *Arrow, r layered.Route, often int64) {
	from, to := &g.Nodes[g.place(a.From)], &g.Nodes[g.place(a.To)]
	c.Group(a.class(often), a.tooltip(from, to), func() {
		c.Curve("curve", r.Points)
		tip := r.Points[len(r.Points)-1]
		switch {
		case r.Loop:
			c.Arrow("tip", tip, -1, 0)
		case r.Up:
			c.Arrow("tip", tip, 0, -1)
		default:
			c.Arrow("tip", tip, 0, 1)
		}
	})
}

func (g *Graph) drawLabel(c *picture.Canvas, a *Arrow, r layered.Route) {
	text := a.clipped()
	if text == "" {
		return
	}
	class := "small"
	switch {
	case a.Sort != Fired:
		class = "code muted"
	case a.To.Kind == Exception || a.Failed > 0:
		class = "small bad"
	}
	from, to := &g.Nodes[g.place(a.From)], &g.Nodes[g.place(a.To)]
	c.Group("label", a.tooltip(from, to), func() {
		c.Rect("under", r.Label, 3)
		c.TextMiddle(class, r.Label.X+r.Label.Width/2, r.Label.Y+13, text)
	})
}

// drawLegend explains the arrows that there are, and the signs; returns where it ends.
func (g *Graph) drawLegend(c *picture.Canvas, y, width float64) (bottom, right float64) {
	x := margin
	entry := func(text string, draw func(x, y float64) float64) {
		w := plainFont.Width(text)
		if x > margin && x+40+w > margin+max(width, 560) {
			x = margin
			y += 22
		}
		at := draw(x, y)
		c.Text("muted", x+at+8, y+4, text)
		x += at + 8 + w + 22
		right = max(right, x-22-margin)
	}
	has := func(match func(a *Arrow) bool) bool {
		return slices.ContainsFunc(g.Arrows, func(a Arrow) bool { return match(&a) })
	}
	arrow := func(class string) func(x, y float64) float64 {
		return func(x, y float64) float64 {
			c.Group(class, "", func() {
				c.Curve("curve", []layered.Point{{X: x, Y: y}, {X: x + 10, Y: y}, {X: x + 20, Y: y}, {X: x + 32, Y: y}})
				c.Arrow("tip", layered.Point{X: x + 36, Y: y}, 1, 0)
			})
			return 36
		}
	}
	icon := func(i picture.Icon) func(x, y float64) float64 {
		return func(x, y float64) float64 {
			c.Icon("accent", i, x, y-6)
			return iconSize
		}
	}
	if has(func(a *Arrow) bool { return a.Sort == Fired && a.class(0) == "edge fired" }) {
		entry("fired it: how often, and the mean time to its commit", arrow("edge fired"))
	}
	if has(func(a *Arrow) bool { return a.class(0) == "edge fired broken" }) {
		entry("became an exception", arrow("edge fired broken"))
	}
	if has(func(a *Arrow) bool { return a.Sort == Led }) {
		entry("wrote what its condition read, others fired it", arrow("edge led"))
	}
	if has(func(a *Arrow) bool { return a.Sort == Possible }) {
		entry("possible by data, not seen", arrow("edge possible"))
	}
	for _, s := range []struct {
		icon picture.Icon
		text string
	}{
		{picture.Clock, "delay"}, {picture.Gear, "done by the engine"}, {picture.Hourglass, "timeout"},
		{picture.Again, "attempts"}, {picture.Leave, "withdrawable"}, {picture.Back, "undone by"},
	} {
		used := slices.ContainsFunc(g.Nodes, func(n Node) bool {
			return slices.ContainsFunc(n.marks(), func(m mark) bool { return m.icon == s.icon })
		})
		if used {
			entry(s.text, icon(s.icon))
		}
	}
	if right == 0 {
		return y - 30, 0
	}
	return y + 6, right
}
