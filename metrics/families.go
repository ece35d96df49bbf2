package metrics

import "github.com/prometheus/client_golang/prometheus"

// Description describes a metric that is exported.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Descriptions lists the metrics of wed_sql, in the order of the documentation. Those of
// Go's runtime and of the process come besides.
func Descriptions() []Description {
	_, list := newFamilies()
	return list
}

// Types of metrics.
const (
	counter       = "counter"
	gauge         = "gauge"
	histogramType = "histogram"
)

// family is a metric with all its label values.
type family struct {
	desc   *prometheus.Desc
	typ    prometheus.ValueType
	bounds []float64 // of a histogram
}

// families are the metrics of wed_sql.
type families struct {
	buildInfo, starts                     family
	up, statisticsUp, failures, lastError family
	lagBytes, lagSeconds, retained        family
	latency, batch                        family
	instances, states, exceptions         family
	finals, cancelled                     family
	fired, done, failed, timedOut, lost   family
	withdrawn                             family
	waiting, running, leased, oldest      family
	wait, run                             family
	timersWaiting, timersDue, timersLate  family
}

func (f *families) all() []family {
	return []family{
		f.buildInfo, f.starts, f.up, f.statisticsUp, f.failures, f.lastError, f.lagBytes, f.lagSeconds, f.retained,
		f.latency, f.batch, f.instances, f.states, f.exceptions, f.finals, f.cancelled, f.fired, f.done, f.failed, f.timedOut,
		f.lost, f.withdrawn, f.waiting, f.running, f.leased, f.oldest, f.wait, f.run,
		f.timersWaiting, f.timersDue, f.timersLate,
	}
}

func newFamilies() (f families, list []Description) {
	add := func(typ, name, help string, labels ...string) family {
		name = "wed_sql_" + name
		list = append(list, Description{Name: name, Type: typ, Help: help, Labels: labels})
		value := prometheus.GaugeValue
		if typ == counter {
			value = prometheus.CounterValue
		}
		return family{desc: prometheus.NewDesc(name, help, labels, nil), typ: value}
	}
	with := func(bounds []float64, f family) family { f.bounds = bounds; return f }

	const d, fl, tr = "database", "flow", "transition"
	// From a blink to a week: workers are programs and people.
	durations := []float64{.01, .05, .25, 1, 5, 30, 300, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}

	f.buildInfo = add(gauge, "build_info", "Version of wed_sql and of Go; always 1.", "version", "goversion")
	f.starts = add(counter, "engine_starts_total", "Engines that were started since the server was, this one included.")
	f.up = add(gauge, "up", "Whether the follower of the database streams.", d)
	f.statisticsUp = add(gauge, "statistics_up", "Whether what is looked up in the database could be looked up: lag, slot, jobs and timers that wait.", d)
	f.failures = add(counter, "follower_failures_total", "Times that the follower had to begin again.", d)
	f.lastError = add(gauge, "follower_last_error_timestamp_seconds", "When the follower failed last.", d)
	f.lagBytes = add(gauge, "follower_lag_bytes", "WAL between what has been matched and what is flushed.", d)
	f.lagSeconds = add(gauge, "follower_lag_seconds", "How long the oldest WAL that was seen at a scrape and has not been matched has been waiting; zero if there is none.", d)
	f.retained = add(gauge, "slot_retained_bytes", "WAL that the replication slot keeps back.", d)
	f.latency = with([]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		add(histogramType, "follower_latency_seconds", "Time from the commit of a WED-state until its jobs were committed.", d))
	f.batch = with([]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000},
		add(histogramType, "follower_batch_states", "WED-states that the follower wrote in one transaction.", d))

	f.instances = add(counter, "instances_started_total", "Instances that were started.", d, fl)
	f.states = add(counter, "states_total", "WED-states that were matched, initial ones included.", d, fl)
	f.exceptions = add(counter, "exceptions_total", "WED-states that were exceptions.", d, fl)
	f.finals = add(counter, "instances_finished_total", "WED-states that were final.", d, fl)
	f.cancelled = add(counter, "instances_cancelled_total", "Instances that were cancelled.", d, fl)

	f.fired = add(counter, "jobs_fired_total", "Jobs that were fired.", d, fl, tr)
	f.done = add(counter, "jobs_done_total", "Jobs that were completed by a new WED-state.", d, fl, tr)
	f.failed = add(counter, "jobs_failed_total", "Attempts that were given up by a worker, or by the engine at an action.", d, fl, tr)
	f.timedOut = add(counter, "jobs_timed_out_total", "Attempts that were ended because their time was up, leases that ran out included.", d, fl, tr)
	f.lost = add(counter, "jobs_lost_total", "Attempts whose connection was lost.", d, fl, tr)
	f.withdrawn = add(counter, "jobs_withdrawn_total", "Jobs and timers that went because their condition no longer held.", d, fl, tr)
	f.waiting = add(gauge, "jobs_waiting", "Jobs that no worker has; of each transition counted up to 100000.", d, fl, tr)
	f.running = add(gauge, "jobs_running", "Jobs whose lock a session holds.", d, fl, tr)
	f.leased = add(gauge, "jobs_leased", "Jobs that are leased.", d, fl, tr)
	f.oldest = add(gauge, "jobs_oldest_timestamp_seconds", "When the oldest job that waits was fired; absent if none waits.", d, fl, tr)
	f.wait = with(durations, add(histogramType, "job_wait_seconds", "Of jobs that are done: time from firing to the beginning of the transaction that did it.", d, fl, tr))
	f.run = with(durations, add(histogramType, "job_run_seconds", "Of jobs that are done: time from the beginning of the transaction that did it to its commit.", d, fl, tr))

	f.timersWaiting = add(gauge, "timers_waiting", "Timers that are set and not due yet; above 100000, an estimate.", d)
	f.timersDue = add(gauge, "timers_due", "Timers that are due and not done yet; counted up to 100000.", d)
	f.timersLate = add(gauge, "timers_late_seconds", "How late the timer is that has been due for longest; zero if none is due.", d)
	return f, list
}
