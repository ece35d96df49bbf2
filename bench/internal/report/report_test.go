package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wed-sql/wed_sql/bench/internal/report"
)

// measured is a run of three rounds in which a bare transaction is twice as fast as one job, and rivals are slower.
func measured(one float64) *report.Report {
	r := new(report.Report)
	for _, noise := range []float64{1, 1.1, 0.9} {
		r.Add(report.Bare, "bare", report.PerSecond, 2000*noise)
		r.Add(report.Burst8, "wed_sql, one by one", report.PerSecond, one*noise)
		r.Add(report.Burst8, "River, default", report.PerSecond, 100)
		r.Add(report.Pickup, "wed_sql, one by one", report.P50, 1000/one*noise)
	}
	return r
}

const ofBare = "W1 at 8, one by one: of the bare transaction"

func TestARegressionIsCaught(t *testing.T) {
	t.Parallel()
	accepted := report.Accept(measured(1000), 0.2)
	if got := accepted.Ratios[ofBare]; got < 0.49 || got > 0.51 {
		t.Errorf("accepted is %v", accepted.Ratios)
	}
	for _, c := range []struct {
		name string
		one  float64
		want error
	}{
		{"the same", 1000, nil}, {"faster", 3000, nil}, {"within the tolerance", 850, nil}, {"slower", 700, report.ErrRegression},
	} {
		var out strings.Builder
		if err := accepted.Compare(&out, measured(c.one)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v\n%s", c.name, err, &out)
		}
		if !strings.Contains(out.String(), ofBare) {
			t.Errorf("%s: it does not say what it has compared:\n%s", c.name, &out)
		}
	}
}

func TestWhatIsLessWhenItIsBetterIsCaughtToo(t *testing.T) {
	t.Parallel()
	run := func(ours float64) *report.Report {
		r := new(report.Report)
		for _, rival := range []string{"River, tuned", "graphile-worker, tuned", "pg-boss, batched"} {
			r.Add(report.Pickup, rival, report.P50, 2)
		}
		r.Add(report.Pickup, "wed_sql, one by one", report.P50, ours)
		return r
	}
	accepted := report.Accept(run(1), 0.2)
	if err := accepted.Compare(io.Discard, run(1.1)); err != nil {
		t.Errorf("within the tolerance: %v", err)
	}
	if err := accepted.Compare(io.Discard, run(1.5)); !errors.Is(err, report.ErrRegression) {
		t.Errorf("half as much again: %v", err)
	}
}

func TestTheBestOfSomeIsNotTheBestOfAll(t *testing.T) {
	t.Parallel()
	// graphile-worker was not measured: nothing is said of the best of River and graphile-worker
	for name := range report.Accept(measured(1000), 0.2).Ratios {
		if name != ofBare {
			t.Errorf("there is a ratio %q", name)
		}
	}
}

func TestNothingComparedIsNoSuccess(t *testing.T) {
	t.Parallel()
	if err := (&report.Accepted{}).Compare(io.Discard, measured(1000)); err == nil {
		t.Error("no error")
	}
}

func TestTheAcceptedRatiosInTheRepositoryAreThoseThatAreComputed(t *testing.T) {
	t.Parallel()
	accepted, err := report.LoadAccepted(filepath.Join("..", "..", "accepted.json"))
	if err != nil {
		t.Fatal(err)
	}
	if accepted.Tolerance <= 0 || accepted.Tolerance > 0.5 {
		t.Errorf("the tolerance is %v", accepted.Tolerance)
	}
	path := filepath.Join(t.TempDir(), "accepted.json")
	if err := (&report.Accepted{Ratios: map[string]float64{"speed of light": 1}}).Save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := report.LoadAccepted(path); err == nil {
		t.Error("a ratio that nobody knows is accepted")
	}
}

func TestTablesHaveMedianAndSpreadOfTheRounds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	if err := measured(12_345).Save(path); err != nil {
		t.Fatal(err)
	}
	r, err := report.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r.WriteTables(&out)
	for _, want := range []string{"| wed_sql, one by one | 12,345 (11,111–13,580) | – | – |", "| River, default | 100 (100–100) |", "0.60 or more"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
}

func TestPicturesNameWhatTheyShow(t *testing.T) {
	t.Parallel()
	r := measured(1000)
	for x, micros := range map[float64]float64{1: 50, 10: 55, 1_000_000: 90} {
		r.AddAt("instances", "wed_sql", report.MicrosPer, x, micros)
	}
	dir := t.TempDir()
	if err := r.Draw(dir); err != nil {
		t.Fatal(err)
	}
	for file, words := range map[string][]string{
		"bench-w1-8.svg": {"wed_sql, one by one", "River, default", "1,000"}, "bench-growth.svg": {"instances", "1,000,000"},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(svg, new(struct{})); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, word := range words {
			if !strings.Contains(string(svg), word) {
				t.Errorf("%s does not say %q", file, word)
			}
		}
	}
}
