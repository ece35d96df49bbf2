package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// fleet is a number of processes of workers. One that ends is started again.
type fleet struct {
	plan    plan
	log     string // directory
	mu      sync.Mutex
	running map[string]*os.Process
	started int
	killed  int
}

// member is one of them.
type member struct {
	name  string
	dsn   string
	flows []string
	roles []string
}

func newFleet(p plan, log string) *fleet {
	return &fleet{plan: p, log: log, running: map[string]*os.Process{}}
}

// Processes are those that run.
func (f *fleet) Processes() []*os.Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	var running []*os.Process
	for _, p := range f.running {
		running = append(running, p)
	}
	return running
}

// keep has the members run until ctx ends.
func (f *fleet) keep(ctx context.Context, members []member) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range members {
		group.Go(func() error {
			for n := 0; ctx.Err() == nil; n++ {
				if err := f.once(ctx, m, n, f.plan.seed+uint64(1000*i+n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// once runs a member until it ends, which it should not by itself.
func (f *fleet) once(ctx context.Context, m member, nth int, seed uint64) error {
	args := []string{workCommand, "--dsn", m.dsn, "--name", fmt.Sprintf("%s.%d", m.name, nth), "--seed", fmt.Sprint(seed), "--most", fmt.Sprint(f.plan.most)}
	for _, name := range m.flows {
		args = append(args, "--flow", name)
	}
	for _, role := range m.roles {
		args = append(args, "--role", role)
	}
	cmd := exec.Command(f.plan.self, args...)
	stderr, err := os.OpenFile(filepath.Join(f.log, m.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	alive, err := cmd.StdinPipe() // whose end it takes for ours
	if err != nil {
		return err
	}
	defer alive.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it is not to get the terminal's signals
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a worker: %w", err)
	}
	f.mu.Lock()
	f.running[m.name] = cmd.Process
	f.started++
	f.mu.Unlock()
	ended := make(chan struct{})
	stopping := context.AfterFunc(ctx, func() { f.end(cmd.Process, ended) })
	err = cmd.Wait()
	close(ended)
	stopping()
	f.mu.Lock()
	delete(f.running, m.name)
	if err != nil && ctx.Err() == nil {
		f.killed++
	}
	f.mu.Unlock()
	if err != nil && cmd.ProcessState.Exited() && ctx.Err() == nil {
		return fmt.Errorf("worker %s: %w: see %s", m.name, err, stderr.Name())
	}
	return nil
}

// end has a process end, however it feels.
func (f *fleet) end(p *os.Process, ended <-chan struct{}) {
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGTERM)
	t := time.NewTimer(10 * time.Second)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		_ = p.Kill()
	}
}
