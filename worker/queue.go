package worker

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	minPage  = 1000 // jobs read from the pool at a time, or a batch for each slot if that is more
	maxPage  = 10_000
	maxClaim = 16   // jobs tried in one round trip
	maxReady = 4096 // notified jobs remembered; the pool keeps the others
)

// key identifies a pending job.
type key struct {
	wid  int64
	tgid int32
}

// scanned is a pending job as the pool has it.
type scanned struct {
	key      key
	priority int32
}

// cursor is the place in the pool where the next page begins.
type cursor struct {
	priority int32
	firedAt  time.Time // zero: from the beginning
	key      key
}

// outcome is what became of a job that was taken from the queue.
type outcome int

const (
	completed outcome = iota // committed here
	gone                     // completed or being worked on by somebody else
	soon                     // lost a race: to be redone in a moment
	failed                   // the handler could not do it: to be redone later
	reported                 // the same, and the server knows
)

type phase int

const (
	ready   phase = iota // waits for a free slot
	taken                // a slot has it
	delayed              // waits for its time
)

type entry struct {
	key        key
	phase      phase
	failures   int
	again      bool // notified while taken: it may have been fired anew
	due        time.Time
	reportedAt time.Time
}

// queue knows which jobs are worth trying, and when. It holds hints only: what
// is really pending is decided by the server when a job is claimed.
type queue struct {
	slots      int
	page       int // jobs read from the pool at a time
	wakeup     time.Duration
	retryAfter time.Duration
	once       bool

	mu      sync.Mutex
	cond    *sync.Cond
	timer   *time.Timer
	known   map[key]*entry
	ready   []key // the larger their priority the earlier
	delayed delays

	// A notification does not tell a job's priority, but jobs of one rule have the same.
	priority map[int32]int32

	scanAt   time.Time // when the pool is to be read next
	scanning bool
	restart  bool // asked to read it from the beginning while it was being read
	after    cursor
	scanned  bool // the pool was read to its end
	failures int  // to read it, since it was read
	working  int  // number of entries that are taken
}

func newQueue(slots, batch int, cfg Config) *queue {
	q := &queue{
		slots: slots, page: max(minPage, min(slots*batch, maxPage)), wakeup: cfg.Wakeup, retryAfter: cfg.RetryAfter, once: cfg.Once,
		known: make(map[key]*entry), priority: make(map[int32]int32),
	}
	q.cond = sync.NewCond(&q.mu)
	return q
}

// open starts the queue's timer, close stops it.
func (q *queue) open()  { q.timer = time.AfterFunc(q.wakeup, q.wake) }
func (q *queue) close() { q.timer.Stop() }

func (q *queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cond.Broadcast()
}

// task is what a free slot is to do next: read a page of the pool, or claim some
// of these jobs, which are of different instances.
type task struct {
	scan  bool
	after cursor
	keys  []key
}

// next waits for something to do: to read the pool, or to claim some of at most
// so many jobs. It reports false when ctx has ended, and in a queue that is worked
// off once, when nothing is left.
func (q *queue) next(ctx context.Context, most int) (task, bool) {
	stop := context.AfterFunc(ctx, q.wake)
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil {
		now := time.Now()
		q.release(now)
		switch {
		case q.scanIsDue(now):
			q.scanning = true
			return task{scan: true, after: q.after}, true
		case len(q.ready) > 0:
			return task{keys: q.take(most)}, true
		case q.once && q.scanned && q.working == 0 && len(q.delayed) == 0:
			q.cond.Broadcast()
			return task{}, false
		}
		q.arm(now)
		q.cond.Wait()
	}
	return task{}, false
}

// more hands out the first of the ready jobs, if next would do so now.
func (q *queue) more() []key {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.release(now)
	if len(q.ready) == 0 || q.scanIsDue(now) {
		return nil
	}
	return q.take(1)
}

// mayScan reports whether the pool is to be read (again) at some time.
func (q *queue) mayScan() bool { return !q.scanning && !(q.once && q.scanned) }

// scanIsDue reports whether the pool is to be read before anything else is done.
func (q *queue) scanIsDue(now time.Time) bool {
	return q.mayScan() && !q.scanAt.After(now) && len(q.ready) < q.page
}

// arm sets the timer to the next moment at which there is something to do.
func (q *queue) arm(now time.Time) {
	wait := q.wakeup
	if q.mayScan() {
		wait = min(wait, q.scanAt.Sub(now))
	}
	if len(q.delayed) > 0 {
		wait = min(wait, q.delayed[0].due.Sub(now))
	}
	q.timer.Reset(max(wait, 0))
}

// release makes the delayed jobs ready whose time has come.
func (q *queue) release(now time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		e := heap.Pop(&q.delayed).(*entry)
		e.phase = ready
		q.enqueue(e.key)
	}
}

// enqueue puts a job behind those that are as urgent.
func (q *queue) enqueue(k key) {
	p := q.priority[k.tgid]
	i := len(q.ready)
	for i > 0 && q.priority[q.ready[i-1].tgid] < p {
		i--
	}
	q.ready = slices.Insert(q.ready, i, k)
}

// take hands out the front of the queue, but not what other slots wait for, nor
// two jobs of one instance: no transaction holds the locks of both.
func (q *queue) take(most int) []key {
	n := min(most, (len(q.ready)+q.slots-1)/q.slots)
	keys := make([]key, 0, n)
	var left []key
	i := 0
	if n > 1 {
		wids := make(map[int64]struct{}, n)
		for ; i < len(q.ready) && len(keys) < n; i++ {
			k := q.ready[i]
			if _, twice := wids[k.wid]; twice {
				left = append(left, k)
				continue
			}
			wids[k.wid] = struct{}{}
			keys = append(keys, k)
		}
	} else {
		keys, i = append(keys, q.ready[0]), 1
	}
	q.ready = q.ready[i:]
	if len(left) > 0 {
		q.ready = slices.Insert(q.ready, 0, left...)
	}
	for _, k := range keys {
		q.known[k].phase = taken
	}
	q.working += len(keys)
	return keys
}

// notified adds a job that the server has just announced.
func (q *queue) notified(k key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.known[k]
	switch {
	case e != nil && e.phase == taken:
		e.again = true
	case e != nil && e.phase == ready:
	case e != nil && e.phase == delayed && time.Since(e.reportedAt) < q.retryAfter/2:
		// That it is pending again, as we have just reported ourselves.
	case len(q.ready) >= maxReady:
		q.scanAt = time.Time{} // the pool has it
	default:
		q.add(k)
		q.cond.Signal()
	}
}

// rescan asks for the pool to be read from its beginning, now.
func (q *queue) rescan() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.scanning {
		q.restart = true // what is being read may have been missed already
		return
	}
	q.scanAt, q.after = time.Time{}, cursor{}
	q.cond.Broadcast()
}

// scanFound adds a page of the pool. last is the place where it ends, nil at
// the end of the pool.
func (q *queue) scanFound(jobs []scanned, last *cursor) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.scanning, q.failures = false, 0
	switch {
	case q.restart:
		q.scanAt, q.after, q.restart = time.Time{}, cursor{}, false
	case last != nil:
		q.scanAt, q.after = time.Time{}, *last
	default:
		q.scanAt, q.after, q.scanned = time.Now().Add(q.wakeup), cursor{}, true
	}
	// Workers in other processes read the same page. In different orders, as far as
	// they are equally urgent, they meet less often.
	rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	for _, j := range jobs {
		q.priority[j.key.tgid] = j.priority
	}
	for _, j := range jobs {
		if q.known[j.key] == nil {
			q.add(j.key)
		}
	}
	q.cond.Broadcast()
}

// scanFailed has the pool read again, later each time.
func (q *queue) scanFailed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.scanning, q.restart = false, false
	q.scanAt, q.after = time.Now().Add(backoff(100*time.Millisecond, 15*time.Second, q.failures)), cursor{}
	q.failures++
	q.cond.Broadcast()
}

// add makes k ready; it forgets former failures, for the job is another one.
func (q *queue) add(k key) {
	if e := q.known[k]; e != nil && e.phase == delayed {
		heap.Remove(&q.delayed, slices.Index(q.delayed, e))
	}
	q.known[k] = &entry{key: k, phase: ready}
	q.enqueue(k)
}

// giveBack returns jobs untried, to the front.
func (q *queue) giveBack(keys []key) {
	if len(keys) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		q.known[k].phase = ready
	}
	q.working -= len(keys)
	q.ready = slices.Insert(q.ready, 0, keys...)
	q.cond.Broadcast()
}

// tried says that of these jobs, one was taken by its slot: those before it are
// not to be had, those after it were not tried.
func (q *queue) tried(keys []key, got key) {
	i := slices.Index(keys, got)
	q.done(gone, keys[:i]...)
	q.giveBack(keys[i+1:])
}

// done says what became of taken jobs.
func (q *queue) done(o outcome, keys ...key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		e := q.known[k]
		q.working--
		switch {
		case (o == completed || o == gone) && e.again:
			q.add(k)
		case o == completed, o == gone, (o == failed || o == reported) && q.once:
			delete(q.known, k)
		default:
			e.due = time.Now().Add(q.delay(o, e.failures))
			e.failures++
			e.phase, e.again = delayed, false
			if o == reported {
				e.reportedAt = time.Now()
			}
			heap.Push(&q.delayed, e)
		}
	}
	q.cond.Broadcast()
}

// counts returns how many jobs wait for a slot, and how many have one.
func (q *queue) counts() (waiting, working int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready) + len(q.delayed), q.working
}

// delay is how long a job waits before its next attempt: twice as long after
// each failure, up to a limit, and never quite the same.
func (q *queue) delay(o outcome, failures int) time.Duration {
	if o == soon {
		return backoff(10*time.Millisecond, time.Second, failures)
	}
	return backoff(q.retryAfter, max(time.Minute, q.retryAfter), failures)
}

func backoff(first, limit time.Duration, failures int) time.Duration {
	d := limit
	if failures < 20 {
		d = min(first<<failures, limit)
	}
	return d/2 + rand.N(d/2+1)
}

// delays is a heap of entries, the earliest first.
type delays []*entry

func (d delays) Len() int           { return len(d) }
func (d delays) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d delays) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *delays) Push(x any)        { *d = append(*d, x.(*entry)) }
func (d *delays) Pop() any {
	old := *d
	e := old[len(old)-1]
	*d = old[:len(old)-1]
	return e
}
