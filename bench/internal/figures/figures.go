// Package figures has what is computed of the numbers of several runs.
package figures

import (
	"slices"
	"time"
)

// Quantile of numbers; q from 0 to 1. Of none it is 0.
func Quantile[T int64 | float64 | time.Duration](of []T, q float64) T {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Median of numbers: of an even number of them the mean of the two in the middle.
func Median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Milliseconds of a duration.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
