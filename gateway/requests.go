package gateway

import (
	"context"
	"sync"
)

// requests counts what is being served.
type requests struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0; nil if nobody waits
}

func (q *requests) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n++
}

func (q *requests) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n--
	if q.n == 0 && q.none != nil {
		close(q.none)
		q.none = nil
	}
}

func (q *requests) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// wait waits until nothing is being served.
func (q *requests) wait(ctx context.Context) error {
	q.mu.Lock()
	if q.n == 0 {
		q.mu.Unlock()
		return nil
	}
	if q.none == nil {
		q.none = make(chan struct{})
	}
	none := q.none
	q.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
