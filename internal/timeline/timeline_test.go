package timeline

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the pictures that are expected anew")

const day = 24 * time.Hour

var begin = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return begin.Add(d) }

// order is a life in which much happens: work of milliseconds, a wait of days, a
// lease, failures, a delay, a suspension, an exception, and something still pending.
func order() *Life {
	return &Life{
		Flow: "orders", WID: 17, Now: after(9*day + 2*time.Hour),
		Rules: map[int32]Rule{
			1: {"check", "status is null"}, 2: {"charge", "status = 'ok'"}, 3: {"remind", "paid is null"}, 4: {"pack", "paid"},
			5: {"deliver", "packed"}, 6: {"ask", "packed and rating is null"},
		},
		States: []State{
			{Version: 0, At: after(0), Fired: []string{"check"}, Pending: []int32{1}, Status: "R", Changes: []string{"item=book"}},
			{Version: 1, At: after(8 * time.Millisecond), Writer: "check", Fired: []string{"charge"}, Pending: []int32{2, 3}, Status: "R", Changes: []string{"status=ok"}},
			{Version: 2, At: after(3*day + 4*time.Millisecond), Writer: "remind", Pending: []int32{2, 3}, Status: "R", Changes: []string{"reminded=1"}},
			{Version: 3, At: after(3*day + 30*time.Millisecond), Writer: "charge", Fired: []string{"pack"}, Pending: []int32{4}, Status: "R", Changes: []string{"paid=true"}},
			{Version: 4, At: after(3*day + 60*time.Millisecond), Writer: "_SUSPEND", Status: "S"},
			{Version: 5, At: after(3*day + 90*time.Millisecond), Writer: "_RESUME", Fired: []string{"pack"}, Pending: []int32{4}, Status: "R"},
			{Version: 6, At: after(3*day + 160*time.Millisecond), Writer: "pack", Fired: []string{"_EXCPT"}, Pending: []int32{99}, Status: "E",
				Error: "division by zero", Changes: []string{"packed=maybe"}},
			{Version: 7, At: after(3*day + 180*time.Millisecond), Writer: "_EXCPT", Fired: []string{"deliver"}, Pending: []int32{5, 6}, Status: "R",
				Changes: []string{"packed=true"}},
		},
		Events: []Event{
			{At: after(3 * day), Version: 1, TGID: 3, Transition: "remind", What: "timer fired"},
			{At: after(3*day + 20*time.Millisecond), Version: 1, TGID: 2, Transition: "charge", What: "timed out", Role: "payer", Held: 12 * time.Millisecond},
			{At: after(3*day + 60*time.Millisecond), Version: 4, What: "suspended", Role: "boss", Detail: "stocktaking"},
			{At: after(3*day + 90*time.Millisecond), Version: 5, What: "resumed", Role: "boss"},
			{At: after(3*day + 100*time.Millisecond), Version: 5, TGID: 4, Transition: "pack", What: "leased", Role: "packer"},
			{At: after(3*day + 130*time.Millisecond), Version: 5, TGID: 4, Transition: "pack", What: "failed", Role: "packer", Held: 30 * time.Millisecond, Detail: "no box"},
			{At: after(3*day + 135*time.Millisecond), Version: 5, TGID: 4, Transition: "pack", What: "leased", Role: "packer"},
			{At: after(3*day + 200*time.Millisecond), Version: 7, TGID: 5, Transition: "deliver", What: "leased", Role: "driver"},
		},
		Jobs:   []Job{{TGID: 5, Transition: "deliver", LeasedUntil: after(10 * day), LeasedBy: "driver"}},
		Timers: []Timer{{TGID: 6, Kind: "delay", DueAt: after(17 * day)}},
	}
}

func bars(l *Life) map[string][]Bar {
	m := make(map[string][]Bar)
	for _, lane := range l.Lanes() {
		m[lane.Name] = lane.Bars
	}
	return m
}

func TestBarsAreWhatTheHistorySays(t *testing.T) {
	ms := time.Millisecond
	got := bars(order())
	now := order().Now
	want := map[string][]Bar{
		"check":  {{Sort: Waiting, Rule: 1, From: after(0), To: after(8 * ms), End: "done"}},
		"charge": {{Sort: Waiting, Rule: 2, From: after(8 * ms), To: after(3*day + 30*ms), End: "done"}, {Sort: Failed, Rule: 2, From: after(3*day + 8*ms), To: after(3*day + 20*ms), End: "timed out"}},
		"remind": {
			{Sort: Delayed, Rule: 3, From: after(8 * ms), To: after(3 * day), End: "due"},
			{Sort: Waiting, Rule: 3, From: after(3 * day), To: after(3*day + 4*ms), End: "done"},
			{Sort: Delayed, Rule: 3, From: after(3*day + 4*ms), To: after(3*day + 30*ms), End: "withdrawn"},
		},
		"pack": {
			{Sort: Waiting, Rule: 4, From: after(3*day + 30*ms), To: after(3*day + 60*ms), End: "suspended"},
			{Sort: Waiting, Rule: 4, From: after(3*day + 90*ms), To: after(3*day + 160*ms), End: "done"},
			{Sort: Failed, Rule: 4, From: after(3*day + 100*ms), To: after(3*day + 130*ms), End: "failed"},
			{Sort: Working, Rule: 4, From: after(3*day + 135*ms), To: after(3*day + 160*ms), End: "done"},
		},
		"_EXCPT": {{Sort: Waiting, Rule: 99, From: after(3*day + 160*ms), To: after(3*day + 180*ms), End: "done"}},
		"deliver": {
			{Sort: Waiting, Rule: 5, From: after(3*day + 180*ms), To: now, Open: true},
			{Sort: Working, Rule: 5, From: after(3*day + 200*ms), To: now, Open: true},
		},
		"ask": {{Sort: Delayed, Rule: 6, From: after(3*day + 180*ms), To: now, Open: true}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhoWasAtItIsOnlySaidWhereItIsKnown(t *testing.T) {
	l := &Life{
		Rules: map[int32]Rule{1: {"a", "true"}, 2: {"b", "true"}}, Now: after(time.Hour), Began: after(1500 * time.Millisecond),
		States: []State{
			{At: after(0), Fired: []string{"a"}, Pending: []int32{1}, Status: "R"},
			{Version: 1, At: after(time.Second), Writer: "a", Fired: []string{"b"}, Pending: []int32{2}, Status: "R"},
			{Version: 2, At: after(2 * time.Second), Writer: "b", Status: "F"},
		},
	}
	got := bars(l)
	if n := len(got["a"]); n != 1 {
		t.Errorf("%d bars of a, whose beginning nothing says", n)
	}
	want := Bar{Sort: Working, Rule: 2, From: after(1500 * time.Millisecond), To: after(2 * time.Second), End: "done"}
	if diff := cmp.Diff([]Bar{want}, got["b"][1:]); diff != "" {
		t.Error(diff)
	}
}

func TestATransitionOfTwoRulesHasARowForEach(t *testing.T) {
	l := &Life{
		Rules: map[int32]Rule{1: {"a", "x"}, 2: {"a", "y"}}, Now: after(time.Hour),
		States: []State{
			{At: after(0), Fired: []string{"a"}, Pending: []int32{1}, Status: "R"},
			{Version: 1, At: after(time.Second), Writer: "_REMATCH", Fired: []string{"a"}, Pending: []int32{1, 2}, Status: "R"},
		},
	}
	lanes := l.Lanes()
	if len(lanes) != 1 || lanes[0].Rows != 2 || lanes[0].Bars[0].Row == lanes[0].Bars[1].Row {
		t.Errorf("%+v", lanes)
	}
}

func TestLongWaitsAreBreaksAndWorkIsNot(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		lengths []time.Duration
		broken  []bool
	}{
		"work of milliseconds":       {[]time.Duration{5 * ms, 8 * ms, 3 * ms}, []bool{false, false, false}},
		"a wait of days":             {[]time.Duration{5 * ms, 3 * day, 5 * ms}, []bool{false, true, false}},
		"one short step among many":  {[]time.Duration{30 * ms, 400 * time.Microsecond, 40 * ms, 50 * ms}, []bool{false, false, false, false}},
		"one longer step":            {[]time.Duration{787 * ms, 343 * ms, 33 * ms, 335 * ms, 331 * ms, 320 * ms}, []bool{false, false, false, false, false, false}},
		"a night and a moment":       {[]time.Duration{5 * ms, 12 * time.Hour}, []bool{false, true}},
		"many waits":                 {[]time.Duration{5 * ms, time.Minute, 5 * ms, time.Minute, 4 * ms, time.Minute}, []bool{false, true, false, true, false, true}},
		"days that are like others":  {[]time.Duration{2 * day, 3 * day, 4 * day}, []bool{false, false, false}},
		"one interval":               {[]time.Duration{3 * day}, []bool{false}},
		"microseconds after a night": {[]time.Duration{12 * time.Hour, 20 * time.Microsecond, 30 * time.Microsecond}, []bool{true, false, false}},
	} {
		states := []time.Time{begin}
		for _, d := range c.lengths {
			states = append(states, states[len(states)-1].Add(d))
		}
		a := newAxis(states, nil)
		if diff := cmp.Diff(c.broken, a.broken); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheAxisIsInOrderAndItsTicksDoNotMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := []time.Time{begin}
		for range rapid.IntRange(0, 40).Draw(t, "states") {
			exponent := rapid.Float64Range(3, 16).Draw(t, "exponent")
			states = append(states, states[len(states)-1].Add(time.Duration(math.Pow(10, exponent))))
		}
		a := newAxis(states, nil)
		for i := 1; i < len(states); i++ {
			if a.at(states[i]) <= a.at(states[i-1]) {
				t.Fatalf("state %d is at %v, the one before at %v", i, a.at(states[i]), a.at(states[i-1]))
			}
		}
		for _, r := range a.runs() {
			last := a.x[r.from]
			for _, k := range a.ticks(r) {
				if k.x < last+tickWidth-0.01 || k.x > a.x[r.to]+0.01 {
					t.Fatalf("a tick at %v after %v, up to %v", k.x, last, a.x[r.to])
				}
				last = k.x
			}
		}
	})
}

// wellFormed fails unless the picture is one XML document without what could run.
func wellFormed(t interface{ Fatalf(string, ...any) }, picture []byte) (text string) {
	var b strings.Builder
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, picture)
		}
		switch e := token.(type) {
		case xml.StartElement:
			allowed := []string{"svg", "title", "desc", "style", "g", "rect", "circle", "line", "path", "text"}
			if !slices.Contains(allowed, e.Name.Local) {
				t.Fatalf("an element %s", e.Name.Local)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Fatalf("an attribute %s", a.Name.Local)
				}
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Fatalf("an attribute %s of %s", a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			b.Write(e)
		}
	}
}

func TestAnyTextMakesAWellFormedPicture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := order()
		text := func(what string) string { return rapid.String().Draw(t, what) }
		l.Flow = text("flow")
		name := text("name")
		l.Rules[4] = Rule{name, text("predicate")}
		for i := range l.States {
			if l.States[i].Writer == "pack" {
				l.States[i].Writer = name
				l.States[i].Error = text("error")
			}
			l.States[i].Changes = append(l.States[i].Changes, text("change"))
		}
		for i := range l.Events {
			if l.Events[i].TGID == 4 {
				l.Events[i].Transition = name
			}
			l.Events[i].Detail, l.Events[i].Role = text("detail"), text("role")
		}
		wellFormed(t, l.SVG())
	})
}

func TestThePicture(t *testing.T) {
	picture := order().SVG()
	wellFormed(t, picture)
	file := filepath.Join("testdata", "order.svg")
	if *update {
		if err := os.WriteFile(file, picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, picture) {
		t.Error("the picture is another: go test -update writes it; look at it then")
	}
}
