package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
)

// DefaultWakeup is how often a worker reads the job pool when Config.Wakeup is 0.
const DefaultWakeup = 5 * time.Second

// DefaultRetryAfter is how long a failed job waits when Config.RetryAfter is 0.
const DefaultRetryAfter = 500 * time.Millisecond

// Config says how a worker connects, when it looks for jobs, and whom it tells
// of them. Its zero value is of use.
type Config struct {
	// DSN is a connection string or URL as libpq takes it. What it leaves out
	// comes from the PG* environment variables, the service file and the
	// password file.
	DSN string

	// Connections limits the connections on which transactions run; 0 means as
	// many as transactions may run side by side. One more listens, for all
	// transitions. For leased jobs see Options.Lease.
	Connections int

	// Wakeup is how often the job pool is read in case a notification was lost.
	// 0 means DefaultWakeup.
	Wakeup time.Duration

	// RetryAfter is how long a job waits after its first failure, give or take;
	// it doubles with each further one, up to a minute. 0 means DefaultRetryAfter.
	RetryAfter time.Duration

	// Once makes Run return when nothing is pending any more. Each job is then
	// tried one time.
	Once bool

	// Logger receives what happens; nil means slog.Default().
	Logger *slog.Logger

	// TracerProvider receives a span for each transaction; nil means the global
	// one of OpenTelemetry, which does nothing unless the program sets it.
	TracerProvider trace.TracerProvider
}

// Worker performs transitions. Use New to make one, Handle to say which, and Run
// to have it work.
type Worker struct {
	cfg     Config
	log     *slog.Logger
	tracer  trace.Tracer
	dial    *dialer
	direct  *conns // on which transactions last as long as handlers
	brief   *conns // for leased jobs: on which none does
	duties  []*duty
	started atomic.Bool

	abort     chan struct{}
	aborting  atomic.Bool
	undone    atomic.Int64 // jobs that were rolled back
	listening atomic.Bool
}

// New returns a worker. It does not connect yet.
func New(cfg Config) (*Worker, error) {
	switch {
	case cfg.Connections < 0:
		return nil, fmt.Errorf("worker: Config.Connections is %d", cfg.Connections)
	case cfg.Wakeup < 0:
		return nil, fmt.Errorf("worker: Config.Wakeup is %s", cfg.Wakeup)
	case cfg.RetryAfter < 0:
		return nil, fmt.Errorf("worker: Config.RetryAfter is %s", cfg.RetryAfter)
	}
	if cfg.Wakeup == 0 {
		cfg.Wakeup = DefaultWakeup
	}
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = DefaultRetryAfter
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	dial, err := newDialer(cfg.DSN, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	connect := dial.connect
	if cfg.Once {
		connect = dial.once // who works the pool off once does not wait for a server that is away
	}
	return &Worker{
		cfg:    cfg,
		log:    cfg.Logger,
		tracer: cfg.TracerProvider.Tracer(tracerName),
		dial:   dial,
		direct: newConns(connect, cfg.Connections),
		brief:  newConns(connect, briefConns),
		abort:  make(chan struct{}),
	}, nil
}

// Handle has h perform a transition of a flow. The transition _EXCPT is the one
// of instances in an exception: its worker leads them back. It must be called
// before Run, and once for each transition.
func (w *Worker) Handle(flow, transition string, h Handler, o Options) error {
	if h == nil {
		return errors.New("worker: the Handler is nil")
	}
	return w.add(&duty{flow: flow, transition: transition, options: o, handler: h})
}

// HandleBatch has h perform a transition of a flow, up to Options.Batch jobs in
// one call. Otherwise it is like Handle.
func (w *Worker) HandleBatch(flow, transition string, h BatchHandler, o Options) error {
	if h == nil {
		return errors.New("worker: the BatchHandler is nil")
	}
	return w.add(&duty{flow: flow, transition: transition, options: o, together: h})
}

func (w *Worker) add(d *duty) error {
	switch {
	case w.started.Load():
		return errors.New("worker: Handle is called before Run")
	case d.flow == "":
		return errors.New("worker: the name of the flow is empty")
	case d.transition == "":
		return errors.New("worker: the name of the transition is empty")
	}
	for _, other := range w.duties {
		if other.flow == d.flow && other.transition == d.transition {
			return fmt.Errorf("worker: transition %q of flow %q has a handler already", d.transition, d.flow)
		}
	}
	var err error
	if d.options, err = d.options.complete(d.together != nil); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	d.attach(w)
	w.duties = append(w.duties, d)
	return nil
}

// Run performs the transitions until ctx ends, then finishes what is running and
// returns nil. It fails at once when it cannot connect at the beginning, and
// with ErrNoExtension, ErrNoFlow, ErrNoTransition or ErrNotGranted when there is
// nothing to work for. A connection that is lost later is opened again.
//
// A Worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.duties) == 0 {
		return errors.New("worker: no transition has a handler")
	}
	if !w.started.CompareAndSwap(false, true) {
		return errors.New("worker: Run was called before")
	}
	w.dial.name(applicationName(w.duties))
	if err := w.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	w.log.Info("worker started", "transitions", len(w.duties), "wakeup", w.cfg.Wakeup)
	defer w.log.Info("worker stopped")
	defer w.direct.close()
	defer w.brief.close()

	// Handlers outlive ctx: they are finished, or ended by Abort.
	jobs, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	slots, slotsCtx := errgroup.WithContext(ctx)
	for _, d := range w.duties {
		d.queue.open()
		defer d.queue.close()
		for range d.options.Concurrency {
			slots.Go(func() error { return d.slot(slotsCtx, jobs) })
		}
	}
	helpersCtx, stop := context.WithCancel(slotsCtx)
	defer stop()
	var helpers errgroup.Group
	if !w.cfg.Once {
		helpers.Go(func() error { return w.listen(helpersCtx) })
	}
	helpers.Go(func() error {
		select {
		case <-w.abort:
			cancel(errAborted)
		case <-jobs.Done():
		}
		return nil
	})

	err := slots.Wait()
	stop()
	cancel(nil)
	if e := helpers.Wait(); err == nil {
		err = e
	}
	if n := w.undone.Load(); err == nil && w.cfg.Once && n > 0 {
		err = fmt.Errorf("%w: %d", ErrFailed, n)
	}
	return err
}

// Abort ends the contexts of the handlers that are running, so that their
// transactions are rolled back and their jobs are pending again. Together with
// the end of Run's context it makes Run return soon.
func (w *Worker) Abort() {
	if w.aborting.CompareAndSwap(false, true) {
		close(w.abort)
	}
}

// check finds out, before anything starts, whether there is something to work for.
func (w *Worker) check(ctx context.Context) error {
	conn, err := w.dial.once(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	for _, d := range w.duties {
		if err := d.pool.check(ctx, conn); err != nil {
			return err
		}
	}
	return nil
}

// applicationName is what the worker's sessions are called in the server.
func applicationName(duties []*duty) string {
	name := "wed_sql worker " + duties[0].flow
	if len(duties) == 1 {
		return name + "." + duties[0].transition
	}
	for _, d := range duties {
		if d.flow != duties[0].flow {
			return "wed_sql worker"
		}
	}
	return name
}
