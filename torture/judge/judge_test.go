package judge_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/judge"
	"github.com/wed-sql/wed_sql/torture/predicate"
)

// Rules of the flow that is judged here.
const (
	final, book, pay, remind, offer, refund, excpt = 1, 2, 3, 4, 5, 6, 9
)

func at(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }

func str(s string) *string { return &s }

// is is the condition that an attribute has a value.
func is(attribute, value string) *predicate.Node {
	return predicate.New(predicate.Equal, predicate.Attr(attribute, predicate.Text), predicate.Const(predicate.Text, value))
}

func isNull(attribute string) *predicate.Node {
	return predicate.New(predicate.IsNull, predicate.Attr(attribute, predicate.Text))
}

func trips() *judge.Flow {
	f := rules()
	for _, r := range f.Definitions[7].Rules {
		r.Timeout = time.Hour
	}
	return f
}

func rules() *judge.Flow {
	stage := predicate.Attr("stage", predicate.Text)
	return &judge.Flow{Exception: excpt, MaxStates: 20, Definitions: map[int64]*flow.Definition{7: {
		Flow: "trips", Version: 7,
		Columns: []flow.Column{{Name: "stage", Type: predicate.Text}, {Name: "room", Type: predicate.Text}, {Name: "paid", Type: predicate.Text}},
		Rules: []*flow.Rule{
			{TGID: final, Final: true, Enabled: true, Condition: is("stage", "done")},
			{TGID: book, Transition: "book", Enabled: true, Condition: predicate.New(predicate.And, is("stage", "new"), isNull("room"))},
			{TGID: pay, Transition: "pay", Enabled: true, Condition: predicate.New(predicate.And, is("stage", "new"), isNull("paid"))},
			{TGID: remind, Transition: "remind", Enabled: true, Condition: is("stage", "wait"), Delay: 3 * time.Second},
			{TGID: offer, Transition: "offer", Enabled: true, Condition: isNull("paid"), Withdrawable: true},
			{TGID: refund, Transition: "refund", Enabled: false, Condition: predicate.New(predicate.Equal, predicate.New(predicate.ToInteger, stage),
				predicate.Const(predicate.Integer, "1"))},
		},
	}}}
}

func state(second int, xid, object string) judge.State {
	return judge.State{XID: xid, State: json.RawMessage(object), Rules: 7, Low: 7, High: 7, At: at(second)}
}

func line(version int64, second int, s judge.State, trw *string, status string, trf []string, pending ...int32) judge.Line {
	return judge.Line{Version: version, State: s.State, Trw: trw, Trf: trf, Status: status, At: at(second), Pending: pending}
}

func set(pairs ...string) map[string]*string {
	values := map[string]*string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = &pairs[i+1]
	}
	return values
}

// ended is the history of an instance as it has to be: two transitions side by side, one that is withdrawn, and the end.
func ended() *judge.Instance {
	s0 := state(10, "100", `{"stage": "new", "room": null, "paid": null}`)
	s1 := state(11, "101", `{"stage": "new", "room": null, "paid": "9"}`)
	s2 := state(12, "102", `{"stage": "done", "room": "12", "paid": "9"}`)
	return &judge.Instance{
		WID:    1,
		States: []judge.State{s0, s1, s2},
		Writes: []judge.Write{
			{XID: "100", Set: map[string]*string{"stage": str("new"), "room": nil, "paid": nil}, Protocol: "start"},
			{XID: "101", TGID: pay, Transition: "pay", Set: set("paid", "9"), Protocol: "raw"},
			{XID: "102", TGID: book, Transition: "book", Set: set("stage", "done", "room", "12"), Protocol: "lease"},
		},
		Lines: []judge.Line{
			line(0, 10, s0, nil, "R", []string{"book", "pay", "offer"}, book, pay, offer),
			line(1, 11, s1, str("pay"), "R", nil, book),
			line(2, 12, s2, str("book"), "F", nil),
		},
		Status: "F",
	}
}

// waiting is an instance that is an exception, and goes on: a delay has run down, and a job pends.
func waiting() *judge.Instance {
	s0 := state(10, "100", `{"stage": "new", "room": "1", "paid": null}`)
	s1 := state(11, "101", `{"stage": "lost", "room": "1", "paid": "9"}`)
	s2 := state(12, "102", `{"stage": "wait", "room": "1", "paid": "9"}`)
	return &judge.Instance{
		WID:    2,
		States: []judge.State{s0, s1, s2},
		Writes: []judge.Write{
			{XID: "100", Set: map[string]*string{"stage": str("new"), "room": str("1"), "paid": nil}, Protocol: "start"},
			{XID: "101", TGID: pay, Transition: "pay", Set: set("stage", "lost", "paid", "9"), Protocol: "raw"},
			{XID: "102", TGID: excpt, Transition: "_EXCPT", Set: set("stage", "wait"), Protocol: "worker"},
		},
		Lines: []judge.Line{
			line(0, 10, s0, nil, "R", []string{"pay", "offer"}, pay, offer),
			line(1, 11, s1, str("pay"), "E", []string{"_EXCPT"}, excpt),
			line(2, 12, s2, str("_EXCPT"), "R", nil, remind),
		},
		Events: []judge.Event{{TGID: remind, Version: 2, Event: "timer fired", At: at(15)}},
		Jobs:   []judge.Job{{TGID: remind, Transition: "remind", Version: 2, Payload: s2.State}},
		Status: "R",
	}
}

func TestWhatIsRightIsNoViolation(t *testing.T) {
	t.Parallel()
	for _, i := range []*judge.Instance{ended(), waiting()} {
		if found := trips().Judge(i, true); len(found.Violations) > 0 || found.Judged != 3 || found.Lines != 3 {
			t.Errorf("instance %d: %+v", i.WID, found)
		}
	}
}

// A judge that passes everything would prove nothing.
func TestWhatIsWrongIsFound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		of    func() *judge.Instance
		spoil func(i *judge.Instance)
		finds string
	}{
		{"a line is missing", ended, func(i *judge.Instance) { i.Lines = slices.Delete(i.Lines, 1, 2) }, "no line"},
		{"the last line is missing", ended, func(i *judge.Instance) { i.Lines, i.States[2].XID = i.Lines[:2], "" }, "not known who wrote"},
		{"a line is there twice", ended, func(i *judge.Instance) { i.Lines = append(i.Lines, i.Lines[2]) }, "two lines"},
		{"a line of no state", ended, func(i *judge.Instance) { i.Lines = append(i.Lines, line(3, 20, i.States[2], str("pay"), "F", nil)) }, "never written"},
		{"lines whose times do not increase", ended, func(i *judge.Instance) { i.Lines[1].At = i.Lines[0].At }, "is not after"},
		{"a line without what was fired", ended, func(i *judge.Instance) { i.Lines[0].Trf = []string{"book", "offer"} }, "trf is"},
		{"a line with what was not fired", ended, func(i *judge.Instance) { i.Lines[1].Trf = []string{"book"} }, "trf is"},
		{"another status", ended, func(i *judge.Instance) { i.Lines[1].Status = "E" }, "status is E"},
		{"another transition", ended, func(i *judge.Instance) { i.Lines[1].Trw = str("book") }, "trw is"},
		{"something pends that was done", ended, func(i *judge.Instance) { i.Lines[1].Pending = []int32{book, pay} }, "pending are"},
		{"something was not withdrawn", ended, func(i *judge.Instance) { i.Lines[1].Pending = []int32{book, offer} }, "pending are"},
		{"another state", ended, func(i *judge.Instance) { i.Lines[1].State = i.Lines[0].State }, "wed_trace has the state"},
		{"an error that was none", ended, func(i *judge.Instance) { i.Lines[1].Error = str("oops") }, "error is"},
		{"a healed line, though nothing was lost", ended, func(i *judge.Instance) { i.Lines[1].Healed = true }, "healed"},
		{"a state is lost", ended, func(i *judge.Instance) { i.States, i.Lines = i.States[:2], i.Lines[:2] }, "has committed a state"},
		{"a state that nobody has written", ended, func(i *judge.Instance) { i.Writes = i.Writes[:2] }, "no worker says so"},
		{"a job is done twice", ended, func(i *judge.Instance) { i.Writes[2].TGID, i.Writes[2].Transition = pay, "pay" }, "was not pending"},
		{"a value that was not written", ended, func(i *judge.Instance) { i.Writes[1].Set = set("paid", "8") }, "was written"},
		{"a value that nobody has changed", ended, func(i *judge.Instance) { i.Writes[2].Set = set("stage", "done") }, "which nobody has written"},
		{"a job of an instance that has ended", ended, func(i *judge.Instance) {
			i.Jobs = []judge.Job{{TGID: pay, Transition: "pay", Version: 1, Payload: i.States[1].State}}
		}, "does not pend"},
		{"rules that were not in force any more", ended, func(i *judge.Instance) { i.States[1].Low, i.States[1].High = 8, 8 }, "in force were"},
		{"rules that never were in force", ended, func(i *judge.Instance) { i.States[1].Rules = 6 }, "never in force"},
		{"final while a job pends", ended, func(i *judge.Instance) {
			i.States, i.Lines = i.States[:2], i.Lines[:2]
			i.States[1].State = json.RawMessage(`{"stage": "done", "room": null, "paid": "9"}`)
		}, "final while"},
		{"an instance that starts in nothing", ended, func(i *judge.Instance) {
			i.States[0].State = json.RawMessage(`{"stage": null, "room": null, "paid": "1"}`)
		}, "satisfies no condition"},
		{"written after the end", ended, func(i *judge.Instance) {
			i.States = append(i.States, state(13, "103", `{"stage": "done", "room": "12", "paid": "8"}`))
			i.Writes = append(i.Writes, judge.Write{XID: "103", TGID: book, Transition: "book", Set: set("paid", "8")})
		}, "has ended was written"},
		{"another status of the instance", waiting, func(i *judge.Instance) { i.Status = "E" }, "wed_instance"},
		{"an exception without a job", waiting, func(i *judge.Instance) { i.Lines[1].Pending, i.Lines[1].Trf = nil, nil }, "trf is"},
		{"a job that is missing", waiting, func(i *judge.Instance) {
			i.States, i.Lines, i.Writes, i.Jobs, i.Status = i.States[:2], i.Lines[:2], i.Writes[:2], nil, "E"
		}, "no job of it"},
		{"a job that is there twice", waiting, func(i *judge.Instance) { i.Jobs = append(i.Jobs, i.Jobs[0]) }, "two jobs"},
		{"a job with another payload", waiting, func(i *judge.Instance) {
			i.States, i.Lines, i.Writes, i.Status = i.States[:2], i.Lines[:2], i.Writes[:2], "E"
			i.Jobs = []judge.Job{{TGID: excpt, Transition: "_EXCPT", Version: 1, Payload: i.States[0].State}}
		}, "payload"},
		{"a job of another transition", waiting, func(i *judge.Instance) { i.Jobs[0].Transition = "pay" }, "not \"remind\""},
		{"a job whose delay is not over", waiting, func(i *judge.Instance) { i.Events = nil }, "delay is not over"},
		{"a delay that was over too early", waiting, func(i *judge.Instance) { i.Events[0].At = at(14) }, "too early"},
		{"a timeout that came too early", waiting, func(i *judge.Instance) {
			i.Events = append(i.Events, judge.Event{TGID: pay, Event: "timed out", Held: 59 * time.Minute, At: at(11)})
		}, "before the time of any job was up"},
		{"a delayed job that is said to have been fired", waiting, func(i *judge.Instance) { i.Lines[2].Trf = []string{"remind"} }, "trf is"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			i := test.of()
			test.spoil(i)
			found := trips().Judge(i, true)
			if !slices.ContainsFunc(found.Violations, func(v string) bool { return strings.Contains(v, test.finds) }) {
				t.Errorf("the judge says %q, and nothing of %q", found.Violations, test.finds)
			}
		})
	}
}

func TestAFailingConditionIsAnException(t *testing.T) {
	t.Parallel()
	f := trips()
	f.Definitions[7].Rules[5].Enabled = true // a cast of what is no number
	i := ended()
	if found := f.Judge(i, true); len(found.Violations) == 0 {
		t.Error("a state on which a condition fails is said to be a regular one")
	}
	i = waiting()
	i.States, i.Writes, i.Jobs = i.States[:1], i.Writes[:1], []judge.Job{{TGID: excpt, Transition: "_EXCPT", Payload: i.States[0].State}}
	i.Lines = []judge.Line{line(0, 10, i.States[0], nil, "E", []string{"_EXCPT"}, excpt)}
	i.Lines[0].Error, i.Status, i.Events = str("no integer"), "E", nil
	if found := f.Judge(i, true); len(found.Violations) > 0 {
		t.Errorf("%q", found.Violations)
	}
}

// What the engine has not seen yet is no violation while it runs: jobs and lines are as of the last line.
func TestALaggingEngineIsNoViolation(t *testing.T) {
	t.Parallel()
	i := ended()
	i.Lines = i.Lines[:1]
	i.Jobs = nil // both were done, and the third was withdrawn
	if found := trips().Judge(i, false); len(found.Violations) > 0 {
		t.Errorf("%q", found.Violations)
	}
	i = ended()
	i.States, i.Writes, i.Lines, i.Status = i.States[:2], i.Writes[:2], i.Lines[:1], "R"
	if found := trips().Judge(i, false); !slices.ContainsFunc(found.Violations, func(v string) bool { return strings.Contains(v, "no job of it") }) {
		t.Errorf("the job that was fired by the last line is missing, and the judge says %q", found.Violations)
	}
}

// Whether the engine has come in time for an action, when the condition ceased to hold in a gap of the history, only the line
// after the gap tells.
func TestWhatWasDueInAGapHasFiredOrNot(t *testing.T) {
	t.Parallel()
	f := trips()
	f.Gaps = true
	f.Definitions[7].Rules[3].Action = map[string]string{"stage": "done"}
	s0 := state(10, "100", `{"stage": "wait", "room": null, "paid": null}`)
	s1 := state(14, "101", `{"stage": "new", "room": "1", "paid": null}`)
	s2 := state(15, "102", `{"stage": "new", "room": "1", "paid": "9"}`)
	late := line(2, 15, s2, str("pay"), "E", []string{"_EXCPT"}, excpt)
	inTime := line(2, 15, s2, str("pay"), "R", nil, remind)
	for _, last := range []judge.Line{late, inTime} {
		last.Healed = true
		i := &judge.Instance{
			WID:    3,
			States: []judge.State{s0, s1, s2},
			Writes: []judge.Write{
				{XID: "100", Set: map[string]*string{"stage": str("wait"), "room": nil, "paid": nil}, Protocol: "start"},
				{XID: "101", TGID: offer, Transition: "offer", Set: set("stage", "new", "room", "1"), Protocol: "raw"},
				{XID: "102", TGID: pay, Transition: "pay", Set: set("paid", "9"), Protocol: "raw"},
			},
			Lines:  []judge.Line{line(0, 10, s0, nil, "R", []string{"offer"}, remind, offer), last},
			Jobs:   []judge.Job{{TGID: last.Pending[0], Transition: "remind", Version: 0, Payload: s0.State}},
			Status: last.Status,
		}
		if last.Status == "E" {
			i.Jobs[0] = judge.Job{TGID: excpt, Transition: "_EXCPT", Version: 2, Payload: s2.State}
		}
		if found := f.Judge(i, true); len(found.Violations) > 0 {
			t.Errorf("status %s: %q", last.Status, found.Violations)
		}
	}
}

// What was due at a state before a gap, ceased to be, and is due anew before the gap ends, pends since then: its delay has
// begun anew, and it is withdrawn again when its condition ceases to hold.
func TestWhatIsDueAnewInAGapIsNotWhatWasDueBefore(t *testing.T) {
	t.Parallel()
	f := trips()
	f.Gaps = true
	f.Definitions[7].Rules[3].Action = map[string]string{"stage": "done"}
	s0 := state(10, "100", `{"stage": "wait", "room": null, "paid": null}`)
	s1 := state(14, "101", `{"stage": "new", "room": "1", "paid": null}`)
	s2 := state(15, "102", `{"stage": "wait", "room": "1", "paid": null}`)
	s3 := state(16, "103", `{"stage": "lost", "room": "1", "paid": "9"}`)
	healed := line(2, 15, s2, str("pay"), "R", nil, remind, offer)
	healed.Healed = true
	i := &judge.Instance{
		WID:    4,
		States: []judge.State{s0, s1, s2, s3},
		Writes: []judge.Write{
			{XID: "100", Set: map[string]*string{"stage": str("wait"), "room": nil, "paid": nil}, Protocol: "start"},
			{XID: "101", TGID: offer, Transition: "offer", Set: set("stage", "new", "room", "1"), Protocol: "raw"},
			{XID: "102", TGID: pay, Transition: "pay", Set: set("stage", "wait"), Protocol: "raw"},
			{XID: "103", TGID: offer, Transition: "offer", Set: set("stage", "lost", "paid", "9"), Protocol: "raw"},
		},
		Lines: []judge.Line{
			line(0, 10, s0, nil, "R", []string{"offer"}, remind, offer),
			healed,
			line(3, 16, s3, str("offer"), "E", []string{"_EXCPT"}, excpt),
		},
		Jobs:   []judge.Job{{TGID: excpt, Transition: "_EXCPT", Version: 3, Payload: s3.State}},
		Status: "E",
	}
	if found := f.Judge(i, true); len(found.Violations) > 0 {
		t.Errorf("%q", found.Violations)
	}
}
