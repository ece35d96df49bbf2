package wal

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/fold"
)

type meter struct{ states []Measured }

func (m *meter) Wrote(states []Measured) { m.states = append(m.states, states...) }

func TestAStateIsMeasuredByItsStamp(t *testing.T) {
	t.Parallel()
	commit := time.Unix(1000, 0)
	at := func(seconds int) *time.Time { p := commit.Add(time.Duration(seconds) * time.Second); return &p }
	name := func(s string) *string { return &s }
	f := &flow{id: 7, name: "travel", excpt: 9}
	rules := ruleSet{1: {transition: "book"}, 2: {transition: "pay"}, 3: {transition: "remind", delay: name("1 day")}}
	for what, tt := range map[string]struct {
		version Version
		fired   []fold.Rule
		want    Measured
	}{
		"an initial one": {Version{Stamp: Stamp{Clocks: []fold.Rule{3}}}, []fold.Rule{1, 2, 3}, Measured{Initial: true, Fired: []string{"book", "pay"}}},
		"of a transition": {Version{Stamp: Stamp{Version: 1, By: 1, Transition: name("book"), Withdrawn: []fold.Rule{3}, FiredAt: at(-10), BeganAt: at(-3)}},
			[]fold.Rule{9}, Measured{Done: "book", Fired: []string{"_EXCPT"}, Withdrawn: []string{"remind"}, Timed: true, Wait: 7 * time.Second, Run: 3 * time.Second}},
		"of a clock that was set back": {Version{Stamp: Stamp{Version: 1, By: 1, Transition: name("book"), FiredAt: at(10), BeganAt: at(3)}},
			nil, Measured{Done: "book", Timed: true}},
		"of an older state, without times": {Version{Stamp: Stamp{Version: 1, By: 1, Transition: name("book")}}, nil, Measured{Done: "book"}},
		"of an intervention":               {Version{Stamp: Stamp{Version: 1, Transition: name("_SUSPEND"), BeganAt: at(-1)}}, nil, Measured{}},
		"that was healed": {Version{Stamp: Stamp{Version: 1, By: 1, Transition: name("book"), FiredAt: at(-10), BeganAt: at(-3)}, heal: &gap{}},
			nil, Measured{Done: "book", Healed: true}},
	} {
		m := new(meter)
		a := &applier{meter: m}
		w := new(work)
		a.measure(w, f, &tt.version, fold.Regular, tt.fired, rules, commit)
		if len(m.states) != 0 {
			t.Errorf("%s: it is told before the commit", what)
		}
		a.measured(w)
		tt.want.Flow, tt.want.FlowName, tt.want.Status, tt.want.Committed = 7, "travel", fold.Regular, commit
		if len(m.states) != 1 {
			t.Fatalf("%s: %d states", what, len(m.states))
		}
		got := m.states[0]
		if len(got.Fired) == 0 {
			got.Fired = nil
		}
		if len(got.Withdrawn) == 0 {
			got.Withdrawn = nil
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("a state %s: %s", what, diff)
		}
	}
}
