package metrics

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wed-sql/wed_sql/wal"
)

// How long what was looked up is good for, and what of it is looked up at the most.
const (
	freshTime = 5 * time.Second
	maxRows   = 10_000 // transitions, those without metrics of their own included
	maxJobs   = 100_000
)

// look is what is looked up in a database when somebody scrapes. The database's lock
// protects it.
type look struct {
	pending chan struct{} // closed when the one that was asked for is over; nil: none was
	asked   time.Time
	at      time.Time // of the last one
	ok      bool      // all of it is known
	server  *position
	behind  []mark
	timers  *timers
}

// position is what the server says of its log.
type position struct {
	end      wal.LSN  // of what is flushed
	retained *float64 // bytes that the slot keeps; nil: there is no slot
}

// mark is an end of the log that the follower has not come to yet.
type mark struct {
	lsn wal.LSN
	at  time.Time // when it was there
}

type timers struct{ waiting, due, late float64 }

// ask tells whether to look.
func (l *look) ask(now time.Time) bool {
	if l.pending != nil || now.Sub(l.at) < freshTime {
		return false
	}
	l.pending, l.asked = make(chan struct{}), now
	return true
}

// over ends what ask has begun.
func (l *look) over(now time.Time) {
	l.at = now
	if l.pending != nil {
		close(l.pending)
		l.pending = nil
	}
}

const maxMarks = 64

// saw takes what the server says; p is nil if it says nothing.
func (l *look) saw(p *position, now time.Time) {
	l.server = p
	if p == nil {
		return
	}
	l.behind = append(l.behind, mark{p.end, now})
	if len(l.behind) > maxMarks { // the first ones tell how late it is
		l.behind = slices.Delete(l.behind, maxMarks/2, maxMarks/2+1)
	}
}

func (l *look) collect(metrics chan<- prometheus.Metric, f *families, database string, applied wal.LSN, now time.Time) {
	send(metrics, f.statisticsUp, truth(l.ok), database)
	l.behind = slices.DeleteFunc(l.behind, func(m mark) bool { return m.lsn <= applied })
	if p := l.server; p != nil {
		if applied != 0 {
			lag := 0.0
			if p.end > applied {
				lag = float64(p.end - applied)
			}
			send(metrics, f.lagBytes, lag, database)
		}
		if p.retained != nil {
			send(metrics, f.retained, *p.retained, database)
		}
	}
	if p := l.server; p != nil || len(l.behind) > 0 {
		late := time.Duration(0)
		if len(l.behind) > 0 {
			late = max(now.Sub(l.behind[0].at), 0)
		}
		send(metrics, f.lagSeconds, late.Seconds(), database)
	}
	if t := l.timers; t != nil {
		send(metrics, f.timersWaiting, t.waiting, database)
		send(metrics, f.timersDue, t.due, database)
		send(metrics, f.timersLate, t.late, database)
	}
}

// ask has what is looked up looked up, if that was not done a moment ago.
func (d *Database) ask() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shown && d.look.ask(time.Now()) {
		signal(d.asked)
	}
}

// await waits until that is done, but not for one that others have waited for in vain.
func (d *Database) await(ctx context.Context) {
	d.mu.Lock()
	done := d.look.pending
	vain := time.Since(d.look.asked) > patience
	d.mu.Unlock()
	if done == nil || vain {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// row is what is looked up of a transition.
type row struct {
	Flow, Name               string
	Waiting, Running, Leased *int64
	Oldest                   *time.Time
}

const (
	// As wed_sql.status has it, which not every role that the engine may run as can read.
	sqlPosition = `
select l.lsn::text, pg_wal_lsn_diff(l.lsn, s.restart_lsn)::float8
  from (select pg_current_wal_flush_lsn()) l(lsn)
  left join (pg_database d join pg_replication_slots s on s.datoid = d.oid and s.slot_name = 'wed_sql_' || d.oid::text)
       on d.datname = current_database()`
	sqlTransitions = `
select flow::text, trname, waiting, running, leased, oldest
  from wed_sql.transition_statistics($1) limit $2`
	sqlTimers = `select waiting, due, late from wed_sql.timer_statistics($1)`
)

// lookUp looks everything up; what it could not, it does not know any more.
func (d *Database) lookUp(ctx context.Context, conn *pgx.Conn) error {
	begin := time.Now()
	p, err := readPosition(ctx, conn)
	var rows []row
	var t *timers
	if err == nil {
		t, err = readTimers(ctx, conn)
	}
	if err == nil {
		rows, err = readTransitions(ctx, conn)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look.saw(p, time.Now())
	d.look.ok, d.look.timers = err == nil, t
	d.saw(rows, err == nil, begin)
	return err
}

// blind forgets what was looked up last.
func (d *Database) blind() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look.ok, d.look.server, d.look.timers = false, nil, nil
	d.saw(nil, false, time.Time{})
}

// saw takes what was looked up of the transitions since a time. It needs the lock.
func (d *Database) saw(rows []row, ok bool, since time.Time) {
	for _, t := range d.transitions {
		t.seen = nil
	}
	if !ok || d.retired {
		return
	}
	there := make(map[string]bool)
	for _, r := range rows {
		there[r.Flow] = true
		t := d.transition(r.Flow, r.Name)
		if t.seen == nil {
			t.seen = new(jobs)
		}
		t.seen.add(&r)
	}
	// Flows that were dropped make room for others.
	for key, t := range d.transitions {
		if key.name != other && !there[key.flow] && t.touched.Before(since) {
			d.forgetTransition(key)
		}
	}
	for name, f := range d.flows {
		if name != other && !there[name] && f.touched.Before(since) {
			d.forgetFlow(name)
		}
	}
}

func (j *jobs) add(r *row) {
	j.waiting, j.running, j.leased = sum(j.waiting, r.Waiting), sum(j.running, r.Running), sum(j.leased, r.Leased)
	if r.Oldest != nil && (j.oldest.IsZero() || r.Oldest.Before(j.oldest)) {
		j.oldest = *r.Oldest
	}
}

// sum adds numbers, either of which may not be known.
func sum(a, b *int64) *int64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	n := *a + *b
	return &n
}

func readPosition(ctx context.Context, conn *pgx.Conn) (*position, error) {
	var end string
	p := new(position)
	err := conn.QueryRow(ctx, sqlPosition).Scan(&end, &p.retained)
	if err == nil {
		p.end, err = pglogrepl.ParseLSN(end)
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the log's position: %w", err)
	}
	return p, nil
}

func readTimers(ctx context.Context, conn *pgx.Conn) (*timers, error) {
	var waiting, due int64
	t := new(timers)
	if err := conn.QueryRow(ctx, sqlTimers, maxJobs).Scan(&waiting, &due, &t.late); err != nil {
		return nil, fmt.Errorf("count the timers: %w", err)
	}
	t.waiting, t.due = float64(waiting), float64(due)
	return t, nil
}

func readTransitions(ctx context.Context, conn *pgx.Conn) ([]row, error) {
	rows, err := conn.Query(ctx, sqlTransitions, maxJobs, maxRows)
	if err != nil {
		return nil, fmt.Errorf("read the statistics: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("read the statistics: %w", err)
	}
	return list, nil
}
