package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/wed-sql/wed_sql/bench/internal/figures"
)

// Ratio is a figure of wed_sql over one of the same round: what can be compared from one day to the next.
type Ratio struct {
	Name             string
	Workload, Metric string
	Of               string   // the system
	To               []string // the best of these; what a name begins with will do
	Base             string   // the workload of To, where it is another one
	Wanted           float64
	Less             bool // less is better
}

const (
	oneByOne = "wed_sql, one by one"
	batched  = "wed_sql, batched"
)

var (
	rivals       = []string{"River", "graphile-worker", "pg-boss"}
	rivalsSingly = []string{"River, default", "graphile-worker, default"}
)

// Ratios are those that wed_sql is held to.
var Ratios = []Ratio{
	{Name: "W1 at 8, one by one: of the bare transaction", Workload: Burst8, Metric: PerSecond, Of: oneByOne, To: []string{"bare"}, Base: Bare, Wanted: 0.6},
	{Name: "W1 at 8, one by one: of the best that has a transaction for each job", Workload: Burst8, Metric: PerSecond, Of: oneByOne, To: rivalsSingly, Wanted: 1},
	{Name: "W1 at 8, batched: of the best", Workload: Burst8, Metric: PerSecond, Of: batched, To: rivals, Wanted: 1},
	{Name: "W1 at 32, batched: of the best", Workload: Burst32, Metric: PerSecond, Of: batched, To: rivals, Wanted: 1},
	{Name: "W2, p50: of the best", Workload: Pickup, Metric: P50, Of: oneByOne, To: rivals, Wanted: 0.7, Less: true},
	{Name: "W2, p99: of the best", Workload: Pickup, Metric: P99, Of: oneByOne, To: rivals, Wanted: 0.55, Less: true},
	{Name: "W3, one by one: of the best", Workload: FlowRate, Metric: PerSecond, Of: oneByOne, To: rivals, Wanted: 2},
	{Name: "W3, batched: of the best", Workload: FlowRate, Metric: PerSecond, Of: batched, To: rivals, Wanted: 7},
	{Name: "W3, one by one: of the bare transaction", Workload: FlowRate, Metric: PerSecond, Of: oneByOne, To: []string{"bare"}, Base: Bare, Wanted: 1. / 6},
	{Name: "W3 at 10/s, p50: of the best", Workload: FlowTime, Metric: P50, Of: oneByOne, To: rivals, Wanted: 0.63, Less: true},
	{Name: "W3 at 10/s, p99: of the best", Workload: FlowTime, Metric: P99, Of: oneByOne, To: rivals, Wanted: 0.58, Less: true},
	{Name: "writers: wed_flow with 1,000 listeners, of a plain update", Workload: Writers, Metric: PerSecond, Of: "wed_flow, 1,000 listeners", To: []string{"plain update"}, Wanted: 0.77},
}

func (q *Ratio) wanted() string {
	if q.Less {
		return fmt.Sprintf("%.2f or less", q.Wanted)
	}
	return fmt.Sprintf("%.2f or more", q.Wanted)
}

// Rounds returns the ratio of each round in which all was measured.
func (q *Ratio) Rounds(r *Report) (values []float64) {
	of := r.Find(q.Workload, q.Of, q.Metric)
	if of == nil {
		return nil
	}
	base := q.Base
	if base == "" {
		base = q.Workload
	}
	for _, prefix := range q.To { // the best of some is not the best of all
		if !slices.ContainsFunc(r.Of(base, q.Metric), func(s *Series) bool { return strings.HasPrefix(s.System, prefix) }) {
			return nil
		}
	}
	for round, v := range of.Values {
		best, found := 0., false
		for _, s := range r.Of(base, q.Metric) {
			if round < len(s.Values) && q.against(s.System) && (!found || (s.Values[round] < best) == q.Less) {
				best, found = s.Values[round], true
			}
		}
		if found && best > 0 {
			values = append(values, v/best)
		}
	}
	return values
}

func (q *Ratio) against(system string) bool {
	return slices.ContainsFunc(q.To, func(prefix string) bool { return strings.HasPrefix(system, prefix) })
}

// Holds says whether what is wanted was reached; so does what was not measured.
func (q *Ratio) Holds(r *Report) bool {
	values := q.Rounds(r)
	return len(values) == 0 || !q.worse(figures.Median(values), q.Wanted, 0)
}

// worse says whether a value is worse than another by more than a tolerance.
func (q *Ratio) worse(value, than, tolerance float64) bool {
	if q.Less {
		return value > than*(1+tolerance)
	}
	return value < than*(1-tolerance)
}

// Accepted are ratios of an earlier run, by their names, that no later one may fall behind.
type Accepted struct {
	Tolerance float64            `json:"tolerance"`
	Ratios    map[string]float64 `json:"ratios"`
}

// LoadAccepted reads them from a file.
func LoadAccepted(path string) (*Accepted, error) {
	a, err := load[Accepted](path)
	if err != nil {
		return nil, err
	}
	for name := range a.Ratios {
		if !known(name) {
			return nil, fmt.Errorf("%s: there is no ratio %q", path, name)
		}
	}
	return a, nil
}

func known(name string) bool {
	return slices.ContainsFunc(Ratios, func(q Ratio) bool { return q.Name == name })
}

// Save writes them to a file.
func (a *Accepted) Save(path string) error {
	text, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Accept returns the ratios of a report.
func Accept(r *Report, tolerance float64) *Accepted {
	a := &Accepted{Tolerance: tolerance, Ratios: map[string]float64{}}
	for _, q := range Ratios {
		if values := q.Rounds(r); len(values) > 0 {
			a.Ratios[q.Name] = figures.Median(values)
		}
	}
	return a
}

// ErrRegression is returned when a ratio has become worse than accepted.
var ErrRegression = errors.New("worse than accepted")

// Compare tells of each ratio that was measured how it stands to the accepted one.
func (a *Accepted) Compare(w io.Writer, r *Report) error {
	var worse []string
	rows := [][]string{{"ratio", "accepted", "now", ""}}
	compared := 0
	for _, q := range Ratios {
		accepted, ok := a.Ratios[q.Name]
		values := q.Rounds(r)
		if !ok || len(values) == 0 {
			continue
		}
		compared++
		verdict := ""
		if q.worse(figures.Median(values), accepted, a.Tolerance) {
			verdict = "worse"
			worse = append(worse, q.Name)
		}
		rows = append(rows, []string{q.Name, number(accepted), spread(&Series{Values: values}), verdict})
	}
	table(w, rows)
	switch {
	case compared == 0:
		return errors.New("nothing was measured that could be compared with what is accepted")
	case len(worse) > 0:
		return fmt.Errorf("%w, by more than %.0f %%: %s", ErrRegression, 100*a.Tolerance, strings.Join(worse, "; "))
	}
	return nil
}
