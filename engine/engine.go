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
	"github.com/wed-sql/wed_sql/metrics"
	"github.com/wed-sql/wed_sql/wal"
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
	s := newSupervisor(l, c.Version)
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
	g.Go("endpoint", s.endpoint.Run)

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
	link      *link.Link
	log       *slog.Logger
	shortages *shortages
	metrics   *metrics.Exporter
	endpoint  *metrics.Endpoint
	commands  chan link.Command
	found     chan discovery

	config    Config
	batchSize atomic.Int64
	group     *group.Group
	timer     *time.Timer
	members   map[uint32]*member
	ending    map[uint32]<-chan struct{}   // of members that were retired
	left      map[uint32]map[uint32]string // databases that we were told to leave, by ticket: their names
	alone     map[uint32]string            // databases that are left alone: why
	names     map[uint32]string            // of all databases

	looking *look         // the discovery that is under way
	next    scope         // and what the next one is to look at
	again   bool          // there must be a next one
	pause   time.Duration // after a discovery that failed
	failing time.Time
	lastErr string
}

// scope is what a discovery looks into, besides databases that are new.
type scope struct {
	everywhere bool
	databases  map[uint32]bool
}

func (s *scope) add(o scope) {
	s.everywhere = s.everywhere || o.everywhere
	for oid := range o.databases {
		if s.databases == nil {
			s.databases = make(map[uint32]bool)
		}
		s.databases[oid] = true
	}
}

func (s scope) has(oid uint32) bool { return s.everywhere || s.databases[oid] }

func only(oid uint32) scope {
	if oid == 0 {
		return scope{}
	}
	return scope{databases: map[uint32]bool{oid: true}}
}

// look is a discovery that is under way.
type look struct {
	scope  scope
	config Config
	cancel context.CancelFunc
	given  bool // up, for somebody who needs the database that it may be in
	done   chan struct{}
}

// discovery is the outcome of a look.
type discovery struct {
	look      *look
	databases []entry
	err       error
}

func newSupervisor(l *link.Link, version string) *supervisor {
	log := slog.New(l.Handler(slog.LevelDebug))
	exporter := metrics.New(version)
	return &supervisor{
		link:      l,
		log:       log,
		shortages: newShortages(log),
		metrics:   exporter,
		endpoint:  metrics.NewEndpoint(exporter.Registry(), log),
		commands:  make(chan link.Command),
		found:     make(chan discovery),
		members:   make(map[uint32]*member),
		ending:    make(map[uint32]<-chan struct{}),
		left:      make(map[uint32]map[uint32]string),
		alone:     make(map[uint32]string),
		names:     make(map[uint32]string),
	}
}

func (s *supervisor) configure(c Config) {
	s.config = c
	s.batchSize.Store(int64(c.BatchSize))
	debug.SetMemoryLimit(c.MemoryLimitMB << 20)
	s.metrics.Started(c.Starts)
	s.endpoint.Set(c.endpointSettings())
}

func (s *supervisor) run(ctx context.Context) error {
	members, mctx := group.New(ctx)
	s.group = members
	defer func() { _ = members.Wait() }()

	s.timer = time.NewTimer(s.config.discoveryInterval())
	defer s.timer.Stop()
	s.look(mctx, scope{everywhere: true})
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.timer.C:
			s.look(mctx, scope{})
		case d := <-s.found:
			s.timer.Reset(s.discovered(mctx, d))
		case c := <-s.commands:
			s.obey(mctx, c)
		}
	}
}

// look starts a discovery, unless one is under way, which is then followed by another.
func (s *supervisor) look(ctx context.Context, what scope) {
	if !s.config.Enabled {
		return
	}
	s.next.add(what)
	if s.looking != nil {
		s.again = true
		return
	}
	l := &look{scope: s.next, config: s.config, done: make(chan struct{})}
	s.looking, s.next, s.again = l, scope{}, false
	ctx, l.cancel = context.WithTimeout(ctx, discoveryTimeout)
	known, avoid := s.known(), s.leftNames()
	s.group.Go("discovery", func(alive context.Context) error {
		defer l.cancel()
		d := discovery{look: l}
		d.err = group.Call("discovery", func() (err error) {
			d.databases, err = server{l.config}.databases(ctx, known, avoid)
			return err
		})
		close(l.done)
		select {
		case s.found <- d:
		case <-alive.Done():
		}
		return nil
	})
}

func (s *supervisor) known() []string {
	var names []string
	for _, m := range s.members {
		names = append(names, m.entry.name)
	}
	return names
}

func (s *supervisor) leftNames() map[string]bool {
	names := make(map[string]bool)
	for _, tickets := range s.left {
		for _, name := range tickets {
			names[name] = true
		}
	}
	return names
}

// discovered acts on a discovery and returns when to look again.
func (s *supervisor) discovered(ctx context.Context, d discovery) time.Duration {
	s.looking = nil
	if !d.look.config.sameServer(s.config) || !s.config.Enabled || d.look.given {
		s.next.add(d.look.scope) // it has not been looked at
		s.look(ctx, scope{})
		return s.config.discoveryInterval()
	}
	if d.err != nil {
		s.next.add(d.look.scope)
		pause := s.discoveryFailed(d.err)
		s.again = false // it would fail as well
		return pause
	}
	if s.lastErr != "" {
		s.log.Info("the databases can be listed again")
	}
	if !s.failing.IsZero() {
		s.link.Status(link.Status{Phase: link.Gone})
		s.shortages.over(0)
	}
	s.lastErr, s.pause, s.failing = "", 0, time.Time{}
	s.compare(ctx, d)
	if s.again {
		s.look(ctx, scope{})
	}
	return s.config.discoveryInterval()
}

// compare starts and stops members as the list of databases says.
func (s *supervisor) compare(ctx context.Context, d discovery) {
	clear(s.names)
	for _, e := range d.databases {
		s.names[e.oid] = e.name
		if s.left[e.oid] != nil {
			continue
		}
		m := s.members[e.oid]
		if e.alone != "" {
			s.leaveAlone(e)
			continue
		}
		if s.alone[e.oid] != "" {
			delete(s.alone, e.oid)
			s.metrics.Forget(e.oid)
			s.link.Status(link.Status{Database: e.oid, Phase: link.Gone})
		}
		switch {
		case m == nil:
			s.start(ctx, e)
		case m.entry.name != e.name: // renamed
			s.retire(m)
			s.start(ctx, e)
		case !d.look.scope.has(e.oid):
		case m.over():
			s.start(ctx, e)
		default:
			m.look()
		}
	}
	for oid, m := range s.members {
		if s.names[oid] == "" { // dropped
			s.retire(m)
			s.forget(oid)
		}
	}
	for oid := range s.alone {
		if s.names[oid] == "" {
			s.forget(oid)
		}
	}
	for oid, done := range s.ending {
		select {
		case <-done:
			delete(s.ending, oid)
		default:
		}
	}
}

// leaveAlone sees to it that nobody is connected to a database, and says so if a slot of
// ours is there, which keeps back what nobody reads.
func (s *supervisor) leaveAlone(e entry) {
	if m := s.members[e.oid]; m != nil {
		s.retire(m)
	}
	switch {
	case e.slot && s.alone[e.oid] != e.alone:
		s.alone[e.oid] = e.alone
		s.metrics.Database(e.oid, e.name).Up(false)
		s.link.Status(link.Status{Database: e.oid, Name: e.name, Phase: link.LeftAlone,
			Err: e.alone + "; its replication slot keeps WAL back until it is dropped: select pg_drop_replication_slot('" + wal.SlotName(e.oid) + "')"})
	case !e.slot:
		s.forget(e.oid)
	}
}

// forget reports that a database is not followed.
func (s *supervisor) forget(oid uint32) {
	delete(s.alone, oid)
	s.metrics.Forget(oid)
	s.link.Status(link.Status{Database: oid, Name: s.names[oid], Phase: link.Gone})
}

func (s *supervisor) discoveryFailed(err error) time.Duration {
	if s.failing.IsZero() {
		s.failing, s.pause = time.Now(), firstPause/2
	}
	t := explain(err, s.config)
	if t.lacks != "" {
		t.text = s.shortages.note(t.lacks, 0, t.text)
	}
	quiet := isStarting(err) && time.Since(s.failing) < patience || t.lacks != "" // which shortages tells
	if !quiet && t.text != s.lastErr {
		s.lastErr = t.text
		attrs := []any{"err", errors.New(t.text)}
		if t.hint != "" {
			attrs = append(attrs, "hint", t.hint)
		}
		s.log.Warn("cannot list the databases, will try again", attrs...)
	}
	if isClosing(err) { // a smart shutdown must not wait for us
		for _, m := range s.members {
			s.retire(m)
			s.forget(m.entry.oid)
		}
	}
	if t.hint != "" {
		t.text += ". " + t.hint
	}
	// Of no database: it is shown for those that cannot be looked at.
	s.link.Status(link.Status{Phase: link.BackedOff, Err: t.text})
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
		shortages: s.shortages,
		numbers:   s.metrics.Database(e.oid, e.name),
		previous:  s.ending[e.oid],
		recheck:   make(chan struct{}, 1),
		done:      make(chan struct{}),
	}
	delete(s.ending, e.oid)
	ctx, m.cancel = context.WithCancel(ctx)
	s.members[e.oid] = m
	s.group.Go("database "+e.name, func(context.Context) error {
		defer close(m.done)
		m.serve(ctx)
		return nil
	})
}

// retire ends a member without waiting for it; the next one of its database does.
func (s *supervisor) retire(m *member) {
	m.retire()
	delete(s.members, m.entry.oid)
	s.ending[m.entry.oid] = m.done
}

func (s *supervisor) obey(ctx context.Context, c link.Command) {
	switch c.Kind {
	case link.Everywhere:
		s.look(ctx, scope{everywhere: true})
	case link.Discover:
		s.look(ctx, only(c.Database))
	case link.Leave:
		s.leave(c.Database, c.Ticket)
	case link.Return:
		delete(s.left[c.Database], c.Ticket)
		if len(s.left[c.Database]) == 0 {
			delete(s.left, c.Database)
		}
		s.look(ctx, only(c.Database))
	case link.Abandoned:
		if m := s.members[c.Database]; m != nil {
			m.abandoned()
		}
	case link.Ping:
		s.link.Here()
	case link.Reload:
		config, err := parseConfig(c.Settings)
		if err == nil {
			_, err = config.connConfig("")
		}
		if err != nil {
			s.log.Warn("the settings are not taken", "err", err)
			return
		}
		s.reload(ctx, config)
	}
}

// leave stops following a database until the ticket is returned, and answers when no
// session of ours is in it any more. Somebody needs it for himself; if he drops it,
// the server drops the slot with it.
func (s *supervisor) leave(oid, ticket uint32) {
	if s.left[oid] == nil {
		s.left[oid] = make(map[uint32]string)
	}
	s.left[oid][ticket] = s.names[oid]
	if m := s.members[oid]; m != nil {
		s.retire(m)
	}
	s.forget(oid)
	ending := s.ending[oid]
	var looking <-chan struct{}
	if s.looking != nil { // it may be there, too
		s.looking.given = true
		s.looking.cancel()
		looking = s.looking.done
	}
	if ending == nil && looking == nil {
		s.link.Left(oid, ticket)
		return
	}
	s.group.Go("leave", func(ctx context.Context) error {
		for _, over := range []<-chan struct{}{ending, looking} {
			if over == nil {
				continue
			}
			select {
			case <-over:
			case <-ctx.Done():
				return nil
			}
		}
		s.link.Left(oid, ticket)
		return nil
	})
}

// reload takes new settings.
func (s *supervisor) reload(ctx context.Context, c Config) {
	old := s.config
	s.configure(c)
	if c.DiscoveryInterval != old.DiscoveryInterval && s.looking == nil && s.failing.IsZero() {
		s.timer.Reset(c.discoveryInterval())
	}
	if c.Enabled && old.Enabled && c.sameServer(old) {
		for _, m := range s.members { // settings of the server's own concern the followers, too
			m.look()
		}
		return
	}
	for oid, m := range s.members {
		s.retire(m)
		s.forget(oid) // its slot stays
	}
	clear(s.alone)
	switch {
	case !c.Enabled && old.Enabled:
		s.log.Info("wed_sql.enabled is off: no database is followed")
	case c.Enabled && !old.Enabled:
		s.log.Info("wed_sql.enabled is on")
	}
	s.look(ctx, scope{everywhere: true})
}
