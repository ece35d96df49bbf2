package main

import (
	"fmt"
	"maps"

	"github.com/wed-sql/wed_sql/torture/judge"
)

// ledger compares what was notified with what was fired.
type ledger struct {
	*database
	seen     map[fired]int
	complete bool // nobody has missed a notification
}

func newLedger(d *database) *ledger {
	l := d.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	d.report.add("notifications", int64(l.total))
	for _, v := range l.violations {
		d.report.violation("%s: %s", d.name, v)
	}
	return &ledger{database: d, seen: l.seen, complete: !d.hurt.Load() && l.lost == 0}
}

// check compares what was notified of an instance.
func (l *ledger) check(flow string, wid int64, f judge.Finding) {
	for tgid, times := range f.Notify {
		if got := l.seen[fired{flow, wid, tgid}]; l.complete && got < times {
			l.report.violation("%s, instance %d: rule %d was fired %d times, and notified %d times", flow, wid, tgid, times, got)
		}
	}
	for tgid := range f.Pended {
		delete(l.seen, fired{flow, wid, tgid})
	}
	if f.Unfinished { // what pended later is not known
		maps.DeleteFunc(l.seen, func(what fired, _ int) bool { return what.flow == flow && what.wid == wid })
	}
}

// rest are notifications of what never pended.
func (l *ledger) rest() {
	if l.forgets.Load() {
		l.report.add("notifications of what a failover has lost, at the most", int64(len(l.seen)))
		return
	}
	for what, times := range l.seen {
		l.report.violation("%s", fmt.Sprintf("%s, instance %d: rule %d was notified %d times, and never pended", what.flow, what.wid, what.tgid, times))
	}
}
