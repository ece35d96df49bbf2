// Package monitoring has what Prometheus and Grafana need to watch wed_sql. Its tests
// compare that with the metrics that the engine exports.
package monitoring
