package wal

import (
	"testing"

	"pgregory.net/rapid"
)

func TestOnlyWhatIsFlushedIsAcknowledged(t *testing.T) {
	t.Parallel()
	var l ledger
	l.applied(10)
	if l.observe(100, 99) || l.acked != 0 {
		t.Fatalf("acknowledged %s before it is flushed", l.acked)
	}
	l.applied(20)
	if !l.observe(200, 100) || l.acked != 10 {
		t.Fatalf("acknowledged %s, want 10", l.acked)
	}
	if l.idle() {
		t.Fatal("idle with a position to acknowledge")
	}
	if !l.observe(201, 200) || l.acked != 20 || !l.idle() {
		t.Fatalf("acknowledged %s, want 20", l.acked)
	}
}

// The server, simulated: commit records go into its log, which is flushed later.
func TestTheLedgerNeverRunsAheadOfTheFlush(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var l ledger
		var insert, flush LSN = 1000, 1000
		records := map[LSN]LSN{} // end of the commit record, by applied position
		applied := LSN(0)
		check := func() {
			for position, record := range records {
				if position <= l.acked && record > flush {
					t.Fatalf("%s is acknowledged, its record at %s is not flushed (%s)", position, record, flush)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				i, f := insert, flush // asked for at the beginning of the round trip
				insert += LSN(rapid.IntRange(1, 50).Draw(t, "size"))
				applied++
				records[applied] = insert
				l.observe(i, f)
				l.applied(applied)
				check()
			},
			"look":  func(*rapid.T) { l.observe(insert, flush); check() },
			"write": func(t *rapid.T) { insert += LSN(rapid.IntRange(1, 50).Draw(t, "size")) },
			"flush": func(t *rapid.T) { flush = LSN(rapid.Uint64Range(uint64(flush), uint64(insert)).Draw(t, "to")) },
		})
		flush = insert
		l.observe(insert, flush)
		flush = insert
		l.observe(insert, flush)
		if !l.idle() || l.acked != applied {
			t.Fatalf("acknowledged %s at rest, want %s", l.acked, applied)
		}
	})
}
