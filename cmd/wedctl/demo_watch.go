package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/examples/travel"
)

const watchInterval = 40 * time.Millisecond

// watch prints each state as it appears in the history, until every trip has
// ended.
func (d *demo) watch(ctx context.Context, conn *pgx.Conn) error {
	fmt.Fprintf(d.con.out, "\n%d customers ask for a trip. Each line is a state, in commit order;\n"+
		"S is R for a regular state, E for an exception, F for a final one.\n", len(d.names))
	p := d.newPrinter()
	p.header()

	deadline := time.NewTimer(d.timeout)
	defer deadline.Stop()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	seen := make(map[int64]int64) // versions by wid
	for {
		lines, err := readTrace(ctx, conn, demoFlow, "order by t.tstmp, t.wid, t.version")
		if err != nil {
			return err
		}
		for _, l := range lines {
			if l.Version < seen[l.WID] {
				continue
			}
			seen[l.WID] = l.Version + 1
			p.print(l)
			d.lines = append(d.lines, l)
			if l.Status == "F" {
				d.ended++
			}
		}
		if d.ended == len(d.names) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-d.workers.failed:
			return &failure{exitFailure, err.Error(), d.workers.complaints()}
		case <-deadline.C:
			return d.tooLate(ctx, conn)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tooLate says which trips have not ended, and why that may be.
func (d *demo) tooLate(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `select wid, status::text, array_to_string(pending, ', ') from travel.wed_instance
		where status <> 'F' order by wid`)
	if err != nil {
		return fmt.Errorf("read the trips: %w", err)
	}
	var (
		open            []string
		wid             int64
		status, pending string
	)
	_, err = pgx.ForEachRow(rows, []any{&wid, &status, &pending}, func() error {
		open = append(open, fmt.Sprintf("%d (%s, pending: %s)", wid, status, orDash(pending)))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the trips: %w", err)
	}
	hint := engineTrouble(ctx, conn)
	if hint == "" {
		hint = d.workers.complaints()
	}
	if hint == "" {
		hint = "--timeout gives them more time"
	}
	return &failure{exitFailure, fmt.Sprintf("after %s, %d of %d trips have ended; not: %s",
		d.timeout, d.ended, len(d.names), strings.Join(open, ", ")), hint}
}

// printer writes states as aligned lines, one by one.
type printer struct {
	con                    *console
	names                  map[int64]string
	begin                  time.Time
	states                 map[int64]json.RawMessage
	widWidth, nameWidth    int
	writerWidth, fireWidth int
}

func (d *demo) newPrinter() *printer {
	p := &printer{con: d.con, names: d.names, states: make(map[int64]json.RawMessage), widWidth: 1, fireWidth: len("FIRED")}
	for wid, name := range d.names {
		p.widWidth = max(p.widWidth, len(fmt.Sprint(wid)))
		p.nameWidth = max(p.nameWidth, utf8.RuneCountInString(name))
	}
	for _, t := range travel.Transitions() {
		p.writerWidth = max(p.writerWidth, len(t.Name))
	}
	p.fireWidth = len("book_flight, book_hotel")
	return p
}

func (p *printer) header() {
	fmt.Fprintf(p.con.out, "%s\n", p.con.bold(strings.TrimRight(fmt.Sprintf("%6s  %-*s  S  %-*s  %-*s  %s",
		"TIME", p.widWidth+1+p.nameWidth, "TRIP", p.writerWidth, "WRITTEN BY", p.fireWidth, "FIRED", "NEW VALUES"), " ")))
}

func (p *printer) print(l traceLine) {
	if p.begin.IsZero() {
		p.begin = l.Tstmp
	}
	left := fmt.Sprintf("%5.2fs  %*d %-*s  ", l.Tstmp.Sub(p.begin).Seconds(), p.widWidth, l.WID, p.nameWidth, p.names[l.WID])
	right := fmt.Sprintf("  %-*s  %-*s  ", p.writerWidth, writer(l), p.fireWidth, orDash(strings.Join(l.TrF, ", ")))
	values := changes(p.states[l.WID], l.State)
	if l.Error != nil {
		values = *l.Error
	}
	p.states[l.WID] = l.State
	if p.con.width > 0 {
		values = shorten(values, p.con.width-utf8.RuneCountInString(left)-1-utf8.RuneCountInString(right))
	}
	line := left + p.con.status(l.Status) + right + p.con.dim(values)
	fmt.Fprintln(p.con.out, strings.TrimRight(line, " "))
}

// shorten cuts s to at most width characters.
func shorten(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + "…"
}

// summarize prints the history of a trip that went through an exception, some
// figures, and what to do next.
func (d *demo) summarize(ctx context.Context, conn *pgx.Conn) error {
	c := d.con
	exceptions := 0
	ends := make(map[string]int)
	length := make(map[int64]int) // states of the trips with exceptions
	for _, l := range d.lines {
		if l.Status == "E" {
			exceptions++
			length[l.WID] = 0
		}
	}
	shown := d.lines[0].WID
	for _, l := range d.lines {
		if _, ok := length[l.WID]; ok {
			if length[l.WID]++; length[l.WID] > length[shown] {
				shown = l.WID
			}
		}
		if l.Status == "F" {
			var s struct{ Trip string }
			if err := json.Unmarshal(l.State, &s); err != nil {
				return fmt.Errorf("read a final state: %w", err)
			}
			ends[s.Trip]++
		}
	}
	history := slices.DeleteFunc(slices.Clone(d.lines), func(l traceLine) bool { return l.WID != shown })
	slices.SortFunc(history, func(a, b traceLine) int { return cmp.Compare(a.Version, b.Version) })
	fmt.Fprintf(c.out, "\nThe history of trip %d, which was in an exception:\n", shown)
	c.writeTrace(history, false)

	var median float64
	err := conn.QueryRow(ctx, `select coalesce(percentile_cont(0.5) within group (order by extract(epoch from d)), 0)
		from (select tstmp - lag(tstmp) over (partition by wid order by version) as d from travel.wed_trace) s`).Scan(&median)
	if err != nil {
		return fmt.Errorf("measure the history: %w", err)
	}
	took := d.lines[len(d.lines)-1].Tstmp.Sub(d.lines[0].Tstmp)
	pause := ""
	if d.pace > 0 {
		pause = fmt.Sprintf(", %d ms of it pause", d.pace.Milliseconds())
	}
	fmt.Fprintf(c.out, "\nAll %d trips have ended: %d confirmed, %d cancelled.\n"+
		"%d states in %.1f s; %d of them were exceptions, and all were led back.\n"+
		"Median from one state of a trip to its next: %.0f ms%s.\n",
		len(d.names), ends["confirmed"], ends["cancelled"], len(d.lines), took.Seconds(), exceptions, median*1000, pause)
	d.showNext(shown)
	return nil
}

func (d *demo) showNext(wid int64) {
	next := [][]string{
		{"  wedctl demo --keep", "the same again, and the flow stays to be looked at"},
		{"  wedctl demo --files DIR", "the rules and the scripts, to read, change and run"},
		{"  wedctl worker run --help", "how a command performs a transition"},
	}
	if d.keep {
		next = [][]string{
			{`  psql -c "select * from travel.wed_instance"`, "where each trip is"},
			{fmt.Sprintf("  wedctl instance trace %d --flow travel", wid), "how it came there"},
			{"  wedctl status", "what the engine does"},
			{"  wedctl demo --files DIR", "the rules and the scripts, to change and run"},
			{`  psql -c "select wed_sql.drop_flow('travel')"`, "remove the flow"},
		}
	}
	fmt.Fprintf(d.con.out, "\n%s\n", d.con.bold("Where to go next:"))
	d.con.writeTable(nil, next, tableLook{wrap: []int{1}})
}
