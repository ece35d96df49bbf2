package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/group"
)

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// dispatching runs a test with a dispatcher, in a time of its own.
func dispatching(t *testing.T, f *fakeStore, test func(t *testing.T, d *dispatcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(f, newMetrics(), discard(), 5*time.Second)
		d.channels = fakeChannels{}
		ctx, stop := context.WithCancel(context.Background())
		parts, _ := group.New(ctx)
		d.begin(parts)
		test(t, d)
		d.drain()
		stop()
		if err := parts.Wait(); err != nil {
			t.Error(err)
		}
	})
}

var work = lane{flow: "f", transition: "work"}

func enter(t *testing.T, d *dispatcher, want int, lease time.Duration) *waiter {
	t.Helper()
	w, err := d.enter(work, want, lease)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return w
}

// has returns how many jobs a waiter has been given, -1 if it still waits.
func has(w *waiter) int {
	synctest.Wait()
	select {
	case got := <-w.given:
		return len(got.jobs)
	default:
		return -1
	}
}

func TestTheFirstToComeIsTheFirstToBeServed(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a, b, c := enter(t, d, 1, time.Minute), enter(t, d, 1, time.Minute), enter(t, d, 1, time.Minute)
		f.add(2)
		d.notified("f", "work")
		d.notified("f", "work")
		if n := []int{has(a), has(b), has(c)}; n[0] != 1 || n[1] != 1 || n[2] != -1 {
			t.Errorf("they have %v", n)
		}
		d.notified("other", "work")
		d.notified("f", "other")
		f.add(1)
		if has(c) != -1 {
			t.Error("woken by what is not its own")
		}
		d.notified("f", "work")
		if has(c) != 1 {
			t.Error("not served")
		}
	})
}

func TestJobsAreLeasedTogetherAndSharedEvenly(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a, b, c := enter(t, d, 10, time.Minute), enter(t, d, 2, time.Minute), enter(t, d, 1, time.Minute)
		f.forget(nil)
		f.add(7)
		d.rescan()
		if n := []int{has(a), has(b), has(c)}; n[0] != 4 || n[1] != 2 || n[2] != 1 {
			t.Errorf("they have %v", n)
		}
		if len(f.seen().asked) != 1 || f.seen().asked[0] != 13 {
			t.Errorf("asked for %v", f.seen().asked)
		}
	})
}

func TestAsManyJobsAreAskedForAsWereAnnouncedAndThenForMore(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		for range 10 {
			enter(t, d, 1, time.Minute)
		}
		f.forget(nil)
		f.add(4)
		d.notified("f", "work")
		synctest.Wait()
		d.notified("f", "work")
		synctest.Wait()
		if len(f.seen().asked) != 2 || f.seen().asked[0] != 1 || f.seen().asked[1] != 1 {
			t.Errorf("asked for %v", f.seen().asked)
		}
		time.Sleep(2 * surely)
		synctest.Wait()
		if len(f.seen().asked) != 3 || f.seen().asked[2] != 8 || f.seen().pending != 0 {
			t.Errorf("asked for %v; %d jobs are left", f.seen().asked, f.seen().pending)
		}
		// What somebody else has taken is not waited for.
		d.notified("f", "work")
		d.notified("f", "work")
		f.add(1)
		synctest.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if there := d.lanes[work].there; f.seen().pending != 0 || there != 0 {
			t.Errorf("asked for %v; %d jobs are said to be there", f.seen().asked, there)
		}
	})
}

func TestALeaseIsAsLongAsAsked(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		long, short := enter(t, d, 1, time.Hour), enter(t, d, 1, time.Minute)
		f.add(2)
		d.notified("f", "work")
		d.notified("f", "work")
		synctest.Wait()
		for w, want := range map[*waiter]time.Duration{long: time.Hour, short: time.Minute} {
			if got := <-w.given; time.Until(got.jobs[0].LeasedUntil) != want {
				t.Errorf("leased until %s, want %s", got.jobs[0].LeasedUntil, want)
			}
		}
	})
}

func TestWhoWaitsDoesNotAskTheDatabaseAgainAndAgain(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		for range 100 {
			enter(t, d, 1, time.Minute)
		}
		if len(f.seen().asked) != 1 {
			t.Errorf("asked %d times", len(f.seen().asked))
		}
		f.add(1) // and nobody tells
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(f.seen().asked) != 2 || f.seen().pending != 0 {
			t.Errorf("asked %d times, %d jobs are there, after the wakeup", len(f.seen().asked), f.seen().pending)
		}
		d.rescan()
		synctest.Wait()
		if len(f.seen().asked) != 3 {
			t.Errorf("asked %d times, after notifications may have been lost", len(f.seen().asked))
		}
	})
}

func TestWhatWasLeasedForWhoHasGoneGoesToTheNextOrBack(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a, b := enter(t, d, 1, time.Minute), enter(t, d, 1, time.Minute)
		var c *waiter
		f.mu.Lock()
		f.hold = func(context.Context) { // while the jobs are being leased
			d.leave(a)
			d.leave(b)
			var err error
			if c, err = d.enter(work, 1, time.Minute); err != nil {
				t.Error(err)
			}
		}
		f.mu.Unlock()
		f.add(2)
		d.rescan()
		synctest.Wait()
		if has(c) != 1 || f.seen().released != 1 || f.seen().leased != 1 {
			t.Errorf("%d released, %d leased", f.seen().released, f.seen().leased)
		}
	})
}

func TestWhatWasGivenToWhoIsLeavingIsNotLost(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a := enter(t, d, 1, time.Minute)
		f.add(1)
		d.notified("f", "work")
		synctest.Wait()
		if jobs := d.leave(a); len(jobs) != 1 {
			t.Errorf("%d jobs", len(jobs))
		}
		if jobs := d.leave(a); len(jobs) != 0 || d.count() != 0 {
			t.Errorf("%d jobs, %d wait", len(jobs), d.count())
		}
	})
}

func TestADatabaseThatIsAwayIsAskedAgainLater(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	f.err = &pgconn.PgError{Code: "57P01"}
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a := enter(t, d, 1, time.Minute)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(f.seen().asked); n < 5 || n > 30 {
			t.Errorf("asked %d times in a minute", n)
		}
		f.forget(nil)
		f.add(1)
		time.Sleep(11 * time.Second)
		if has(a) != 1 {
			t.Error("not served")
		}
	})
}

func TestAnErrorIsEverybodysWhoWaits(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	dispatching(t, f, func(t *testing.T, d *dispatcher) {
		a, b := enter(t, d, 1, time.Minute), enter(t, d, 1, time.Hour)
		f.forget(&pgconn.PgError{Code: stateUndefinedObject})
		d.notified("f", "work")
		synctest.Wait()
		for _, w := range []*waiter{a, b} {
			if got := <-w.given; sqlState(got.err) != stateUndefinedObject {
				t.Errorf("%+v", got)
			}
		}
	})
}

func lanes(d *dispatcher) int {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(len(d.lanes), len(d.channel))
}

func TestALaneIsForgottenWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	dispatching(t, newFakeStore(), func(t *testing.T, d *dispatcher) {
		w := enter(t, d, 1, time.Minute)
		time.Sleep(2 * linger)
		if lanes(d) != 1 {
			t.Error("forgotten while somebody waits")
		}
		d.leave(w)
		time.Sleep(2 * linger)
		if lanes(d) != 0 {
			t.Error("not forgotten")
		}
		enter(t, d, 1, time.Minute)
	})
}

func TestWhoComesWhileItDrainsIsSentAway(t *testing.T) {
	t.Parallel()
	dispatching(t, newFakeStore(), func(t *testing.T, d *dispatcher) {
		w := enter(t, d, 1, time.Minute)
		d.drain()
		if got := <-w.given; got.err != errDraining {
			t.Errorf("%+v", got)
		}
		if _, err := d.enter(work, 1, time.Minute); !errors.Is(err, errDraining) {
			t.Errorf("%v", err)
		}
		if err := d.busy.wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
