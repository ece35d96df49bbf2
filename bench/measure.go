package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/engine"
	"github.com/wed-sql/wed_sql/bench/internal/growth"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/writers"
)

// parts of the benchmark, as -only names them.
var parts = []string{"w1", "w2", "w3", "w4", "writers", "growth", "engine"}

// measure measures round by round, all of a round in turn, so that what disturbs the
// machine for a while disturbs all. What fails is left out and reported at the end.
func measure(ctx context.Context, o options) (*report.Report, error) {
	wanted := strings.Split(o.only, ",")
	for _, w := range wanted {
		if !slices.Contains(parts, w) {
			return nil, fmt.Errorf("-only: there is no %q; there are %s", w, strings.Join(parts, ", "))
		}
	}
	all, err := systems(o)
	if err != nil {
		return nil, err
	}
	s, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(context.WithoutCancel(ctx))
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	r := &report.Report{Began: time.Now(), Machine: fmt.Sprintf("%d processors", runtime.NumCPU())}
	if r.Server, err = s.Version(ctx); err != nil {
		return nil, err
	}
	r.Server = strings.Join(strings.Fields(r.Server)[:2], " ")

	bouts := slices.Concat(contest.Bouts(all, sizes(o)), writers.Bouts(writerSizes(o)), growth.Bouts(growthSizes(o)), engine.Bouts(engineSizes(o)))
	bouts = slices.DeleteFunc(bouts, func(b contest.Bout) bool { return !slices.Contains(wanted, b.Workload) })
	failed := 0
	for round := range o.rounds {
		for i, b := range bouts {
			fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d, %d of %d: %s", round+1, o.rounds, i+1, len(bouts), b)
			if err := b.Run(ctx, s, r); err != nil {
				if ctx.Err() != nil {
					return r, ctx.Err()
				}
				fmt.Fprintf(os.Stderr, "\r\033[K%s: %v\n", b, err)
				failed++
			}
			// what was measured so far is there, whatever ends the rest
			if err := r.Save(filepath.Join(o.out, "results.json")); err != nil {
				return r, err
			}
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	if failed > 0 {
		return r, fmt.Errorf("%d of %d measurements have failed, see above", failed, o.rounds*len(bouts))
	}
	return r, nil
}

func sizes(o options) contest.Sizes {
	if o.small {
		return contest.Sizes{Jobs: 4000, Pickups: 300, Instances: 600, Starts: 50}
	}
	return contest.Sizes{Jobs: 20_000, Pickups: 1000, Instances: 2000, Starts: 150}
}

func writerSizes(o options) writers.Sizes {
	if o.small {
		return writers.Sizes{Writes: 8000, Listeners: 1000}
	}
	return writers.Sizes{Writes: 32_000, Listeners: 1000}
}

func growthSizes(o options) growth.Sizes {
	switch {
	case o.small:
		return growth.Small
	case o.full:
		return growth.Full
	}
	return growth.Usual
}

func engineSizes(o options) engine.Sizes {
	if o.small {
		return engine.Sizes{Samples: 200, Rest: 2 * time.Second}
	}
	return engine.Sizes{Samples: 2000, Rest: 10 * time.Second}
}
