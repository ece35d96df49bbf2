// Package layered lays out a directed graph from top to bottom: its nodes in
// layers, such that most edges point down and few cross. Edges are smooth, do
// not run through nodes, and end at their borders; labels have a place of their
// own on them. The same graph has the same layout.
//
// The way is Sugiyama's: break the cycles, assign layers, order each layer, then
// find coordinates. Between two layers of nodes there is one of labels, in which
// every edge has a place, so that a label keeps others away as a node does.
package layered

// Node is a box to be placed.
type Node struct {
	Width, Height float64
	Rank          Rank
}

// Rank says where a node belongs whatever its edges.
type Rank int

const (
	Anywhere Rank = iota
	First         // in the top layer
	Last          // in the bottom layer
	Aside         // near its neighbours, in a layer that the others do not make room for
)

// Edge joins two nodes, or one with itself.
type Edge struct {
	From, To int
	Label    Size // zero: none
	Weight   int  // of the edges of a cycle, those of no weight rather point up than others
}

// Size is that of a box.
type Size struct{ Width, Height float64 }

// Point is a place in the picture; y grows downwards.
type Point struct{ X, Y float64 }

// Rect is a box by its upper left corner.
type Rect struct{ X, Y, Width, Height float64 }

// Route is how an edge runs: Points are the control points of cubic Bézier
// curves, one after the other; the first and the last are the edge's ends.
type Route struct {
	Points []Point
	Label  Rect
	Up     bool // it points up: the lower end of its node is where it arrives
	Loop   bool // it joins a node with itself
}

// Layout is where everything is.
type Layout struct {
	Size  Size
	Nodes []Rect
	Edges []Route
}

const (
	nodeGap  = 26.0 // between two nodes of a layer
	edgeGap  = 12.0 // between what is none
	lineHalf = 4.0  // half the room that an edge without a label takes
	minBend  = 24.0 // least height in which an edge turns aside
	maxBend  = 64.0
	portGap  = 16.0 // between two edges at the same side of a node
	portEnd  = 14.0 // between an edge and a node's corner
	loopOut  = 22.0 // how far an edge to its own node goes out
)

// Of lays out a graph.
func Of(nodes []Node, edges []Edge) Layout {
	g := newGrid(nodes, edges)
	g.order()
	g.assignX()
	g.assignY()
	return g.layout()
}

// grid is a graph in layers: layers of nodes at even numbers, of labels at odd ones.
type grid struct {
	nodes  []Node
	edges  []Edge
	up     []bool // by edge: it is taken as if it pointed the other way
	items  []item
	chains [][]int // by edge: the items along it, from its upper node to its lower one; none for a loop
	layers [][]int // items from left to right
	tops   []float64
	height []float64
}

// item is a node, or the place of an edge in a layer.
type item struct {
	node, edge  int // the other is -1
	layer       int
	left, right float64 // extent from x
	height      float64
	x           float64
	above       []int
	below       []int
}

func newGrid(nodes []Node, edges []Edge) *grid {
	g := &grid{nodes: nodes, edges: edges, up: breakCycles(nodes, edges)}
	rank := g.rank()
	g.stepAside(rank)
	last := 0
	for i, n := range nodes {
		it := item{node: i, edge: -1, layer: 2 * rank[i], left: n.Width / 2, right: n.Width / 2, height: n.Height}
		last = max(last, it.layer)
		for _, e := range edges {
			if e.From == i && e.To == i {
				it.right += loopOut + e.Label.Width
				it.height = max(it.height, e.Label.Height+8)
			}
		}
		g.items = append(g.items, it)
	}
	g.chains = make([][]int, len(edges))
	for i, e := range edges {
		if e.From != e.To {
			g.addChain(i, e)
		}
	}
	g.layers = make([][]int, last+1)
	return g
}

// addChain makes the items of an edge.
func (g *grid) addChain(i int, e Edge) {
	upper, lower := e.From, e.To
	if g.up[i] {
		upper, lower = lower, upper
	}
	from, to := g.items[upper].layer, g.items[lower].layer
	label := (from+to)/2 | 1
	if label > to {
		label -= 2
	}
	chain := []int{upper}
	for l := from + 1; l < to; l++ {
		it := item{node: -1, edge: i, layer: l, left: lineHalf, right: lineHalf}
		if l == label {
			it.left, it.right = max(lineHalf, e.Label.Width/2), max(lineHalf, e.Label.Width/2)
			it.height = e.Label.Height
		}
		g.items = append(g.items, it)
		chain = append(chain, len(g.items)-1)
	}
	chain = append(chain, lower)
	for k := 1; k < len(chain); k++ {
		g.items[chain[k-1]].below = append(g.items[chain[k-1]].below, chain[k])
		g.items[chain[k]].above = append(g.items[chain[k]].above, chain[k-1])
	}
	g.chains[i] = chain
}

// isLabel reports whether an item is the place of its edge's label.
func (g *grid) isLabel(i int) bool {
	it := g.items[i]
	return it.edge >= 0 && it.height > 0
}
