package wal

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/wed-sql/wed_sql/fold"
)

func TestNotification(t *testing.T) {
	t.Parallel()
	v := &Version{Wid: 1, State: `{"a1":"ready","a2":null}`}
	got := notification(&flow{name: "travel"}, v, 2, rule{transition: "tr_a2", timeout: ptr("3 days 18:00:00")})
	want := `{"flow":"travel","wid":1,"tgid":2,"trname":"tr_a2","timeout":"3 days 18:00:00","payload":{"a1":"ready","a2":null}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got = notification(&flow{name: `a"b`}, v, 9, rule{transition: "_EXCPT"})
	want = `{"flow":"a\"b","wid":1,"tgid":9,"trname":"_EXCPT","timeout":null,"payload":{"a1":"ready","a2":null}}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestANotificationThatIsTooLongSaysSo(t *testing.T) {
	t.Parallel()
	for size := 7800; size < 8100; size++ {
		v := &Version{Wid: 1, State: `{"a":"` + strings.Repeat("x", size) + `"}`}
		got := notification(&flow{name: "f"}, v, 2, rule{transition: "t"})
		var n struct {
			Payload json.RawMessage `json:"payload"`
			Omitted bool            `json:"payload_omitted"`
		}
		if err := json.Unmarshal([]byte(got), &n); err != nil {
			t.Fatal(err)
		}
		whole := strings.Replace(notification(&flow{name: "f"}, &Version{Wid: 1, State: "{}"}, 2, rule{transition: "t"}), "{}", v.State, 1)
		if fits := len(whole) <= 7999; len(got) > 7999 || n.Omitted == fits || (n.Payload != nil) != fits {
			t.Fatalf("%d bytes became %d, omitted: %v", len(whole), len(got), n.Omitted)
		}
	}
}

func TestTheStampSaysWhatPendsWithADelay(t *testing.T) {
	t.Parallel()
	rules := ruleSet{
		1: {transition: "book"},
		2: {transition: "remind", delay: ptr("3 days")},                // its clock begins
		3: {transition: "warn", delay: ptr("3 days")},                  // its time had come before
		4: {transition: "abstain", delay: ptr("3 days"), action: true}, // the same
		5: {transition: "late"},                                        // has lost its delay since
	}
	l := &lines{flow: &flow{name: "travel"}}
	v := &Version{Wid: 7, State: "{}", Stamp: Stamp{Version: 2, Clocks: []fold.Rule{2, 5}}}
	fired := []fold.Rule{1, 2, 3, 4, 5}
	l.addState(v, fold.Outcome{Fired: fired, Pending: fired}, rules, stamped{}, false)
	l.addJobs(v, fired, func(fold.Rule) int64 { return 2 }, rules, time.Time{})
	if diff := cmp.Diff([]string{`{"book","warn","abstain"}`}, l.trace.trf); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int32{1, 3, 4}, l.jobs.tgid); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int32{2, 4, 5}, l.timers.tgid); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{delayTimer, actionTimer, delayTimer}, l.timers.kind); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*string{ptr("3 days"), nil, nil}, l.timers.after); diff != "" {
		t.Error(diff)
	}
}

func TestTextArray(t *testing.T) {
	t.Parallel()
	if got, want := textArray([]string{"a", `b"\`, "", "NULL", "é,{"}), `{"a","b\"\\","","NULL","é,{"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := textArray(nil); got != "{}" {
		t.Error(got)
	}
	if got := intArray([]fold.Rule{1, -2}); got != "{1,-2}" {
		t.Error(got)
	}
}

// The trace, simulated: what the server does with base and step.
func TestTheTimesOfAnInstanceAreStrictlyIncreasing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newClock(rapid.IntRange(0, 3).Draw(t, "max"))
		now := time.Unix(1000, 0)
		trace := map[int64][]time.Time{} // zero where there is a gap
		last := func(lines []time.Time) (at time.Time) {
			for _, l := range lines {
				if !l.IsZero() {
					at = l
				}
			}
			return at
		}
		for range rapid.IntRange(1, 10).Draw(t, "batches") {
			before := map[int64][]time.Time{} // what the statement of the batch sees
			for k, v := range trace {
				before[k] = v
			}
			for range rapid.IntRange(1, 6).Draw(t, "states") {
				wid := rapid.Int64Range(1, 4).Draw(t, "wid")
				now = now.Add(time.Duration(rapid.IntRange(-3, 3).Draw(t, "µs")) * time.Microsecond)
				if len(trace[wid]) > 0 && rapid.IntRange(0, 4).Draw(t, "gap") == 0 {
					trace[wid] = append(trace[wid], time.Time{})
				}
				version := int64(len(trace[wid]))
				at := c.next(instance{1, wid}, version, now)
				got := at.time
				if at.base != nil {
					if seen := before[wid]; int(*at.base) >= len(seen) && !slices.ContainsFunc(trace[wid][len(seen):], time.Time.IsZero) {
						t.Fatalf("line %d depends on line %d, which is not written before", version, *at.base)
					}
					base := last(before[wid][:min(len(before[wid]), int(*at.base)+1)])
					if earliest := base.Add(time.Duration(at.step) * time.Microsecond); !base.IsZero() && got.Before(earliest) {
						got = earliest
					}
				}
				if before := last(trace[wid]); version > 0 && !got.After(before) {
					t.Fatalf("line %d of %d at %v, after %v", version, wid, got, before)
				}
				if got.Before(now) {
					t.Fatalf("line at %v, before its commit at %v", got, now)
				}
				trace[wid] = append(trace[wid], got)
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				c.forget()
			} else {
				c.settle()
			}
		}
	})
}

func TestRuleNames(t *testing.T) {
	t.Parallel()
	f := &flow{excpt: 1}
	set := ruleSet{2: {transition: "tr"}}
	for id, want := range map[fold.Rule]string{1: "_EXCPT", 2: "tr", 3: "rule 3"} {
		if got := set.get(f, id).transition; got != want {
			t.Errorf("rule %d: %q, want %q", id, got, want)
		}
	}
}

func TestNotificationOfAPrivateFlowHasNoState(t *testing.T) {
	v := &Version{Wid: 1, State: `{"a":"secret"}`}
	got := notification(&flow{name: "f", private: true}, v, 2, rule{transition: "t"})
	if want := `{"flow":"f","wid":1,"tgid":2,"trname":"t","timeout":null,"payload_omitted":true}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
