package layered

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// graphs are of many kinds: the small ones that flows are, and random ones.
func graphs(t *testing.T, check func(t *testing.T, nodes []Node, edges []Edge)) {
	t.Helper()
	box := Node{Width: 100, Height: 40}
	label := Size{50, 16}
	chain := func(n int, more ...Edge) func(t *testing.T) {
		return func(t *testing.T) {
			nodes := slices.Repeat([]Node{box}, n)
			var edges []Edge
			for i := 1; i < n; i++ {
				edges = append(edges, Edge{From: i - 1, To: i, Label: label, Weight: 1})
			}
			check(t, nodes, append(edges, more...))
		}
	}
	t.Run("nothing", func(t *testing.T) { check(t, nil, nil) })
	t.Run("one node", chain(1))
	t.Run("a chain", chain(30))
	t.Run("a loop", chain(5, Edge{From: 4, To: 1, Label: label}))
	t.Run("a node after itself", chain(3, Edge{From: 1, To: 1, Label: label}))
	t.Run("a short cut", chain(6, Edge{From: 0, To: 5}))
	for seed := range uint64(15) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 5))
			n := 2 + r.IntN(40)
			nodes := make([]Node, n)
			for i := range nodes {
				nodes[i] = Node{Width: 20 + float64(r.IntN(300)), Height: 16 + float64(r.IntN(120))}
			}
			nodes[0].Rank, nodes[n-1].Rank = First, Last
			if n > 4 && seed%3 > 0 {
				nodes[2].Rank = Aside
				if seed%3 > 1 {
					nodes[3].Rank = Aside
				}
			}
			seen := make(map[[2]int]bool)
			var edges []Edge
			for range n + r.IntN(2*n) {
				e := Edge{From: r.IntN(n), To: r.IntN(n), Weight: r.IntN(9)}
				if seen[[2]int{e.From, e.To}] {
					continue
				}
				seen[[2]int{e.From, e.To}] = true
				if r.IntN(4) > 0 {
					e.Label = Size{20 + float64(r.IntN(130)), 18}
				}
				edges = append(edges, e)
			}
			check(t, nodes, edges)
		})
	}
}

func overlap(a, b Rect) bool {
	return a.X < b.X+b.Width && b.X < a.X+a.Width && a.Y < b.Y+b.Height && b.Y < a.Y+a.Height
}

func TestNodesAndLabelsDoNotOverlap(t *testing.T) {
	graphs(t, func(t *testing.T, nodes []Node, edges []Edge) {
		l := Of(nodes, edges)
		boxes, names := slices.Clone(l.Nodes), make([]string, len(nodes))
		for i := range nodes {
			names[i] = fmt.Sprint("node ", i)
			if l.Nodes[i].Width != nodes[i].Width || l.Nodes[i].Height != nodes[i].Height {
				t.Errorf("node %d is %v, want the size of %v", i, l.Nodes[i], nodes[i])
			}
		}
		for i, e := range edges {
			if e.Label != (Size{}) {
				boxes, names = append(boxes, l.Edges[i].Label), append(names, fmt.Sprint("label ", i))
				if got := (Size{l.Edges[i].Label.Width, l.Edges[i].Label.Height}); got != e.Label {
					t.Errorf("label %d is %v, want %v", i, got, e.Label)
				}
			}
		}
		for i := range boxes {
			b := boxes[i]
			if b.X < 0 || b.Y < 0 || b.X+b.Width > l.Size.Width || b.Y+b.Height > l.Size.Height {
				t.Errorf("%s at %v is outside of the picture, %v", names[i], b, l.Size)
			}
			for k := range i {
				if overlap(boxes[i], boxes[k]) {
					t.Errorf("%s at %v overlaps %s at %v", names[i], boxes[i], names[k], boxes[k])
				}
			}
		}
	})
}

// at returns a point of a curve.
func at(p []Point, t float64) Point {
	u := 1 - t
	f := [4]float64{u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t}
	var q Point
	for i := range 4 {
		q.X += f[i] * p[i].X
		q.Y += f[i] * p[i].Y
	}
	return q
}

func TestEdgesEndAtTheirNodesAndRunThroughNoOthers(t *testing.T) {
	graphs(t, func(t *testing.T, nodes []Node, edges []Edge) {
		l := Of(nodes, edges)
		for i, e := range edges {
			r := l.Edges[i]
			if len(r.Points)%3 != 1 {
				t.Fatalf("edge %d has %d points", i, len(r.Points))
			}
			for k, n := range []int{e.From, e.To} {
				p := r.Points[k*(len(r.Points)-1)]
				box := l.Nodes[n]
				side := p.Y == box.Y || p.Y == box.Y+box.Height || e.From == e.To && p.X == box.X+box.Width
				if !side || p.X < box.X || p.X > box.X+box.Width || p.Y < box.Y || p.Y > box.Y+box.Height {
					t.Errorf("end %d of edge %d at %v does not touch node %d at %v", k, i, p, n, box)
				}
			}
			for k := 0; k+3 < len(r.Points); k += 3 {
				for step := 0.0; step <= 1; step += 0.05 {
					p := at(r.Points[k:k+4], step)
					for n, box := range l.Nodes {
						if p.X > box.X+0.01 && p.X < box.X+box.Width-0.01 && p.Y > box.Y+0.01 && p.Y < box.Y+box.Height-0.01 {
							t.Fatalf("edge %d runs through node %d", i, n)
						}
					}
				}
			}
		}
	})
}

func TestTheSameGraphHasTheSameLayout(t *testing.T) {
	graphs(t, func(t *testing.T, nodes []Node, edges []Edge) {
		first := Of(nodes, edges)
		for range 3 {
			if again := Of(nodes, edges); !reflect.DeepEqual(first, again) {
				t.Fatal("the second layout is another")
			}
		}
	})
}

func TestOnlyEdgesOfCyclesPointUp(t *testing.T) {
	box := Node{Width: 60, Height: 30}
	nodes := []Node{box, box, box, box}
	edges := []Edge{{From: 0, To: 1, Weight: 9}, {From: 1, To: 2, Weight: 9}, {From: 2, To: 1, Weight: 1}, {From: 2, To: 3, Weight: 9}, {From: 0, To: 3}}
	for i, e := range Of(nodes, edges).Edges {
		if want := i == 2; e.Up != want {
			t.Errorf("edge %d points up: %v, want %v", i, e.Up, want)
		}
	}
}

func TestCrossingsAreCounted(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		nodes := slices.Repeat([]Node{{Width: 9, Height: 9}}, 20)
		var edges []Edge
		for range 40 {
			edges = append(edges, Edge{From: r.IntN(10), To: 10 + r.IntN(10)})
		}
		g := newGrid(nodes, edges)
		g.firstOrder()
		want, place := 0, g.places()
		for _, layer := range g.layers {
			for p := range layer {
				for q := range p {
					want += pairCrossings(place, g.items[layer[q]].below, g.items[layer[p]].below)
				}
			}
		}
		if got := g.crossings(); got != want {
			t.Errorf("seed %d: %d crossings, want %d", seed, got, want)
		}
	}
}

func BenchmarkDenseGraph(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	nodes := slices.Repeat([]Node{{Width: 100, Height: 50}}, 60)
	var edges []Edge
	for range 600 {
		edges = append(edges, Edge{From: r.IntN(60), To: r.IntN(60), Label: Size{30, 18}})
	}
	for b.Loop() {
		Of(nodes, edges)
	}
}

func TestWhatIsAsideMovesNoOthers(t *testing.T) {
	box := Node{Width: 60, Height: 30}
	nodes := []Node{box, box, box, box}
	edges := []Edge{{From: 0, To: 1}, {From: 0, To: 2}}
	aside := []Edge{{From: 1, To: 3}, {From: 3, To: 2}, {From: 3, To: 0}}
	l := Of(nodes, slices.Concat(edges, aside))
	if l.Nodes[1].Y == l.Nodes[2].Y {
		t.Error("the test needs edges that move others")
	}
	nodes[3].Rank = Aside
	l = Of(nodes, slices.Concat(edges, aside))
	if l.Nodes[1].Y != l.Nodes[2].Y {
		t.Errorf("it has moved others: %v", l.Nodes)
	}
	if l.Edges[2].Up || !l.Edges[3].Up || !l.Edges[4].Up {
		t.Errorf("it is not below who leads to it: %v", l.Nodes)
	}
}

func TestACrossingThatNeedNotBeIsNone(t *testing.T) {
	box := Node{Width: 60, Height: 30}
	nodes := slices.Repeat([]Node{box}, 6)
	// two pairs, each joined with what the other is above of
	edges := []Edge{{From: 0, To: 3}, {From: 1, To: 2}, {From: 2, To: 5}, {From: 3, To: 4}}
	g := newGrid(nodes, edges)
	g.order()
	if n := g.crossings(); n != 0 {
		t.Errorf("%d crossings", n)
	}
}

func TestEdgesAtANodeDoNotMeet(t *testing.T) {
	for _, wishes := range [][]float64{{0}, {-500, -400}, {0, 0, 0}, {30, 40}, {-3, -2, 200, 300}, {400, 500, 600}} {
		x := spread(wishes, 40)
		for i := range x {
			if x[i] < -40 || x[i] > 40 {
				t.Errorf("%v: %v is not within the node", wishes, x)
			}
			if i > 0 && x[i] < x[i-1]+min(portGap, 80/float64(len(x)-1))-0.001 {
				t.Errorf("%v: %v are too close", wishes, x)
			}
		}
	}
}
