package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/fold"
	"github.com/wed-sql/wed_sql/wal"
)

// series returns the values of all counters and gauges of wed_sql, and the numbers of
// observations of its histograms, by name and labels.
func series(t *testing.T, e *Exporter) map[string]float64 {
	t.Helper()
	e.patience = 10 * time.Millisecond // as a rule, nobody answers
	families, err := e.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "wed_sql_") {
			continue
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				values[name] = m.GetGauge().GetValue()
			default:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

func expect(t *testing.T, e *Exporter, want map[string]float64) {
	t.Helper()
	got := series(t, e)
	for name, value := range want {
		if v, ok := got[name]; !ok || v != value {
			t.Errorf("%s: %v, %v, want %v", name, v, ok, value)
		}
	}
}

func state(s wal.Measured) []wal.Measured {
	if s.FlowName == "" {
		s.Flow, s.FlowName = 1, "travel"
	}
	if s.Status == 0 {
		s.Status = fold.Regular
	}
	s.Committed = time.Now()
	return []wal.Measured{s}
}

func TestWhatTheFollowerWritesIsCounted(t *testing.T) {
	t.Parallel()
	e := New("1.2.3")
	e.Started(4)
	d := e.Database(1, "shop")
	d.Up(true)
	d.Wrote(append(state(wal.Measured{Initial: true, Fired: []string{"book", "pay"}}),
		state(wal.Measured{Done: "book", Timed: true, Wait: 3 * time.Second, Run: time.Millisecond})...))
	d.Wrote(state(wal.Measured{Done: "pay", Status: fold.Exception, Fired: []string{"_EXCPT"}}))
	d.Wrote(state(wal.Measured{Done: "_EXCPT", Status: fold.Final, Withdrawn: []string{"pay"}}))
	d.Wrote(state(wal.Measured{Status: fold.Cancelled}))
	d.happened([]event{{"travel", "pay", "failed", 2}, {"travel", "pay", "timed out", 3}, {"travel", "pay", "lost", 4}, {"travel", "late", "fired", 5}})
	expect(t, e, map[string]float64{
		"wed_sql_engine_starts_total":                       4,
		"wed_sql_up shop":                                   1,
		"wed_sql_statistics_up shop":                        0,
		"wed_sql_states_total shop travel":                  5,
		"wed_sql_instances_started_total shop travel":       1,
		"wed_sql_exceptions_total shop travel":              1,
		"wed_sql_instances_finished_total shop travel":      1,
		"wed_sql_instances_cancelled_total shop travel":     1,
		"wed_sql_jobs_fired_total shop travel book":         1,
		"wed_sql_jobs_fired_total shop travel late":         5,
		"wed_sql_jobs_done_total shop travel book":          1,
		"wed_sql_jobs_withdrawn_total shop travel pay":      1,
		"wed_sql_jobs_failed_total shop travel pay":         2,
		"wed_sql_jobs_timed_out_total shop travel pay":      3,
		"wed_sql_jobs_lost_total shop travel pay":           4,
		"wed_sql_job_wait_seconds shop travel book":         1,
		"wed_sql_job_run_seconds shop travel book":          1,
		"wed_sql_follower_batch_states shop":                4,
		"wed_sql_follower_latency_seconds shop":             5,
		"wed_sql_jobs_done_total shop travel _EXCPT":        1,
		"wed_sql_follower_failures_total shop":              0,
		"wed_sql_jobs_fired_total shop travel _EXCPT":       1,
		"wed_sql_jobs_withdrawn_total shop travel _EXCPT":   0,
		"wed_sql_build_info " + runtimeVersion() + " 1.2.3": 1,
	})
	d.Gone()
	d.Up(true) // somebody who does not know it yet
	if got := series(t, e); len(got) != 2 {
		t.Errorf("of a database that is gone: %v", got)
	}
}

func TestThousandsOfTransitionsAreShownAsOne(t *testing.T) {
	t.Parallel()
	e := New("1")
	a, b := e.Database(1, "a"), e.Database(2, "b")
	a.Up(true)
	b.Up(true)
	const flows, each = 3 * maxFlows / 2, 2
	for i := range flows {
		s := state(wal.Measured{Flow: int32(i), FlowName: fmt.Sprint("f", i)})
		for j := range each {
			s[0].Fired = append(s[0].Fired, fmt.Sprint("t", j))
		}
		a.Wrote(s)
	}
	b.Wrote(state(wal.Measured{FlowName: "late", Fired: []string{"go"}}))
	got := series(t, e)
	fired, transitions, shown := 0.0, 0, 0
	for name, value := range got {
		switch {
		case strings.HasPrefix(name, "wed_sql_jobs_fired_total"):
			fired += value
			transitions++
		case strings.HasPrefix(name, "wed_sql_states_total"):
			shown++
		}
	}
	if fired != flows*each+1 || transitions != maxTransitions+2 || shown != maxFlows+2 {
		t.Errorf("%v jobs of %d transitions, %d flows", fired, transitions, shown)
	}
	if n := got["wed_sql_jobs_fired_total b _other _other"]; n != 1 {
		t.Errorf("the second database: %v", n)
	}
	// There is room again when a database is gone.
	e.Forget(1)
	b.Wrote(state(wal.Measured{FlowName: "late", Fired: []string{"go"}}))
	expect(t, e, map[string]float64{"wed_sql_jobs_fired_total b late go": 1, "wed_sql_states_total b late": 1})
}

func TestFlowsThatAreDroppedMakeRoom(t *testing.T) {
	t.Parallel()
	e := New("1")
	d := e.Database(1, "shop")
	d.Up(true)
	d.Wrote(state(wal.Measured{FlowName: "old", Fired: []string{"go"}}))
	begin := time.Now()
	d.Wrote(state(wal.Measured{FlowName: "new", Fired: []string{"go"}}))
	one, two := int64(1), int64(2)
	d.mu.Lock()
	d.saw([]row{{Flow: "there", Name: "go", Waiting: &one, Running: &two}}, true, begin)
	d.mu.Unlock()
	got := series(t, e)
	if _, ok := got["wed_sql_jobs_fired_total shop old go"]; ok {
		t.Error("a flow that is not there is shown")
	}
	if _, ok := got["wed_sql_jobs_leased shop there go"]; ok {
		t.Error("what is not known is shown")
	}
	expect(t, e, map[string]float64{"wed_sql_jobs_fired_total shop new go": 1, "wed_sql_jobs_fired_total shop there go": 0,
		"wed_sql_jobs_waiting shop there go": 1, "wed_sql_jobs_running shop there go": 2})
	if e.room.flows != 1 || e.room.transitions != 2 {
		t.Errorf("room is taken for %d flows and %d transitions", e.room.flows, e.room.transitions)
	}
}

// A database that cannot be reached does not keep a scrape from the rest.
func TestAScrapeWorksWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	e := New("1")
	d := e.Database(1, "shop")
	d.Up(false)
	d.Failed()
	d.Wrote(state(wal.Measured{Initial: true, Fired: []string{"go"}}))
	ctx, cancel := context.WithCancel(context.Background())
	kept := make(chan struct{})
	asked := make(chan struct{}, 100)
	go func() {
		defer close(kept)
		d.Keep(ctx, func(context.Context) (*pgx.Conn, error) {
			asked <- struct{}{}
			return nil, errors.New("no route")
		}, slog.New(slog.DiscardHandler))
	}()
	expect(t, e, map[string]float64{"wed_sql_up shop": 0, "wed_sql_statistics_up shop": 0, "wed_sql_follower_failures_total shop": 1,
		"wed_sql_jobs_fired_total shop travel go": 1})
	if got := series(t, e)["wed_sql_follower_last_error_timestamp_seconds shop"]; time.Since(time.Unix(int64(got), 0)) > time.Minute {
		t.Errorf("the last error was at %v", got)
	}
	<-asked
	cancel()
	<-kept
	// What could not be written is not lost.
	if d.deltas.flows[1].States != 1 || d.deltas.transitions[deltaKey{1, "go"}].Fired != 1 {
		t.Error("what was counted is lost")
	}
}

func TestTheLagIsTheAgeOfWhatIsNotMatched(t *testing.T) {
	t.Parallel()
	e := New("1")
	d := e.Database(1, "shop")
	d.Up(true)
	d.Applied(100)
	begin := time.Now()
	kept := 77.0
	d.look.saw(&position{end: 90, retained: &kept}, begin)
	expect(t, e, map[string]float64{"wed_sql_follower_lag_bytes shop": 0, "wed_sql_follower_lag_seconds shop": 0, "wed_sql_slot_retained_bytes shop": 77})
	for i := range 1000 {
		d.look.saw(&position{end: wal.LSN(150 + i)}, begin.Add(time.Duration(i-3600)*time.Second))
	}
	got := series(t, e)
	if lag := got["wed_sql_follower_lag_seconds shop"]; got["wed_sql_follower_lag_bytes shop"] != 1049 || lag < 3600 || lag > 3660 {
		t.Errorf("%v bytes, %v s", got["wed_sql_follower_lag_bytes shop"], lag)
	}
	d.Applied(5000)
	expect(t, e, map[string]float64{"wed_sql_follower_lag_bytes shop": 0, "wed_sql_follower_lag_seconds shop": 0})
}

func TestWhatCouldNotBeWrittenIsAddedToTheNext(t *testing.T) {
	t.Parallel()
	var a, b, both deltas
	first := state(wal.Measured{Initial: true, Fired: []string{"go"}, Withdrawn: []string{"stay"}, Done: "x", Timed: true, Wait: 2 * time.Second, Run: time.Second})
	second := state(wal.Measured{Status: fold.Final, Done: "x", Timed: true, Wait: time.Second, Run: 3 * time.Second})
	a.count(&first[0])
	b.count(&second[0])
	both.count(&second[0])
	both.count(&first[0])
	b.add(a)
	if diff := cmp.Diff(both, b, cmp.AllowUnexported(deltas{}, deltaKey{})); diff != "" {
		t.Error(diff)
	}
}

func TestObservationsAreCountedUpToTheirBounds(t *testing.T) {
	t.Parallel()
	bounds := []float64{1, 2, 5}
	var h histogram
	if n, buckets := h.cumulative(bounds); n != 0 || !cmp.Equal(buckets, map[float64]uint64{1: 0, 2: 0, 5: 0}) {
		t.Errorf("of none: %d, %v", n, buckets)
	}
	for _, v := range []float64{0, 1, 1.5, 2, 5, 6} {
		h.observe(bounds, v)
	}
	if n, buckets := h.cumulative(bounds); n != 6 || h.sum != 15.5 || !cmp.Equal(buckets, map[float64]uint64{1: 2, 2: 4, 5: 5}) {
		t.Errorf("%d, %v, %v", n, h.sum, buckets)
	}
}
