package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	retryPause = 5 * time.Second // before another try to serve
	maxScrapes = 2               // at once: each takes memory
	loopback   = "127.0.0.1"
)

// Settings say where metrics are served.
type Settings struct {
	Address    string // host:port; without a host, loopback; "": nowhere
	ConfigFile string // of exporter-toolkit, for TLS and passwords; "": neither
}

// Endpoint serves metrics over HTTP.
type Endpoint struct {
	handler  http.Handler
	log      *slog.Logger
	settings chan Settings
	retry    time.Duration
}

// NewEndpoint returns an endpoint that serves what is in the registry.
func NewEndpoint(registry *prometheus.Registry, log *slog.Logger) *Endpoint {
	return &Endpoint{handler: handler(registry, log), log: log, settings: make(chan Settings, 1), retry: retryPause}
}

// Set has the endpoint serve as the settings say. Calls must not overlap.
func (e *Endpoint) Set(s Settings) {
	select {
	case <-e.settings: // nobody has seen those yet
	default:
	}
	e.settings <- s
}

// Run serves until the context ends. A port that cannot be had now is tried again.
func (e *Endpoint) Run(ctx context.Context) error {
	var now Settings
	lastErr, told := "", false
	for {
		next, err := e.serve(ctx, now, told)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			told = next == now // that it serves
			now, lastErr = next, ""
			continue
		}
		told = false
		if text := err.Error(); text != lastErr {
			lastErr = text
			e.log.Warn("metrics are not served, will try again", "address", now.Address, "err", err,
				"hint", "See wed_sql.metrics_address and wed_sql.metrics_config_file.")
		}
		select {
		case now = <-e.settings:
			lastErr = ""
		case <-time.After(e.retry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serve serves until there are other settings, which it returns, or something fails.
func (e *Endpoint) serve(ctx context.Context, s Settings, told bool) (Settings, error) {
	if s.Address == "" {
		select {
		case s = <-e.settings:
			return s, nil
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
	address, err := listenAddress(s.Address)
	if err != nil {
		return s, err
	}
	if s.ConfigFile != "" {
		if err := web.Validate(s.ConfigFile); err != nil {
			return s, fmt.Errorf("read %s: %w", s.ConfigFile, err)
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return s, err
	}
	server := &http.Server{
		Handler:           e.handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Whatever strangers do wrong is not worth a line in the server's log.
		ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	systemd := false
	flags := &web.FlagConfig{WebConfigFile: &s.ConfigFile, WebSystemdSocket: &systemd, WebListenAddresses: &[]string{address}}
	if !told {
		e.log.Info("metrics are served", "address", listener.Addr().String())
	}

	serving, _ := group.New(ctx)
	ended := make(chan error, 1)
	serving.Go("metrics", func(context.Context) error {
		ended <- group.Call("metrics", func() error {
			return web.Serve(listener, server, flags, slog.New(slog.DiscardHandler))
		})
		return nil
	})
	defer func() {
		_ = server.Close()
		_ = listener.Close()
		_ = serving.Wait()
	}()
	for {
		select {
		case next := <-e.settings:
			if next == s {
				if s.ConfigFile == "" {
					continue
				}
				// A mistake in the file must not end what works.
				if err := web.Validate(s.ConfigFile); err != nil {
					e.log.Warn("metrics are served as before", "file", s.ConfigFile, "err", err)
					continue
				}
			}
			return next, nil
		case err := <-ended:
			if errors.Is(err, http.ErrServerClosed) || err == nil {
				err = errors.New("the server has stopped")
			}
			return s, err
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// listenAddress returns where to listen: an address without a host is one of this machine's
// own that nobody else reaches.
func listenAddress(address string) (string, error) {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if port == "" {
		return "", fmt.Errorf("address %s: missing port", address)
	}
	if host == "" {
		host = loopback
	}
	return net.JoinHostPort(host, port), nil
}

func handler(registry *prometheus.Registry, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	scrape := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // a part is better than nothing
		MaxRequestsInFlight: maxScrapes,
	})
	mux.Handle("GET /metrics", safe(scrape, log))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "The engine runs.") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintln(w, `<!doctype html><title>wed_sql</title><h1>wed_sql engine</h1><p><a href="/metrics">Metrics</a></p>`)
	})
	return mux
}

// safe keeps a panic from ending in the log of a library, where nobody would see it.
func safe(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := group.Call("scrape", func() error { h.ServeHTTP(w, r); return nil }); err != nil {
			log.Warn("a scrape failed", "err", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
	})
}
