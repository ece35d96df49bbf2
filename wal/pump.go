package wal

import (
	"context"
	"fmt"
	"time"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
)

// How the applied position is stored and acknowledged while there is nothing to
// apply. Storing it makes log, too, which must not make us store it again.
const (
	idleStep      = 16 << 10               // bytes of log that are worth storing a position
	idleLeap      = 1 << 20                // bytes of log that should not wait for idleInterval
	idleInterval  = 10 * time.Second       // between two stores
	leapInterval  = 100 * time.Millisecond // the same, for leaps
	flushInterval = 250 * time.Millisecond // between looks whether what was applied is flushed
)

// A walsender of PostgreSQL 16 and later looks how far the log is flushed, and lets itself be
// woken by the next flush only then: one in between it does not see. Whatever is sent to it
// wakes it, too. So it is, a moment after the last states, which others often follow; where
// the log has only grown, there may be many databases, and it may wait.
const (
	nudgeAfterStates = 5 * time.Millisecond
	nudgeAfterGrowth = time.Second
)

// batchBytes bounds the states of a batch, in bytes, and queueBytes what waits
// behind it.
const (
	batchBytes = 2 << 20
	queueBytes = 4 << 20
)

// How batches that come in quick succession grow: while busyBatches have begun
// within busyTime, there are busyPace between the beginnings of two. A transaction
// costs more than the states in it.
const (
	busyBatches = 8
	busyTime    = 20 * time.Millisecond
	busyPace    = 2500 * time.Microsecond
)

// Whom a batch notifies, whatever he listens to, is a process that wakes up: with many,
// that is what costs most. So each of them adds to what is between two batches, up to the
// longest.
const (
	wakingPace  = 50 * time.Microsecond
	longestPace = 100 * time.Millisecond
)

// pace knows when the last batches began.
type pace struct {
	began [busyBatches]time.Time
	last  int // of these
	woken int // sessions, by the last one
}

// wait returns how long the next batch is to wait, to be larger.
func (p *pace) wait(now time.Time) time.Duration {
	between := min(time.Duration(p.woken)*wakingPace, longestPace)
	if earliest := p.began[(p.last+1)%busyBatches]; now.Sub(earliest) < busyTime {
		between = max(between, busyPace)
	}
	return between - now.Sub(p.began[p.last])
}

func (p *pace) begin(now time.Time) {
	p.last = (p.last + 1) % busyBatches
	p.began[p.last] = now
}

// store applies batches: an applier.
type store interface {
	// apply returns where the server's log was before the batch was committed.
	apply(ctx context.Context, batch []Commit, upto LSN) (receipt, error)
	positions(ctx context.Context) (positions, error)
}

// Observer is told how a follower gets on. Its methods must not block.
type Observer interface {
	// Applied says that everything committed up to lsn has been matched, also while
	// there is nothing to match: then commit is zero, and else the time of the last
	// state's commit.
	Applied(lsn LSN, commit time.Time)
	// Progress gives the acknowledged position and the number of states applied
	// since the follower started.
	Progress(flushed LSN, states uint64)
}

// pump moves batches from the queue to the store, and acknowledges them when they
// are flushed.
type pump struct {
	queue     *queue
	store     store
	feedback  *feedback
	observer  Observer
	batchSize func() int
	nudges    bool // as the server's version wants it

	pace    pace
	ledger  ledger
	applied LSN // up to here everything is matched
	stored  LSN // what wed_sql.follower has
	states  uint64
	last    time.Time // of the last store
	nudge   time.Time // when the walsender is to be woken; zero: it need not
}

// run ends with an error, never without.
func (p *pump) run(ctx context.Context) error {
	p.last = time.Now()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if wait := p.pace.wait(time.Now()); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		batch, upto := p.queue.take(p.batchSize(), batchBytes)
		if len(batch) > 0 {
			if err := p.apply(ctx, batch, upto); err != nil {
				return err
			}
			p.nudgeAt(time.Now().Add(nudgeAfterStates))
			continue
		}
		now := time.Now()
		if upto > p.applied && p.nudge.IsZero() {
			p.nudgeAt(now.Add(nudgeAfterGrowth))
		}
		p.matched(upto, time.Time{})
		due := p.due()
		if !due.IsZero() && !now.Before(due) {
			if err := p.settle(ctx, now); err != nil {
				return err
			}
			continue
		}
		timer.Stop()
		if !due.IsZero() {
			timer.Reset(due.Sub(now))
		}
		select {
		case <-p.queue.ready:
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *pump) matched(lsn LSN, commit time.Time) {
	if lsn > p.applied {
		p.applied = lsn
		p.feedback.applied(lsn)
		p.observer.Applied(lsn, commit)
	}
}

// apply writes a batch, which may be empty.
func (p *pump) apply(ctx context.Context, batch []Commit, upto LSN) error {
	faultpoint.Hit(faultpoint.BatchTaken)
	p.pace.begin(time.Now())
	at, err := p.store.apply(ctx, batch, upto)
	p.pace.woken = at.woken
	if err != nil {
		return fmt.Errorf("apply up to %s: %w", upto, err)
	}
	var commit time.Time
	for i := range batch {
		p.states += uint64(len(batch[i].Versions))
		commit = batch[i].Time
	}
	if upto != 0 {
		p.matched(upto, commit)
	}
	flushed := p.ledger.observe(at.insert, at.flush) // of what was applied before
	if upto != 0 {
		p.ledger.applied(upto)
		p.stored, p.last = upto, time.Now()
	}
	return p.progress(flushed)
}

func (p *pump) progress(flushed bool) error {
	p.observer.Progress(p.ledger.acked, p.states)
	if !flushed {
		return nil
	}
	faultpoint.Hit(faultpoint.Acknowledging)
	if err := p.feedback.acknowledge(p.ledger.acked); err != nil {
		return err
	}
	faultpoint.Hit(faultpoint.Acknowledged)
	return nil
}

// due returns when settle has something to do, zero if never.
func (p *pump) due() time.Time {
	var due time.Time
	switch moved := p.applied - p.stored; {
	case moved >= idleLeap:
		due = p.last.Add(leapInterval)
	case moved >= idleStep:
		due = p.last.Add(idleInterval)
	}
	if !p.ledger.idle() {
		due = earliest(due, p.ledger.looked.Add(flushInterval))
	}
	return earliest(due, p.nudge)
}

func (p *pump) nudgeAt(at time.Time) {
	if p.nudges {
		p.nudge = at
	}
}

// earliest returns the first of two times; zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// settle does what is due while there is nothing to apply.
func (p *pump) settle(ctx context.Context, now time.Time) error {
	if !p.nudge.IsZero() && !now.Before(p.nudge) {
		p.nudge = time.Time{}
		return p.feedback.send()
	}
	moved, since := p.applied-p.stored, now.Sub(p.last)
	if moved >= idleLeap && since >= leapInterval || moved >= idleStep && since >= idleInterval {
		return p.apply(ctx, nil, p.applied)
	}
	at, err := p.store.positions(ctx)
	if err != nil {
		return err
	}
	return p.progress(p.ledger.observe(at.insert, at.flush))
}
