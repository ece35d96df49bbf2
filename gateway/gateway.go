package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wed-sql/wed_sql/internal/group"
)

// What a Config that leaves it out means.
const (
	DefaultConnections = 8
	DefaultMaxWorkers  = 10000
	DefaultMaxWait     = 5 * time.Minute
	DefaultMaxLease    = 24 * time.Hour
	DefaultMaxBody     = 4 << 20
	DefaultWakeup      = 5 * time.Second
	DefaultDrain       = 30 * time.Second
)

// Config says what a gateway does. What is zero has its default.
type Config struct {
	// DSN is a connection string or URL as libpq takes it. What it leaves out
	// comes from the PG* environment variables, the service file and the
	// password file.
	DSN string

	// Tokens says who may do what. nil means that anybody may do everything that
	// the gateway's role may.
	Tokens *Tokens

	Connections int           // that work; one more listens
	MaxWorkers  int           // that wait for jobs, by long polls and streams
	MaxWait     time.Duration // longest long poll
	MaxLease    time.Duration // longest lease
	MaxBody     int64         // bytes of a request
	Wakeup      time.Duration // how often job pools are read in case a notification was lost
	Drain       time.Duration // how long what runs may take when the gateway ends

	// Logger receives what happens; nil means slog.Default().
	Logger *slog.Logger
}

func (c *Config) check() error {
	for name, v := range map[string]int64{
		"Connections": int64(c.Connections), "MaxWorkers": int64(c.MaxWorkers), "MaxWait": int64(c.MaxWait),
		"MaxLease": int64(c.MaxLease), "MaxBody": c.MaxBody, "Wakeup": int64(c.Wakeup), "Drain": int64(c.Drain),
	} {
		if v < 0 {
			return fmt.Errorf("the Config has a negative %s", name)
		}
	}
	orDefault(&c.Connections, DefaultConnections)
	orDefault(&c.MaxWorkers, DefaultMaxWorkers)
	orDefault(&c.MaxWait, DefaultMaxWait)
	orDefault(&c.MaxLease, DefaultMaxLease)
	orDefault(&c.MaxBody, DefaultMaxBody)
	orDefault(&c.Wakeup, DefaultWakeup)
	orDefault(&c.Drain, DefaultDrain)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Gateway leases jobs to workers. Use New to make one.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	store    store
	listener *listener
	dispatch *dispatcher
	streams  *streams
	metrics  *metrics
	handler  http.Handler

	workers  workers
	requests requests
	abort    context.CancelFunc
	aborted  context.Context
	running  atomic.Bool
	alone    bool // behind a server of its own, and no other
}

// New returns a gateway. It does not connect yet.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	db, err := newDatabase(cfg)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g := newGateway(cfg, db)
	g.listener = newListener(db.pool.Config().ConnConfig, cfg.Wakeup, g.log, g.dispatch)
	g.dispatch.channels = g.listener
	g.metrics.watch(g, db.pool)
	return g, nil
}

// newGateway returns a gateway without a listener.
func newGateway(cfg Config, s store) *Gateway {
	g := &Gateway{cfg: cfg, log: cfg.Logger, store: s, metrics: newMetrics(), streams: newStreams()}
	g.aborted, g.abort = context.WithCancel(context.Background())
	g.dispatch = newDispatcher(s, g.metrics, g.log, cfg.Wakeup)
	g.handler = g.routes()
	return g
}

// Registry has the gateway's metrics, which it also serves itself.
func (g *Gateway) Registry() *prometheus.Registry { return g.metrics.registry }

// ServeHTTP serves the API. Run must be running.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.handler.ServeHTTP(w, r) }

// Run serves the requests that come by way of ServeHTTP with jobs, until ctx ends.
// Then workers that wait are sent away, what they have asked for is finished, and
// what was leased for them but not delivered is released. It fails at once if it
// cannot connect at the beginning; a connection that is lost later is opened again.
//
// A Gateway runs once.
func (g *Gateway) Run(ctx context.Context) error {
	if !g.running.CompareAndSwap(false, true) {
		return errors.New("gateway: it has run already")
	}
	defer g.store.close()
	if err := g.store.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	work, stop := context.WithCancel(g.aborted)
	defer stop()
	parts, work := group.New(work)
	g.dispatch.begin(parts)
	parts.Go("listener", g.listener.run)
	g.log.Info("gateway started", "connections", g.cfg.Connections+1, "max_workers", g.cfg.MaxWorkers)
	select {
	case <-ctx.Done():
		g.drain()
	case <-work.Done():
		g.dispatch.drain()
	}
	stop()
	err := parts.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	g.log.Info("gateway stopped")
	return err
}

// Abort has a gateway that is ending not wait for anything.
func (g *Gateway) Abort() { g.abort() }

// drain sends the workers away and waits for their requests to be done.
func (g *Gateway) drain() {
	g.log.Info("gateway is ending", "workers", g.dispatch.count(), "requests", g.requests.count())
	g.dispatch.drain()
	ctx, cancel := context.WithTimeout(g.aborted, g.cfg.Drain)
	defer cancel()
	if err := g.requests.wait(ctx); err != nil {
		g.log.Warn("some requests are not done", "requests", g.requests.count())
	}
	g.dispatch.settle(ctx)
}
