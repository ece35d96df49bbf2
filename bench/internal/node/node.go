// Package node has the systems that are written in JavaScript: a process of Node.js
// runs each, and is told what to do by lines of JSON.
package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// System is one of those that bench.js knows.
type System struct {
	name, system string
	tuned        bool
	left         string
	directory    string
}

// Systems are those whose packages are installed in directory, beside bench.js.
func Systems(directory string) []*System {
	const (
		graphile = "select exists (select from graphile_worker._private_jobs)"
		pgboss   = "select exists (select from pgboss.job where state <> 'completed')"
	)
	return []*System{
		{"graphile-worker, default", "graphile", false, graphile, directory},
		{"graphile-worker, tuned", "graphile", true, graphile, directory},
		{"pg-boss, batched", "pgboss", true, pgboss, directory},
	}
}

func (s *System) Name() string { return s.name }

func (s *System) Open(ctx context.Context, db *server.Database, _ contest.Kind, concurrency int) (contest.Session, error) {
	cmd := exec.CommandContext(ctx, "node", "bench.js")
	cmd.Dir = s.directory
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	o := &session{system: s, cmd: cmd, in: in, out: bufio.NewReader(out)}
	if err := o.ask("open", arguments{"system": s.system, "database": db.Name, "tuned": s.tuned, "concurrency": concurrency}, nil); err != nil {
		return nil, errors.Join(err, o.end())
	}
	return o, nil
}

type session struct {
	system *System
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
}

type arguments map[string]any

// ask has the process do something, and reads its answer into result.
func (o *session) ask(what string, args arguments, result any) error {
	if args == nil {
		args = arguments{}
	}
	args["what"] = what
	if err := json.NewEncoder(o.in).Encode(args); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	line, err := o.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s: node has ended: %w", what, err)
	}
	var answer struct {
		Result json.RawMessage
		Error  string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("%s: %w in %q", what, err, line)
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", what, answer.Error)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

func (o *session) end() error {
	o.in.Close()
	return o.cmd.Wait()
}

func (o *session) Fill(_ context.Context, jobs int) error {
	return o.ask("fill", arguments{"jobs": jobs}, nil)
}

func (o *session) Start(context.Context) error { return o.ask("start", nil, nil) }

func (o *session) Begin(_ context.Context, instances, perTransaction int) error {
	return o.ask("begin", arguments{"instances": instances, "perTransaction": perTransaction}, nil)
}

func (o *session) Handled(_ context.Context, n int) error {
	return o.ask("handled", arguments{"n": n}, nil)
}

func (o *session) Left() string { return o.system.left }

func (o *session) History(context.Context) (bool, error) { return false, nil }

func (o *session) Pickups(_ context.Context, jobs int, every time.Duration) ([]time.Duration, error) {
	var milliseconds []float64
	if err := o.ask("pickups", arguments{"jobs": jobs, "ms": every.Milliseconds()}, &milliseconds); err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(milliseconds))
	for i, ms := range milliseconds {
		took[i] = time.Duration(ms * float64(time.Millisecond))
	}
	return took, nil
}

func (o *session) Starts(_ context.Context, instances int, every time.Duration) (map[int64]time.Time, error) {
	var starts []struct {
		WID int64
		At  float64 // milliseconds since 1970
	}
	if err := o.ask("starts", arguments{"instances": instances, "ms": every.Milliseconds()}, &starts); err != nil {
		return nil, err
	}
	begun := make(map[int64]time.Time, len(starts))
	for _, s := range starts {
		begun[s.WID] = time.UnixMicro(int64(s.At * 1000))
	}
	return begun, nil
}

func (o *session) Instances() string { return "instance" }

func (o *session) Close(context.Context) error { return errors.Join(o.ask("close", nil, nil), o.end()) }
