// Package report has what was measured: kept as JSON, told as tables, drawn as SVG.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/figures"
)

// Report is what one run of the benchmark has measured.
type Report struct {
	Began    time.Time `json:"began"`
	Machine  string    `json:"machine"`
	Server   string    `json:"server"`
	Measured []*Series `json:"measured"`
}

// Series are the values of one figure, one of each round.
type Series struct {
	Workload string    `json:"workload"`
	System   string    `json:"system"`
	Metric   string    `json:"metric"`
	X        float64   `json:"x,omitempty"` // where the workload is a curve
	Values   []float64 `json:"values"`
}

// Median of the rounds.
func (s *Series) Median() float64 { return figures.Median(s.Values) }

func (s *Series) String() string { return fmt.Sprintf("%s, %s, %s", s.Workload, s.System, s.Metric) }

// Add adds the value of another round.
func (r *Report) Add(workload, system, metric string, value float64) {
	r.AddAt(workload, system, metric, 0, value)
}

// AddAt adds a value at a point of a curve.
func (r *Report) AddAt(workload, system, metric string, x, value float64) {
	s := r.at(workload, system, metric, x)
	if s == nil {
		s = &Series{Workload: workload, System: system, Metric: metric, X: x}
		r.Measured = append(r.Measured, s)
	}
	s.Values = append(s.Values, value)
}

func (r *Report) at(workload, system, metric string, x float64) *Series {
	for _, s := range r.Measured {
		if s.Workload == workload && s.System == system && s.Metric == metric && s.X == x {
			return s
		}
	}
	return nil
}

// Find returns a figure, or nil.
func (r *Report) Find(workload, system, metric string) *Series {
	return r.at(workload, system, metric, 0)
}

// Of returns the figures of a workload, in the order in which they were measured first.
func (r *Report) Of(workload, metric string) (of []*Series) {
	for _, s := range r.Measured {
		if s.Workload == workload && s.Metric == metric {
			of = append(of, s)
		}
	}
	return of
}

// Curve returns the points of a curve, from left to right.
func (r *Report) Curve(workload, system, metric string) (of []*Series) {
	for _, s := range r.Of(workload, metric) {
		if s.System == system {
			of = append(of, s)
		}
	}
	slices.SortFunc(of, func(a, b *Series) int { return int(a.X - b.X) })
	return of
}

// Save writes the report to a file.
func (r *Report) Save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Load reads a report from a file.
func Load(path string) (*Report, error) { return load[Report](path) }

func load[T any](path string) (*T, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t := new(T)
	if err := json.Unmarshal(text, t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// number in three digits, more or less.
func number(v float64) string {
	switch {
	case v >= 1000:
		return separated(int(v + 0.5))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// whole is a number without fractions.
func whole(v float64) string { return separated(int(v + 0.5)) }

func separated(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", separated(n/1000), n%1000)
}

// spread of the rounds: the median, and the least and the most where they are more than one.
func spread(s *Series) string {
	if s == nil {
		return "–"
	}
	if len(s.Values) == 1 {
		return number(s.Values[0])
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median()), number(slices.Min(s.Values)), number(slices.Max(s.Values)))
}

// table writes one of Markdown's, with columns as wide as they must be.
func table(w io.Writer, rows [][]string) {
	for i, row := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	fmt.Fprintln(w)
}
