package layered

import (
	"cmp"
	"math"
	"slices"
)

const rounds = 120

// gap is the least distance between two items that are side by side.
func (g *grid) gap(a, b int) float64 {
	between := edgeGap
	if g.items[a].node >= 0 && g.items[b].node >= 0 {
		between = nodeGap
	}
	return g.items[a].right + between + g.items[b].left
}

// assignX moves each item towards those that it is joined with, in its order and
// at its distance from those beside it; the parts of a long edge, below each other.
func (g *grid) assignX() {
	for _, layer := range g.layers {
		x := 0.0
		for p, i := range layer {
			if p > 0 {
				x += g.gap(layer[p-1], i)
			}
			g.items[i].x = x
		}
		for _, i := range layer {
			g.items[i].x -= x / 2
		}
	}
	wish := make([]float64, len(g.items))
	weight := make([]float64, len(g.items))
	for round := range rounds {
		g.wishes(wish, weight, 3*round/rounds)
		for k := range g.layers {
			l := k
			if round%2 == 1 {
				l = len(g.layers) - 1 - k
			}
			g.settle(g.layers[l], wish, weight)
		}
	}
	for _, layer := range g.layers {
		for p, i := range layer {
			g.items[i].x = math.Round(g.items[i].x)
			if p > 0 {
				g.items[i].x = max(g.items[i].x, g.items[layer[p-1]].x+math.Ceil(g.gap(layer[p-1], i)))
			}
		}
	}
}

// wishes says where each item would be if it were alone: between those that it
// is joined with. From the second phase on, the parts of an edge want to be
// below each other; in the third, nodes no longer move, and an edge that can do
// without a bend wants to be where it need not have one.
func (g *grid) wishes(wish, weight []float64, phase int) {
	for i := range g.items {
		it := &g.items[i]
		wish[i], weight[i] = it.x, 0.1
		if phase == 2 && it.node >= 0 {
			weight[i] = 40
			continue
		}
		near := slices.Concat(it.above, it.below)
		if len(near) == 0 {
			continue
		}
		sum := 0.0
		for _, n := range near {
			sum += g.items[n].x
		}
		wish[i], weight[i] = sum/float64(len(near)), float64(len(near))
	}
	if phase == 0 {
		return
	}
	for _, chain := range g.chains {
		if len(chain) == 0 {
			continue
		}
		inner := chain[1 : len(chain)-1]
		sum := 0.0
		for _, i := range inner {
			sum += g.items[i].x
		}
		middle := sum / float64(len(inner))
		for _, end := range []int{chain[0], chain[len(chain)-1]} {
			if phase == 1 {
				sum += g.items[end].x
				continue
			}
			room := max(g.items[end].left-portEnd, 0)
			sum += min(max(middle, g.items[end].x-room), g.items[end].x+room)
		}
		for _, i := range inner {
			wish[i], weight[i] = sum/float64(len(chain)), 4
		}
	}
}

// settle gives the items of a layer the places that are, in their order and at
// their distances, nearest to their wishes: by merging those that would be too
// close into blocks.
func (g *grid) settle(layer []int, wish, weight []float64) {
	type block struct {
		first, last int
		at, weight  float64 // of its first item
		offset      float64 // of the last item from the first
	}
	var blocks []block
	for p, i := range layer {
		b := block{first: p, last: p, at: wish[i], weight: weight[i]}
		for len(blocks) > 0 {
			before := blocks[len(blocks)-1]
			shift := before.offset + g.gap(layer[before.last], layer[b.first])
			if before.at+shift <= b.at {
				break
			}
			total := before.weight + b.weight
			b = block{
				first: before.first, last: b.last,
				at:     (before.at*before.weight + (b.at-shift)*b.weight) / total,
				weight: total,
				offset: shift + b.offset,
			}
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		x := b.at
		for p := b.first; p <= b.last; p++ {
			if p > b.first {
				x += g.gap(layer[p-1], layer[p])
			}
			g.items[layer[p]].x = x
		}
	}
}

// assignY puts the layers below each other: the farther aside an edge goes
// between two of them, the farther apart.
func (g *grid) assignY() {
	y := 0.0
	g.tops, g.height = make([]float64, len(g.layers)), make([]float64, len(g.layers))
	for l, layer := range g.layers {
		bend := 0.0
		for _, i := range layer {
			g.height[l] = max(g.height[l], math.Ceil(g.items[i].height))
			for _, a := range g.items[i].above {
				bend = max(bend, math.Abs(g.items[i].x-g.items[a].x)/7)
			}
		}
		if l > 0 {
			y += min(max(minBend, math.Round(bend)), maxBend)
		}
		g.tops[l] = y
		y += g.height[l]
	}
}

// middle returns where the middle of an item is.
func (g *grid) middle(i int) Point {
	l := g.items[i].layer
	return Point{g.items[i].x, g.tops[l] + g.height[l]/2}
}

// layout moves everything into the picture, and draws the edges.
func (g *grid) layout() Layout {
	left, right := math.Inf(1), math.Inf(-1)
	for _, it := range g.items {
		left, right = min(left, it.x-it.left), max(right, it.x+it.right)
	}
	if len(g.items) == 0 {
		return Layout{}
	}
	left = math.Floor(left)
	for i := range g.items {
		g.items[i].x -= left
	}
	last := len(g.layers) - 1
	out := Layout{
		Size:  Size{math.Ceil(right - left), g.tops[last] + g.height[last]},
		Nodes: make([]Rect, len(g.nodes)),
		Edges: make([]Route, len(g.edges)),
	}
	for i, n := range g.nodes {
		m := g.middle(i)
		out.Nodes[i] = Rect{m.X - n.Width/2, m.Y - n.Height/2, n.Width, n.Height}
	}
	ports := g.ports()
	for i, e := range g.edges {
		if e.From == e.To {
			out.Edges[i] = loop(out.Nodes[e.From], e.Label)
			continue
		}
		out.Edges[i] = g.route(i, out.Nodes, ports[i])
	}
	return out
}

// loop draws an edge to its own node, at the right.
func loop(n Rect, label Size) Route {
	x, y := n.X+n.Width, n.Y+n.Height/2
	h := min(n.Height/4, 18)
	return Route{
		Points: []Point{{x, y - h}, {x + loopOut, y - h}, {x + loopOut, y + h}, {x, y + h}},
		Label:  Rect{x + loopOut, y - label.Height/2, label.Width, label.Height},
		Loop:   true,
	}
}

// ports says at which x each edge leaves its upper node and comes to its lower one.
func (g *grid) ports() [][2]float64 {
	out := make([][2]float64, len(g.edges))
	type port struct {
		edge int
		next float64 // where the edge goes
	}
	sides := [2][][]port{make([][]port, len(g.nodes)), make([][]port, len(g.nodes))}
	for i, chain := range g.chains {
		if len(chain) == 0 {
			continue
		}
		n := len(chain)
		sides[0][chain[0]] = append(sides[0][chain[0]], port{i, g.items[chain[1]].x})
		sides[1][chain[n-1]] = append(sides[1][chain[n-1]], port{i, g.items[chain[n-2]].x})
	}
	for side := range sides {
		for n, list := range sides[side] {
			slices.SortStableFunc(list, func(a, b port) int { return cmp.Compare(a.next, b.next) })
			room := max(g.nodes[n].Width/2-portEnd, 0)
			wishes := make([]float64, len(list))
			for k, p := range list {
				wishes[k] = p.next - g.items[n].x
			}
			for k, x := range spread(wishes, room) {
				out[list[k].edge][side] = g.items[n].x + x
			}
		}
	}
	return out
}

// spread places ascending wishes within -room..room, apart from each other.
func spread(wishes []float64, room float64) []float64 {
	n := len(wishes)
	gap := portGap
	if n > 1 {
		gap = min(gap, 2*room/float64(n-1))
	}
	x := make([]float64, n)
	for k := range wishes {
		low, high := -room+gap*float64(k), room-gap*float64(n-1-k)
		x[k] = min(max(wishes[k], low), high)
		if k > 0 {
			x[k] = max(x[k], x[k-1]+gap)
		}
	}
	for k := n - 2; k >= 0; k-- { // those that were pushed right pull back those that need not be
		if wishes[k] < x[k] {
			continue
		}
		x[k] = min(x[k], x[k+1]-gap)
	}
	return x
}

// route draws an edge: down in its places, and aside between the layers.
func (g *grid) route(i int, nodes []Rect, port [2]float64) Route {
	chain := g.chains[i]
	upper, lower := nodes[chain[0]], nodes[chain[len(chain)-1]]
	r := Route{Up: g.up[i]}
	at := Point{port[0], upper.Y + upper.Height}
	r.Points = []Point{at}
	down := func(y float64) {
		if y > at.Y {
			third := (y - at.Y) / 3
			r.Points = append(r.Points, Point{at.X, at.Y + third}, Point{at.X, at.Y + 2*third}, Point{at.X, y})
			at.Y = y
		}
	}
	bend := func(x, y float64) {
		if x == at.X {
			down(y)
			return
		}
		middle := (at.Y + y) / 2
		r.Points = append(r.Points, Point{at.X, middle}, Point{x, middle}, Point{x, y})
		at = Point{x, y}
	}
	for k, id := range chain {
		it := g.items[id]
		top, bottom := g.tops[it.layer], g.tops[it.layer]+g.height[it.layer]
		switch {
		case k == 0:
			down(bottom)
		case k == len(chain)-1:
			bend(port[1], top)
			down(lower.Y)
		default:
			bend(it.x, top)
			down(bottom)
		}
		if g.isLabel(id) {
			m := g.middle(id)
			label := g.edges[i].Label
			r.Label = Rect{m.X - label.Width/2, m.Y - label.Height/2, label.Width, label.Height}
		}
	}
	if r.Up {
		slices.Reverse(r.Points)
	}
	return r
}
