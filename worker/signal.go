package worker

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// RunUntilSignal runs w until ctx ends or a signal comes: then what is running
// is finished, and nothing new is taken. A second signal aborts what is running.
// Without signals they are SIGINT and SIGTERM.
func RunUntilSignal(ctx context.Context, w *Worker, signals ...os.Signal) error {
	if len(signals) == 0 {
		signals = []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	came := make(chan os.Signal, 2)
	signal.Notify(came, signals...)
	defer signal.Stop(came)

	ctx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		for n := 0; ; n++ {
			select {
			case s := <-came:
				if n == 0 {
					w.log.Info("told to stop, will finish what runs", "signal", s.String())
				} else {
					w.log.Warn("told to stop again, ends what runs", "signal", s.String())
					w.Abort()
				}
			case <-ended:
				return nil
			}
			drain()
		}
	})
	err := w.Run(ctx)
	close(ended)
	return errors.Join(err, group.Wait())
}
