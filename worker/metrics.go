package worker

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Words for what became of a job, as the metrics have them.
const (
	outcomeCompleted = "completed"
	outcomeFailed    = "failed" // to be tried again later
	outcomeRedone    = "redone" // lost a race or its connection: at once
	outcomeGone      = "gone"   // somebody else completed it, or has it
)

var outcomes = [...]string{outcomeCompleted, outcomeFailed, outcomeRedone, outcomeGone}

func named(o outcome) string {
	switch o {
	case completed:
		return outcomeCompleted
	case gone:
		return outcomeGone
	case soon:
		return outcomeRedone
	}
	return outcomeFailed
}

// dutyMetrics counts what a transition's jobs do.
type dutyMetrics struct {
	jobs    [len(outcomes)]atomic.Int64
	running atomic.Int64
	seconds prometheus.Histogram
}

func newDutyMetrics(flow, transition string) *dutyMetrics {
	return &dutyMetrics{seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "wed_sql_worker_handler_seconds",
		Help:        "How long handlers have taken.",
		ConstLabels: prometheus.Labels{"flow": flow, "transition": transition},
		Buckets:     []float64{.001, .005, .025, .1, .5, 2.5, 10, 60, 600, 3600},
	})}
}

func (m *dutyMetrics) took(d time.Duration) { m.seconds.Observe(d.Seconds()) }

func (m *dutyMetrics) count(outcome string, n int) {
	for i, o := range outcomes {
		if o == outcome {
			m.jobs[i].Add(int64(n))
		}
	}
}

// Collector returns what the worker does as metrics for Prometheus, with the
// labels flow and transition:
//
//	wed_sql_worker_jobs_total{outcome="completed|failed|redone|gone"}
//	wed_sql_worker_handler_seconds      histogram: how long handlers take
//	wed_sql_worker_jobs_running         taken, and not completed yet
//	wed_sql_worker_jobs_waiting         that the worker knows of, up to some thousands
//	wed_sql_worker_concurrency          transactions or leased jobs that may run side by side
//
// and without labels wed_sql_worker_connections and wed_sql_worker_listening.
// All transitions must have been given to Handle before it is registered.
func (w *Worker) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("wed_sql_worker_"+name, help, labels, nil)
	}
	return &collector{
		worker:      w,
		jobs:        desc("jobs_total", "Jobs that were taken, by what became of them.", "flow", "transition", "outcome"),
		running:     desc("jobs_running", "Jobs that are taken and not completed yet.", "flow", "transition"),
		waiting:     desc("jobs_waiting", "Jobs that the worker knows of and has not taken yet.", "flow", "transition"),
		concurrency: desc("concurrency", "Transactions or leased jobs that may run side by side.", "flow", "transition"),
		connections: desc("connections", "Open connections, but for the one that listens."),
		listening:   desc("listening", "Whether notifications arrive."),
	}
}

type collector struct {
	worker                              *Worker
	jobs, running, waiting, concurrency *prometheus.Desc
	connections, listening              *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.jobs, c.running, c.waiting, c.concurrency, c.connections, c.listening} {
		ch <- d
	}
	for _, d := range c.worker.duties {
		d.metrics.seconds.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, d := range c.worker.duties {
		for i, o := range outcomes {
			ch <- prometheus.MustNewConstMetric(c.jobs, prometheus.CounterValue, float64(d.metrics.jobs[i].Load()),
				d.flow, d.transition, o)
		}
		d.metrics.seconds.Collect(ch)
		waiting, _ := d.queue.counts()
		gauge(c.running, float64(d.metrics.running.Load()), d.flow, d.transition)
		gauge(c.waiting, float64(waiting), d.flow, d.transition)
		gauge(c.concurrency, float64(d.options.Concurrency), d.flow, d.transition)
	}
	gauge(c.connections, float64(c.worker.direct.count()+c.worker.brief.count()))
	listening := 0.0
	if c.worker.listening.Load() {
		listening = 1
	}
	gauge(c.listening, listening)
}
