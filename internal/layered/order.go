package layered

import (
	"cmp"
	"slices"
)

const sweeps = 24

// order finds an order of the items of each layer with few crossings.
func (g *grid) order() {
	g.firstOrder()
	best, fewest := g.copyLayers(), g.crossings()
	for sweep := range sweeps {
		if fewest == 0 {
			break
		}
		g.sortLayers(sweep%2 == 0)
		g.transpose()
		if n := g.crossings(); n < fewest {
			best, fewest = g.copyLayers(), n
		}
	}
	g.layers = best
}

// firstOrder puts the items of the layers in the order in which a walk along the
// edges, from the top, comes by them.
func (g *grid) firstOrder() {
	seen := make([]bool, len(g.items))
	var visit func(i int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		g.layers[g.items[i].layer] = append(g.layers[g.items[i].layer], i)
		for _, b := range g.items[i].below {
			visit(b)
		}
	}
	for layer := range g.layers {
		for i := range g.items {
			if g.items[i].layer == layer {
				visit(i)
			}
		}
	}
}

func (g *grid) copyLayers() [][]int {
	out := make([][]int, len(g.layers))
	for i := range g.layers {
		out[i] = slices.Clone(g.layers[i])
	}
	return out
}

// places returns the place of each item in its layer.
func (g *grid) places() []int {
	place := make([]int, len(g.items))
	for _, layer := range g.layers {
		for p, i := range layer {
			place[i] = p
		}
	}
	return place
}

// sortLayers orders each layer by where the neighbours in the one before are.
func (g *grid) sortLayers(down bool) {
	place := g.places()
	for k := range g.layers {
		l := k
		if !down {
			l = len(g.layers) - 1 - k
		}
		mean := make(map[int]float64, len(g.layers[l]))
		for _, i := range g.layers[l] {
			near := g.items[i].above
			if !down {
				near = g.items[i].below
			}
			sum := 0.0
			for _, n := range near {
				sum += float64(place[n])
			}
			mean[i] = float64(place[i])
			if len(near) > 0 {
				mean[i] = sum / float64(len(near))
			}
		}
		slices.SortStableFunc(g.layers[l], func(a, b int) int { return cmp.Compare(mean[a], mean[b]) })
		for p, i := range g.layers[l] {
			place[i] = p
		}
	}
}

// transpose exchanges neighbours as long as there are fewer crossings then.
func (g *grid) transpose() {
	place := g.places()
	for range 4 {
		better := false
		for _, layer := range g.layers {
			for p := 0; p+1 < len(layer); p++ {
				a, b := layer[p], layer[p+1]
				as, bs := g.items[a], g.items[b]
				now := pairCrossings(place, as.above, bs.above) + pairCrossings(place, as.below, bs.below)
				then := pairCrossings(place, bs.above, as.above) + pairCrossings(place, bs.below, as.below)
				if then < now {
					layer[p], layer[p+1] = b, a
					place[a], place[b] = p+1, p
					better = true
				}
			}
		}
		if !better {
			return
		}
	}
}

// pairCrossings counts the crossings of the edges of two items, the first of which is on the left.
func pairCrossings(place []int, left, right []int) (n int) {
	for _, l := range left {
		for _, r := range right {
			if place[l] > place[r] {
				n++
			}
		}
	}
	return n
}

// crossings counts all of them: edges from left to right, each with those before
// it that end further right.
func (g *grid) crossings() (n int) {
	place := g.places()
	for l, layer := range g.layers {
		if l+1 == len(g.layers) {
			break
		}
		ends := make(tally, len(g.layers[l+1])+1)
		for _, i := range layer {
			for _, b := range g.items[i].below {
				n += ends.from(place[b] + 1)
			}
			for _, b := range g.items[i].below {
				ends.add(place[b])
			}
		}
	}
	return n
}

// tally counts numbers, by a binary indexed tree from the right.
type tally []int

func (t tally) add(number int) {
	for i := number + 1; i > 0; i -= i & -i {
		t[i-1]++
	}
}

// from returns how many were added that are no less.
func (t tally) from(number int) (n int) {
	for i := number + 1; i <= len(t); i += i & -i {
		n += t[i-1]
	}
	return n
}
