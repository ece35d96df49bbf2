package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	oldrand "math/rand"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/torture/cluster"
	"github.com/wed-sql/wed_sql/torture/fault"
)

// plan says what is to be done.
type plan struct {
	seed      uint64
	duration  time.Duration
	states    int64
	faults    []fault.Fault
	pause     time.Duration
	kills     time.Duration // between two
	patience  time.Duration // the engine has caught up so soon after the last fault
	databases int
	flows     int
	most      int
	changes   bool
	bindir    string
	keep      string
	self      string
	progress  bool
	out       io.Writer
	again     string
	cores     int
}

// limits of a run
const (
	maxStates = 40              // of an instance, without an intervention
	drained   = 5 * time.Minute // and all is worked to its end
)

// world is a run: what faults are injected into.
type world struct {
	plan
	cluster   *cluster.Cluster
	databases []*database
	fleet     *fleet
	rand      *oldrand.Rand
	report    *report
	loses     atomic.Bool // a fault was injected that may leave gaps in histories
	forgets   atomic.Bool // one that loses commits of which no client was told
	clock     atomic.Bool // one that has moved the server's clock
	hurt      atomic.Bool // any was
	outages   outages
	faulting  sync.Mutex // held while one is
}

func (w *world) Cluster() *cluster.Cluster { return w.cluster }
func (w *world) Processes() []*os.Process  { return w.fleet.Processes() }
func (w *world) Rand() *oldrand.Rand       { return w.rand }
func (w *world) Databases() (names []string) {
	for _, d := range w.databases {
		names = append(names, d.name)
	}
	return names
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// campaign does it all.
func campaign(ctx context.Context, p plan) (err error) {
	dir, err := os.MkdirTemp("", "torture")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w := &world{plan: p, rand: oldrand.New(oldrand.NewSource(int64(p.seed))), report: newReport(p), fleet: newFleet(p, dir)}
	fmt.Fprintf(p.out, "torture: seed %d\n", p.seed)
	home := filepath.Join(dir, "c")
	equipment, err := fault.Equip(ctx, home, p.bindir)
	if err != nil {
		return err
	}
	w.cluster, err = cluster.Start(ctx, cluster.Config{Dir: home, Bindir: p.bindir, Env: equipment.Env, Settings: append(equipment.Settings,
		"max_connections = 150", "max_prepared_transactions = 50", "max_wal_senders = 30", "max_replication_slots = 30",
		"timezone = 'UTC'", "log_checkpoints = off", "deadlock_timeout = '200ms'")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.cluster.Close()) }()
	if err := w.run(ctx); err != nil {
		w.keepEvidence(dir)
		return err
	}
	w.report.print(w)
	if n := len(w.report.violations); n > 0 {
		w.keepEvidence(dir)
		return fmt.Errorf("%d violations; evidence is in %s; again: %s", n, p.keep, p.again)
	}
	return nil
}

func (w *world) run(ctx context.Context) error {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	b := newBystander(w)
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := w.drive(ctx, b); err != nil {
		return err
	}
	w.report.phase("judging")
	if err := b.check(ctx); err != nil {
		return err
	}
	for _, d := range w.databases {
		if err := d.judge(ctx); err != nil {
			return err
		}
	}
	return w.restartChangesNothing(ctx)
}

// prepare makes the databases and their flows.
func (w *world) prepare(ctx context.Context) error {
	for i := range w.plan.databases {
		d := newDatabase(w, fmt.Sprintf("t%d", i), rand.New(rand.NewPCG(w.seed, uint64(i))))
		w.databases = append(w.databases, d)
		if err := d.prepare(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) createDatabase(ctx context.Context, name string) error {
	conn, err := w.cluster.Connect(ctx, "postgres")
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "create database "+name)
	return errors.Join(err, conn.Close(ctx))
}

// crews are the roles of the processes of a database.
var crews = [][]string{
	{"raw", "raw", "start", "worker"},
	{"claim", "lease", "worker batch", "signal"},
	{"raw", "lease", "worker lease", "mistake"},
	{"raw", "claim", "start", "worker HandleBatch"},
}

// drive has everybody work until the time is over, and then to the end of all instances.
func (w *world) drive(ctx context.Context, b *bystander) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	group, working := errgroup.WithContext(working)
	var ready sync.WaitGroup
	for _, d := range w.databases {
		ready.Add(1)
		group.Go(func() error { return d.listener.run(working, sync.OnceFunc(ready.Done)) })
	}
	ready.Wait()
	var members []member
	for _, d := range w.databases {
		for i, roles := range crews {
			members = append(members, member{fmt.Sprintf("%s.%d", d.name, i), d.dsn(), d.flows, roles})
		}
	}
	group.Go(func() error { return w.fleet.keep(working, members) })
	group.Go(func() error { return b.run(working) })
	for _, d := range w.databases {
		group.Go(func() error { return d.cleanUp(working) })
	}

	hurting, enough := context.WithCancel(working)
	defer enough()
	torture, hurting := errgroup.WithContext(hurting)
	torture.Go(func() error { return w.inject(hurting) })
	torture.Go(func() error { return w.killWorkers(hurting) })
	for _, d := range w.databases {
		if w.changes {
			torture.Go(func() error { return d.change(hurting) })
		}
		torture.Go(func() error { return d.sample(hurting) })
	}
	torture.Go(func() error {
		defer enough()
		w.wait(hurting)
		return nil
	})
	if err := torture.Wait(); err != nil {
		return err
	}
	if working.Err() == nil {
		if err := w.workOff(working); err != nil {
			return err
		}
		for _, d := range w.databases {
			if err := d.lastWord(working); err != nil {
				return err
			}
		}
	}
	stop()
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// wait returns when there was enough of it.
func (w *world) wait(ctx context.Context) {
	start := time.Now()
	for n := 1; pause(ctx, time.Second); n++ {
		if w.states == 0 && time.Since(start) >= w.duration {
			return
		}
		var states int64
		for _, d := range w.databases {
			states += d.count(ctx)
		}
		if w.progress && n%10 == 0 {
			fmt.Fprintf(w.out, "%4.0f s: %d states, %s\n", time.Since(start).Seconds(), states, w.report.progress())
		}
		if w.states > 0 && states >= w.states {
			return
		}
	}
}

// inject injects one fault after the other.
func (w *world) inject(ctx context.Context) error {
	weights := 0
	for _, f := range w.faults {
		weights += f.Weight
	}
	for weights > 0 && pause(ctx, w.pause) {
		n := w.rand.Intn(weights)
		i := slices.IndexFunc(w.faults, func(f fault.Fault) bool { n -= f.Weight; return n < 0 })
		f := w.faults[i]
		w.hurt.Store(true)
		if f.Loses {
			w.loses.Store(true)
		}
		if f.Forgets {
			w.forgets.Store(true)
		}
		if f.Clock {
			w.clock.Store(true)
		}
		over := func() {}
		if f.Down {
			over = w.outages.begin()
		}
		// One that has begun is healed, also when the time is over.
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		w.faulting.Lock()
		err := f.Inject(within, w)
		w.faulting.Unlock()
		cancel()
		over()
		w.report.fault(f.Name, err)
	}
	return nil
}

// killWorkers kills workers beside whatever else happens.
func (w *world) killWorkers(ctx context.Context) error {
	if w.kills <= 0 || len(w.faults) == 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(w.seed, 1<<32))
	for pause(ctx, w.kills) {
		p := w.Processes()
		if len(p) == 0 {
			continue
		}
		w.hurt.Store(true)
		if p[r.IntN(len(p))].Kill() == nil {
			w.report.fault("worker killed, beside other faults", nil)
		}
	}
	return nil
}

// workOff has all instances end: nothing is started, and workers look for final states.
func (w *world) workOff(ctx context.Context) error {
	w.report.phase("no more faults; the engine catches up")
	for _, d := range w.databases {
		if err := d.catchUp(ctx); err != nil {
			return err
		}
		if err := d.setMood(ctx, true); err != nil {
			return err
		}
	}
	w.report.phase("working to the end of all instances")
	for _, d := range w.databases {
		if err := d.workOff(ctx); err != nil {
			return err
		}
	}
	return nil
}

// restartChangesNothing restarts the server and compares what is there with what was.
func (w *world) restartChangesNothing(ctx context.Context) error {
	var before []string
	for _, d := range w.databases {
		digest, err := d.digest(ctx)
		if err != nil {
			return err
		}
		before = append(before, digest)
	}
	if err := w.cluster.Restart(ctx, cluster.Fast); err != nil {
		return err
	}
	for i, d := range w.databases {
		if err := d.sync(ctx); err != nil {
			return err
		}
		digest, err := d.digest(ctx)
		if err != nil {
			return err
		}
		if digest != before[i] {
			w.report.violation("%s: a restart has changed what was there", d.name)
		}
	}
	return nil
}

// keepEvidence saves what tells of a violation.
func (w *world) keepEvidence(dir string) {
	if err := os.MkdirAll(w.keep, 0o755); err != nil {
		fmt.Fprintln(w.out, "torture: the evidence is not kept:", err)
		return
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, from := range append(logs, w.cluster.LogFile()) {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(w.keep, "log-"+filepath.Base(from)), data, 0o644)
		}
		if err != nil {
			fmt.Fprintln(w.out, "torture: the evidence is not kept:", err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.keep, "violations.txt"), []byte(w.report.evidence(w)), 0o644); err != nil {
		fmt.Fprintln(w.out, "torture: the evidence is not kept:", err)
	}
}
