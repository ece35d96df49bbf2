package worker

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func openQueue(slots int, cfg Config) *queue {
	q := newQueue(slots, 1, cfg)
	q.open()
	return q
}

// scannedQueue returns a queue that has just read a pool with these jobs.
func scannedQueue(t *testing.T, slots int, keys ...key) *queue {
	t.Helper()
	q := openQueue(slots, Config{Wakeup: 5 * time.Second, RetryAfter: DefaultRetryAfter})
	t.Cleanup(q.close)
	if got, ok := q.next(t.Context(), maxClaim); !ok || !got.scan {
		t.Fatalf("a new queue gives %+v, want a scan", got)
	}
	q.scanFound(pending(keys...), nil)
	return q
}

// pending is what a scan finds, all of it equally urgent.
func pending(keys ...key) []scanned {
	jobs := make([]scanned, len(keys))
	for i, k := range keys {
		jobs[i].key = k
	}
	return jobs
}

// takeOne takes one job, which must be there.
func takeOne(t *testing.T, q *queue) key {
	t.Helper()
	got, ok := q.next(t.Context(), maxClaim)
	if !ok || got.scan || len(got.keys) == 0 {
		t.Fatalf("next gives %+v, %t, want a job", got, ok)
	}
	q.giveBack(got.keys[1:])
	return got.keys[0]
}

// within reports what next gives in the next d of (synthetic) time.
func within(t *testing.T, q *queue, d time.Duration) (task, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return q.next(ctx, maxClaim)
}

func TestPoolIsReadBeforeAnythingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(1, Config{Wakeup: time.Second, RetryAfter: DefaultRetryAfter})
		defer q.close()
		q.notified(key{1, 1})
		if got, _ := q.next(t.Context(), maxClaim); !got.scan || !got.after.firedAt.IsZero() {
			t.Errorf("first task is %+v, want a scan from the beginning", got)
		}
	})
}

func TestPoolIsReadEveryWakeupInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1)
		for range 3 {
			begin := time.Now()
			got, ok := q.next(t.Context(), maxClaim)
			if !ok || !got.scan {
				t.Fatalf("next gives %+v, want a scan", got)
			}
			if waited := time.Since(begin); waited != 5*time.Second {
				t.Errorf("read again after %s, want the wakeup interval", waited)
			}
			q.scanFound(nil, nil)
		}
	})
}

func TestNotifiedJobWakesAWaitingSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1)
		got := make(chan task)
		go func() {
			task, _ := q.next(t.Context(), maxClaim)
			got <- task
		}()
		synctest.Wait()
		q.notified(key{7, 3})
		if task := <-got; !slices.Equal(task.keys, []key{{7, 3}}) {
			t.Errorf("the slot got %+v", task)
		}
	})
}

func TestJobIsHandedOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 2, key{1, 1})
		takeOne(t, q)
		q.rescan()
		if got, _ := q.next(t.Context(), maxClaim); !got.scan {
			t.Fatalf("next gives %+v, want a scan", got)
		}
		q.scanFound(pending(key{1, 1}), nil) // still pending: it is being worked on
		if got, ok := within(t, q, time.Second); ok {
			t.Errorf("a job that is taken was handed out again: %+v", got)
		}
	})
}

func TestJobFiredAnewWhileItCommitsIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1, key{1, 1})
		k := takeOne(t, q)
		q.notified(k) // the follower was quicker than the answer to our commit
		q.done(completed, k)
		if again := takeOne(t, q); again != k {
			t.Errorf("got %v, want %v", again, k)
		}
		q.done(completed, k)
		if got, ok := within(t, q, time.Second); ok {
			t.Errorf("handed out once too often: %+v", got)
		}
	})
}

func TestFailingJobWaitsLongerEachTimeAndNeverLongerThanAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(1, Config{Wakeup: time.Hour, RetryAfter: DefaultRetryAfter})
		defer q.close()
		q.next(t.Context(), maxClaim)
		q.scanFound(pending(key{1, 1}), nil)
		var waits []time.Duration
		for range 12 {
			begin := time.Now()
			k := takeOne(t, q)
			waits = append(waits, time.Since(begin))
			q.done(failed, k)
		}
		if waits[0] != 0 {
			t.Errorf("first attempt after %s", waits[0])
		}
		for i, w := range waits[1:] {
			limit := min(500*time.Millisecond<<i, time.Minute)
			if w < limit/2 || w > limit {
				t.Errorf("attempt %d after %s, want between %s and %s", i+2, w, limit/2, limit)
			}
		}
	})
}

func TestLostRaceIsRedoneWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(1, Config{Wakeup: time.Hour, RetryAfter: DefaultRetryAfter})
		defer q.close()
		q.next(t.Context(), maxClaim)
		q.scanFound(pending(key{1, 1}), nil)
		k := takeOne(t, q)
		for range 30 {
			q.done(soon, k)
			begin := time.Now()
			takeOne(t, q)
			if waited := time.Since(begin); waited <= 0 || waited > time.Second {
				t.Fatalf("redone after %s", waited)
			}
		}
	})
}

func TestNotificationEndsTheWaitOfAFailedJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1, key{1, 1}, key{2, 1})
		for range 2 {
			q.done(failed, takeOne(t, q))
		}
		q.notified(key{2, 1})
		begin := time.Now()
		if k := takeOne(t, q); k != (key{2, 1}) || time.Since(begin) != 0 {
			t.Errorf("got %v after %s", k, time.Since(begin))
		}
		if k := takeOne(t, q); k != (key{1, 1}) {
			t.Errorf("got %v, want the other failed job", k)
		}
	})
}

func TestLargePoolIsReadPageByPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs = 3*minPage + 10
		q := openQueue(1, Config{Wakeup: time.Hour, RetryAfter: DefaultRetryAfter})
		defer q.close()
		seen := make(map[key]bool)
		for len(seen) < jobs {
			task, ok := q.next(t.Context(), maxClaim)
			if !ok {
				t.Fatal("the queue ended")
			}
			if task.scan {
				first := task.after.key.wid + 1
				var page []key
				for wid := first; wid < first+minPage && wid <= jobs; wid++ {
					page = append(page, key{wid, 1})
				}
				var last *cursor
				if len(page) == minPage {
					last = &cursor{firedAt: time.Now(), key: page[len(page)-1]}
				}
				q.scanFound(pending(page...), last)
				continue
			}
			if len(task.keys) > maxClaim {
				t.Fatalf("%d jobs in one claim", len(task.keys))
			}
			if len(q.ready) > 2*minPage {
				t.Fatalf("%d jobs in memory", len(q.ready))
			}
			q.giveBack(task.keys[1:])
			if seen[task.keys[0]] {
				t.Fatalf("%v handed out twice", task.keys[0])
			}
			seen[task.keys[0]] = true
			q.done(completed, task.keys[0])
		}
	})
}

func TestRescanAskedForDuringAScanIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(1, Config{Wakeup: time.Hour, RetryAfter: DefaultRetryAfter})
		defer q.close()
		q.next(t.Context(), maxClaim)
		q.rescan() // LISTEN began after that scan's snapshot
		q.scanFound(nil, nil)
		begin := time.Now()
		if task, ok := q.next(t.Context(), maxClaim); !ok || !task.scan || time.Since(begin) != 0 {
			t.Errorf("next gives %+v after %s, want a scan at once", task, time.Since(begin))
		}
	})
}

func TestFailedScanIsTriedAgainLaterEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(1, Config{Wakeup: time.Hour, RetryAfter: DefaultRetryAfter})
		defer q.close()
		q.next(t.Context(), maxClaim)
		for i := range 12 {
			q.scanFailed()
			begin := time.Now()
			if task, ok := q.next(t.Context(), maxClaim); !ok || !task.scan {
				t.Fatalf("next gives %+v", task)
			}
			limit := min(100*time.Millisecond<<i, 15*time.Second)
			if waited := time.Since(begin); waited < limit/2 || waited > limit {
				t.Errorf("attempt %d after %s, want between %s and %s", i+2, waited, limit/2, limit)
			}
		}
	})
}

func TestFewJobsAreSharedAmongTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 4, key{1, 1}, key{2, 1}, key{3, 1}, key{4, 1})
		for range 4 {
			if task, ok := q.next(t.Context(), maxClaim); !ok || len(task.keys) != 1 {
				t.Errorf("a slot got %+v, want one job", task)
			}
		}
	})
}

func TestOnceEndsWhenAllIsTriedAndNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := openQueue(2, Config{Wakeup: time.Millisecond, RetryAfter: DefaultRetryAfter, Once: true})
		defer q.close()
		q.next(t.Context(), maxClaim)
		q.scanFound(pending(key{1, 1}, key{2, 1}), nil)
		a, b := takeOne(t, q), takeOne(t, q)
		ended := make(chan bool)
		go func() {
			_, ok := q.next(t.Context(), maxClaim)
			ended <- !ok
		}()
		q.done(failed, a) // not again
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("ended while a job was running")
		default:
		}
		q.done(completed, b)
		if !<-ended {
			t.Error("went on")
		}
	})
}

func TestQueueEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() {
			_, ok := q.next(ctx, maxClaim)
			ended <- !ok
		}()
		synctest.Wait()
		cancel()
		if !<-ended {
			t.Error("gave something to do")
		}
	})
}

func TestUrgentJobsAreTakenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1)
		q.rescan()
		if got, ok := q.next(t.Context(), maxClaim); !ok || !got.scan {
			t.Fatalf("next gives %+v, want a scan", got)
		}
		q.scanFound([]scanned{{key{1, 2}, 5}, {key{2, 1}, 0}, {key{3, 3}, -1}}, nil)
		q.notified(key{4, 2})
		q.notified(key{5, 1})
		for _, want := range []key{{1, 2}, {4, 2}, {2, 1}, {5, 1}, {3, 3}} {
			if got := takeOne(t, q); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
			q.done(completed, want)
		}
	})
}

func TestReportOfAFailureDoesNotBringTheJobBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1, key{1, 1})
		q.done(reported, takeOne(t, q))
		time.Sleep(time.Millisecond)
		q.notified(key{1, 1}) // the server says that it is pending again
		if got, ok := within(t, q, DefaultRetryAfter/2-2*time.Millisecond); ok {
			t.Fatalf("next gives %+v, want nothing yet", got)
		}
		time.Sleep(10 * time.Millisecond)
		q.notified(key{1, 1}) // that is another one, or its time has come
		if got, ok := within(t, q, time.Millisecond); !ok || len(got.keys) != 1 {
			t.Errorf("next gives %+v, want the job", got)
		}
	})
}

func TestABatchHasNoTwoJobsOfOneInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := scannedQueue(t, 1)
		for _, k := range []key{{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {3, 2}} {
			q.notified(k)
		}
		for _, want := range [][]key{{{1, 1}, {2, 1}, {3, 1}}, {{1, 2}, {3, 2}}, {{1, 3}}} {
			if got, ok := q.next(t.Context(), 100); !ok || !slices.Equal(got.keys, want) {
				t.Errorf("got %v, want %v", got.keys, want)
			}
		}
	})
}
