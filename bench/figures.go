package main

import (
	"fmt"
	"slices"
	"time"
)

func report(name, format string, args ...any) {
	fmt.Printf("%-58s %s\n", name, fmt.Sprintf(format, args...))
}

// quantile of durations; q from 0 to 1.
func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond)) }
