package wal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// A server of a few lines: what is received is in a channel, what is reported is kept.
type fakeStream struct {
	in      chan any // []byte, pglogrepl.PrimaryKeepaliveMessage or error
	mu      sync.Mutex
	reports [][3]LSN
	told    chan struct{}
}

func newFakeStream() *fakeStream {
	return &fakeStream{in: make(chan any, 100), told: make(chan struct{}, 100)}
}

func (s *fakeStream) receive() (*pglogrepl.PrimaryKeepaliveMessage, []byte, error) {
	switch m := (<-s.in).(type) {
	case []byte:
		return nil, m, nil
	case pglogrepl.PrimaryKeepaliveMessage:
		return &m, nil, nil
	case error:
		return nil, nil, m
	}
	panic("not reached")
}

func (s *fakeStream) report(written, flushed, applied LSN) error {
	s.mu.Lock()
	s.reports = append(s.reports, [3]LSN{written, flushed, applied})
	s.mu.Unlock()
	s.told <- struct{}{}
	return nil
}

func (s *fakeStream) last() [3]LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reports) == 0 {
		return [3]LSN{}
	}
	return s.reports[len(s.reports)-1]
}

// fakeStore commits what it is given; its log is flushed when the test says so.
type fakeStore struct {
	mu      sync.Mutex
	insert  LSN
	flush   LSN
	batches [][]Commit
	uptos   []LSN
	block   chan struct{} // if not nil, apply waits for it
	applied chan LSN
}

func newFakeStore() *fakeStore {
	return &fakeStore{insert: 10_000, flush: 10_000, applied: make(chan LSN, 100)}
}

func (s *fakeStore) apply(ctx context.Context, batch []Commit, upto LSN) (receipt, error) {
	if s.block != nil {
		select {
		case <-s.block:
		case <-ctx.Done():
			return receipt{}, ctx.Err()
		}
	}
	s.mu.Lock()
	at := receipt{positions: positions{s.insert, s.flush}}
	s.insert += 100
	s.batches, s.uptos = append(s.batches, batch), append(s.uptos, upto)
	s.mu.Unlock()
	s.applied <- upto
	return at, nil
}

func (s *fakeStore) positions(context.Context) (positions, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return positions{s.insert, s.flush}, nil
}

func (s *fakeStore) stores() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uptos)
}

func (s *fakeStore) flushAll() {
	s.mu.Lock()
	s.flush = s.insert
	s.mu.Unlock()
}

type fakeObserver struct{ applied chan LSN }

func (o fakeObserver) Applied(lsn LSN, _ time.Time) { o.applied <- lsn }
func (o fakeObserver) Progress(LSN, uint64)         {}

type rig struct {
	stream   *fakeStream
	store    *fakeStore
	observer fakeObserver
	queue    *queue
	nudges   bool
}

// follow runs a reader and a pump between a fake stream and a fake store.
func follow(t *testing.T, queueBytes int, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{newFakeStream(), newFakeStore(), fakeObserver{make(chan LSN, 100)}, newQueue(queueBytes), false}
	for _, c := range change {
		c(r)
	}
	f := &feedback{to: r.stream}
	size := func() int { return 10 }
	reader := &reader{from: r.stream, queue: r.queue, feedback: f, batchSize: size, decode: newDecoder(0, noStray(t))}
	pump := &pump{queue: r.queue, store: r.store, feedback: f, observer: r.observer, batchSize: size, nudges: r.nudges}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = reader.run(ctx) })
	wg.Go(func() { _ = pump.run(ctx) })
	t.Cleanup(func() {
		cancel()
		r.stream.in <- errors.New("closed")
		wg.Wait()
	})
	r.stream.in <- msgRelation(5, "wed_flow", travel...)
	return r
}

func (r *rig) transaction(end LSN) {
	r.stream.in <- msgBegin(end-1, time.Now(), int(end))
	r.stream.in <- msgInsert(5, ptr("1"), stampOf("0"), nil, nil)
	r.stream.in <- msgCommit(end-1, end)
}

func keepalive(lsn LSN, reply bool) pglogrepl.PrimaryKeepaliveMessage {
	return pglogrepl.PrimaryKeepaliveMessage{ServerWALEnd: lsn, ReplyRequested: reply}
}

func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("no %s", what)
		panic("not reached")
	}
}

func TestAnIdlePositionIsReportedAtOnceAndNotStored(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000)
	r.stream.in <- keepalive(100, false)
	if got := await(t, r.observer.applied, "position"); got != 100 {
		t.Errorf("applied up to %s", got)
	}
	if r.stream.last() != [3]LSN{} || r.store.stores() != 0 {
		t.Error("an idle position made work")
	}
}

func TestAWalsenderThatMayHaveMissedAFlushIsWoken(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000, func(r *rig) { r.nudges = true })
	r.transaction(50)
	await(t, r.store.applied, "batch")
	await(t, r.stream.told, "word after a state")
	r.stream.in <- keepalive(60, false)
	await(t, r.stream.told, "word after the log has grown")
	if got := r.stream.last(); got[0] != 60 || got[1] != 0 {
		t.Errorf("reported %v though nothing is flushed", got)
	}
}

func TestAKeepaliveIsAnsweredWithWhatIsFlushed(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000)
	r.transaction(50)
	await(t, r.store.applied, "batch")
	r.stream.in <- keepalive(60, true)
	await(t, r.stream.told, "answer")
	if got := r.stream.last(); got[0] != 60 || got[1] != 0 {
		t.Errorf("reported %v before anything is flushed", got)
	}
	r.store.flushAll()
	await(t, r.stream.told, "acknowledgement")
	if got := r.stream.last(); got[1] != 50 {
		t.Errorf("acknowledged %s, want 50", got[1])
	}
}

func TestBatchesThatAreCommittedAndNotFlushedAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000)
	for i := range LSN(5) {
		r.transaction(50 + 10*i)
		await(t, r.store.applied, "batch")
	}
	r.stream.in <- keepalive(200, true)
	await(t, r.stream.told, "answer")
	if got := r.stream.last(); got[1] != 0 {
		t.Errorf("acknowledged %s while nothing is flushed", got[1])
	}
	r.store.flushAll()
	await(t, r.stream.told, "acknowledgement")
	if got := r.stream.last(); got[1] != 90 {
		t.Errorf("acknowledged %s, want 90", got[1])
	}
}

func TestKeepalivesAreAnsweredWhileABatchIsWritten(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	r := follow(t, 1<<20, func(r *rig) { r.store.block = block })
	r.transaction(50)
	for i := range LSN(3) {
		r.stream.in <- keepalive(100+i, true)
		await(t, r.stream.told, "answer")
		if got := r.stream.last(); got != [3]LSN{100 + i, 0, 0} {
			t.Fatalf("reported %v", got)
		}
	}
	close(block)
	await(t, r.store.applied, "batch")
	var seen []LSN
	for len(seen) == 0 || seen[len(seen)-1] < 102 {
		seen = append(seen, await(t, r.observer.applied, "position"))
	}
	if !slices.IsSorted(seen) {
		t.Errorf("applied %v", seen)
	}
}

func TestWhatComesWhileABatchIsWrittenIsTheNextBatch(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	r := follow(t, 1<<20, func(r *rig) { r.store.block = block })
	for i := range LSN(6) {
		r.transaction(10 + 10*i)
	}
	r.stream.in <- keepalive(100, true)
	await(t, r.stream.told, "answer") // all is decoded
	close(block)
	for await(t, r.observer.applied, "position") < 60 {
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if len(r.store.batches) > 2 {
		t.Errorf("%d batches for what had come before the first was written", len(r.store.batches))
	}
}

func TestAKeepaliveWithinATransactionIsNoPosition(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000)
	r.stream.in <- msgBegin(40, time.Now(), 1)
	r.stream.in <- keepalive(1000, true)
	await(t, r.stream.told, "answer")
	r.stream.in <- msgInsert(5, ptr("1"), stampOf("0"), nil, nil)
	r.stream.in <- msgCommit(40, 50)
	if got := await(t, r.observer.applied, "position"); got != 50 {
		t.Errorf("applied up to %s, want 50", got)
	}
}

func TestAFullQueueHoldsTheReaderAndLosesNothing(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	r := follow(t, 1, func(r *rig) { r.store.block = block })
	for i := range LSN(8) {
		r.transaction(10 + 10*i)
	}
	close(block)
	for await(t, r.observer.applied, "position") < 80 {
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	n := 0
	for _, b := range r.store.batches {
		n += len(b)
	}
	if n != 8 {
		t.Errorf("%d transactions arrived, want 8", n)
	}
}

func TestAnIdlePositionThatMovedFarIsStoredAndAcknowledged(t *testing.T) {
	t.Parallel()
	r := follow(t, 1000)
	r.stream.in <- keepalive(2*idleLeap, false)
	if got := await(t, r.store.applied, "stored position"); got != 2*idleLeap {
		t.Errorf("stored %s", got)
	}
	r.store.flushAll()
	await(t, r.stream.told, "acknowledgement")
	if got := r.stream.last(); got[1] != 2*idleLeap {
		t.Errorf("acknowledged %s", got[1])
	}
	r.stream.in <- keepalive(2*idleLeap+idleStep-1, true) // our own record
	await(t, r.stream.told, "answer")
	if n := r.store.stores(); n != 1 {
		t.Errorf("stored %d times: our own log made us store again", n)
	}
}

func TestOnlyBatchesInQuickSuccessionWait(t *testing.T) {
	var p pace
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	if wait := p.wait(at(0)); wait > 0 {
		t.Errorf("the first batch waits %v", wait)
	}
	// A few at once, as the steps of one instance are.
	for i := range busyBatches - 1 {
		begin := time.Duration(i) * time.Millisecond
		if wait := p.wait(at(begin)); wait > 0 {
			t.Errorf("batch %d of a short burst waits %v", i, wait)
		}
		p.begin(at(begin))
	}
	last := (busyBatches - 1) * time.Millisecond
	p.begin(at(last))
	if wait := p.wait(at(last + time.Millisecond)); wait != busyPace-time.Millisecond {
		t.Errorf("behind many, a batch waits %v, want %v", wait, busyPace-time.Millisecond)
	}
	if wait := p.wait(at(last + busyPace)); wait > 0 {
		t.Errorf("a batch that comes late waits %v", wait)
	}
	if wait := p.wait(at(last + busyTime)); wait > 0 {
		t.Errorf("a batch after a pause waits %v", wait)
	}
}

func TestABatchWaitsAfterOneThatHasWokenMany(t *testing.T) {
	for woken, want := range map[int]time.Duration{0: 0, 1: wakingPace, 1000: 1000 * wakingPace, 1_000_000: longestPace} {
		var p pace
		now := time.Now()
		p.begin(now)
		p.woken = woken
		if got := p.wait(now); got != want {
			t.Errorf("with %d sessions that listen: %v, want %v", woken, got, want)
		}
		if got := p.wait(now.Add(want)); got > 0 {
			t.Errorf("with %d sessions that listen, a batch that comes late waits %v", woken, got)
		}
	}
}
