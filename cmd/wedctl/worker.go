package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/worker"
)

func workerCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "worker",
		Usage: "perform transitions",
		Description: `A worker takes the jobs of a transition as they become due.

Example: wedctl worker run -f travel -t book_hotel -- ./book_hotel.sh`,
		Subcommands: []*cli.Command{workerRunCommand(con)},
	}
}

func workerRunCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "let a command perform a transition",
		ArgsUsage: "-- COMMAND [ARGUMENT...]",
		Description: `COMMAND gets a job as a line of JSON on its standard input, and as WED_FLOW,
WED_WID, WED_TGID, WED_TRANSITION; prints the attributes to set, a JSON object;
exits with 0. If it prints nothing, fails or takes too long, the job is tried
again. The first SIGINT or SIGTERM lets commands finish, the second ends them.

Example: wedctl worker run -f travel -t book_hotel -c 4 -- ./book_hotel.sh`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.StringFlag{Name: "transition", Aliases: []string{"t"}, Usage: "`NAME` of the transition"},
			&cli.IntFlag{Name: "concurrency", Aliases: []string{"c"}, Value: 1, Usage: "run up to `N` commands side by side"},
			&cli.DurationFlag{Name: "lease", Usage: "lease jobs for `TIME`, for long work", DefaultText: "no"},
			&cli.DurationFlag{Name: "wakeup", Value: worker.DefaultWakeup, Usage: "look for jobs at least so often"},
			&cli.DurationFlag{Name: "retry-after", Value: worker.DefaultRetryAfter, Usage: "first pause after a failure"},
			&cli.BoolFlag{Name: "once", DisableDefaultText: true, Usage: "do what is pending, then exit"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, DisableDefaultText: true, Usage: "log only what goes wrong"},
			&cli.BoolFlag{
				Name: "stop-on-eof", DisableDefaultText: true,
				Usage: "stop when standard input ends",
			},
			dsnFlag(),
		},
		Action: func(c *cli.Context) error { return runWorker(c, con) },
	}
}

func runWorker(c *cli.Context, con *console) error {
	if err := requireFlags(c, "flow", "transition"); err != nil {
		return err
	}
	switch {
	case !c.Args().Present():
		return usagef("%s needs a command that performs the transition, behind --", c.Command.HelpName)
	case c.Int("concurrency") < 1:
		return usagef("--concurrency is at least 1")
	case c.Duration("lease") != 0 && c.Duration("lease") < time.Second:
		return usagef("--lease is at least 1s")
	case c.Duration("wakeup") < time.Millisecond:
		return usagef("--wakeup is at least 1ms")
	case c.Duration("retry-after") < time.Millisecond:
		return usagef("--retry-after is at least 1ms")
	}
	level := slog.LevelDebug
	if c.Bool("quiet") {
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(con.err, &slog.HandlerOptions{Level: level}))
	cmd, err := newCommand(c.Args().Slice(), log)
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Config{
		DSN:        dsn(c),
		Wakeup:     c.Duration("wakeup"),
		RetryAfter: c.Duration("retry-after"),
		Once:       c.Bool("once"),
		Logger:     log,
	})
	if err != nil {
		return err
	}
	err = w.Handle(c.String("flow"), c.String("transition"), cmd.perform, worker.Options{
		Concurrency: c.Int("concurrency"),
		Lease:       c.Duration("lease"),
	})
	if err != nil {
		return err
	}
	var eof io.Reader
	if c.Bool("stop-on-eof") {
		eof = con.in
	}
	return needs(runUntilTold(c.Context, w, eof), rightsOfWorker)
}

// runUntilTold runs the worker until a signal comes or eof, if there is one,
// ends. A second signal aborts what is running.
func runUntilTold(ctx context.Context, w *worker.Worker, eof io.Reader) error {
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	var readers errgroup.Group // not waited for: nothing ends a read, and the process ends soon
	if eof != nil {
		readers.Go(func() error {
			defer drain()
			_, err := io.Copy(io.Discard, eof)
			return err
		})
	}
	return worker.RunUntilSignal(ctx, w, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}
