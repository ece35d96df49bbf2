package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/wed-sql/wed_sql/internal/pulse"
)

// wideScreen is the width of what is not written to a terminal.
const wideScreen = 110

// topColumn is a column of numbers.
type topColumn struct {
	title string
	order pulse.Order // by which it sorts, or ""
	width int
	value func(pulse.Row) string
}

func topColumns(v pulse.View) []topColumn {
	return []topColumn{
		{"WAITING", pulse.ByWaiting, 7, func(r pulse.Row) string { return number(r.Waiting) + v.More(r) }},
		{"RUN", "", 4, func(r pulse.Row) string { return number(r.Running) }},
		{"LEASED", "", 6, func(r pulse.Row) string { return number(r.Leased) }},
		{"OLDEST", pulse.ByOldest, 7, func(r pulse.Row) string { return seconds(r.OldestSeconds) }},
		{"DONE/S", pulse.ByDone, 6, func(r pulse.Row) string { return perSecond(r.DonePerSecond) }},
		{"FAILED", pulse.ByFailed, 6, func(r pulse.Row) string { return fmt.Sprint(r.Failed) }},
		{"WAITED", "", 7, func(r pulse.Row) string { return milliseconds(r.MeanWaitMS) }},
		{"TOOK", "", 7, func(r pulse.Row) string { return milliseconds(r.MeanRunMS) }},
	}
}

// screen is the view for a screen: the head, as many rows as there is space for
// from offset on, and what the keys do.
func (t *top) screen(width, height, offset int, trouble error) (lines []string, last int) {
	all := t.lines(width)
	const head = 4 // lines above the rows
	if trouble != nil {
		all[1] = fit(t.con.red("connection lost: "+explain(trouble).message), width)
	}
	rows := all[head:]
	space := max(height-head-1, 1)
	offset = max(min(offset, len(rows)-space), 0)
	shown := rows[offset:min(offset+space, len(rows))]
	lines = append(append(lines, all[:head]...), shown...)
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	foot := fmt.Sprintf("q ends  s sorts (by %s)  space looks now", t.order)
	if len(rows) > space {
		foot += fmt.Sprintf("  j k scroll (%d-%d of %d)", offset+1, offset+len(shown), len(rows))
	}
	lines = append(lines, fit(t.con.dim(foot), width))
	return lines[:min(len(lines), height)], offset
}

// lines are the head, and a row for each transition.
func (t *top) lines(width int) []string {
	v, con := t.view, t.con
	lines := []string{
		fit(fmt.Sprintf("%s  database %s  %s", con.bold("wedctl top"), quoted(t.database), v.At.Local().Format(time.TimeOnly)), width),
		fit(t.engineLine(), width),
		fit(t.jobsLine(), width),
	}
	columns := topColumns(v)
	gap, numbers := " ", 0
	if width >= wideScreen {
		gap = "  "
	}
	for _, c := range columns {
		numbers += len(gap) + c.width
	}
	name := max(min(width-numbers, 48), 12)

	byName := t.order == pulse.ByName
	title := "FLOW, TRANSITION"
	if !byName {
		title = "TRANSITION"
	}
	header := fmt.Sprintf("%-*s", name, shorten(title, name))
	for _, c := range columns {
		cell := fmt.Sprintf("%s%*s", gap, c.width, c.title)
		if c.order == t.order && c.order != "" {
			cell = con.green(cell)
		}
		header += cell
	}
	lines = append(lines, fit(con.bold(header), width))

	flow := ""
	for _, r := range v.Rows {
		label := r.Flow + "." + r.Transition
		if byName {
			if r.Flow != flow {
				lines = append(lines, fit(con.bold(shorten(r.Flow, name)), width))
				flow = r.Flow
			}
			label = "  " + r.Transition
		}
		line := fmt.Sprintf("%s%*s", shorten(label, name), max(name-text.StringWidthWithoutEscSequences(label), 0), "")
		for _, c := range columns {
			value := c.value(r)
			cell := fmt.Sprintf("%s%*s", gap, c.width, value)
			switch {
			case c.order == pulse.ByFailed && r.FailedLately > 0:
				cell = con.red(cell)
			case value == "0" || value == "-" || value == "0.0":
				cell = con.dim(cell)
			}
			line += cell
		}
		lines = append(lines, fit(line, width))
	}
	if len(v.Rows) == 0 {
		lines = append(lines, "no transition in this database")
	}
	return lines
}

// engineLine tells what the engine does.
func (t *top) engineLine() string {
	e, con := t.view.Engine, t.con
	if e == nil {
		return con.red("the engine does not serve this database")
	}
	state := con.green(e.State)
	if e.State != stateStreaming {
		state = con.red(e.State)
	}
	return fmt.Sprintf("engine %s, lag %s, %s states/s", state, lag(e.LagBytes, e.LagSeconds), perSecond(t.view.StatesPerSecond))
}

// jobsLine tells of all transitions together.
func (t *top) jobsLine() string {
	var waiting, busy, exceptions int64
	done, known, more := 0.0, false, ""
	for _, r := range t.view.Rows {
		if r.Waiting == nil {
			continue
		}
		if r.Transition == "_EXCPT" {
			exceptions += *r.Waiting
		}
		waiting += *r.Waiting
		more = cmp.Or(more, t.view.More(r))
		busy += *r.Running + *r.Leased
		if r.DonePerSecond != nil {
			done, known = done+*r.DonePerSecond, true
		}
	}
	rate := "-"
	if known {
		rate = perSecond(&done)
	}
	line := fmt.Sprintf("jobs: %d%s wait, %d in work, %s done/s", waiting, more, busy, rate)
	if exceptions > 0 {
		line += "; " + t.con.red(count(int(exceptions), "exception"))
	}
	return line
}

// fit cuts a line, which may have colours, to the width of the screen.
func fit(line string, width int) string {
	if text.StringWidthWithoutEscSequences(line) <= width {
		return line
	}
	return text.Trim(line, width)
}

func perSecond(rate *float64) string {
	switch {
	case rate == nil:
		return "-"
	case *rate >= 100:
		return fmt.Sprintf("%.0f", *rate)
	}
	return fmt.Sprintf("%.1f", *rate)
}

func seconds(s *float64) string {
	if s == nil {
		return "-"
	}
	return span(time.Duration(*s * float64(time.Second)))
}

func milliseconds(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return span(time.Duration(*ms * float64(time.Millisecond)))
}
