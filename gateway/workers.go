package gateway

import (
	"fmt"
	"sync/atomic"
)

// workers counts those that wait for jobs, or have a stream.
type workers struct{ n atomic.Int64 }

// begin reports false if there are too many already.
func (w *workers) begin(most int) bool {
	if w.n.Add(1) > int64(most) {
		w.n.Add(-1)
		return false
	}
	return true
}

func (w *workers) end() { w.n.Add(-1) }

func tooManyWorkers(most int) *problem {
	return tryAgain("The gateway is overloaded", fmt.Sprintf("%d workers wait for jobs already.", most))
}
