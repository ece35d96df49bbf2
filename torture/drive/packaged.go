package drive

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/worker"
)

// errTorture is what a handler fails with now and then.
var errTorture = errors.New("torture")

// packaged works by package worker, in one of its ways, for all transitions of all flows, and begins anew when that ends.
func (c *crew) packaged(ctx context.Context, role string, r *rand.Rand) error {
	for ctx.Err() == nil {
		if err := c.work(ctx, role, &dice{r: r}); err != nil && ctx.Err() == nil {
			c.saw(ctx, role, err)
		}
		pause(ctx, 100*time.Millisecond)
	}
	return nil
}

// dice are a source of chance for several goroutines.
type dice struct {
	sync.Mutex
	r *rand.Rand
}

func (c *crew) work(ctx context.Context, role string, d *dice) error {
	w, err := worker.New(worker.Config{DSN: c.DSN, Wakeup: time.Second, RetryAfter: 50 * time.Millisecond, Logger: c.log, Connections: 3})
	if err != nil {
		return err
	}
	one := func(ctx context.Context, j *worker.Job) (worker.State, error) { return c.handle(j, role, d) }
	for _, name := range c.Flows {
		for _, transition := range append(c.definition(name).Transitions(), flow.Exception) {
			switch role {
			case "worker":
				err = w.Handle(name, transition, one, worker.Options{Concurrency: 2})
			case "worker batch":
				err = w.Handle(name, transition, one, worker.Options{Batch: 10})
			case "worker HandleBatch":
				err = w.HandleBatch(name, transition, func(ctx context.Context, jobs []*worker.Job) ([]worker.State, error) {
					states := make([]worker.State, len(jobs))
					for i, j := range jobs {
						var err error
						if states[i], err = c.handle(j, role, d); err != nil {
							return nil, err
						}
					}
					return states, nil
				}, worker.Options{Batch: 10})
			default:
				err = w.Handle(name, transition, one, worker.Options{Lease: time.Second, Concurrency: 2})
			}
			if err != nil {
				return err
			}
		}
	}
	return w.Run(ctx)
}

// handle draws the next state from the one that fired the job, and notes it in the transaction that writes it.
func (c *crew) handle(j *worker.Job, role string, d *dice) (worker.State, error) {
	d.Lock()
	defer d.Unlock()
	if !c.drain.Load() {
		switch n := d.r.IntN(100); {
		case n < 3:
			return nil, errTorture
		case n < 5:
			return nil, nil
		}
	}
	others := d.r.IntN(2)
	if c.drain.Load() {
		others = d.r.IntN(3) // it does not know, and finds out
	}
	set := c.draw(d.r, j.Flow, j.Payload, others)
	j.BeforeCommit(func(ctx context.Context, db worker.Querier) error {
		_, err := c.note(ctx, db, job{flow: j.Flow, wid: j.WID, tgid: j.TGID, transition: j.TrName}, role, set)
		return err
	})
	return worker.State(c.definition(j.Flow).Values(set)), nil
}
