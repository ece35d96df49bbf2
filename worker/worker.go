package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// DefaultWakeup is how often a worker reads the job pool when Config.Wakeup is 0.
const DefaultWakeup = 5 * time.Second

// DefaultRetryAfter is how long a failed job waits when Config.RetryAfter is 0.
const DefaultRetryAfter = 500 * time.Millisecond

// Config says what a worker does. Flow, Transition and Handler are required.
type Config struct {
	// DSN is a connection string or URL as libpq takes it. What it leaves out
	// comes from the PG* environment variables, the service file and the
	// password file.
	DSN string

	// Flow is the name of the flow, which is the name of its schema.
	Flow string

	// Transition is the name of the transition (trname) to perform. _EXCPT is
	// the one of instances in an exception: its worker leads them back.
	Transition string

	// Handler performs the transition. It is called from several goroutines
	// when Concurrency is more than 1. A panic in it counts as an error.
	Handler Handler

	// Concurrency is how many jobs may run side by side; 0 means 1. Each takes
	// one connection, and one more listens.
	Concurrency int

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
}

// Worker performs one transition of one flow. Use New to make one.
type Worker struct {
	cfg  Config
	log  *slog.Logger
	dial *dialer
	pool *pool

	abort    chan struct{}
	aborting atomic.Bool
	undone   atomic.Int64 // jobs that were rolled back
}

// New returns a worker. It does not connect yet.
func New(cfg Config) (*Worker, error) {
	switch {
	case cfg.Flow == "":
		return nil, errors.New("worker: Config.Flow is empty")
	case cfg.Transition == "":
		return nil, errors.New("worker: Config.Transition is empty")
	case cfg.Handler == nil:
		return nil, errors.New("worker: Config.Handler is nil")
	case cfg.Concurrency < 0:
		return nil, fmt.Errorf("worker: Config.Concurrency is %d", cfg.Concurrency)
	case cfg.Wakeup < 0:
		return nil, fmt.Errorf("worker: Config.Wakeup is %s", cfg.Wakeup)
	case cfg.RetryAfter < 0:
		return nil, fmt.Errorf("worker: Config.RetryAfter is %s", cfg.RetryAfter)
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 1
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
	log := cfg.Logger.With("flow", cfg.Flow, "transition", cfg.Transition)
	dial, err := newDialer(cfg.DSN, "wed_sql worker "+cfg.Flow+"."+cfg.Transition, log)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	return &Worker{
		cfg:   cfg,
		log:   log,
		dial:  dial,
		pool:  newPool(cfg.Flow, cfg.Transition),
		abort: make(chan struct{}),
	}, nil
}

// Run performs the transition until ctx ends, then finishes what is running and
// returns nil. It fails at once when it cannot connect at the beginning, and
// with ErrNoExtension, ErrNoFlow, ErrNoTransition or ErrNotGranted when there is
// nothing to work for. A connection that is lost later is opened again.
//
// A Worker runs once.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.check(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	w.log.Info("worker started", "concurrency", w.cfg.Concurrency, "wakeup", w.cfg.Wakeup)

	// Handlers outlive ctx: they are finished, or ended by Abort.
	jobs, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	q := newQueue(w.cfg)
	defer q.close()

	slots, slotsCtx := errgroup.WithContext(ctx)
	for range w.cfg.Concurrency {
		slots.Go(func() error { return w.slot(slotsCtx, jobs, q) })
	}
	helpersCtx, stop := context.WithCancel(slotsCtx)
	defer stop()
	var helpers errgroup.Group
	if !w.cfg.Once {
		helpers.Go(func() error { return w.listen(helpersCtx, q) })
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
	w.log.Info("worker stopped")
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
	if err := w.pool.check(ctx, conn); err != nil {
		return err
	}
	return w.pool.learn(ctx, conn)
}
