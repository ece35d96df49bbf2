// Package engine supervises the followers of all databases of a server that have the
// extension: it finds them, starts one group of goroutines for each, lets one that
// fails back off alone, and ends when the worker that started the process is gone.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/link"
)

// The engine shares the machine with the server, which has the work to do.
const maxProcs = 2

// stopTime is how long the goroutines have for ending before the process ends
// without them.
const stopTime = 3 * time.Second

var errWorkerGone = errors.New("the worker is gone")

// Run runs the engine with a configuration in JSON, until the worker at the other end
// of the link is gone, which is no error, or the context ends.
func Run(ctx context.Context, config []byte, l *link.Link) error {
	c, err := parseConfig(config)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(maxProcs, runtime.NumCPU()))
	s := &supervisor{
		link:     l,
		log:      slog.New(l.Handler(slog.LevelDebug)),
		commands: make(chan link.Command),
		found:    make(chan discovery),
		members:  make(map[uint32]*member),
	}
	s.configure(c)

	g, gctx := group.New(ctx)
	g.Go("link, sending", l.Send)
	g.Go("link, receiving", func(ctx context.Context) error {
		err := l.Receive(ctx, func(c link.Command) {
			select {
			case s.commands <- c:
			case <-ctx.Done():
			}
		})
		if err == nil {
			err = errWorkerGone
		}
		return err
	})
	g.Go("supervisor", s.run)

	ended := make(chan error, 1)
	waiting, _ := group.New(ctx)
	waiting.Go("end", func(context.Context) error { ended <- g.Wait(); return nil })
	<-gctx.Done()
	select {
	case err = <-ended:
	case <-time.After(stopTime):
		err = context.Cause(gctx)
	}
	if errors.Is(err, errWorkerGone) {
		return nil
	}
	return err
}

// supervisor owns the members. Everything in it belongs to the goroutine of run.
type supervisor struct {
	link     *link.Link
	log      *slog.Logger
	commands chan link.Command
	found    chan discovery

	config    Config
	batchSize atomic.Int64
	group     *group.Group
	members   map[uint32]*member
	left      map[uint32]bool // databases that we were told to leave

	looking  bool // a discovery is under way
	again    bool // and another one is wanted
	thorough bool // which looks at databases without the extension, too
	pause    time.Duration
	failing  time.Time
	lastErr  string
}

// discovery is the outcome of looking for databases.
type discovery struct {
	databases []entry
	err       error
	thorough  bool
	config    Config
}

func (s *supervisor) configure(c Config) {
	s.config = c
	s.batchSize.Store(int64(c.BatchSize))
	debug.SetMemoryLimit(c.MemoryLimitMB << 20)
}

func (s *supervisor) run(ctx context.Context) error {
	members, mctx := group.New(ctx)
	s.group = members
	defer func() { _ = members.Wait() }()
	s.left = make(map[uint32]bool)

	timer := time.NewTimer(s.config.discoveryInterval())
	defer timer.Stop()
	s.look(mctx, true)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			s.look(mctx, false)
		case d := <-s.found:
			timer.Reset(s.discovered(mctx, d))
		case c := <-s.commands:
			s.obey(mctx, c)
		}
	}
}

// look starts a discovery, unless one is under way, which is then repeated.
func (s *supervisor) look(ctx context.Context, thorough bool) {
	if !s.config.Enabled {
		return
	}
	if s.looking {
		s.again, s.thorough = true, s.thorough || thorough
		return
	}
	s.looking = true
	config, known := s.config, s.names()
	s.group.Go("discovery", func(ctx context.Context) error {
		d := discovery{thorough: thorough, config: config}
		d.err = group.Call("discovery", func() (err error) {
			d.databases, err = server{config}.databases(ctx, known)
			return err
		})
		select {
		case s.found <- d:
		case <-ctx.Done():
		}
		return nil
	})
}

func (s *supervisor) names() []string {
	var names []string
	for _, m := range s.members {
		names = append(names, m.entry.name)
	}
	return names
}

// discovered acts on a discovery and returns when to look again.
func (s *supervisor) discovered(ctx context.Context, d discovery) time.Duration {
	s.looking = false
	if s.again {
		thorough := s.thorough || d.thorough
		s.again, s.thorough = false, false
		s.look(ctx, thorough)
	}
	if !d.config.sameServer(s.config) || !s.config.Enabled {
		return s.config.discoveryInterval()
	}
	if d.err != nil {
		return s.discoveryFailed(d.err)
	}
	if s.lastErr != "" {
		s.log.Info("the databases can be listed again")
	}
	if !s.failing.IsZero() {
		s.link.Status(link.Status{Phase: link.Gone})
	}
	s.lastErr, s.pause, s.failing = "", 0, time.Time{}

	there := make(map[uint32]bool, len(d.databases))
	for _, e := range d.databases {
		there[e.oid] = true
		if s.left[e.oid] {
			continue
		}
		m := s.members[e.oid]
		switch {
		case m == nil:
			s.start(ctx, e)
		case m.entry.name != e.name: // renamed
			s.stop(m)
			s.start(ctx, e)
		case m.over():
			if d.thorough {
				s.start(ctx, e)
			}
		case d.thorough:
			select {
			case m.recheck <- struct{}{}:
			default: // it has not done it the last time yet
			}
		}
	}
	for oid, m := range s.members {
		if !there[oid] { // dropped
			s.stop(m)
			m.gone()
			delete(s.members, oid)
		}
	}
	for oid := range s.left {
		if !there[oid] {
			delete(s.left, oid)
		}
	}
	return s.config.discoveryInterval()
}

func (s *supervisor) discoveryFailed(err error) time.Duration {
	if s.failing.IsZero() {
		s.failing, s.pause = time.Now(), firstPause/2
	}
	if quiet := isStarting(err) && time.Since(s.failing) < patience; !quiet && err.Error() != s.lastErr {
		s.lastErr = err.Error()
		s.log.Warn("cannot list the databases, will try again", "err", err)
	}
	if isClosing(err) { // a smart shutdown must not wait for us
		for oid, m := range s.members {
			s.stop(m)
			delete(s.members, oid)
		}
	}
	// Of no database: it is shown for those that cannot be looked at.
	s.link.Status(link.Status{Phase: link.BackedOff, Err: err.Error()})
	s.pause = min(2*s.pause, lastPause)
	if time.Since(s.failing) < patience {
		s.pause = min(s.pause, time.Second)
	}
	return s.pause
}

func (s *supervisor) start(ctx context.Context, e entry) {
	m := &member{
		entry:     e,
		server:    server{s.config},
		batchSize: func() int { return int(s.batchSize.Load()) },
		link:      s.link,
		log:       s.log.With("database", e.name),
		recheck:   make(chan struct{}, 1),
		done:      make(chan struct{}),
	}
	ctx, m.cancel = context.WithCancel(ctx)
	s.members[e.oid] = m
	s.group.Go("database "+e.name, func(context.Context) error {
		defer close(m.done)
		m.run(ctx)
		return nil
	})
}

// stop stops a member and waits for it, for a while.
func (s *supervisor) stop(m *member) {
	m.cancel()
	t := time.NewTimer(stopTime)
	defer t.Stop()
	select {
	case <-m.done:
	case <-t.C:
		s.log.Warn("a follower does not stop", "database", m.entry.name)
	}
}

func (s *supervisor) obey(ctx context.Context, c link.Command) {
	switch c.Kind {
	case link.Discover:
		clear(s.left)
		s.look(ctx, true)
	case link.Leave:
		s.leave(c.Database)
	case link.Reload:
		config, err := parseConfig(c.Settings)
		if err != nil {
			s.log.Warn("the settings are not taken", "err", err)
			return
		}
		s.reload(ctx, config)
	}
}

// leave stops following a database until we are told to look again. Somebody needs it
// for himself; if he drops it, the server drops the slot with it.
func (s *supervisor) leave(oid uint32) {
	s.left[oid] = true
	gone := link.Status{Database: oid, Phase: link.Gone}
	if m := s.members[oid]; m != nil {
		s.stop(m)
		delete(s.members, oid)
		gone.Name = m.entry.name
	}
	s.link.Status(gone)
}

// reload takes new settings.
func (s *supervisor) reload(ctx context.Context, c Config) {
	old := s.config
	s.configure(c)
	if c.Enabled && old.Enabled && c.sameServer(old) {
		s.look(ctx, true) // settings of the server's own concern the followers, too
		return
	}
	for _, m := range s.members { // all at once, then wait
		m.cancel()
	}
	for oid, m := range s.members {
		s.stop(m)
		delete(s.members, oid)
		if !c.Enabled {
			m.gone() // its slot stays
		}
	}
	switch {
	case !c.Enabled && old.Enabled:
		s.log.Info("wed_sql.enabled is off: no database is followed")
	case c.Enabled && !old.Enabled:
		s.log.Info("wed_sql.enabled is on")
	}
	s.look(ctx, true)
}
