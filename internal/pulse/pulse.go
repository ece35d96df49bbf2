// Package pulse reads how the flows of a database are, again and again, and makes
// rates of what is counted.
package pulse

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sample is what one look has seen.
type Sample struct {
	At          time.Time
	Most        int64   // jobs of a transition are counted up to this
	Engine      *Engine // nil: it does not serve this database
	Transitions []Transition
}

// Engine is what the engine does in the database.
type Engine struct {
	State      string   `json:"state"`
	LagBytes   *int64   `json:"lag_bytes"`
	LagSeconds *float64 `json:"lag_seconds"`
	States     *int64   `json:"states"`
	LastError  *string  `json:"last_error"`
	Warning    *string  `json:"warning"`
}

// Transition is what has been counted of a transition, and its jobs now.
type Transition struct {
	Flow     string     `json:"flow"`
	Name     string     `json:"trname"`
	Fired    int64      `json:"fired"`
	Done     int64      `json:"done"`
	Failed   int64      `json:"failed"`
	TimedOut int64      `json:"timed_out"`
	Lost     int64      `json:"lost"`
	Waiting  *int64     `json:"waiting"`
	Running  *int64     `json:"running"`
	Leased   *int64     `json:"leased"`
	Oldest   *time.Time `json:"oldest"`
	WaitTime float64    `json:"wait_time"`
	MeanWait *float64   `json:"mean_wait_time"`
	RunTime  float64    `json:"run_time"`
	MeanRun  *float64   `json:"mean_run_time"`
}

func (t *Transition) failures() int64 { return t.Failed + t.TimedOut + t.Lost }

// Up to how many jobs of a transition are counted: as many as a person wants to
// know, or as few as the server counts at once.
const (
	Many = 10_000
	Few  = 1_000
)

// Read looks once, by one query, and counts up to so many jobs of a transition.
func Read(ctx context.Context, conn *pgx.Conn, most int64) (*Sample, error) {
	s := &Sample{Most: most}
	var engine, transitions []byte
	err := conn.QueryRow(ctx, `
		select clock_timestamp(),
			(select row_to_json(e) from wed_sql.status e where e.datname = current_database()),
			(select coalesce(json_agg(t), '[]') from wed_sql.transition_statistics($1) t)`, most).
		Scan(&s.At, &engine, &transitions)
	if err != nil {
		return nil, fmt.Errorf("look at the flows: %w", err)
	}
	if engine != nil {
		s.Engine = new(Engine)
		if err := json.Unmarshal(engine, s.Engine); err != nil {
			return nil, fmt.Errorf("understand wed_sql.status: %w", err)
		}
	}
	if err := json.Unmarshal(transitions, &s.Transitions); err != nil {
		return nil, fmt.Errorf("understand the statistics: %w", err)
	}
	return s, nil
}

// Span is the time over which rates are taken: the engine writes its counters once
// a second, so that a shorter one would show them in leaps.
const Span = 10 * time.Second

// Window keeps the samples that rates are made of.
type Window struct {
	samples []*Sample
}

// Add takes a sample, and forgets those that are not needed any more; all of them
// when what is counted was set back meanwhile.
func (w *Window) Add(s *Sample) {
	if n := len(w.samples); n > 0 && wasReset(w.samples[n-1], s) {
		w.samples = nil
	}
	w.samples = append(w.samples, s)
	for len(w.samples) > 2 && s.At.Sub(w.samples[1].At) >= Span {
		w.samples = w.samples[1:]
	}
}

func wasReset(before, after *Sample) bool {
	if !after.At.After(before.At) {
		return true
	}
	was := before.index()
	for i := range after.Transitions {
		t := &after.Transitions[i]
		if b := was[key{t.Flow, t.Name}]; b != nil && (t.Fired < b.Fired || t.Done < b.Done || t.failures() < b.failures()) {
			return true
		}
	}
	return before.states() > after.states()
}

type key struct{ flow, name string }

func (s *Sample) index() map[key]*Transition {
	index := make(map[key]*Transition, len(s.Transitions))
	for i := range s.Transitions {
		t := &s.Transitions[i]
		index[key{t.Flow, t.Name}] = t
	}
	return index
}

func (s *Sample) states() int64 {
	if s.Engine == nil || s.Engine.States == nil {
		return 0
	}
	return *s.Engine.States
}

// View is how it is now, and how fast things go.
type View struct {
	At              time.Time `json:"at"`
	Most            int64     `json:"counted_up_to"` // jobs of a transition
	Engine          *Engine   `json:"engine"`
	StatesPerSecond *float64  `json:"states_per_second"`
	Rows            []Row     `json:"transitions"`
}

// Row is how it is with a transition. Rates and times are null when they are not
// known.
type Row struct {
	Flow          string   `json:"flow"`
	Transition    string   `json:"transition"`
	Waiting       *int64   `json:"waiting"`
	Running       *int64   `json:"running"`
	Leased        *int64   `json:"leased"`
	OldestSeconds *float64 `json:"oldest_seconds"`
	Done          int64    `json:"done"`
	Failed        int64    `json:"failed"` // timed out and lost included
	DonePerSecond *float64 `json:"done_per_second"`
	// FailedLately is how many of Failed are from the time that rates are taken over.
	FailedLately int64    `json:"failed_lately"`
	MeanWaitMS   *float64 `json:"mean_wait_ms"` // of those done lately or, if there are none, of all
	MeanRunMS    *float64 `json:"mean_run_ms"`
}

// More is a plus if a transition has more jobs than were counted.
func (v View) More(r Row) string {
	if r.Waiting != nil && *r.Waiting+*r.Running+*r.Leased >= v.Most {
		return "+"
	}
	return ""
}

// View compares the last sample with the first that is kept.
func (w *Window) View() View {
	last, first := w.samples[len(w.samples)-1], w.samples[0]
	elapsed := last.At.Sub(first.At).Seconds()
	v := View{At: last.At, Most: last.Most, Engine: last.Engine, Rows: make([]Row, len(last.Transitions))}
	if elapsed > 0 && first.Engine != nil && last.Engine != nil {
		rate := float64(last.states()-first.states()) / elapsed
		v.StatesPerSecond = &rate
	}
	was := first.index()
	for i := range last.Transitions {
		t := &last.Transitions[i]
		r := Row{
			Flow: t.Flow, Transition: t.Name, Waiting: t.Waiting, Running: t.Running, Leased: t.Leased,
			Done: t.Done, Failed: t.failures(), MeanWaitMS: t.MeanWait, MeanRunMS: t.MeanRun,
		}
		if t.Oldest != nil {
			age := max(last.At.Sub(*t.Oldest).Seconds(), 0)
			r.OldestSeconds = &age
		}
		if elapsed > 0 {
			b := was[key{t.Flow, t.Name}]
			if b == nil {
				b = new(Transition) // it is new
			}
			done := t.Done - b.Done
			rate := float64(done) / elapsed
			r.DonePerSecond = &rate
			r.FailedLately = t.failures() - b.failures()
			if done > 0 {
				wait, run := max(t.WaitTime-b.WaitTime, 0)/float64(done), max(t.RunTime-b.RunTime, 0)/float64(done)
				r.MeanWaitMS, r.MeanRunMS = &wait, &run
			}
		}
		v.Rows[i] = r
	}
	return v
}
