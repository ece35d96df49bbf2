// Package metrics shows what the engine does as Prometheus wants it, and keeps the
// counters of wed_sql.stat_flow and wed_sql.stat_transition.
//
// What the followers write is counted in memory, per database ([Database], a
// [wal.Meter]). From there it goes two ways: to whoever scrapes ([Exporter], served by
// an [Endpoint]), and, in a session of its own that delays no follower ([Database.Keep]),
// into the tables. The same session looks up what only the database knows, such as the
// jobs that wait, when somebody scrapes.
package metrics

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Most flows, and most transitions, of all databases together, that have metrics of
// their own. What is beyond is counted under the name other: thousands of flows must not
// take the engine's memory, nor that of whoever scrapes.
const (
	maxFlows       = 2000
	maxTransitions = 2000
	other          = "_other"
)

// patience is how long a scrape waits for the databases.
const patience = 3 * time.Second

// Exporter collects the metrics of an engine.
type Exporter struct {
	families families
	version  string

	patience time.Duration
	room     room

	mu        sync.Mutex
	starts    int64
	databases map[uint32]*Database // by OID
}

// room counts the flows and transitions that have metrics.
type room struct {
	mu          sync.Mutex
	flows       int
	transitions int
}

// take tells whether there is room for so many more, and takes it.
func (r *room) take(flows, transitions int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flows+flows > maxFlows || r.transitions+transitions > maxTransitions {
		return false
	}
	r.flows += flows
	r.transitions += transitions
	return true
}

func (r *room) giveBack(flows, transitions int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows -= flows
	r.transitions -= transitions
}

// New returns an exporter without databases. version is that of wed_sql.
func New(version string) *Exporter {
	f, _ := newFamilies()
	return &Exporter{families: f, version: version, patience: patience, databases: make(map[uint32]*Database)}
}

// Started tells how many engines the server has started.
func (e *Exporter) Started(engines int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.starts = engines
}

// Registry returns a registry with the engine's metrics, those of the process and those
// of Go's runtime.
func (e *Exporter) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(e, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Database returns the numbers of a database, which begin at zero. They are shown from
// the first call of [Database.Up] on.
func (e *Exporter) Database(oid uint32, name string) *Database {
	d := newDatabase(e, name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.databases[oid]; old != nil {
		old.retire()
	}
	e.databases[oid] = d
	return d
}

// Forget drops a database.
func (e *Exporter) Forget(oid uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.databases[oid]; d != nil {
		d.retire()
		delete(e.databases, oid)
	}
}

// Describe implements [prometheus.Collector].
func (e *Exporter) Describe(descs chan<- *prometheus.Desc) {
	for _, f := range e.families.all() {
		descs <- f.desc
	}
}

// Collect implements [prometheus.Collector].
func (e *Exporter) Collect(metrics chan<- prometheus.Metric) {
	e.mu.Lock()
	starts := e.starts
	databases := make([]*Database, 0, len(e.databases))
	for _, d := range e.databases {
		databases = append(databases, d)
	}
	e.mu.Unlock()

	send(metrics, e.families.buildInfo, 1, e.version, runtime.Version())
	if starts > 0 {
		send(metrics, e.families.starts, float64(starts))
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.patience)
	defer cancel()
	for _, d := range databases {
		d.ask() // all at once
	}
	for _, d := range databases {
		d.await(ctx)
		d.collect(metrics)
	}
}

func send(metrics chan<- prometheus.Metric, f family, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(f.desc, f.typ, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	metrics <- m
}

func sendHistogram(metrics chan<- prometheus.Metric, f family, h *histogram, labels ...string) {
	n, buckets := h.cumulative(f.bounds)
	m, err := prometheus.NewConstHistogram(f.desc, n, h.sum, buckets, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(f.desc, err)
	}
	metrics <- m
}
