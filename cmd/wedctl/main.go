// Wedctl is the command line of wed_sql: it shows what the engine does and what
// happened to an instance, lets any command perform a transition, and runs a
// demonstration.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

func main() {
	os.Exit(run(context.Background(), os.Args, newConsole(os.Stdin, os.Stdout, os.Stderr)))
}

// run executes a command line and returns the exit status.
func run(ctx context.Context, args []string, con *console) int {
	app := newApp(con)
	err := app.RunContext(ctx, flagsFirst(app, helpLast(args)))
	if err == nil {
		return exitOK
	}
	f := explain(err)
	fmt.Fprintf(con.err, "%s %s\n", con.red("wedctl:"), f.message)
	if f.hint != "" {
		fmt.Fprintf(con.err, "%s %s\n", con.bold("hint:"), f.hint)
	}
	return f.code
}

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer

	asks    bool // in is a terminal, with a person who can be asked
	watched bool // err is a terminal, with a person who waits
	shown   bool // out is a terminal
	color   bool // out is a terminal that shows colours
	width   int  // columns of the terminal, 0 when out is none
}

func newConsole(in, out, err *os.File) *console {
	con := &console{in: in, out: out, err: err, asks: term.IsTerminal(int(in.Fd())), watched: term.IsTerminal(int(err.Fd()))}
	if con.watched {
		con.err = screen{err}
	}
	if con.shown = term.IsTerminal(int(out.Fd())); con.shown {
		con.out = screen{out}
		con.color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
		if w, _, e := term.GetSize(int(out.Fd())); e == nil {
			con.width = w
		}
	}
	return con
}

func (c *console) paint(code, s string) string {
	if !c.color || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (c *console) bold(s string) string   { return c.paint("1", s) }
func (c *console) dim(s string) string    { return c.paint("2", s) }
func (c *console) red(s string) string    { return c.paint("31", s) }
func (c *console) green(s string) string  { return c.paint("32", s) }
func (c *console) yellow(s string) string { return c.paint("33", s) }
