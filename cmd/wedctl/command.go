package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/worker"
)

const (
	maxOutput  = 64 << 20 // bytes of a new state
	maxLogLine = 8 << 10  // bytes of a line of standard error

	// outputDelay is how long a command that has ended may leave its output
	// open, by a process that it has started and not waited for.
	outputDelay = time.Second
)

// command is a program that performs a transition.
type command struct {
	path string
	args []string
	log  *slog.Logger
}

// newCommand finds the program, so that a mistake in its name shows at once.
func newCommand(args []string, log *slog.Logger) (*command, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, usagef("cannot run the command: %s", err)
	}
	return &command{path: path, args: args, log: log}, nil
}

// perform is a worker.Handler: it runs the program for one job. The program and
// all that it starts is a process group of its own, so that a signal from the
// terminal does not end it, and the end of ctx ends all of it.
func (c *command) perform(ctx context.Context, job *worker.Job) (worker.State, error) {
	input, err := encodeJob(job)
	if err != nil {
		return nil, err
	}
	log := c.log.With("wid", job.WID)

	cmd := exec.CommandContext(ctx, c.path, c.args[1:]...)
	cmd.Args[0] = c.args[0]
	cmd.Env = append(os.Environ(),
		"WED_FLOW="+job.Flow,
		"WED_WID="+strconv.FormatInt(job.WID, 10),
		"WED_TGID="+strconv.FormatInt(int64(job.TGID), 10),
		"WED_TRANSITION="+job.TrName,
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputDelay
	cmd.Stdin = bytes.NewReader(input)
	output := &limitedBuffer{limit: maxOutput}
	cmd.Stdout = output
	stderr, pipe := io.Pipe()
	cmd.Stderr = pipe

	var logging errgroup.Group
	logging.Go(func() error { return logLines(log, stderr) })
	err = cmd.Run()
	pipe.Close()
	logging.Wait()

	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command was killed: %w", context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay):
		killGroup(cmd.Process.Pid)
		return nil, errors.New("the command left a process running that keeps its output open")
	case err != nil:
		return nil, fmt.Errorf("the command failed: %w", err)
	case output.exceeded:
		return nil, fmt.Errorf("the command printed more than %d bytes", maxOutput)
	}
	return parseState(output.Bytes())
}

// killGroup ends all processes of a command.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return os.ErrProcessDone
}

// encodeJob writes the job as one line. Characters stay as they are: a command
// without a JSON parser can read them.
func encodeJob(job *worker.Job) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(job); err != nil {
		return nil, fmt.Errorf("encode the job: %w", err)
	}
	return b.Bytes(), nil
}

// parseState reads the output of a command: an object, or nothing. The values
// stay as they are written, so that no number loses a digit.
func parseState(output []byte) (worker.State, error) {
	output = bytes.TrimSpace(output)
	if len(output) == 0 {
		return nil, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(output, &values); err != nil {
		return nil, fmt.Errorf("the command did not print a JSON object: %w: %s", err, excerpt(output))
	}
	if values == nil { // null
		return nil, nil
	}
	state := make(worker.State, len(values))
	for name, v := range values {
		state[name] = v
	}
	return state, nil
}

// excerpt is the beginning of b, for a message.
func excerpt(b []byte) string {
	const limit = 100
	if len(b) <= limit {
		return strconv.Quote(string(b))
	}
	return strconv.Quote(string(b[:limit])) + "..."
}

// logLines logs each line of r, until its end.
func logLines(log *slog.Logger, r io.Reader) error {
	lines := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 {
			log.Warn("the command says", "stderr", string(text))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil
		}
	}
}

// limitedBuffer keeps what is written to it, up to a limit, and takes the rest
// without keeping it.
type limitedBuffer struct {
	bytes.Buffer
	limit    int
	exceeded bool
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.limit {
		b.exceeded = true
		return len(p), nil
	}
	return b.Buffer.Write(p)
}
