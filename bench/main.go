// Command bench measures wed_sql beside what people use now, on the server that PGHOST
// and its like name, which it should have for itself: it makes and drops databases
// whose names begin with wed_bench_. See docs/benchmarks.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/node"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/river"
	"github.com/wed-sql/wed_sql/bench/internal/server"
	"github.com/wed-sql/wed_sql/bench/internal/wedsql"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	only, systems string
	rounds        int
	small, full   bool
	out           string
	node          string
	accepted      string
}

const usage = `bench [flags]           measures, prints tables, writes results.json, tables.md and pictures
bench [flags] compare   measures little, and fails when a ratio is worse than accepted
bench [flags] accept    measures little, and accepts the ratios as they are
bench [flags] show      measures nothing: tables and pictures of the results.json that is there

`

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.only, "only", "w1,w2,w3,w4,writers,growth,engine", "what to measure")
	flags.StringVar(&o.systems, "systems", "", "only those systems whose names contain one of these, separated by commas")
	flags.IntVar(&o.rounds, "rounds", 3, "how often, in turns")
	flags.BoolVar(&o.small, "small", false, "do little, to see whether it works")
	flags.BoolVar(&o.full, "full", false, "the largest points of the curves, too: hours")
	flags.StringVar(&o.out, "out", "results", "directory for what is written")
	flags.StringVar(&o.node, "node", "node", "directory with bench.js and its packages; without it, no system in JavaScript")
	flags.StringVar(&o.accepted, "accepted", "accepted.json", "file with the accepted ratios")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	switch command := flags.Arg(0); {
	case flags.NArg() > 1:
		return fmt.Errorf("too many arguments: %s", strings.Join(flags.Args(), " "))
	case command == "":
		return measureAndShow(ctx, o)
	case command == "show":
		r, err := report.Load(filepath.Join(o.out, "results.json"))
		if err != nil {
			return err
		}
		return show(r, o)
	case command == "compare":
		return compare(ctx, o)
	case command == "accept":
		return accept(ctx, o)
	default:
		return fmt.Errorf("no command %q; they are compare, accept, show", command)
	}
}

func measureAndShow(ctx context.Context, o options) error {
	r, err := measure(ctx, o)
	if r == nil {
		return err
	}
	return errors.Join(err, show(r, o))
}

// show prints the tables, and writes tables and pictures.
func show(r *report.Report, o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	r.WriteTables(&text)
	fmt.Print("\n", text.String())
	if err := os.WriteFile(filepath.Join(o.out, "tables.md"), []byte(text.String()), 0o644); err != nil {
		return err
	}
	return r.Draw(o.out)
}

// tolerance of comparisons: on a shared machine ratios vary by this much from run to run.
const tolerance = 0.3

// inShort is what compare and accept measure.
func inShort(o options) options {
	o.small = true
	o.only = "w1,w2,w3,w4,writers"
	return o
}

func compare(ctx context.Context, o options) error {
	accepted, err := report.LoadAccepted(o.accepted)
	if err != nil {
		return err
	}
	r, err := measure(ctx, inShort(o))
	if err != nil {
		return err
	}
	return accepted.Compare(os.Stdout, r)
}

func accept(ctx context.Context, o options) error {
	r, err := measure(ctx, inShort(o))
	if err != nil {
		return err
	}
	return report.Accept(r, tolerance).Save(filepath.Join(o.out, "accepted.json"))
}

func systems(o options) (all []contest.System, err error) {
	for _, s := range wedsql.Systems() {
		all = append(all, s)
	}
	for _, s := range river.Systems() {
		all = append(all, s)
	}
	if _, err := os.Stat(filepath.Join(o.node, "node_modules")); err == nil {
		for _, s := range node.Systems(o.node) {
			all = append(all, s)
		}
	} else {
		fmt.Printf("without graphile-worker and pg-boss: their packages are not in %s\n", o.node)
	}
	return only(all, o.systems)
}

func only(all []contest.System, names string) (some []contest.System, err error) {
	for _, s := range all {
		for name := range strings.SplitSeq(names, ",") {
			if strings.Contains(s.Name(), name) {
				some = append(some, s)
				break
			}
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("no system is called %s", names)
	}
	return some, nil
}

func connect(ctx context.Context) (*server.Server, error) {
	s, err := server.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (scripts/bench starts one)", err)
	}
	return s, nil
}
