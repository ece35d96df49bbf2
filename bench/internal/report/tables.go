package report

import (
	"fmt"
	"io"
	"time"
)

// The names of workloads and metrics, which are those of the JSON, too.
const (
	Burst8, Burst32    = "W1, 8 side by side", "W1, 32 side by side"
	Pickup             = "W2"
	FlowRate, FlowTime = "W3", "W3 at 10 per second"
	Bare               = "W4"
	Writers            = "writers"
	Engine             = "engine"

	PerSecond      = "per second"
	Recorded       = "per second, history complete"
	Transactions   = "writing transactions"
	P50, P99       = "p50, ms", "p99, ms"
	StatementP50   = "statement, p50, ms"
	TransactionP50 = "transaction, p50, ms"
	CPU            = "processor, %"
	Resident       = "resident memory, MB"
	MicrosPer      = "microseconds per state"
)

// sections are the tables of the contest, in the order of the text.
var sections = []struct {
	workload, title string
	metrics         []string
}{
	{Bare, "W4: the bare transaction, 8 clients of pgbench", []string{PerSecond}},
	{Burst8, "W1: jobs that do nothing and are there already, 8 side by side", []string{PerSecond, Recorded, Transactions}},
	{Burst32, "W1: the same, 32 side by side", []string{PerSecond, Recorded, Transactions}},
	{Pickup, "W2: from the commit of a job to the start of its handler, at 100 jobs per second", []string{P50, P99}},
	{FlowRate, "W3: figure 2, instances as fast as possible", []string{PerSecond, Recorded, Transactions}},
	{FlowTime, "W3: figure 2, from start to end, at 10 instances per second", []string{P50, P99}},
	{Writers, "Writers, 32 clients of pgbench", []string{PerSecond}},
}

// WriteTables writes what was measured as Markdown: medians, and in brackets the least and the most of the rounds.
func (r *Report) WriteTables(w io.Writer) {
	fmt.Fprintf(w, "%s, %s, %s.\n\n", r.Began.Format(time.DateOnly), r.Machine, r.Server)
	for _, s := range sections {
		first := r.Of(s.workload, s.metrics[0])
		if len(first) == 0 {
			continue
		}
		rows := [][]string{append([]string{s.title}, s.metrics...)}
		for _, f := range first {
			row := []string{f.System}
			for _, m := range s.metrics {
				row = append(row, spread(r.Find(s.workload, f.System, m)))
			}
			rows = append(rows, row)
		}
		table(w, rows)
	}
	r.writeRatios(w)
	r.writeCurves(w)
	r.writeEngine(w)
}

// writeEngine: each part has metrics of its own.
func (r *Report) writeEngine(w io.Writer) {
	rows := [][]string{{"parts by themselves", "", ""}}
	for _, s := range r.Measured {
		if s.Workload == Engine {
			rows = append(rows, []string{s.System, s.Metric, spread(s)})
		}
	}
	if len(rows) > 1 {
		table(w, rows)
	}
}

func (r *Report) writeRatios(w io.Writer) {
	rows := [][]string{{"ratio", "here", "wanted"}}
	for _, ratio := range Ratios {
		if values := ratio.Rounds(r); len(values) > 0 {
			here := spread(&Series{Values: values})
			if !ratio.Holds(r) {
				here += " **not reached**"
			}
			rows = append(rows, []string{ratio.Name, here, ratio.wanted()})
		}
	}
	if len(rows) > 1 {
		table(w, rows)
	}
}

// Curves are how wed_sql grows: the name of each is what grows.
var Curves = []string{"rules per flow", "instances", "pending jobs", "states per instance", "connected listeners", "databases"}

func (r *Report) writeCurves(w io.Writer) {
	rows := [][]string{{"what grows", "microseconds per state", "most over least"}}
	for _, name := range Curves {
		points := r.Curve(name, "wed_sql", MicrosPer)
		if len(points) == 0 {
			continue
		}
		text, least, most := "", points[0].Median(), points[0].Median()
		for i, p := range points {
			if i > 0 {
				text += ", "
			}
			text += fmt.Sprintf("%s: %s", whole(p.X), number(p.Median()))
			least, most = min(least, p.Median()), max(most, p.Median())
		}
		rows = append(rows, []string{name, text, fmt.Sprintf("%.1f", most/least)})
	}
	if len(rows) > 1 {
		table(w, rows)
	}
}
