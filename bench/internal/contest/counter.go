package contest

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Counter counts what handlers have done, for sessions whose handlers run in this process.
type Counter struct {
	mu      sync.Mutex
	n       int
	at      map[int64]time.Time // when handlers started, of those that are timed
	changed chan struct{}
}

func NewCounter() *Counter { return &Counter{changed: make(chan struct{})} }

// Time has Started remember from now on.
func (c *Counter) Time() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = map[int64]time.Time{}
}

// Started is called by the handler of a job, first of all.
func (c *Counter) Started(job int64) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.at[job]; c.at != nil && !again {
		c.at[job] = now
	}
}

// Done is called by a handler whose work counts.
func (c *Counter) Done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	close(c.changed)
	c.changed = make(chan struct{})
}

// patience is how long nothing may happen before a measurement is given up.
const patience = 30 * time.Second

// Wait until so much is done.
func (c *Counter) Wait(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		done, changed := c.n, c.changed
		c.mu.Unlock()
		if done >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(patience):
			return fmt.Errorf("nothing has happened for %s: %d of %d are done", patience, done, n)
		}
	}
}

// Pace calls enqueue at regular intervals, and returns how long after its return each
// handler started. enqueue returns the job that it has committed.
func (c *Counter) Pace(ctx context.Context, jobs int, every time.Duration, enqueue func(i int) (int64, error)) ([]time.Duration, error) {
	c.Time()
	committed := make(map[int64]time.Time, jobs)
	order := make([]int64, 0, jobs)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range jobs {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		job, err := enqueue(i)
		if err != nil {
			return nil, err
		}
		committed[job] = time.Now()
		order = append(order, job)
	}
	if err := c.Wait(ctx, jobs); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	took := make([]time.Duration, 0, jobs)
	for _, job := range order {
		at, ok := c.at[job]
		if !ok {
			return nil, fmt.Errorf("job %d was not started", job)
		}
		took = append(took, max(at.Sub(committed[job]), 0))
	}
	return took, nil
}

// Begin calls start at regular intervals and returns when each instance was begun.
func Begin(ctx context.Context, instances int, every time.Duration, start func() (int64, error)) (map[int64]time.Time, error) {
	begun := make(map[int64]time.Time, instances)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range instances {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
		at := time.Now()
		wid, err := start()
		if err != nil {
			return nil, err
		}
		begun[wid] = at
	}
	return begun, nil
}
