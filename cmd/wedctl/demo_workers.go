package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/examples/travel"
)

const (
	drainTime = 3 * time.Second // for running commands to finish
	abortTime = 3 * time.Second // for a worker to end its commands
)

// workers are the processes that perform the demo's transitions: wedctl itself,
// once per transition.
type workers struct {
	dir      string
	children []*child
	waiting  errgroup.Group
	stopping atomic.Bool
	failed   chan error // holds the first worker's end that was not asked for
	ended    chan struct{}
}

type child struct {
	transition string
	cmd        *exec.Cmd
	stdin      io.Closer // its end tells the worker to stop, also when the demo is killed
	log        string
}

func startWorkers(dir, dsn string, pace time.Duration) (*workers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program of the workers: %w", err)
	}
	w := &workers{dir: dir, failed: make(chan error, 1), ended: make(chan struct{})}
	for _, t := range travel.Transitions() {
		if err := w.start(self, dsn, pace, t); err != nil {
			return w, fmt.Errorf("start the worker of %s: %w", t.Name, err)
		}
	}
	return w, nil
}

func (w *workers) start(self, dsn string, pace time.Duration, t travel.Transition) error {
	c := &child{transition: t.Name, log: filepath.Join(w.dir, t.Script+".log")}
	log, err := os.Create(c.log)
	if err != nil {
		return err
	}
	defer log.Close()
	c.cmd = exec.Command(self, "worker", "run", "--stop-on-eof", "--flow", demoFlow, "--transition", t.Name,
		"--concurrency", "2", "--", "sh", filepath.Join(w.dir, t.Script))
	c.cmd.Env = append(os.Environ(), "TRAVEL_PACE="+strconv.FormatFloat(pace.Seconds(), 'f', -1, 64))
	if dsn != "" {
		c.cmd.Env = append(c.cmd.Env, dsnEnv+"="+dsn)
	}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// Ctrl-C is for the demo, which then stops its workers in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	w.children = append(w.children, c)
	w.waiting.Go(func() error {
		err := c.cmd.Wait()
		if !w.stopping.Load() {
			select {
			case w.failed <- fmt.Errorf("the worker of %s ended: %w", c.transition, orEnded(err)):
			default:
			}
		}
		return nil
	})
	return nil
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("without an error")
	}
	return err
}

// stop ends the workers: it lets them finish, then aborts them, then kills.
func (w *workers) stop() error {
	w.stopping.Store(true)
	ended := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		defer close(ended)
		return w.waiting.Wait()
	})
	for _, c := range w.children {
		c.stdin.Close()
	}
	if !within(ended, drainTime) {
		// Two signals: the second one aborts what is running.
		w.signal(syscall.SIGTERM)
		w.signal(syscall.SIGINT)
		if !within(ended, abortTime) {
			w.signal(syscall.SIGKILL)
		}
	}
	return group.Wait()
}

func (w *workers) signal(s os.Signal) {
	for _, c := range w.children {
		// One that has ended already needs none.
		_ = c.cmd.Process.Signal(s)
	}
}

func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// complaints returns what the workers have logged that is worse than information,
// "" if there is nothing.
func (w *workers) complaints() string {
	var out strings.Builder
	for _, c := range w.children {
		text, err := os.ReadFile(c.log)
		if err != nil {
			continue
		}
		for _, line := range lastLines(text, 10) {
			if bytes.Contains(line, []byte("level=INFO")) || bytes.Contains(line, []byte("level=DEBUG")) {
				continue
			}
			fmt.Fprintf(&out, "\n  %s: %s", c.transition, line)
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "the workers say:" + out.String()
}

func lastLines(text []byte, n int) [][]byte {
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	if len(lines) == 1 && len(lines[0]) == 0 {
		return nil
	}
	return lines[max(0, len(lines)-n):]
}
