package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Kind is what a process of the server is for.
type Kind string

const (
	Postmaster Kind = "postmaster"
	Supervisor Kind = "supervisor" // the background worker of wed_sql
	Engine     Kind = "engine"     // its child
	Walsender  Kind = "walsender"
	Backend    Kind = "backend" // of a client, the engine's own among them
	Other      Kind = "other"   // the server's own: checkpointer and the like
)

// Process is a process of a server, as it was when it was looked for.
type Process struct {
	PID    int
	Parent int
	Kind   Kind
	Title  string

	born uint64 // in ticks since the machine's start: no other process with this pid has it
	data string // the directory it runs in
}

func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Title) }

// Processes is all that runs of the server that is in use now, as the operating system knows it.
func (c *Cluster) Processes() ([]Process, error) { return c.now().processes() }

// Find is the processes of a kind.
func (c *Cluster) Find(kind Kind) ([]Process, error) {
	all, err := c.Processes()
	var found []Process
	for _, p := range all {
		if p.Kind == kind {
			found = append(found, p)
		}
	}
	return found, err
}

// Process is what runs with a pid of which the server has told; not ok: it is gone.
func (c *Cluster) Process(pid int) (p Process, ok bool) { return c.now().inspect(pid) }

// Signal sends a signal to the process, and to no other that has its pid by now: then it returns [os.ErrProcessDone].
func (p Process) Signal(signal syscall.Signal) error {
	handle, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	// What the handle stands for is known only now.
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return handle.Signal(signal)
}

// Alive tells whether it still runs; one that its parent has only to bury does not.
func (p Process) Alive() bool {
	cwd, born, _, err := look(p.PID)
	return err == nil && cwd == p.data && born == p.born
}

// Stopped tells whether it stands still, by a signal.
func (p Process) Stopped() bool {
	if !p.Alive() {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return false
	}
	state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(state) > 0 && state[0] == 'T'
}

// processes is all that runs in the data directory. The server's programs go there, and the engine stays there.
func (s *server) processes() ([]Process, error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if p, ok := s.inspect(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

func (s *server) inspect(pid int) (Process, bool) {
	cwd, born, parent, err := look(pid)
	if err != nil || cwd != s.data {
		return Process{}, false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return Process{}, false
	}
	title := strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
	p := Process{PID: pid, Parent: parent, Title: title, born: born, data: s.data}
	p.Kind = s.kind(p)
	return p, true
}

// look is what /proc says of a process that has not ended.
func look(pid int) (cwd string, born uint64, parent int, err error) {
	// That of a process which waits for its burial cannot be read.
	if cwd, err = os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil {
		return "", 0, 0, err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, 0, err
	}
	// pid (name) state parent ...; the name may have anything in it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", 0, 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	if parent, err = strconv.Atoi(fields[1]); err != nil {
		return "", 0, 0, err
	}
	born, err = strconv.ParseUint(fields[19], 10, 64)
	return cwd, born, parent, err
}

// kind is what a process is by its title. One that was just forked has its parent's.
func (s *server) kind(p Process) Kind {
	if postmaster, _ := s.process(); postmaster != nil && postmaster.Pid == p.PID {
		return Postmaster
	}
	title, ok := strings.CutPrefix(p.Title, "postgres: ")
	switch {
	case !ok:
		return Other
	case strings.HasPrefix(title, "wed_sql engine"):
		return Engine
	case strings.HasPrefix(title, "wed_sql"):
		return Supervisor
	case strings.HasPrefix(title, "walsender "):
		return Walsender
	}
	for _, other := range []string{"checkpointer", "background writer", "walwriter", "autovacuum", "logical replication", "stats collector",
		"archiver", "logger", "startup", "walreceiver", "parallel worker", "io worker", "walsummarizer", "slotsync worker", "bgworker"} {
		if strings.HasPrefix(title, other) {
			return Other
		}
	}
	return Backend
}
