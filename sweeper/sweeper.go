// Package sweeper does what is due because time has passed: it ends transactions that
// hold the lock of a job for longer than the job's timeout, counts the attempts that
// failed with their session, and has the server do what its timers say.
//
// It works by itself, without polling: the follower tells of jobs and timers as they
// are written, and what a look at the database finds tells when to look again (watch,
// alarms). Timeouts and timers have a goroutine and a session each, so that neither
// waits for the other; a session is opened when there is something to do, and closed
// when there has been nothing for a while.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
	"github.com/wed-sql/wed_sql/internal/group"
)

// Session is a session in the database. One goroutine uses it at a time.
type Session interface {
	// EndOverdue ends the transactions that have exceeded a timeout.
	EndOverdue(ctx context.Context, probe bool) (Overdue, error)
	// CountLost counts the failed attempts of sessions that have ended.
	CountLost(ctx context.Context) (int, error)
	// AnyRunning tells whether one of the transactions has not ended yet.
	AnyRunning(ctx context.Context, xids []uint32) (bool, error)
	// Sweep fires at most so many delays that are over or, if there are none, claims
	// something else that is due: an action of another flow than served, if there is one.
	Sweep(ctx context.Context, most int, served int32) (Swept, error)
	// Do does what was claimed, and returns what is wrong with it.
	Do(ctx context.Context, t Timer) (problem string, err error)
	// PutOff has what was claimed be done later.
	PutOff(ctx context.Context, t Timer) error
	Close() error
}

// Overdue is the outcome of [Session.EndOverdue]; times are by the server's clock,
// and zero if there is none.
type Overdue struct {
	Now      time.Time // when it began
	Ended    int
	Deadline time.Time     // of the next transaction that holds a lock of a job
	Oldest   time.Time     // start of the oldest open transaction
	Shortest time.Duration // timeout of the pending jobs, if probe; 0: none is pending
	Complete bool          // no flow had to be left out
}

// Swept is the outcome of [Session.Sweep].
type Swept struct {
	Now     time.Time
	Handled int
	NextDue time.Time // zero: nothing will be due
	Problem string    // with something that is due, which is put off; or ""
	Claimed *Timer    // to be done now, or nil
}

// Timer is a row of wed_sql.timer.
type Timer struct {
	Flow    int32
	Wid     int64
	Rule    int32
	Kind    string
	Version int64
	DueAt   time.Time
}

// Settings of a sweeper.
type Settings struct {
	// Open opens a session.
	Open func(ctx context.Context) (Session, error)
	Log  *slog.Logger
	// Warn is called, if it is there, when it cannot do its work for some time, with the
	// reason; and with "" when it can again.
	Warn func(text string)
	// Idle is how long a session is kept that has nothing to do.
	Idle time.Duration
}

const (
	// maxSleep is how late a timer may be that has become due by a change of the clock. Waking up costs no round trip.
	maxSleep = 5 * time.Second
	// longer than three times the longest wed_sql.action_timeout, after which the session ends
	callTimeout  = 4 * time.Minute
	firstPause   = 100 * time.Millisecond
	lastPause    = 10 * time.Second
	patience     = 5 * time.Second // with errors, until somebody is told
	defaultIdle  = time.Minute
	sweepTime    = 100 * time.Millisecond // that a transaction of the sweeper may take
	firstSweep   = 100                    // timers in a transaction
	longestSweep = 5000
	// How long a problem is not told again, and how many are told in that time.
	repeatInterval = 10 * time.Minute
	maxProblems    = 20
)

// Sweeper is the sweeper of one database. Its methods, Run apart, do not block.
type Sweeper struct {
	settings         Settings
	timeouts, timers *loop

	mu     sync.Mutex
	watch  watch
	lost   bool // sessions may have left jobs behind
	alarms alarms
	most   int
	ahead  time.Duration // the server's clock, of ours
	warned map[string]string
	// Problems with what is due, and when the log was told.
	problems map[string]time.Time

	// These belong to the loop of the timers.
	served  int32  // flow of the last action
	claimed *Timer // what was to be done when the session failed
}

// New returns a sweeper that does nothing before Run is called.
func New(s Settings) *Sweeper {
	if s.Idle == 0 {
		s.Idle = defaultIdle
	}
	w := &Sweeper{settings: s, lost: true, most: firstSweep, warned: make(map[string]string), problems: make(map[string]time.Time)}
	w.timeouts = newLoop(w, "timeouts", w.nextLook, w.look)
	w.timers = newLoop(w, "timers", w.nextSweep, w.sweep)
	return w
}

// Run sweeps until the context ends.
func (s *Sweeper) Run(ctx context.Context) error {
	g, _ := group.New(ctx)
	for _, l := range []*loop{s.timeouts, s.timers} {
		g.Go(l.name, l.run)
	}
	return g.Wait()
}

// Jobs says that jobs were written, and the shortest of their timeouts.
func (s *Sweeper) Jobs(shortest time.Duration) {
	s.mu.Lock()
	s.watch.jobs(s.now(), shortest)
	s.mu.Unlock()
	s.timeouts.wakeUp()
}

// Due says that a transaction has set timers, and when the first of them is due.
func (s *Sweeper) Due(at time.Time, xid uint32) {
	s.mu.Lock()
	s.alarms.set(at, xid)
	s.mu.Unlock()
	s.timers.wakeUp()
}

// Lost says that sessions have ended which had jobs locked.
func (s *Sweeper) Lost() {
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	s.timeouts.wakeUp()
}

// now is the time by the server's clock; without the monotonic reading, because that
// clock may be set. It needs the lock.
func (s *Sweeper) now() time.Time { return time.Now().Add(s.ahead).Round(0) }

// compareClocks takes a time of the server's that lies between two of ours. It needs
// the lock.
func (s *Sweeper) compareClocks(sent, server, received time.Time) {
	least, most := server.Sub(received.Round(0)), server.Sub(sent.Round(0))
	s.ahead = min(max(0, least), most)
}

func (s *Sweeper) nextLook() (now, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now = s.now(); s.lost {
		return now, now
	}
	return now, s.watch.next(now)
}

func (s *Sweeper) look(ctx context.Context, db Session) error {
	s.mu.Lock()
	probe := s.watch.begin(s.now())
	lost := s.lost
	s.lost = false
	s.mu.Unlock()
	if err := s.endOverdue(ctx, db, probe); err != nil {
		s.mu.Lock()
		s.watch.changed(s.now())
		s.lost = s.lost || lost
		s.mu.Unlock()
		return err
	}
	if !lost {
		return nil
	}
	faultpoint.Hit(faultpoint.CountingLost)
	if _, err := db.CountLost(ctx); err != nil {
		s.Lost()
		return fmt.Errorf("count failed attempts: %w", err)
	}
	faultpoint.Hit(faultpoint.LostCounted)
	return nil
}

func (s *Sweeper) endOverdue(ctx context.Context, db Session, probe bool) error {
	sent := time.Now()
	faultpoint.Hit(faultpoint.Overdue)
	o, err := db.EndOverdue(ctx, probe)
	if err != nil {
		return fmt.Errorf("look for overdue transactions: %w", err)
	}
	if o.Ended > 0 {
		faultpoint.Hit(faultpoint.OverdueEnded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compareClocks(sent, o.Now, time.Now())
	s.watch.found(glance{now: o.Now, deadline: o.Deadline, oldest: o.Oldest, shortest: o.Shortest, complete: o.Complete}, probe)
	return nil
}

func (s *Sweeper) nextSweep() (now, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.now()
	return now, s.alarms.next(now)
}

func (s *Sweeper) sweep(ctx context.Context, db Session) (err error) {
	s.mu.Lock()
	r, most := s.alarms.begin(), s.most
	s.mu.Unlock()
	defer func() {
		if err != nil {
			s.mu.Lock()
			s.alarms.undo(r)
			s.mu.Unlock()
		}
	}()
	running := false
	if len(r.xids) > 0 {
		if running, err = db.AnyRunning(ctx, r.xids); err != nil {
			return fmt.Errorf("wait for transactions that set timers: %w", err)
		}
	}
	if s.claimed != nil { // it has ended the last session, or would not end
		if err := db.PutOff(ctx, *s.claimed); err != nil {
			return fmt.Errorf("put off what could not be done: %w", err)
		}
		s.claimed = nil
	}
	faultpoint.Hit(faultpoint.Sweeping)
	sent := time.Now()
	swept, err := db.Sweep(ctx, most, s.served)
	if err != nil {
		return fmt.Errorf("do what is due: %w", err)
	}
	answered := time.Now()
	faultpoint.Hit(faultpoint.Swept)
	if s.claimed = swept.Claimed; s.claimed != nil {
		s.served = s.claimed.Flow
		faultpoint.Hit(faultpoint.TimerClaimed)
		if swept.Problem, err = db.Do(ctx, *s.claimed); err != nil {
			return fmt.Errorf("do what is due: %w", err)
		}
		faultpoint.Hit(faultpoint.TimerDone)
		s.claimed = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Nobody is kept waiting for the locks of a transaction for long, and no more is
	// locked than is handled.
	switch took := answered.Sub(sent); {
	case swept.Claimed != nil:
	case took > sweepTime:
		s.most = max(s.most/2, 1)
	case swept.Handled >= s.most && took < sweepTime/4:
		s.most = min(2*s.most, longestSweep)
	case swept.Handled > 0 && swept.Handled < s.most/4:
		s.most /= 2
	}
	s.tell(swept.Problem)
	s.compareClocks(sent, swept.Now, answered)
	s.alarms.swept(r, running, swept.Handled, swept.NextDue, swept.Now)
	if swept.Handled > 0 { // timers fire jobs, too
		s.watch.changed(s.now())
		s.timeouts.wakeUp()
	}
	return nil
}

// tell logs a problem, but not the same one again and again, nor too many. It needs the
// lock.
func (s *Sweeper) tell(problem string) {
	maps.DeleteFunc(s.problems, func(_ string, told time.Time) bool { return time.Since(told) >= repeatInterval })
	if _, told := s.problems[problem]; problem == "" || told || len(s.problems) >= maxProblems {
		return
	}
	s.problems[problem] = time.Now()
	s.settings.Log.Warn("what is due could not be done, will try again", "err", errors.New(problem))
}

// warn collects what is wrong.
func (s *Sweeper) warn(name, text string) {
	s.mu.Lock()
	s.warned[name] = text
	all := ""
	for _, l := range []*loop{s.timeouts, s.timers} {
		if t := s.warned[l.name]; t != "" && t != all {
			if all != "" {
				all += "\n"
			}
			all += t
		}
	}
	s.mu.Unlock()
	if s.settings.Warn != nil {
		s.settings.Warn(all)
	}
}

// loop does one thing each time that it is due.
type loop struct {
	sweeper *Sweeper
	name    string
	next    func() (now, at time.Time)
	do      func(context.Context, Session) error
	wake    chan struct{}

	session Session
	used    time.Time
	failing time.Time // since when; zero: it is not
	pause   time.Duration
	told    bool
}

func newLoop(s *Sweeper, name string, next func() (now, at time.Time), do func(context.Context, Session) error) *loop {
	return &loop{sweeper: s, name: name, next: next, do: do, wake: make(chan struct{}, 1)}
}

func (l *loop) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loop) run(ctx context.Context) error {
	defer func() { _ = l.close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now, at := l.next()
		if !at.IsZero() && !at.After(now) {
			if err := l.once(ctx); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// A little disorder, so that those who failed together do not come back together.
			timer.Reset(l.pause + rand.N(l.pause/2))
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		wait := time.Duration(-1)
		if !at.IsZero() {
			wait = min(at.Sub(now), maxSleep)
		}
		if l.session != nil {
			idle := l.sweeper.settings.Idle - time.Since(l.used)
			if idle <= 0 {
				_ = l.close()
			} else if wait < 0 || idle < wait {
				wait = idle
			}
		}
		if wait >= 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// once does what is due. What it asks of the server is short, so it does not end with
// the context: a query that is cancelled is an error in the server's log.
func (l *loop) once(ctx context.Context) error {
	err := group.Call(l.name, func() error { return l.try(ctx) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		l.recovered()
		return nil
	}
	_ = l.close()
	l.failed(err)
	return err
}

func (l *loop) try(ctx context.Context) error {
	fresh := l.session == nil
	if fresh {
		session, err := l.sweeper.settings.Open(ctx)
		if err != nil {
			return err
		}
		l.session = session
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := l.do(call, l.session); err != nil {
		return err
	}
	l.used = time.Now()
	if _, at := l.next(); fresh && at.IsZero() { // it was opened for nothing
		return l.close()
	}
	return nil
}

func (l *loop) close() error {
	if l.session == nil {
		return nil
	}
	err := l.session.Close()
	l.session = nil
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the session: %w", err)
	}
	return nil
}

func (l *loop) failed(err error) {
	if l.failing.IsZero() {
		l.failing, l.pause = time.Now(), firstPause/2
	}
	l.pause = min(2*l.pause, lastPause)
	if l.told || time.Since(l.failing) < patience {
		return
	}
	l.told = true
	text := "cannot see to the " + l.name
	l.sweeper.settings.Log.Warn(text+", will try again", "err", err)
	l.sweeper.warn(l.name, text+": "+err.Error())
}

func (l *loop) recovered() {
	if l.told {
		l.sweeper.settings.Log.Info("sees to the " + l.name + " again")
		l.sweeper.warn(l.name, "")
	}
	l.failing, l.pause, l.told = time.Time{}, 0, false
}
