package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics counts what the gateway does.
type metrics struct {
	registry *prometheus.Registry
	leased   *prometheus.CounterVec
	returned *prometheus.CounterVec
	settled  *prometheus.CounterVec
	requests *prometheus.CounterVec
	dispatch prometheus.Histogram
	streams  prometheus.Gauge
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "wed_gateway", Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		leased:   counter("leased_total", "Jobs leased for workers.", "flow", "transition"),
		returned: counter("returned_total", "Jobs released by the gateway, because the worker that they were leased for had gone.", "flow", "transition"),
		settled:  counter("settled_total", "What workers did with jobs: completed, failed, released.", "flow", "outcome"),
		requests: counter("requests_total", "Requests answered.", "request", "code"),
		dispatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "wed_gateway", Name: "dispatch_seconds",
			Help:    "Time from the notification of a job to its being written to a worker that was waiting.",
			Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .02, .03, .05, .1, .2, .5, 1, 5},
		}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "wed_gateway", Name: "streams", Help: "Streams of events that are open."}),
	}
	m.registry.MustRegister(m.leased, m.returned, m.settled, m.requests, m.dispatch, m.streams,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watch adds what is looked up when it is asked for.
func (m *metrics) watch(g *Gateway, pool *pgxpool.Pool) {
	gauge := func(name, help string, value func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "wed_gateway", Name: name, Help: help}, value))
	}
	gauge("waiting_workers", "Workers that wait for a job.", func() float64 { return float64(g.dispatch.count()) })
	gauge("listening", "1 while notifications can arrive.", func() float64 {
		if g.listener.ready() {
			return 1
		}
		return 0
	})
	gauge("database_connections", "Connections to the database, without the one that listens.", func() float64 { return float64(pool.Stat().TotalConns()) })
	gauge("database_connections_used", "Those of them that are in use.", func() float64 { return float64(pool.Stat().AcquiredConns()) })
	gauge("database_connections_max", "As many may there be.", func() float64 { return float64(pool.Stat().MaxConns()) })
}

// handler serves the metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 2})
}

// recorder remembers the status of a response.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) code() string {
	if r.status == 0 {
		return strconv.Itoa(http.StatusOK)
	}
	return strconv.Itoa(r.status)
}

func levelOf(p *problem) slog.Level {
	if p.Status == http.StatusInternalServerError {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// attrs describes a request in the log: who asked for what, and never a token.
func attrs(r *http.Request, status int, err error) []slog.Attr {
	a := []slog.Attr{slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", status)}
	if g, ok := r.Context().Value(grantKey{}).(*grant); ok {
		a = append(a, slog.String("token", g.name))
	}
	if err != nil {
		a = append(a, slog.Any("error", err))
	}
	return a
}

// grantKey is where a request's context has its grant.
type grantKey struct{}

func withGrant(r *http.Request, g *grant) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), grantKey{}, g))
}

func grantOf(r *http.Request) *grant { return r.Context().Value(grantKey{}).(*grant) }
