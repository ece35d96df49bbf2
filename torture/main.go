// Command torture has random flows worked on by all kinds of clients while the server is hurt, and judges what becomes of
// them: whether anything was lost, or done twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/torture/drive"
	"github.com/wed-sql/wed_sql/torture/fault"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := app().RunContext(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

// workCommand is what a process of workers is started with.
const workCommand = "work"

func app() *cli.App {
	return &cli.App{
		Name:  "torture",
		Usage: "proves wed_sql's promises under fire",
		Description: `torture starts a private server, draws flows at random, and drives them with all kinds of clients: raw locks, leases,
package worker one by one, in batches and by lease, signals, savepoints, prepared transactions; in processes of their
own, that are killed. Rules and attributes change meanwhile, and faults are injected. Then everything is worked to
its end, and a judge that knows nothing of wed_sql's own code compares the history, the jobs, the statuses and the
notifications with what must have been. It exits with 1 if anything is not as promised.

Whatever is drawn is drawn by --seed; what the operating system decides is not, so a second run of a seed has the same
flows, changes and faults, and other interleavings.`,
		Flags: []cli.Flag{
			&cli.Uint64Flag{Name: "seed", Usage: "of all that is drawn (default: the time)"},
			&cli.DurationFlag{Name: "duration", Value: time.Minute, Usage: "how long it is driven"},
			&cli.Int64Flag{Name: "states", Usage: "drive it until so many states are written, however long that takes"},
			&cli.StringFlag{Name: "faults", Value: "all", Usage: "all, none, or names with commas between them; see --list"},
			&cli.DurationFlag{Name: "pause", Value: 500 * time.Millisecond, Usage: "between two faults"},
			&cli.DurationFlag{Name: "kills", Value: 500 * time.Millisecond, Usage: "between two kills of workers, beside other faults; 0: none"},
			&cli.DurationFlag{Name: "patience", Value: 30 * time.Second, Usage: "the engine must have caught up so soon after the last fault"},
			&cli.IntFlag{Name: "databases", Value: 2, Usage: "number of databases with flows"},
			&cli.IntFlag{Name: "flows", Value: 3, Usage: "number of flows in each"},
			&cli.IntFlag{Name: "most", Value: 150, Usage: "pending jobs of a flow above which no instance is started"},
			&cli.BoolFlag{Name: "changes", Value: true, Usage: "change rules and attributes meanwhile"},
			&cli.StringFlag{Name: "bindir", Usage: "of the PostgreSQL to run, with wed_sql (default: that of postgres in PATH)"},
			&cli.StringFlag{Name: "keep", Usage: "directory for the evidence of violations", Value: "torture-evidence"},
			&cli.BoolFlag{Name: "list", Usage: "list the faults, and do nothing"},
			&cli.BoolFlag{Name: "progress", Value: true, Usage: "tell every ten seconds how it goes"},
		},
		Action: run,
		Commands: []*cli.Command{{
			Name: workCommand, Hidden: true, Action: work,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "dsn"}, &cli.StringFlag{Name: "name"}, &cli.Uint64Flag{Name: "seed"},
				&cli.StringSliceFlag{Name: "flow"}, &cli.StringSliceFlag{Name: "role"}, &cli.IntFlag{Name: "most"},
			},
		}},
	}
}

// work is a process of clients. It ends with the one that has started it.
func work(c *cli.Context) error {
	group, ctx := errgroup.WithContext(c.Context)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() error {
		defer cancel()
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
	// the one that reads ends with the process
	return drive.Run(ctx, drive.Config{DSN: c.String("dsn"), Name: c.String("name"), Seed: c.Uint64("seed"),
		Flows: c.StringSlice("flow"), Roles: c.StringSlice("role"), Most: c.Int("most")}, os.Stderr)
}

func run(c *cli.Context) error {
	if c.Bool("list") {
		for _, f := range fault.All() {
			fmt.Fprintln(c.App.Writer, f.Name)
		}
		return nil
	}
	if c.Args().Present() {
		return fmt.Errorf("there is no command %q: see --help", c.Args().First())
	}
	faults, err := chosen(c.String("faults"))
	if err != nil {
		return err
	}
	seed := c.Uint64("seed")
	if !c.IsSet("seed") {
		seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if c.Int("databases") < 1 || c.Int("flows") < 1 {
		return errors.New("at least one database with one flow is needed")
	}
	keep, err := filepath.Abs(c.String("keep"))
	if err != nil {
		return err
	}
	return campaign(c.Context, plan{
		seed: seed, duration: c.Duration("duration"), states: c.Int64("states"), faults: faults, pause: c.Duration("pause"), kills: c.Duration("kills"), patience: c.Duration("patience"),
		databases: c.Int("databases"), flows: c.Int("flows"), most: c.Int("most"), changes: c.Bool("changes"),
		bindir: c.String("bindir"), keep: keep, self: self, progress: c.Bool("progress"), out: c.App.Writer,
		again: again(c, seed), cores: runtime.NumCPU(),
	})
}

// again is the command that does the same once more.
func again(c *cli.Context, seed uint64) string {
	command := fmt.Sprintf("torture --seed %d", seed)
	for _, name := range []string{"duration", "states", "faults", "pause", "kills", "databases", "flows", "most", "changes"} {
		if c.IsSet(name) {
			command += fmt.Sprintf(" --%s=%v", name, c.Value(name))
		}
	}
	return command
}

// chosen are the faults by name.
func chosen(names string) ([]fault.Fault, error) {
	all := fault.All()
	switch names {
	case "all":
		return all, nil
	case "none", "":
		return nil, nil
	}
	var some []fault.Fault
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, f := range all {
			if f.Name == strings.TrimSpace(name) {
				some, found = append(some, f), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no fault %q: see torture --list", name)
		}
	}
	return some, nil
}
