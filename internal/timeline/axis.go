package timeline

import (
	"math"
	"slices"
	"time"

	"github.com/wed-sql/wed_sql/internal/picture"
)

const (
	perState   = 110.0 // width that an interval between states gets on average
	leastWide  = 260.0
	mostWide   = 1000.0
	breakWidth = 58.0
	visible    = 10.0 // width from which on an interval can be seen
	tickWidth  = 74.0
)

// axis maps times to places. It has one scale, but for the long intervals in
// which nothing happens: an instance may wait for three days and then be done in
// five milliseconds. These are breaks, of a width of their own.
type axis struct {
	times  []time.Time
	broken []bool // by interval, from one of the times to the next
	x      []float64
}

// newAxis returns an axis on which what happens at these times can be seen;
// states matter more than other marks.
func newAxis(states, marks []time.Time) *axis {
	isState := make(map[int64]bool)
	for _, t := range states {
		isState[t.UnixNano()] = true
	}
	a := &axis{times: slices.Concat(states, marks)}
	slices.SortFunc(a.times, time.Time.Compare)
	a.times = slices.CompactFunc(a.times, time.Time.Equal)
	n := max(len(a.times)-1, 0)
	lengths, weights := make([]float64, n), make([]float64, n)
	for i := range n {
		lengths[i] = float64(a.times[i+1].Sub(a.times[i]))
		weights[i] = 0.2
		if isState[a.times[i].UnixNano()] && isState[a.times[i+1].UnixNano()] {
			weights[i] = 1
		}
	}
	a.broken = chooseBreaks(lengths, weights)
	s := scale(lengths, weights, a.broken)
	a.x = make([]float64, len(a.times))
	for i := range n {
		w := lengths[i] * s
		if a.broken[i] {
			w = breakWidth
		}
		a.x[i+1] = a.x[i] + w
	}
	return a
}

// scale returns how wide a nanosecond is outside of the breaks.
func scale(lengths, weights []float64, broken []bool) float64 {
	total, states := 0.0, 0.0
	for i := range lengths {
		if !broken[i] {
			total += lengths[i]
			states += weights[i]
		}
	}
	if total == 0 {
		return 0
	}
	return min(max(perState*states, leastWide), mostWide) / total
}

// chooseBreaks breaks the longest intervals, as many as are worth it: of an
// interval that is broken less is seen than of one that is not, but more than of
// one that is too small. Those that are broken must stand out from the others.
func chooseBreaks(lengths, weights []float64) []bool {
	const (
		brokenWorth    = 0.45
		longer, gain   = 3, 0.75
		muchLonger     = 20
		negligibleGain = 1e-9
	)
	sorted := slices.Clone(lengths)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	best := make([]bool, len(lengths))
	most := worth(lengths, weights, best, brokenWorth)
	for k := len(sorted) - 1; k > 0; k-- { // intervals from sorted[k] on are broken
		broken := make([]bool, len(lengths))
		for i, l := range lengths {
			broken[i] = l >= sorted[k]
		}
		if sorted[k]*scale(lengths, weights, broken) < 2*breakWidth {
			break // it would not be shorter
		}
		needed := math.Inf(1)
		switch {
		case sorted[k] >= muchLonger*sorted[k-1]:
			needed = negligibleGain
		case sorted[k] >= longer*sorted[k-1]:
			needed = gain
		}
		if w := worth(lengths, weights, broken, brokenWorth); w >= most+needed {
			best, most = broken, w
		}
	}
	return best
}

// worth is how much is seen of the intervals.
func worth(lengths, weights []float64, broken []bool, brokenWorth float64) (sum float64) {
	s := scale(lengths, weights, broken)
	for i, l := range lengths {
		switch {
		case broken[i]:
			sum += brokenWorth * weights[i]
		case l*s >= visible:
			sum += weights[i]
		}
	}
	return sum
}

// at returns the place of a time.
func (a *axis) at(t time.Time) float64 {
	i, found := slices.BinarySearchFunc(a.times, t, time.Time.Compare)
	switch {
	case found:
		return a.x[i]
	case i == 0:
		return 0
	case i == len(a.times):
		return a.width()
	}
	part := float64(t.Sub(a.times[i-1])) / float64(a.times[i].Sub(a.times[i-1]))
	return a.x[i-1] + part*(a.x[i]-a.x[i-1])
}

func (a *axis) width() float64 {
	if len(a.x) == 0 {
		return 0
	}
	return a.x[len(a.x)-1]
}

// run is a part of the axis without a break in it.
type run struct {
	from, to int // among the times
}

func (a *axis) runs() (list []run) {
	from := 0
	for i, b := range a.broken {
		if b {
			list = append(list, run{from, i})
			from = i + 1
		}
	}
	return append(list, run{from, len(a.times) - 1})
}

// tick is a place of the axis with what is written there.
type tick struct {
	x    float64
	text string
}

// ticks are those of a run, counted from its begin.
func (a *axis) ticks(r run) (list []tick) {
	wide := a.x[r.to] - a.x[r.from]
	length := a.times[r.to].Sub(a.times[r.from])
	if wide < tickWidth || length <= 0 {
		return nil
	}
	step := niceStep(time.Duration(float64(length) * tickWidth / wide))
	for t := step; t <= length; t += step {
		list = append(list, tick{a.x[r.from] + wide*float64(t)/float64(length), "+" + picture.Duration(t)})
		if t > length-step { // no overflow
			break
		}
	}
	return list
}

// niceStep returns the least step that people count in, that is no less than d.
func niceStep(d time.Duration) time.Duration {
	const day = 24 * time.Hour
	for unit := time.Nanosecond; unit < time.Second; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if n*unit >= d {
				return n * unit
			}
		}
	}
	for _, s := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		day, 2 * day, 7 * day, 14 * day, 30 * day, 60 * day, 90 * day, 180 * day,
	} {
		if s >= d {
			return s
		}
	}
	year := 365 * day
	return (d + year - 1) / year * year
}
