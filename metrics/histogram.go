package metrics

import "slices"

// histogram counts observations in buckets. Prometheus's own would take ten times the
// memory, and there are two for each transition.
type histogram struct {
	counts []uint64 // by bucket, and one for what is above all of them; nil before the first
	sum    float64
}

func (h *histogram) observe(bounds []float64, v float64) {
	if h.counts == nil {
		h.counts = make([]uint64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, v)
	h.counts[i]++
	h.sum += v
}

// cumulative returns the number of all observations, and of those up to each bound.
func (h *histogram) cumulative(bounds []float64) (uint64, map[float64]uint64) {
	buckets := make(map[float64]uint64, len(bounds))
	var n uint64
	for i, bound := range bounds {
		if h.counts != nil {
			n += h.counts[i]
		}
		buckets[bound] = n
	}
	if h.counts != nil {
		n += h.counts[len(bounds)]
	}
	return n, buckets
}
