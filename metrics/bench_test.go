package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/wal"
)

// BenchmarkScrape is a scrape with as many transitions as there may be.
func BenchmarkScrape(b *testing.B) {
	e := New("1")
	e.patience = time.Millisecond
	d := e.Database(1, "shop")
	d.Up(true)
	for i := range maxTransitions {
		s := state(wal.Measured{FlowName: fmt.Sprint("flow", i/5), Done: fmt.Sprint("transition", i), Timed: true, Wait: time.Second})
		s[0].Fired = []string{s[0].Done}
		d.Wrote(s)
	}
	h := handler(e.Registry(), slog.New(slog.DiscardHandler))
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		b.ReportMetric(float64(w.Body.Len()), "bytes/scrape")
	}
}

// BenchmarkWrote is what counting costs the follower, for a state.
func BenchmarkWrote(b *testing.B) {
	d := New("1").Database(1, "shop")
	s := state(wal.Measured{Done: "book", Timed: true, Wait: time.Second, Run: time.Second, Fired: []string{"pay", "ship"}})
	b.ReportAllocs()
	for b.Loop() {
		d.Wrote(s)
	}
}
