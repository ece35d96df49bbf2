package metrics

import (
	"encoding/json"
	"time"

	"github.com/wed-sql/wed_sql/fold"
	"github.com/wed-sql/wed_sql/wal"
)

// deltas is what was counted and is not in the tables yet.
type deltas struct {
	flows       map[int32]*flowDelta
	transitions map[deltaKey]*transitionDelta
}

type deltaKey struct {
	flow int32
	name string
}

// The names are those of the columns, for wed_sql.add_counts().
type flowDelta struct {
	Flow       int32 `json:"flow_id"`
	Instances  int64 `json:"instances"`
	States     int64 `json:"states"`
	Exceptions int64 `json:"exceptions"`
	Finals     int64 `json:"finals"`
	Cancelled  int64 `json:"cancelled"`
}

type transitionDelta struct {
	Flow      int32    `json:"flow_id"`
	Name      string   `json:"trname"`
	Fired     int64    `json:"fired"`
	Done      int64    `json:"done"`
	Withdrawn int64    `json:"withdrawn"`
	Timed     int64    `json:"timed"`
	Wait      float64  `json:"wait_time"`
	MaxWait   *float64 `json:"max_wait_time"`
	Run       float64  `json:"run_time"`
	MaxRun    *float64 `json:"max_run_time"`
}

func (d *deltas) empty() bool { return len(d.flows) == 0 && len(d.transitions) == 0 }

func (d *deltas) flow(id int32) *flowDelta {
	f := d.flows[id]
	if f == nil {
		if d.flows == nil {
			d.flows = make(map[int32]*flowDelta)
		}
		f = &flowDelta{Flow: id}
		d.flows[id] = f
	}
	return f
}

func (d *deltas) transition(flow int32, name string) *transitionDelta {
	key := deltaKey{flow, name}
	t := d.transitions[key]
	if t == nil {
		if d.transitions == nil {
			d.transitions = make(map[deltaKey]*transitionDelta)
		}
		t = &transitionDelta{Flow: flow, Name: name}
		d.transitions[key] = t
	}
	return t
}

func (d *deltas) count(s *wal.Measured) {
	f := d.flow(s.Flow)
	f.States++
	if s.Initial {
		f.Instances++
	}
	switch s.Status {
	case fold.Exception:
		f.Exceptions++
	case fold.Final:
		f.Finals++
	case fold.Cancelled:
		f.Cancelled++
	}
	for _, name := range s.Fired {
		d.transition(s.Flow, name).Fired++
	}
	for _, name := range s.Withdrawn {
		d.transition(s.Flow, name).Withdrawn++
	}
	if s.Done == "" {
		return
	}
	t := d.transition(s.Flow, s.Done)
	t.Done++
	if s.Timed {
		t.Timed++
		wait, run := milliseconds(s.Wait), milliseconds(s.Run)
		t.Wait, t.MaxWait = t.Wait+wait, larger(t.MaxWait, &wait)
		t.Run, t.MaxRun = t.Run+run, larger(t.MaxRun, &run)
	}
}

// add puts back what could not be written.
func (d *deltas) add(o deltas) {
	for _, n := range o.flows {
		f := d.flow(n.Flow)
		f.Instances += n.Instances
		f.States += n.States
		f.Exceptions += n.Exceptions
		f.Finals += n.Finals
		f.Cancelled += n.Cancelled
	}
	for _, n := range o.transitions {
		t := d.transition(n.Flow, n.Name)
		t.Fired += n.Fired
		t.Done += n.Done
		t.Withdrawn += n.Withdrawn
		t.Timed += n.Timed
		t.Wait, t.MaxWait = t.Wait+n.Wait, larger(t.MaxWait, n.MaxWait)
		t.Run, t.MaxRun = t.Run+n.Run, larger(t.MaxRun, n.MaxRun)
	}
}

// json returns the arguments of wed_sql.add_counts().
func (d *deltas) json() (flows, transitions string, err error) {
	fs := make([]*flowDelta, 0, len(d.flows))
	for _, f := range d.flows {
		fs = append(fs, f)
	}
	ts := make([]*transitionDelta, 0, len(d.transitions))
	for _, t := range d.transitions {
		ts = append(ts, t)
	}
	f, err := json.Marshal(fs)
	if err != nil {
		return "", "", err
	}
	t, err := json.Marshal(ts)
	return string(f), string(t), err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// larger returns the larger of two numbers, either of which may be missing.
func larger(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}
