package wal

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/fold"
)

func ptr[T any](v T) *T { return &v }

func TestParseStamp(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		want Stamp
	}{
		"initial": {`(0,6,,{},"{2,3}",f,,,,,,,,,,)`,
			Stamp{Rules: 6, Matched: []fold.Rule{2, 3}}},
		"by a transition": {`(3,6,2,"{2,3}",{4},f,,tr_a2,,,,,,,,)`,
			Stamp{Version: 3, Rules: 6, By: 2, Pending: []fold.Rule{2, 3}, Matched: []fold.Rule{4}, Transition: ptr("tr_a2")}},
		"final": {`(4,6,4,{4},{},t,,"tr final",,,,,,,,)`,
			Stamp{Version: 4, Rules: 6, By: 4, Pending: []fold.Rule{4}, Final: true, Transition: ptr("tr final")}},
		"failed": {`(5,6,4,{4},{},f,"division by zero, at ""a1"" \\ (x)",t,,,,,,,,)`,
			Stamp{Version: 5, Rules: 6, By: 4, Pending: []fold.Rule{4}, Failed: true,
				Error: `division by zero, at "a1" \ (x)`, Transition: ptr("t")}},
		"failed without a word": {`(5,6,4,{4},{},f,"",t,,,,,,,,)`,
			Stamp{Version: 5, Rules: 6, By: 4, Pending: []fold.Rule{4}, Failed: true, Transition: ptr("t")}},
		"any transition": {`(1,1,4,{4},{},f,,"""é{}\\""",,,,,,,,)`,
			Stamp{Version: 1, Rules: 1, By: 4, Pending: []fold.Rule{4}, Transition: ptr(`"é{}\"`)}},
		"a field more": {`(0,6,,{},{1},f,,,,,,,0,,,,later)`, Stamp{Rules: 6, Matched: []fold.Rule{1}}},
		"an intervention": {`(7,6,,"{2,3,5}","{4,5}",f,,_RETRY,"{3,9223372036854775807}",{2},,{4},12,,"2026-11-21 12:00:00.5+00","{4,5}")`,
			Stamp{Version: 7, Rules: 6, Pending: []fold.Rule{2, 3, 5}, Matched: []fold.Rule{4, 5}, Transition: ptr("_RETRY"),
				Since: []int64{3, 1<<63 - 1}, Withdrawn: []fold.Rule{2}, BeganAt: ptr(time.Date(2026, 11, 21, 12, 0, 0, 5e8, time.UTC)),
				Clocks: []fold.Rule{4, 5}}},
		"suspended": {`(7,6,,{2},{},f,,_SUSPEND,,{2},S,,12,,,)`,
			Stamp{Version: 7, Rules: 6, Pending: []fold.Rule{2}, Withdrawn: []fold.Rule{2}, Transition: ptr("_SUSPEND"), Status: fold.Suspended}},
		"large numbers": {`(9223372036854775807,9223372036854775807,2147483647,{2147483647},{},f,,t,,,,,,,,)`,
			Stamp{Version: 1<<63 - 1, Rules: 1<<63 - 1, By: 1<<31 - 1, Pending: []fold.Rule{1<<31 - 1}, Transition: ptr("t")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseStamp(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseStampRefusesWhatIsNoStamp(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``, `(`, `)`, `()`, `(,,,,,,,,,,,,,,,)`, `0,6,,{},{},f,,,,,,,,,`, `(0,6,,{},{},f,,,,,,,,,`, `(0,6,,{},{},f,,)x`,
		`(0,6,,{},{},f,,,,,,,,,)`, `(x,6,,{},{},f,,,,,,,,,,)`, `(0,6,,,{},f,,,,,,,,,,)`, `(0,6,,{},,f,,,,,,,,,,)`, `(0,6,,{},{},,,,,,,,,,,)`,
		`(0,6,,{},{},true,,,,,,,,,,)`, `(0,6,,{NULL},{},f,,,,,,,,,,)`, `(0,6,,"{{1},{2}}",{},f,,,,,,,,,,)`, `(0,6,,{,{},f,,,,,,,,,,)`,
		`(0,6,,[0:0]={1},{},f,,,,,,,,,,)`, `(0,6,,{},{},f,"x,,,,,,,,,)`, `(0,6,,{},{},f,\`, `(0,6,2147483648,{},{},f,,,,,,,,,,)`,
	} {
		if s, err := ParseStamp(text); err == nil {
			t.Errorf("ParseStamp(%q) = %+v", text, s)
		}
	}
}

// recordOut writes a field as record_out does.
func recordOut(fields ...*string) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		if f == nil {
			continue
		}
		quote := *f == "" || strings.ContainsAny(*f, "\"\\(), \t\n\r\v\f")
		if !quote {
			b.WriteString(*f)
			continue
		}
		b.WriteString(`"` + strings.NewReplacer(`"`, `""`, `\`, `\\`).Replace(*f) + `"`)
	}
	b.WriteByte(')')
	return b.String()
}

func FuzzSplitRecordIsTheInverseOfRecordOut(f *testing.F) {
	f.Add("", "a", true)
	f.Add(`"\`, ",()", false)
	f.Fuzz(func(t *testing.T, a, b string, null bool) {
		want := []*string{&a, nil, &b}
		if null {
			want[2] = nil
		}
		got, err := splitRecord(recordOut(want...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzParseStampDoesNotPanic(f *testing.F) {
	f.Add(`(5,6,4,{4},{},f,"division by zero, at ""a1"" \\ (x)",t)`)
	f.Fuzz(func(t *testing.T, text string) { _, _ = ParseStamp(text) })
}

func TestHealingTellsWhatPendsFromWhatWasOvertaken(t *testing.T) {
	t.Parallel()
	s := Stamp{Version: 7, By: 9, Pending: []fold.Rule{2, 3, 5, 9}, Withdrawn: []fold.Rule{5}, Since: []int64{4, 6}, Matched: []fold.Rule{5}, Clocks: []fold.Rule{3}}
	g := gap{fired: []fire{
		{rule: 2, version: 4, pooled: true},  // as it pends
		{rule: 3, version: 1, pooled: true},  // withdrawn, and due again since
		{rule: 3, version: 6, pooled: false}, // its clock runs
		{rule: 5, version: 6, pooled: true},  // withdrawn by this state, which fires it again
		{rule: 8, version: 6, pooled: false}, // a clock that was stopped
	}}
	there, stale := g.compare([]fold.Rule{2, 3, 5}, &s)
	if diff := cmp.Diff([]fold.Rule{2, 3}, there); diff != "" {
		t.Error(diff)
	}
	want := []fire{{3, 1, true}, {5, 6, true}, {8, 6, false}}
	if diff := cmp.Diff(want, stale, cmp.AllowUnexported(fire{})); diff != "" {
		t.Error(diff)
	}
}
