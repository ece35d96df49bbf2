package gateway

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	maxBatch = 256         // jobs leased at a time
	maxLanes = 1000        // transitions, and roles, that workers wait for at a time
	linger   = time.Minute // that a lane is kept when nobody waits
	giveBack = 3           // tries to release jobs
)

var (
	errDraining = errors.New("the gateway is ending")
	errAway     = errors.New("the database cannot be reached")
)

// channels is where notifications come from.
type channels interface {
	want(channel string) (heard <-chan struct{})
	unwant(channel string)
	ready() bool
}

// delivery is what a waiter gets, once.
type delivery struct {
	jobs     []*Job
	err      error
	notified time.Time // when the gateway learned of the jobs; zero if it has just looked
}

// waiter is a worker that waits for jobs.
type waiter struct {
	want  int
	lease time.Duration
	given chan delivery // has room for the one that comes
	queue *queue
	place *list.Element // nil when it does not wait any more
}

// queue is what waits in a lane, the first come first.
type queue struct {
	lane    lane
	waiters list.List
	wake    chan struct{}

	// What is known of the jobs. That nothing is there is known from a lease that got
	// less than it asked for. From then on notifications tell how many there are: as
	// many are asked for, so that the database need not look for more. They are hints:
	// a look at everything follows.
	known    bool
	there    int       // how many, if it is known
	news     int       // counts the reasons to look at everything
	notified time.Time // the first notification since jobs were looked for
}

// surely is after which time a look at everything follows.
const surely = time.Second

// dispatcher leases jobs for those who wait, as many at once as can be.
type dispatcher struct {
	store    store
	channels channels
	metrics  *metrics
	log      *slog.Logger
	wakeup   time.Duration
	ending   chan struct{} // closed when everybody is sent away

	mu       sync.Mutex
	parts    *group.Group // nil until the gateway runs
	lanes    map[lane]*queue
	channel  map[lane][]*queue // those of the same flow and transition, role left out
	waiting  int
	draining bool

	busy requests // lanes that are looked after
}

func newDispatcher(s store, m *metrics, log *slog.Logger, wakeup time.Duration) *dispatcher {
	return &dispatcher{
		store: s, metrics: m, log: log, wakeup: wakeup, ending: make(chan struct{}),
		lanes: make(map[lane]*queue), channel: make(map[lane][]*queue),
	}
}

// begin has goroutines run in a group.
func (d *dispatcher) begin(parts *group.Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.parts = parts
}

// count returns how many workers wait.
func (d *dispatcher) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting
}

// ready returns why there is no use in waiting.
func (d *dispatcher) ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mayWait()
}

func (d *dispatcher) mayWait() error {
	switch {
	case d.draining:
		return errDraining
	case d.parts == nil, !d.channels.ready():
		return errAway
	}
	return nil
}

// enter puts a worker at the end of a lane.
func (d *dispatcher) enter(l lane, want int, lease time.Duration) (*waiter, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mayWait(); err != nil {
		return nil, err
	}
	q := d.lanes[l]
	if q == nil {
		if len(d.lanes) >= maxLanes {
			return nil, errOverloaded
		}
		q = d.open(l)
	}
	w := &waiter{want: want, lease: lease, given: make(chan delivery, 1), queue: q}
	w.place = q.waiters.PushBack(w)
	d.waiting++
	q.signal()
	return w, nil
}

// leave takes a worker out. What it has been given meanwhile is returned.
func (d *dispatcher) leave(w *waiter) []*Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.place != nil {
		d.remove(w)
		return nil
	}
	select {
	case got := <-w.given:
		return got.jobs
	default:
		return nil
	}
}

func (d *dispatcher) remove(w *waiter) {
	w.queue.waiters.Remove(w.place)
	w.place = nil
	d.waiting--
}

func (d *dispatcher) give(w *waiter, got delivery) {
	d.remove(w)
	w.given <- got
}

func (d *dispatcher) open(l lane) *queue {
	q := &queue{lane: l, wake: make(chan struct{}, 1)}
	c := lane{flow: l.flow, transition: l.transition}
	d.lanes[l] = q
	d.channel[c] = append(d.channel[c], q)
	d.busy.begin()
	d.parts.Go("lane", func(ctx context.Context) error {
		defer d.busy.end()
		d.lookAfter(ctx, q)
		return nil
	})
	return q
}

// close takes a lane out in which nobody waits; it reports false if somebody does.
func (d *dispatcher) close(q *queue) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.waiters.Len() > 0 {
		return false
	}
	c := lane{flow: q.lane.flow, transition: q.lane.transition}
	delete(d.lanes, q.lane)
	d.channel[c] = slices.DeleteFunc(d.channel[c], func(o *queue) bool { return o == q })
	if len(d.channel[c]) == 0 {
		delete(d.channel, c)
	}
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// notified tells that there is a job.
func (d *dispatcher) notified(flow, transition string) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.channel[lane{flow: flow, transition: transition}] {
		q.there++
		q.news++
		if q.notified.IsZero() {
			q.notified = now
		}
		q.signal()
	}
}

// rescan tells that there may be jobs of any kind.
func (d *dispatcher) rescan() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.lanes {
		q.look()
	}
}

func (q *queue) look() {
	q.news++
	q.known = false
	q.signal()
}

// drain sends everybody away.
func (d *dispatcher) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return
	}
	d.draining = true
	close(d.ending)
	for _, q := range d.lanes {
		d.giveAll(q, delivery{err: errDraining})
		q.look()
	}
}

func (d *dispatcher) giveAll(q *queue, got delivery) {
	for e := q.waiters.Front(); e != nil; e = q.waiters.Front() {
		d.give(e.Value.(*waiter), got)
	}
}

// settle waits, after drain, for what was leased to be released.
func (d *dispatcher) settle(ctx context.Context) {
	if d.busy.wait(ctx) != nil {
		d.log.Warn("some jobs may stay leased until their leases end")
	}
}

// lookAfter leases jobs for those who wait in a lane, until nobody has for a while.
func (d *dispatcher) lookAfter(ctx context.Context, q *queue) {
	defer d.channels.unwant(q.lane.transition)
	heard := d.channels.want(q.lane.transition)
	idle := time.Now()
	timer := time.NewTimer(d.wakeup)
	defer timer.Stop()
	unsure := false // what is known has not been looked at since
	for failures := 0; ctx.Err() == nil; {
		if heard != nil {
			// What is fired from then on is announced.
			select {
			case <-heard:
				heard = nil
			case <-q.wake:
			case <-ctx.Done():
			case <-timer.C:
				timer.Reset(d.wakeup)
			}
		}
		o := d.order(q)
		switch {
		case o.over:
			d.close(q)
			return
		case o.waiters > 0:
			idle = time.Now()
		case time.Since(idle) >= linger && d.close(q):
			return
		}
		if o.most > 0 && heard == nil {
			if d.fill(ctx, q, o) {
				failures = 0
				if o.known && !unsure {
					timer.Reset(min(surely, d.wakeup))
				}
				unsure = o.known
				continue
			}
			d.pause(ctx, q, o.news, backoff(dialFirst, dialLimit, failures))
			failures++
			continue
		}
		if heard != nil {
			continue
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		case <-timer.C:
			timer.Reset(d.wakeup)
			d.mu.Lock()
			q.look() // in case a notification was lost
			d.mu.Unlock()
		}
	}
}

// pause leaves the database alone for a while, unless there is a reason to look.
func (d *dispatcher) pause(ctx context.Context, q *queue, news int, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-q.wake: // perhaps for one who has just come
			d.mu.Lock()
			changed := q.news != news
			d.mu.Unlock()
			if changed {
				return
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// order is what is to be leased next.
type order struct {
	lease    time.Duration
	most     int  // 0: nothing
	known    bool // from notifications
	there    int
	news     int
	notified time.Time
	waiters  int
	over     bool // the gateway is ending
}

// order takes together who wants leases as long as the first in the queue.
func (d *dispatcher) order(q *queue) order {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := order{known: q.known, there: q.there, news: q.news, notified: q.notified, waiters: q.waiters.Len(), over: d.draining}
	most := maxBatch
	if q.known {
		most = min(most, q.there)
	}
	if most == 0 || o.waiters == 0 || d.draining {
		return o
	}
	q.notified = time.Time{}
	o.lease = q.waiters.Front().Value.(*waiter).lease
	for e := q.waiters.Front(); e != nil && o.most < most; e = e.Next() {
		if w := e.Value.(*waiter); w.lease == o.lease {
			o.most = min(o.most+w.want, most)
		}
	}
	return o
}

// fill leases jobs and hands them out. It reports false if the database is to be
// left alone for a moment.
func (d *dispatcher) fill(ctx context.Context, q *queue, o order) bool {
	jobs, err := d.store.lease(ctx, q.lane, o.lease, o.most)
	if err != nil {
		if ctx.Err() != nil {
			return false
		}
		if isDatabaseAway(err) || errors.Is(err, errOverloaded) {
			d.log.Warn("could not lease jobs, will try again", "flow", q.lane.flow, "transition", q.lane.transition, "error", err)
			return false
		}
		d.mu.Lock()
		d.giveAll(q, delivery{err: err})
		d.mu.Unlock()
		return true
	}
	d.metrics.leased.WithLabelValues(q.lane.flow, q.lane.transition).Add(float64(len(jobs)))
	d.release(ctx, q.lane, d.hand(q, o, jobs))
	return true
}

// hand hands out jobs, first one to each in the order in which they came. It returns
// those that nobody waits for any more.
func (d *dispatcher) hand(q *queue, o order, jobs []*Job) (left []*Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q.learn(o, len(jobs))
	var who []*waiter
	for e := q.waiters.Front(); e != nil && len(who) < len(jobs); e = e.Next() {
		if w := e.Value.(*waiter); w.lease == o.lease {
			who = append(who, w)
		}
	}
	shares := make([][]*Job, len(who))
	for given := true; given && len(jobs) > 0; {
		given = false
		for i, w := range who {
			if len(shares[i]) < w.want && len(jobs) > 0 {
				shares[i], jobs, given = append(shares[i], jobs[0]), jobs[1:], true
			}
		}
	}
	for i, w := range who {
		d.give(w, delivery{jobs: shares[i], notified: o.notified})
	}
	return jobs
}

// learn draws conclusions from how many jobs there were.
func (q *queue) learn(o order, got int) {
	switch {
	case q.known && o.known && got == o.most:
		q.there -= got
	case q.known && o.known:
		q.there -= o.there // what was announced meanwhile is left
	case got < o.most && q.news == o.news:
		q.known, q.there = true, 0
	}
}

// release gives back what was leased for who is not there any more.
func (d *dispatcher) release(ctx context.Context, l lane, jobs []*Job) {
	if len(jobs) == 0 {
		return
	}
	for try := 0; ; try++ {
		n, err := d.store.release(ctx, l, jobs)
		if err == nil {
			d.metrics.returned.WithLabelValues(l.flow, l.transition).Add(float64(n))
			return
		}
		if try == giveBack || sleep(ctx, backoff(dialFirst, dialLimit, try)) != nil {
			d.log.Warn("could not release jobs: their leases will run out", "flow", l.flow, "transition", l.transition,
				"jobs", len(jobs), "error", err)
			return
		}
	}
}
