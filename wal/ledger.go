package wal

import "time"

// ledger knows which of the applied positions may be acknowledged: those whose
// transaction is flushed. The follower commits with synchronous_commit = off and
// is not told where its commit record is. But whatever the server's insert
// position is when it is asked next, the record is below it.
type ledger struct {
	waiting []entry // ascending in both columns
	acked   LSN
	looked  time.Time // when the server was asked last
}

type entry struct {
	applied LSN // may be acknowledged once
	bound   LSN // is flushed; 0: not known yet
}

// applied notes that a transaction that stores the position has committed.
func (l *ledger) applied(lsn LSN) {
	if n := len(l.waiting); n > 0 && l.waiting[n-1].bound == 0 {
		l.waiting[n-1].applied = lsn // both get the same bound
		return
	}
	l.waiting = append(l.waiting, entry{applied: lsn})
}

// observe takes the server's insert and flush positions, asked for in that order,
// and returns whether the position to acknowledge has moved. They must have been
// asked for after every commit that applied was called for.
func (l *ledger) observe(insert, flush LSN) bool {
	l.looked = time.Now()
	if n := len(l.waiting); n > 0 && l.waiting[n-1].bound == 0 {
		l.waiting[n-1].bound = insert
	}
	done := 0
	for done < len(l.waiting) && l.waiting[done].bound <= flush {
		l.acked = l.waiting[done].applied
		done++
	}
	l.waiting = append(l.waiting[:0], l.waiting[done:]...)
	return done > 0
}

// idle tells whether everything that was applied may be acknowledged.
func (l *ledger) idle() bool { return len(l.waiting) == 0 }
