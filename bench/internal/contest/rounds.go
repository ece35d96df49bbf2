package contest

import (
	"context"
	"fmt"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/bare"
	"github.com/wed-sql/wed_sql/bench/internal/figures"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// Sizes say how much is done in a round.
type Sizes struct {
	Jobs      int // W1, W4
	Pickups   int // W2
	Instances int // W3
	Starts    int // W3 at 10 per second
}

// Bout is one measurement of a round.
type Bout struct {
	Workload string // w1, w2, w3 or w4
	System   string
	Run      func(ctx context.Context, s *server.Server, r *report.Report) error
}

const (
	pickupEvery = 10 * time.Millisecond
	startEvery  = 100 * time.Millisecond
	concurrency = 8
)

// Bouts of all systems.
func Bouts(systems []System, sizes Sizes) []Bout {
	bouts := []Bout{{"w4", "bare", func(ctx context.Context, s *server.Server, r *report.Report) error {
		tps, err := bare.Ceiling(ctx, s, sizes.Jobs, concurrency)
		r.Add(report.Bare, "bare", report.PerSecond, tps)
		return err
	}}}
	add := func(name string, measure func(context.Context, *server.Server, *report.Report, System) error) {
		for _, system := range systems {
			bouts = append(bouts, Bout{name, system.Name(), func(ctx context.Context, s *server.Server, r *report.Report) error {
				return measure(ctx, s, r, system)
			}})
		}
	}
	for _, side := range []struct {
		workload    string
		concurrency int
	}{{report.Burst8, 8}, {report.Burst32, 32}} {
		add("w1", func(ctx context.Context, s *server.Server, r *report.Report, system System) error {
			t, err := Burst(ctx, s, system, Fair(system, sizes.Jobs), side.concurrency)
			if err == nil {
				t.add(r, side.workload, system)
			}
			return err
		})
	}
	add("w2", func(ctx context.Context, s *server.Server, r *report.Report, system System) error {
		took, err := Pickups(ctx, s, system, sizes.Pickups, concurrency, pickupEvery)
		if err == nil {
			addTimes(r, report.Pickup, system, took)
		}
		return err
	})
	add("w3", func(ctx context.Context, s *server.Server, r *report.Report, system System) error {
		t, err := Flows(ctx, s, system, Fair(system, sizes.Instances), concurrency)
		if err == nil {
			t.add(r, report.FlowRate, system)
		}
		return err
	})
	add("w3", func(ctx context.Context, s *server.Server, r *report.Report, system System) error {
		took, err := FlowTimes(ctx, s, system, sizes.Starts, concurrency, startEvery)
		if err == nil {
			addTimes(r, report.FlowTime, system, took)
		}
		return err
	})
	return bouts
}

func (t Throughput) add(r *report.Report, workload string, system System) {
	r.Add(workload, system.Name(), report.PerSecond, float64(t.N)/t.Done.Seconds())
	if t.Recorded > 0 {
		r.Add(workload, system.Name(), report.Recorded, float64(t.N)/t.Recorded.Seconds())
	}
	r.Add(workload, system.Name(), report.Transactions, float64(t.Writes))
}

func addTimes(r *report.Report, workload string, system System, took []time.Duration) {
	r.Add(workload, system.Name(), report.P50, figures.Milliseconds(figures.Quantile(took, .5)))
	r.Add(workload, system.Name(), report.P99, figures.Milliseconds(figures.Quantile(took, .99)))
}

func (b Bout) String() string { return fmt.Sprintf("%s %s", b.Workload, b.System) }
