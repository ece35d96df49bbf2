package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/pulse"
)

// shortestRefresh keeps top from becoming a load.
const shortestRefresh = 200 * time.Millisecond

func topCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "watch flows, their transitions and the engine, live",
		Description: `Jobs that wait for a worker, run, and are leased; the age of the oldest that
waits; how many are done a second, and have failed in all; how long those that
were done lately had waited, and took. Keys: q ends it, s sorts by the next
column, j and k scroll, space looks at once. Without a terminal, or with -n, it
prints one table after the other; with -o json, a line each time.

Example: wedctl top -n 1`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "flow", Aliases: []string{"f"}, Usage: "only the flow `NAME`", EnvVars: []string{flowEnv}},
			&cli.DurationFlag{Name: "interval", Aliases: []string{"i"}, Value: 2 * time.Second, Usage: "`TIME` between two looks"},
			&cli.StringFlag{Name: "sort", Value: string(pulse.ByName), Usage: "or oldest, waiting, done, failed"},
			&cli.IntFlag{Name: "count", Aliases: []string{"n"}, Usage: "print so many tables, and end"},
			&cli.BoolFlag{Name: "once", DisableDefaultText: true, Usage: "the same as -n 1"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			t, err := newTop(c, con)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			defer t.hangUp()
			if err := t.look(ctx); err != nil { // what is wrong from the start, is said
				return needs(err, rightsOfStatus)
			}
			if tty := con.terminal(); tty != nil && t.count == 0 && !t.asJSON {
				err = t.show(ctx, tty)
			} else {
				err = t.print(ctx)
			}
			if ctx.Err() != nil {
				return nil // that is how it ends
			}
			return needs(err, rightsOfStatus)
		},
	}
}

// top is a live view.
type top struct {
	con      *console
	dsn      string
	flow     string // only this one, or ""
	interval time.Duration
	order    pulse.Order
	count    int
	asJSON   bool

	conn     *pgx.Conn
	database string // of the last connection
	most     int64  // jobs of a transition are counted up to this
	window   pulse.Window
	view     pulse.View
}

func newTop(c *cli.Context, con *console) (*top, error) {
	if c.Args().Present() {
		return nil, usagef("%s takes no arguments", c.Command.HelpName)
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return nil, err
	}
	t := &top{
		con: con, dsn: dsn(c), flow: c.String("flow"), interval: c.Duration("interval"), order: pulse.Order(c.String("sort")),
		count: c.Int("count"), asJSON: asJSON, most: pulse.Many,
	}
	switch {
	case t.interval < shortestRefresh:
		return nil, usagef("--interval is at least %s, not %s", shortestRefresh, t.interval)
	case !slices.Contains(pulse.Orders, t.order):
		return nil, usagef("--sort is name, oldest, waiting, done or failed, not %q", t.order)
	case t.count < 0 || c.IsSet("count") && t.count == 0:
		return nil, usagef("--count is a number of tables, not %d", t.count)
	}
	if c.Bool("once") {
		t.count = 1
	}
	return t, nil
}

// look takes a sample, on a connection that is made if need be.
func (t *top) look(ctx context.Context) error {
	if t.conn == nil {
		conn, err := connect(ctx, t.dsn, "wedctl top")
		if err != nil {
			return err
		}
		t.conn, t.database = conn, conn.Config().Database
		if _, err := requireExtension(ctx, conn); err != nil {
			return t.lost(err)
		}
		if t.flow != "" {
			if err := requireFlow(ctx, conn, t.flow); err != nil {
				return t.lost(err)
			}
		}
	}
	began := time.Now()
	s, err := pulse.Read(ctx, t.conn, t.most)
	if err != nil {
		return t.lost(err)
	}
	if time.Since(began) > t.interval/10 { // no load of our own
		t.most = pulse.Few
	}
	if t.flow != "" {
		s.Transitions = slices.DeleteFunc(s.Transitions, func(x pulse.Transition) bool { return x.Flow != t.flow })
	}
	t.window.Add(s)
	t.view = t.window.View()
	pulse.Sort(t.view.Rows, t.order)
	return nil
}

// lost gives the connection up: after an error, the next look makes another.
func (t *top) lost(err error) error {
	t.hangUp()
	return err
}

func (t *top) hangUp() {
	if t.conn != nil {
		hangUp(t.conn)
		t.conn = nil
	}
}

// passing reports that an error may be over at the next look: the server is
// restarted, or there are too many connections.
func passing(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains([]string{"57P01", "57P02", "57P03", "53300", "08006", "08003"}, e.Code)
	}
	_, refused := errors.AsType[*failure](err)
	return !refused
}

// print writes one table, or line, after the other. The first comes when rates
// are known.
func (t *top) print(ctx context.Context) error {
	for n := 0; t.count == 0 || n < t.count; n++ {
		if err := wait(ctx, t.interval); err != nil {
			return err
		}
		for err := t.look(ctx); err != nil; err = t.look(ctx) {
			if !passing(err) || t.count > 0 {
				return err
			}
			fmt.Fprintln(t.con.err, t.con.yellow(explain(err).message))
			if err := wait(ctx, t.interval); err != nil {
				return err
			}
		}
		if t.asJSON {
			if err := json.NewEncoder(t.con.out).Encode(t.view); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}
			continue
		}
		width := t.con.width
		if width == 0 {
			width = wideScreen
		}
		if n > 0 {
			fmt.Fprintln(t.con.out)
		}
		for _, line := range t.lines(width) {
			fmt.Fprintln(t.con.out, strings.TrimRight(line, " "))
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errQuit ends the live view.
var errQuit = errors.New("the user has seen enough")

// show draws the view on the terminal until the user has seen enough. The terminal
// is as it was afterwards, whatever happens.
func (t *top) show(ctx context.Context, tty *terminal) (err error) {
	restore, err := tty.take()
	if err != nil {
		return err
	}
	defer restore()
	keys := make(chan byte)
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	g, _ := group.New(ctx)
	g.Go("keys", func(ctx context.Context) error { return tty.keys(ctx, keys) })
	g.Go("screen", func(ctx context.Context) error { return t.draw(ctx, tty, keys, resized) })
	if err := g.Wait(); !errors.Is(err, errQuit) {
		return err
	}
	return nil
}

// draw draws, and draws again when there is a reason to.
func (t *top) draw(ctx context.Context, tty *terminal, keys <-chan byte, resized <-chan os.Signal) error {
	var trouble error
	offset := 0
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for {
		offset = tty.draw(func(width, height int) ([]string, int) { return t.screen(width, height, offset, trouble) })
		look := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			look = true
		case <-resized:
		case key := <-keys:
			switch key {
			case 's':
				t.order = t.order.Next()
				pulse.Sort(t.view.Rows, t.order)
			case 'j':
				offset++
			case 'k':
				offset = max(offset-1, 0)
			case ' ':
				look = true
			}
		}
		if look {
			if trouble = t.look(ctx); trouble != nil && ctx.Err() == nil && !passing(trouble) {
				return trouble
			}
		}
	}
}
