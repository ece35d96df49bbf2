package wal

import (
	"testing"

	"pgregory.net/rapid"
)

func commit(end LSN, states int) Commit {
	c := Commit{End: end}
	for i := range states {
		c.Versions = append(c.Versions, Version{Wid: int64(i), State: "{}"})
	}
	return c
}

func TestTheQueueGivesBatchesAndTheirPositions(t *testing.T) {
	t.Parallel()
	q := newQueue(1 << 20)
	for _, c := range []Commit{commit(10, 1), commit(20, 2), commit(0, 3), commit(30, 1)} {
		if !q.put(c) {
			t.Fatal("no room")
		}
	}
	q.advance(40)
	for _, want := range []struct {
		commits int
		upto    LSN
	}{{2, 20}, {1, 0}, {1, 40}, {0, 40}} {
		batch, upto := q.take(3, 1<<20)
		if len(batch) != want.commits || upto != want.upto {
			t.Fatalf("took %d commits up to %s, want %d up to %s", len(batch), upto, want.commits, want.upto)
		}
	}
}

func TestABatchThatEndsWithinATransactionMovesNothing(t *testing.T) {
	t.Parallel()
	q := newQueue(1 << 20)
	q.advance(5)
	q.put(commit(0, 3))
	if _, upto := q.take(10, 1<<20); upto != 0 {
		t.Fatalf("upto = %s", upto)
	}
	if batch, upto := q.take(10, 1<<20); len(batch) != 0 || upto != 5 {
		t.Fatalf("%d commits up to %s", len(batch), upto)
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(1)
	if !q.put(commit(1, 100)) {
		t.Fatal("an empty queue takes any commit")
	}
	if q.put(commit(2, 1)) {
		t.Fatal("a full queue took another commit")
	}
	q.take(1, 1)
	select {
	case <-q.room:
	default:
		t.Fatal("nobody was told of the room")
	}
	if !q.put(commit(2, 1)) {
		t.Fatal("an empty queue takes any commit")
	}
}

func TestNothingIsLostOrReorderedInTheQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(rapid.IntRange(1, 5000).Draw(t, "bytes"))
		var put, taken []LSN
		next := LSN(1)
		maxStates := rapid.IntRange(1, 10).Draw(t, "maxStates")
		take := func() {
			batch, upto := q.take(maxStates, 2000)
			states := 0
			for _, c := range batch {
				taken = append(taken, c.End)
				states += len(c.Versions)
			}
			if len(batch) > 1 && states > maxStates {
				t.Fatalf("%d states", states)
			}
			if len(batch) > 0 && upto < batch[len(batch)-1].End {
				t.Fatalf("up to %s, the last is %s", upto, batch[len(batch)-1].End)
			}
			if len(taken) < len(put) && upto >= put[len(taken)] {
				t.Fatalf("up to %s, %s is still there", upto, put[len(taken)])
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				if q.put(commit(next, rapid.IntRange(1, 4).Draw(t, "states"))) {
					put = append(put, next)
					next++
				}
			},
			"advance": func(*rapid.T) { q.advance(next); next++ },
			"take":    func(*rapid.T) { take() },
		})
		for len(taken) < len(put) {
			take()
		}
		for i := range put {
			if put[i] != taken[i] {
				t.Fatalf("put %v, took %v", put, taken)
			}
		}
	})
}
