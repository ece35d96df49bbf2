package figures_test

import (
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/figures"
)

func TestOneOutlierDoesNotMoveTheMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 2}, 3}, {[]float64{1, 1000, 2}, 2}} {
		if got := figures.Median(c.of); got != c.want {
			t.Errorf("of %v: %v", c.of, got)
		}
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var of []time.Duration
	for i := range 100 {
		of = append(of, time.Duration(100-i))
	}
	for q, want := range map[float64]time.Duration{0: 1, .5: 51, .99: 100, 1: 100} {
		if got := figures.Quantile(of, q); got != want {
			t.Errorf("%v: %d", q, got)
		}
	}
}
