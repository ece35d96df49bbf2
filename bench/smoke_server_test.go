package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/engine"
	"github.com/wed-sql/wed_sql/bench/internal/growth"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
	"github.com/wed-sql/wed_sql/bench/internal/wedsql"
	"github.com/wed-sql/wed_sql/bench/internal/writers"
)

// What is measured of wed_sql, in sizes that say nothing of its speed: PGHOST and its like name the server.
func TestWhatIsMeasuredOfWedSQLRuns(t *testing.T) {
	if os.Getenv("WED_SQL_TEST_CONN") == "" {
		t.Skip("WED_SQL_TEST_CONN is not set")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	s, err := server.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(ctx))

	// one of each kind: they differ by options only
	var system contest.System = wedsql.Systems()[1]
	bouts := contest.Bouts([]contest.System{system}, contest.Sizes{Jobs: 64, Pickups: 5, Instances: 10, Starts: 3})
	bouts = append(bouts, last(writers.Bouts(writers.Sizes{Writes: 64, Listeners: 3})))
	bouts = append(bouts, growth.Bouts(growth.Sizes{Rules: []int{3}, Databases: []int{2}, States: []int{1, 3}, Timed: 20})...)
	bouts = append(bouts, engine.Bouts(engine.Sizes{Samples: 5, Rest: 10 * time.Millisecond})...)
	r := new(report.Report)
	for _, b := range bouts {
		if err := b.Run(ctx, s, r); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
	for _, f := range r.Measured {
		if v := slices.Min(f.Values); v < 0 || v == 0 && f.Metric == report.PerSecond {
			t.Errorf("%s: %v", f, f.Values)
		}
	}
	var tables strings.Builder
	r.WriteTables(&tables)
	for _, want := range []string{"W1", "W2", "W3", "W4", "Writers", "rules per flow", "databases", "follower alone"} {
		if !strings.Contains(tables.String(), want) {
			t.Errorf("nothing of %s in the tables:\n%s", want, &tables)
		}
	}
}

func last[T any](of []T) T { return of[len(of)-1] }
