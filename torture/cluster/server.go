package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

// Mode is how a server is stopped.
type Mode string

const (
	Smart     Mode = "smart"     // when the last client has gone
	Fast      Mode = "fast"      // clients are disconnected
	Immediate Mode = "immediate" // as by a crash, but for the orphans
)

const (
	pause        = 10 * time.Millisecond // between two looks at what nobody tells of
	startTimeout = 2 * time.Minute       // of a server that has much WAL to read
	stopTimeout  = time.Minute
	orphanTime   = 5 * time.Second // for children to notice that the postmaster is dead
)

func (m Mode) signal() os.Signal {
	switch m {
	case Smart:
		return syscall.SIGTERM
	case Immediate:
		return syscall.SIGQUIT
	default:
		return syscall.SIGINT
	}
}

// server is one data directory, and the postmaster in it when it runs.
type server struct {
	bindir, data, socket, log string
	env                       []string

	mu         sync.Mutex
	postmaster *os.Process
	exited     chan struct{} // closed when postmaster has been waited for
}

// run runs one of PostgreSQL's programs to its end.
func (s *server) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bindir, program), args...)
	cmd.Env = s.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}

// configure adds lines to postgresql.conf, and the place of the socket.
func (s *server) configure(lines ...string) error {
	f, err := os.OpenFile(filepath.Join(s.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	lines = append(lines, "unix_socket_directories = '"+s.socket+"'")
	_, err = f.WriteString(strings.Join(lines, "\n") + "\n")
	return errors.Join(err, f.Close())
}

// process is the postmaster and what is closed at its end; nil if it does not run.
func (s *server) process() (*os.Process, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.postmaster, s.exited
}

func (s *server) start(ctx context.Context) error {
	if p, _ := s.process(); p != nil {
		return nil
	}
	if err := s.forgetStranger(); err != nil {
		return err
	}
	log, err := os.OpenFile(s.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(s.bindir, "postgres"), "-D", s.data)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what a terminal sends is for our caller, who ends us in order
	err = cmd.Start()
	if err := errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	exited := make(chan struct{})
	s.mu.Lock()
	s.postmaster, s.exited = cmd.Process, exited
	s.mu.Unlock()
	g, _ := group.New(context.Background())
	g.Go("postmaster", func(context.Context) error {
		_ = cmd.Wait() // how it ended is in the log
		s.mu.Lock()
		s.postmaster = nil
		s.mu.Unlock()
		close(exited)
		return nil
	})
	return s.ready(ctx)
}

// forgetStranger removes a lock file whose process is not a postmaster any more, but another process with its pid: the
// server would not start. Called when nothing of ours runs.
func (s *server) forgetStranger() error {
	pid, ok := s.lockFile(1)
	if !ok || syscall.Kill(pid, 0) == syscall.ESRCH {
		return nil
	}
	err := errors.Join(s.removeSharedMemory(), os.Remove(s.lockPath()))
	if err != nil {
		return fmt.Errorf("remove a lock file: %w", err)
	}
	return nil
}

func (s *server) reload() error {
	p, _ := s.process()
	if p == nil {
		return errors.New("reload: the server does not run")
	}
	return p.Signal(syscall.SIGHUP)
}

// ready waits until it takes connections.
func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := s.connect(ctx)
		if err == nil {
			return nil
		}
		if p, _ := s.process(); p == nil {
			return fmt.Errorf("the server has ended; its log says\n%s", s.lastWords())
		}
		if wait(ctx) != nil {
			return fmt.Errorf("the server does not take connections: %w; its log says\n%s", err, s.lastWords())
		}
	}
}

func (s *server) connString() string {
	return "host=" + s.socket + " port=5432 user=postgres dbname=postgres"
}

func (s *server) connect(ctx context.Context) error {
	conn, err := connect(ctx, s.connString())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// query returns what a query finds in database postgres.
func query[T any](ctx context.Context, s *server, sql string, args ...any) (T, error) {
	var value T
	conn, err := connect(ctx, s.connString())
	if err != nil {
		return value, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&value)
	return value, err
}

// stop ends it and waits until nothing of it runs any more.
func (s *server) stop(ctx context.Context, mode Mode) error {
	p, exited := s.process()
	if p != nil {
		if err := p.Signal(mode.signal()); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop the server: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		select {
		case <-exited:
		case <-ctx.Done():
			return fmt.Errorf("the server does not stop (%s): %w; its log says\n%s", mode, ctx.Err(), s.lastWords())
		}
	}
	return s.awaitOrphans(ctx, orphanTime)
}

// kill ends the postmaster by SIGKILL and waits until nothing of it runs any more.
func (s *server) kill(ctx context.Context) error {
	p, exited := s.process()
	if p != nil {
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill the postmaster: %w", err)
		}
		<-exited
	}
	return s.awaitOrphans(ctx, orphanTime)
}

// awaitOrphans waits until nothing runs in the data directory. Children of a dead postmaster end when they next wait for
// something; one that computes, or waits for another that is dead, has to be killed by the administrator, who we are.
func (s *server) awaitOrphans(ctx context.Context, patience time.Duration) error {
	late := time.Now().Add(patience)
	for {
		left, err := s.processes()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(late) {
			for _, p := range left {
				_ = p.Signal(syscall.SIGKILL)
			}
		}
		if wait(ctx) != nil {
			return fmt.Errorf("still running after the postmaster: %v: %w", left, ctx.Err())
		}
	}
}

// end ends it in any case, within a time of its own, and removes what it has outside of its directory.
func (s *server) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopTimeout)
	defer cancel()
	err := s.stop(ctx, Fast)
	if err != nil {
		err = errors.Join(err, s.kill(ctx))
	}
	return errors.Join(err, s.removeSharedMemory())
}

// lastWords is the end of the log.
func (s *server) lastWords() string {
	log, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	log = bytes.TrimRight(log, "\n")
	lines := bytes.Split(log, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
}

// wait waits a little, or returns the context's error.
func wait(ctx context.Context) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
