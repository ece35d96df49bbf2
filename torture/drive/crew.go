// Package drive has clients of flows that do all that clients may do, and some things that they may not: workers by every
// protocol, those who start instances, those who send signals, and those who make mistakes. Each notes what it writes in the
// transaction that writes it.
package drive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/record"
)

// Config says what a process does.
type Config struct {
	DSN   string
	Name  string // of the process, unique in the run
	Seed  uint64
	Flows []string
	Roles []string // see [Roles]
	Most  int      // pending jobs in the database above which nothing is started
}

// crew is what the clients of a process share.
type crew struct {
	Config
	log       *slog.Logger
	own       *session // for what follows
	known     sync.Mutex
	flows     map[string]*flow.Definition
	drain     atomic.Bool
	sightings map[string]int64
	serial    atomic.Int64
}

// client does one thing after another on a session of its own.
type client struct {
	*crew
	*session
	r        *rand.Rand
	protocol string
}

// act does one thing; false if there was nothing to do.
type act func(ctx context.Context, c *client) (bool, error)

// roles by name. What has more than one connection, or comes from package worker, has a function of its own.
var roles = map[string]act{
	"raw":     actRaw,
	"claim":   actClaim,
	"lease":   actLease,
	"start":   actStart,
	"signal":  actSignal,
	"mistake": actMistake,
}

// Roles are the names of what a process can do.
func Roles() []string {
	names := []string{"worker", "worker batch", "worker HandleBatch", "worker lease"}
	for name := range roles {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Run does it until ctx ends.
func Run(ctx context.Context, config Config, stderr io.Writer) error {
	c := &crew{Config: config, log: slog.New(slog.NewTextHandler(stderr, nil)), own: newSession(config.DSN),
		flows: map[string]*flow.Definition{}, sightings: map[string]int64{}}
	defer c.own.close()
	for c.refresh(ctx) != nil {
		if !pause(ctx, 100*time.Millisecond) {
			return nil
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.keepUp(ctx) })
	for i, role := range config.Roles {
		r := rand.New(rand.NewPCG(config.Seed, uint64(i)))
		do, ok := roles[role]
		if !ok {
			group.Go(func() error { return c.packaged(ctx, role, r) })
			continue
		}
		group.Go(func() error { return c.client(ctx, role, do, r) })
	}
	return group.Wait()
}

// pause returns false when ctx ends.
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

// client acts, and connects again whenever its session is lost.
func (c *crew) client(ctx context.Context, role string, do act, r *rand.Rand) error {
	x := &client{crew: c, session: newSession(c.DSN), r: r, protocol: role}
	defer x.close()
	for ctx.Err() == nil {
		did, err := do(ctx, x)
		if err != nil && ctx.Err() == nil {
			c.saw(ctx, role, err)
			x.reset()
		}
		if err != nil || !did {
			pause(ctx, time.Duration(5+r.IntN(50))*time.Millisecond)
		}
	}
	return nil
}

// keepUp reads the definitions and the mood, and writes down what was seen.
func (c *crew) keepUp(ctx context.Context) error {
	for pause(ctx, 300*time.Millisecond) {
		if err := c.refresh(ctx); err != nil {
			c.own.reset()
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = c.refresh(last) // what cannot be told at the end is only counted less
	return nil
}

func (c *crew) refresh(ctx context.Context) error {
	conn, err := c.own.get(ctx)
	if err != nil {
		return err
	}
	var drain bool
	if err := conn.QueryRow(ctx, "select drain from torture.mood").Scan(&drain); err != nil {
		return err
	}
	c.drain.Store(drain)
	for _, name := range c.Flows {
		d, err := record.Latest(ctx, conn, name)
		if err != nil {
			return err
		}
		c.known.Lock()
		c.flows[name] = d
		c.known.Unlock()
	}
	c.known.Lock()
	seen := c.sightings
	c.sightings = map[string]int64{}
	c.known.Unlock()
	for what, n := range seen {
		if _, err := conn.Exec(ctx, "insert into torture.sighting values ($1, $2)", what, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *crew) definition(name string) *flow.Definition {
	c.known.Lock()
	defer c.known.Unlock()
	return c.flows[name]
}

// count counts something that is to be in the report.
func (c *crew) count(what string) {
	c.known.Lock()
	defer c.known.Unlock()
	c.sightings[what]++
}

// id of what is written, unique in the run.
func (c *crew) id() string { return fmt.Sprintf("%s/%d", c.Name, c.serial.Add(1)) }

// saw counts an error, and logs it if it should not have been.
func (c *crew) saw(ctx context.Context, role string, err error) {
	code := Code(err)
	c.count("error " + code)
	if !Expected(code) {
		c.log.ErrorContext(ctx, "an error that is not known", "role", role, "code", code, "err", err)
		c.count("unexpected " + role + ": " + code + " " + firstLine(err))
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Code is the SQLSTATE of an error, or "connection" if it came from no server.
func Code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return "no rows"
	}
	return "connection"
}

// Expected says whether an error is one that clients have to live with.
func Expected(code string) bool {
	switch code {
	case "connection", "no rows",
		"WED03", "WED07", "WED08", "WED14", "WED16", "WED17", "WED19", // somebody else was faster
		"40001", "40P01", "55P03", // so, too
		"42703", "0A000", // the definition has changed
		"25P03", "25P04", "25006": // time is up; it is a standby
		return true
	}
	switch code[:2] {
	case "08", "53", "57", "58": // the server is in trouble
		return true
	}
	return false
}
