package wal

import "sync"

// queue stands between the reader of the stream and the applier: what is decoded
// while one batch is written is the next batch. It is bounded by the memory that it
// holds, though it always takes one commit.
type queue struct {
	ready chan struct{} // has something for the applier
	room  chan struct{} // has room for the reader again

	mu       sync.Mutex
	commits  []Commit
	sizes    []int
	bytes    int
	maxBytes int
	position LSN // everything below it that is to be applied has been put
}

func newQueue(maxBytes int) *queue {
	return &queue{
		ready:    make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		maxBytes: maxBytes,
	}
}

// put adds a commit, unless there is no room for it.
func (q *queue) put(c Commit) bool {
	size := c.size()
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.commits) > 0 && q.bytes+size > q.maxBytes {
		return false
	}
	q.commits, q.sizes = append(q.commits, c), append(q.sizes, size)
	q.bytes += size
	q.position = max(q.position, c.End)
	signal(q.ready)
	return true
}

// advance notes that nothing more will come from below lsn.
func (q *queue) advance(lsn LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if lsn > q.position {
		q.position = lsn
		signal(q.ready)
	}
}

// take removes the next batch, of about maxStates states and maxBytes bytes at
// most, but one commit at least. Once it is applied, everything up to the returned
// position is; 0 if the batch ends within a transaction.
func (q *queue) take(maxStates, maxBytes int) ([]Commit, LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, states, bytes := 0, 0, 0
	for n < len(q.commits) {
		states += len(q.commits[n].Versions)
		bytes += q.sizes[n]
		if n > 0 && (states > maxStates || bytes > maxBytes) {
			bytes -= q.sizes[n]
			break
		}
		n++
	}
	if n == len(q.commits) {
		batch := q.commits
		q.commits, q.sizes, q.bytes = nil, nil, 0
		signal(q.room)
		if n > 0 && batch[n-1].End == 0 {
			return batch, 0
		}
		return batch, q.position
	}
	batch := append([]Commit(nil), q.commits[:n]...)
	rest := copy(q.commits, q.commits[n:])
	clear(q.commits[rest:])
	q.commits = q.commits[:rest]
	q.sizes = append(q.sizes[:0], q.sizes[n:]...)
	q.bytes -= bytes
	signal(q.room)
	signal(q.ready)
	return batch, batch[n-1].End
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
