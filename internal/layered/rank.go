package layered

import (
	"cmp"
	"slices"
)

// breakCycles says which edges are to point up so that the others have no cycle.
// Those that have a weight decide first, by a walk along them from the top;
// those without fit in.
func breakCycles(nodes []Node, edges []Edge) []bool {
	w := walk{edges: edges, out: make([][]int, len(nodes)), state: make([]progress, len(nodes)), up: make([]bool, len(edges))}
	var light []int
	for i, e := range edges {
		switch {
		case e.From == e.To || nodes[e.From].Rank == Aside || nodes[e.To].Rank == Aside:
		case nodes[e.To].Rank == First || nodes[e.From].Rank == Last:
			w.up[i] = true
		case e.Weight > 0:
			w.out[e.From] = append(w.out[e.From], i)
		default:
			light = append(light, i)
		}
	}
	for _, list := range w.out {
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(edges[b].Weight, edges[a].Weight) })
	}
	for _, rank := range []Rank{First, Anywhere, Last} {
		for n := range nodes {
			if nodes[n].Rank == rank && w.state[n] == unseen {
				w.visit(n)
			}
		}
	}

	below := make([][]int, len(nodes))
	for i, e := range edges {
		switch {
		case e.Weight == 0 || e.From == e.To || nodes[e.From].Rank == Aside || nodes[e.To].Rank == Aside:
		case w.up[i]:
			below[e.To] = append(below[e.To], e.From)
		default:
			below[e.From] = append(below[e.From], e.To)
		}
	}
	for _, i := range light {
		e := edges[i]
		if w.up[i] = reaches(below, e.To, e.From); w.up[i] {
			e.From, e.To = e.To, e.From
		}
		below[e.From] = append(below[e.From], e.To)
	}
	return w.up
}

// walk goes along edges, and turns those that lead back to where it has come from.
type walk struct {
	edges []Edge
	out   [][]int // edges by the node that they begin at
	state []progress
	up    []bool
}

type progress int

const (
	unseen progress = iota
	open
	done
)

func (w *walk) visit(n int) {
	w.state[n] = open
	for _, i := range w.out[n] {
		switch to := w.edges[i].To; w.state[to] {
		case open:
			w.up[i] = true
		case unseen:
			w.visit(to)
		}
	}
	w.state[n] = done
}

// reaches reports whether there is a way from one node to another.
func reaches(below [][]int, from, to int) bool {
	seen := make([]bool, len(below))
	list := []int{from}
	for len(list) > 0 {
		n := list[len(list)-1]
		list = list[:len(list)-1]
		if n == to {
			return true
		}
		if !seen[n] {
			seen[n] = true
			list = append(list, below[n]...)
		}
	}
	return false
}

// ends returns the upper and the lower node of an edge.
func (g *grid) ends(i int) (upper, lower int) {
	if g.up[i] {
		return g.edges[i].To, g.edges[i].From
	}
	return g.edges[i].From, g.edges[i].To
}

// ranks reports whether an edge says in which layers its nodes are.
func (g *grid) ranks(e Edge) bool {
	return e.From != e.To && g.nodes[e.From].Rank != Aside && g.nodes[e.To].Rank != Aside
}

// stepAside puts the nodes that are to be aside into layers of their own: each
// below the middle one of those that lead to it, or above those that it leads to.
func (g *grid) stepAside(rank []int) {
	scale := 1
	for _, n := range g.nodes {
		if n.Rank == Aside {
			scale++
		}
	}
	if scale == 1 {
		return
	}
	for i := range rank {
		rank[i] *= scale
	}
	nth := 0
	for i, n := range g.nodes {
		if n.Rank != Aside {
			continue
		}
		nth++
		var before, behind []int
		for _, e := range g.edges {
			switch {
			case e.To == i && g.nodes[e.From].Rank != Aside:
				before = append(before, rank[e.From])
			case e.From == i && g.nodes[e.To].Rank != Aside:
				behind = append(behind, rank[e.To])
			}
		}
		slices.Sort(before)
		slices.Sort(behind)
		rank[i] = nth
		switch {
		case len(before) > 0:
			rank[i] = before[len(before)/2] + nth
		case len(behind) > 0:
			rank[i] = max(behind[0]-scale, 0) + nth
		}
	}
	used := slices.Clone(rank) // without layers that are empty
	slices.Sort(used)
	used = slices.Compact(used)
	for i := range rank {
		rank[i], _ = slices.BinarySearch(used, rank[i])
	}
	for i, n := range g.nodes {
		if n.Rank == Last && rank[i] < len(used)-1 {
			rank[i] = len(used)
		}
	}
	for i, e := range g.edges {
		if !g.ranks(e) {
			g.up[i] = rank[e.From] > rank[e.To]
		}
	}
}

// rank assigns each node a layer: as high as its edges allow, then down to where
// they are shorter.
func (g *grid) rank() []int {
	rank := make([]int, len(g.nodes))
	for range g.nodes { // the longest path has no more edges than there are nodes
		changed := false
		for i, e := range g.edges {
			if !g.ranks(e) {
				continue
			}
			u, l := g.ends(i)
			if rank[l] < rank[u]+1 {
				rank[l] = rank[u] + 1
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	g.pinLast(rank)
	for range len(g.nodes) {
		if !g.shorten(rank) {
			break
		}
	}
	g.pinLast(rank)
	if len(rank) > 0 {
		top := slices.Min(rank)
		for i := range rank {
			rank[i] -= top
		}
	}
	return rank
}

// pinLast moves what is to be in the bottom layer there.
func (g *grid) pinLast(rank []int) {
	bottom := 0
	for i := range g.nodes {
		bottom = max(bottom, rank[i])
	}
	for i := range g.nodes {
		if g.nodes[i].Rank == Last {
			rank[i] = bottom
		}
	}
}

// shorten moves each node to where its edges are the shortest, and reports
// whether any has moved.
func (g *grid) shorten(rank []int) (moved bool) {
	for n := range g.nodes {
		if g.nodes[n].Rank != Anywhere {
			continue
		}
		highest, lowest, pull := 0, -1, 0
		for i, e := range g.edges {
			if !g.ranks(e) {
				continue
			}
			u, l := g.ends(i)
			switch n {
			case l:
				highest = max(highest, rank[u]+1)
				pull--
			case u:
				if lowest < 0 || rank[l]-1 < lowest {
					lowest = rank[l] - 1
				}
				pull++
			}
		}
		to := rank[n]
		switch {
		case pull > 0 && lowest >= 0:
			to = lowest
		case pull < 0:
			to = highest
		}
		if to != rank[n] {
			rank[n], moved = to, true
		}
	}
	return moved
}
