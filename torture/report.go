package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/wed-sql/wed_sql/torture/fault"
	"github.com/wed-sql/wed_sql/torture/judge"
)

// report is what a run has seen.
type report struct {
	plan       plan
	mu         sync.Mutex
	began      time.Time
	survived   map[string]int
	skipped    map[string]string
	counts     map[string]int64
	protocols  map[string]int
	statuses   map[string]int
	instances  int
	states     int
	lines      int
	violations []string
	histories  map[string]string // of the first instances with violations
}

func newReport(p plan) *report {
	return &report{plan: p, began: time.Now(), survived: map[string]int{}, skipped: map[string]string{}, counts: map[string]int64{},
		protocols: map[string]int{}, statuses: map[string]int{}, histories: map[string]string{}}
}

func (r *report) add(what string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[what] += n
}

func (r *report) fault(name string, err error) {
	if err != nil && !errors.Is(err, fault.ErrSkipped) {
		r.violation("fault %q was not survived: %v", name, err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.skipped[name] = err.Error()
		return
	}
	r.survived[name]++
}

func (r *report) violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
	if r.plan.progress {
		fmt.Fprintln(r.plan.out, "VIOLATION:", fmt.Sprintf(format, args...))
	}
}

// about notes a violation of an instance, with all that there is of it.
func (r *report) about(flow string, wid int64, f *judge.Flow, i *judge.Instance, what string) {
	r.violation("%s, instance %d, %s", flow, wid, what)
	key := fmt.Sprintf("%s, instance %d", flow, wid)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.histories[key] != "" || len(r.histories) >= 60 {
		return
	}
	history, err := json.MarshalIndent(map[string]any{"instance": i, "definitions": definitions(f, i)}, "", " ")
	if err != nil {
		history = []byte(err.Error())
	}
	r.histories[key] = string(history)
}

// definitions are those that were in force for an instance, with their conditions as SQL.
func definitions(f *judge.Flow, i *judge.Instance) map[int64][]string {
	in := map[int64][]string{}
	for _, s := range i.States {
		d := f.Definitions[s.Rules]
		if d == nil || in[s.Rules] != nil {
			continue
		}
		for _, rule := range d.Rules {
			in[s.Rules] = append(in[s.Rules], fmt.Sprintf("%d %s %s", rule.TGID, ruleColumns, ruleRow(d, rule)))
		}
	}
	return in
}

// found adds what was found of an instance in the end.
func (r *report) found(f judge.Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instances++
	r.states += f.Judged
	r.lines += f.Lines
	r.statuses[f.Status]++
	if f.Unfinished {
		r.counts["instances that were not judged to their end, for lines are missing"]++
	}
	for protocol, n := range f.ByProtocol {
		r.protocols[protocol] += n
	}
	for event, n := range f.Events {
		r.counts["events: "+event] += int64(n)
	}
}

// phase tells what begins.
func (r *report) phase(what string) {
	if r.plan.progress {
		fmt.Fprintf(r.plan.out, "%4.0f s: %s\n", time.Since(r.began).Seconds(), what)
	}
}

func (r *report) faults() (n int) {
	for _, times := range r.survived {
		n += times
	}
	return n
}

func (r *report) progress() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%d faults survived, %d violations", r.faults(), len(r.violations))
}

func (r *report) print(w *world) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.plan.out
	section := func(title string, rows [][2]string) {
		if len(rows) == 0 {
			return
		}
		t := table.NewWriter()
		t.SetStyle(table.StyleLight)
		t.SetTitle("%s", title)
		for _, row := range rows {
			t.AppendRow(table.Row{row[0], row[1]})
		}
		fmt.Fprintln(out, t.Render())
	}
	section("judged", [][2]string{
		{"instances", fmt.Sprint(r.instances)}, {"states", fmt.Sprint(r.states)}, {"lines of wed_trace", fmt.Sprint(r.lines)},
		{"final", fmt.Sprint(r.statuses["F"])}, {"not final", fmt.Sprint(r.instances - r.statuses["F"])},
		{"processes of workers that were killed", fmt.Sprint(w.fleet.killed)},
	})
	section("states, by who wrote them", rows(r.protocols))
	section("faults survived", append(rows(r.survived), rows(r.skipped)...))
	section("besides", rows(r.counts))
	if len(r.violations) > 0 {
		fmt.Fprintf(out, "\n%d violations:\n  %s\n", len(r.violations), strings.Join(r.violations[:min(len(r.violations), 10)], "\n  "))
	}
	fmt.Fprintf(out, "\ntorture: seed %d, %v: %d states of %d instances judged, %d faults survived, %d violations\n", r.plan.seed,
		time.Since(r.began).Round(time.Second), r.states, r.instances, r.faults(), len(r.violations))
}

func rows[V any](counts map[string]V) (rows [][2]string) {
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		rows = append(rows, [2]string{what, fmt.Sprint(counts[what])})
	}
	return rows
}

// evidence is all that is known of the violations.
func (r *report) evidence(w *world) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "again: %s\n\n", r.plan.again)
	for _, v := range r.violations {
		fmt.Fprintln(&b, v)
	}
	for _, key := range slices.Sorted(maps.Keys(r.histories)) {
		fmt.Fprintf(&b, "\n%s\n%s\n", key, r.histories[key])
	}
	return b.String()
}
