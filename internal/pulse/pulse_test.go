package pulse

import (
	"testing"
	"time"
)

func number[T any](v T) *T { return &v }

// at makes a sample of one transition.
func at(second float64, done, failed int64, waitTime float64) *Sample {
	return &Sample{
		At:     time.Unix(1000, 0).Add(time.Duration(second * float64(time.Second))),
		Engine: &Engine{State: "streaming", States: number(3 * done)},
		Transitions: []Transition{{
			Flow: "f", Name: "t", Fired: done, Done: done, Failed: failed, WaitTime: waitTime, RunTime: 2 * waitTime,
			MeanWait: number(7.0), Waiting: number[int64](1), Oldest: number(time.Unix(990, 0)),
		}},
	}
}

func TestRatesAreThoseOfTheLastSeconds(t *testing.T) {
	var w Window
	w.Add(at(0, 100, 5, 1000))
	if v := w.View(); v.Rows[0].DonePerSecond != nil || v.StatesPerSecond != nil || *v.Rows[0].MeanWaitMS != 7 || *v.Rows[0].OldestSeconds != 10 {
		t.Errorf("of a single look: %+v", v.Rows[0])
	}
	w.Add(at(2, 120, 6, 1100))
	r := w.View().Rows[0]
	if *r.DonePerSecond != 10 || r.FailedLately != 1 || r.Failed != 6 || *r.MeanWaitMS != 5 || *r.MeanRunMS != 10 {
		t.Errorf("after 2 s: %+v", r)
	}
	if v := w.View(); *v.StatesPerSecond != 30 {
		t.Errorf("%v states/s", *v.StatesPerSecond)
	}
	// What was long ago does not count any more.
	for s := 4.0; s <= 30; s += 2 {
		w.Add(at(s, 120, 6, 1100))
	}
	r = w.View().Rows[0]
	if *r.DonePerSecond != 0 || r.FailedLately != 0 || *r.MeanWaitMS != 7 {
		t.Errorf("after 30 s: %+v", r)
	}
	if len(w.samples) > 7 {
		t.Errorf("%d samples are kept", len(w.samples))
	}
}

func TestCountersThatWereSetBackGiveNoNegativeRates(t *testing.T) {
	var w Window
	w.Add(at(0, 100, 5, 1000))
	w.Add(at(2, 3, 0, 10))
	if r := w.View().Rows[0]; r.DonePerSecond != nil {
		t.Errorf("%v/s", *r.DonePerSecond)
	}
	w.Add(at(4, 5, 0, 20))
	if r := w.View().Rows[0]; *r.DonePerSecond != 1 {
		t.Errorf("%v/s, want 1", *r.DonePerSecond)
	}
	w.Add(at(3, 5, 0, 20)) // the clock
	if r := w.View().Rows[0]; r.DonePerSecond != nil {
		t.Errorf("%v/s", *r.DonePerSecond)
	}
}

func TestRowsAreSorted(t *testing.T) {
	rows := []Row{
		{Flow: "b", Transition: "x", Waiting: number[int64](5), OldestSeconds: number(1.0), Failed: 9},
		{Flow: "a", Transition: "z", Waiting: number[int64](9), DonePerSecond: number(3.0), FailedLately: 1},
		{Flow: "a", Transition: "y", OldestSeconds: number(2.0), DonePerSecond: number(4.0)},
	}
	for order, want := range map[Order]string{ByName: "yzx", ByOldest: "yxz", ByWaiting: "zxy", ByDone: "yzx", ByFailed: "zxy"} {
		Sort(rows, order)
		got := ""
		for _, r := range rows {
			got += r.Transition
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", order, got, want)
		}
	}
	seen := make(map[Order]bool)
	for o := ByName; !seen[o]; o = o.Next() {
		seen[o] = true
	}
	if len(seen) != len(Orders) {
		t.Errorf("Next comes to %d of %d orders", len(seen), len(Orders))
	}
}

func TestJobsThatWereNotCountedAreTold(t *testing.T) {
	v := View{Most: 1000}
	for waiting, want := range map[int64]string{997: "", 998: "+", 999: "+"} {
		if got := v.More(Row{Waiting: &waiting, Running: number[int64](1), Leased: number[int64](1)}); got != want {
			t.Errorf("%d wait: %q, want %q", waiting, got, want)
		}
	}
	if got := v.More(Row{}); got != "" {
		t.Errorf("what is not known: %q", got)
	}
}
