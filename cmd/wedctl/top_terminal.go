package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is one that can be drawn on, and that has keys.
type terminal struct {
	in, out *os.File
}

// terminal returns the terminal that the command runs in, or nil.
func (con *console) terminal() *terminal {
	in, _ := con.in.(*os.File)
	shown, _ := con.out.(screen)
	out, _ := shown.terminal.(*os.File)
	if in == nil || out == nil || !term.IsTerminal(int(in.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &terminal{in, out}
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	topLeft     = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// take makes the terminal ours. restore gives it back as it was.
func (t *terminal) take() (restore func(), err error) {
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("take the terminal: %w", err)
	}
	fmt.Fprint(t.out, enterScreen)
	return func() {
		fmt.Fprint(t.out, leaveScreen)
		term.Restore(int(t.in.Fd()), state)
	}, nil
}

// draw fills the screen with lines, which are made for its size.
func (t *terminal) draw(lines func(width, height int) ([]string, int)) (offset int) {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	list, offset := lines(width, height)
	var b strings.Builder
	b.WriteString(topLeft)
	for i, l := range list {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.Write(visible([]byte(l)))
		b.WriteString(clearLine)
	}
	b.WriteString(clearBelow)
	fmt.Fprint(t.out, b.String())
	return offset
}

// keyPatience is how long a key is waited for before it is looked whether anybody
// still wants one.
const keyPatience = 100 // milliseconds

const (
	ctrlC  = 3
	ctrlD  = 4
	escape = 27
)

// keys sends the keys that are pressed, until one says that it is enough.
func (t *terminal) keys(ctx context.Context, keys chan<- byte) error {
	fds := []unix.PollFd{{Fd: int32(t.in.Fd()), Events: unix.POLLIN}}
	buf := make([]byte, 16)
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, keyPatience)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for a key: %w", err)
		}
		n, err = t.in.Read(buf)
		if err != nil || n == 0 {
			return errQuit // the terminal is gone
		}
		pressed := buf[:n]
		if pressed[0] == escape && n >= 3 {
			pressed = arrow(pressed[2])
		}
		for _, key := range pressed {
			if key == 'q' || key == 'Q' || key == ctrlC || key == ctrlD {
				return errQuit
			}
			select {
			case keys <- key:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return ctx.Err()
}

// arrow returns the key that does the same as an arrow.
func arrow(final byte) []byte {
	switch final {
	case 'A':
		return []byte{'k'}
	case 'B':
		return []byte{'j'}
	}
	return nil
}
