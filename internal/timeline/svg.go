package timeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/internal/layered"
	"github.com/wed-sql/wed_sql/internal/picture"
)

const (
	margin    = 24.0
	rowHeight = 20.0
	barHeight = 12.0
	laneGap   = 8.0
	dotRadius = 9.0
	widest    = 190.0 // of a lane's name
	mostLines = 40    // of the list of states
	afterEnd  = 30.0  // room to the right of the axis
)

var (
	plainFont = picture.Font{Size: 12}
	smallFont = picture.Font{Size: 11}
	nameFont  = picture.Font{Size: 12, Bold: true}
	headFont  = picture.Font{Size: 18, Bold: true}
	codeFont  = picture.Font{Size: 11, Fixed: true}
)

const style = `text.lane{font-weight:600}
.waiting{fill:SOFT;stroke:ACCENT;stroke-width:1}
.delayed{fill:PAPER;stroke:ACCENT;stroke-width:1;stroke-dasharray:4 3}
.working{fill:ACCENT}
.attempt{fill:BAD;fill-opacity:.55}
.exception .waiting{fill:BADSHADE;stroke:BAD}
.row{stroke:SHADE}
.guide{stroke:LINE;stroke-opacity:.35}
.now{stroke:MUTED;stroke-dasharray:3 3}
.axis{stroke:LINE}
.gap{fill:PAPER}
.zigzag{fill:none;stroke:LINE}
.resting{fill:SHADE}
.excepted{fill:BADSHADE;fill-opacity:.6}
.dot{fill:CARD;stroke:INK;stroke-width:1.3}
.dot.by{stroke-dasharray:2.5 2}
.dot.e{fill:BADSHADE;stroke:BAD}
.dot.f{stroke:GOOD;stroke-width:2.6}
.dot.s,.dot.c{fill:SHADE;stroke:MUTED}
.done{fill:ACCENT;stroke:PAPER}
.fail{fill:PAPER;stroke:BAD}
.mark circle{fill:PAPER;stroke:ACCENT}
`

// drawing is a life on its way to the picture.
type drawing struct {
	*Life
	c     *picture.Canvas
	lanes []Lane
	axis  *axis
	left  float64 // of the axis
	top   float64 // of the lanes
	end   float64 // below the lanes
	ys    []float64
}

// SVG returns the life as a picture.
func (l *Life) SVG() []byte {
	d := &drawing{Life: l, c: &picture.Canvas{}, lanes: l.Lanes()}
	d.measure()
	headline := fmt.Sprintf("Instance %d of WED-flow %s", l.WID, l.Flow)
	caption := l.caption()
	width := d.left + d.axis.width() + afterEnd
	head := headFont.Clip(headline, max(width-margin, 700))
	width = max(width, margin+headFont.Width(head))
	d.c.Text("head", margin, margin+18, head)
	y := margin + 38
	for _, s := range plainFont.Wrap(caption, max(width-margin, 760), 4) {
		d.c.Text("muted", margin, y, s)
		width = max(width, margin+plainFont.Width(s))
		y += 17
	}
	d.place(y + 6 + d.dotRows()*(2*dotRadius+3))
	d.drawShades()
	d.drawGuides()
	d.drawLanes()
	d.drawDots()
	bottom := d.drawAxis()
	bottom, w := d.drawLegend(bottom+26, width)
	width = max(width, margin+w)
	bottom, w = d.drawList(bottom+28, width)
	width = max(width, margin+w)
	return d.c.Document(headline, caption, layered.Size{Width: math.Ceil(width + margin), Height: math.Ceil(bottom + margin - 8)}, picture.Style(style))
}

// measure finds out how wide everything is.
func (d *drawing) measure() {
	names := 60.0
	for _, l := range d.lanes {
		names = max(names, nameFont.Width(nameFont.Clip(picture.Label(l.Name), widest)))
	}
	d.left = margin + math.Ceil(names) + 24
	var states, marks []time.Time
	for _, s := range d.States {
		states = append(states, s.At)
	}
	if d.goesOn() {
		states = append(states, latest(d.Now, states[len(states)-1]))
	}
	for _, l := range d.lanes {
		for _, b := range l.Bars {
			marks = append(marks, b.From, b.To)
		}
	}
	for _, e := range d.Events {
		marks = append(marks, e.At)
	}
	d.axis = newAxis(states, marks)
}

// goesOn reports whether the instance has not ended.
func (l *Life) goesOn() bool {
	s := l.States[len(l.States)-1].Status
	return s != "F" && s != "C"
}

func (d *drawing) place(top float64) {
	d.top = top
	y := top
	for _, l := range d.lanes {
		d.ys = append(d.ys, y)
		y += float64(l.Rows)*rowHeight + laneGap
	}
	d.end = y
}

func (d *drawing) x(t time.Time) float64 { return d.left + d.axis.at(t) }

// caption says what has become of the instance.
func (l *Life) caption() string {
	first, last := l.States[0], l.States[len(l.States)-1]
	n := fmt.Sprintf("%d states", len(l.States))
	if len(l.States) == 1 {
		n = "1 state"
	}
	took := picture.Duration(last.At.Sub(first.At))
	var s string
	switch last.Status {
	case "F":
		s = fmt.Sprintf("Final after %s, with %s.", took, n)
	case "C":
		s = fmt.Sprintf("Cancelled after %s, with %s.", took, n)
	case "S":
		s = fmt.Sprintf("Suspended since %s, after %s.", picture.Duration(l.Now.Sub(last.At)), n)
	case "E":
		s = fmt.Sprintf("An exception since %s, after %s.", picture.Duration(l.Now.Sub(last.At)), n)
	default:
		s = fmt.Sprintf("Goes on since %s, with %s.", picture.Duration(l.Now.Sub(first.At)), n)
	}
	s += " From " + first.At.Format("2006-01-02 15:04:05.000")
	if !l.goesOn() {
		s += " to " + last.At.Format("2006-01-02 15:04:05.000 MST") + "."
	} else {
		s += " to now, " + l.Now.Format("2006-01-02 15:04:05 MST") + "."
	}
	if first.Version > 0 || first.Healed {
		s += " Earlier states were not recorded."
	}
	return s
}

// drawShades draws the times in which the instance rested, or was an exception.
func (d *drawing) drawShades() {
	for i, s := range d.States {
		if s.Status != "S" && s.Status != "E" {
			continue
		}
		to := d.left + d.axis.width()
		until := latest(d.Now, s.At)
		if i+1 < len(d.States) {
			until = d.States[i+1].At
			to = d.x(until)
		}
		class, what := "resting", "suspended"
		if s.Status == "E" {
			class, what = "excepted", "an exception"
		}
		x := d.x(s.At)
		d.c.Group("shade", what+" for "+picture.Duration(until.Sub(s.At)), func() {
			d.c.Rect(class, layered.Rect{X: x, Y: d.top - 4, Width: max(to-x, 2), Height: d.end - d.top + 4}, 0)
			if what == "suspended" && to-x > smallFont.Width(what)+8 {
				d.c.TextMiddle("small muted", (x+to)/2, d.end-4, what)
			}
		})
	}
}

func (d *drawing) drawGuides() {
	for i, l := range d.lanes {
		y := d.ys[i] + float64(l.Rows)*rowHeight + laneGap/2
		d.c.Line("row", margin, y, d.left+d.axis.width(), y)
	}
	for _, s := range d.States {
		d.c.Line("guide", d.x(s.At), d.top-4, d.x(s.At), d.end)
	}
	if d.goesOn() {
		x := d.left + d.axis.width()
		d.c.Line("now", x, d.top-10, x, d.end)
		d.c.TextMiddle("small muted", x, d.top-14, "now")
	}
}

func (d *drawing) drawLanes() {
	for i, l := range d.lanes {
		class := "lane"
		if l.Name == exceptionName {
			class = "lane exception"
		}
		d.c.Group(class, d.laneTitle(&l), func() {
			d.c.Text("lane", margin, d.ys[i]+15, nameFont.Clip(picture.Label(l.Name), widest))
		})
		d.c.Group(class, "", func() {
			for _, b := range l.Bars {
				d.drawBar(&l, b, d.ys[i])
			}
			for _, b := range l.Bars {
				d.drawEnd(b, d.ys[i])
			}
			for _, e := range l.Marks {
				if e.What != "leased" { // its bar begins there
					d.drawMark(&l, e, d.ys[i])
				}
			}
		})
	}
}

func (d *drawing) laneTitle(l *Lane) string {
	lines := []string{l.Name}
	for _, t := range l.Rules {
		if r, ok := d.Rules[t]; ok {
			lines = append(lines, fmt.Sprintf("rule %d: %s", t, strings.TrimSpace(r.Predicate)))
		}
	}
	return strings.Join(lines, "\n")
}

func (d *drawing) drawBar(l *Lane, b Bar, y float64) {
	x, to := d.x(b.From), d.x(b.To)
	y += float64(b.Row)*rowHeight + (rowHeight-barHeight)/2
	r := layered.Rect{X: x, Y: y, Width: max(to-x, 1.5), Height: barHeight}
	class := map[Sort]string{Waiting: "waiting", Delayed: "delayed", Working: "working", Failed: "attempt"}[b.Sort]
	if b.Sort == Working || b.Sort == Failed {
		r.Y, r.Height = r.Y+2, r.Height-4
	}
	d.c.Group("bar", d.barTitle(l, b), func() {
		if b.Open {
			tip := 7.0
			d.c.Path(class, fmt.Sprintf("M%s,%sH%sL%s,%sL%s,%sH%sZ", picture.Num(r.X), picture.Num(r.Y), picture.Num(r.X+r.Width),
				picture.Num(r.X+r.Width+tip), picture.Num(r.Y+r.Height/2), picture.Num(r.X+r.Width), picture.Num(r.Y+r.Height), picture.Num(r.X)))
		} else {
			d.c.Rect(class, r, 2)
		}
	})
}

// drawEnd draws how what pended ended.
func (d *drawing) drawEnd(b Bar, y float64) {
	x, y := d.x(b.To), y+float64(b.Row)*rowHeight+rowHeight/2
	switch {
	case base(b.Sort) == 1 || b.Open:
	case b.End == "done":
		d.c.Circle("done", x, y, 4)
	case b.End == "withdrawn" || b.End == "cancelled":
		d.c.Icon("ink", picture.Leave, x-6, y-6)
	}
}

// barTitle says what a bar shows.
func (d *drawing) barTitle(l *Lane, b Bar) string {
	took := picture.Duration(b.To.Sub(b.From))
	what := map[Sort]string{
		Waiting: "pended for " + took, Delayed: "its delay ran for " + took, Working: "somebody was at it for " + took,
		Failed: "an attempt that failed, of " + took,
	}[b.Sort]
	if b.Open {
		what = map[Sort]string{Waiting: "pends since " + took, Delayed: "its delay runs since " + took, Working: "somebody is at it since " + took}[b.Sort]
	}
	s := l.Name + ": " + what
	if b.End != "" && b.Sort != Failed {
		s += "; then " + b.End
	}
	if b.Sort == Failed {
		s += ": " + b.End
	}
	s += "\n" + stamp(b.From)
	if !b.Open {
		s += " to " + stamp(b.To)
	}
	if b.Open && b.Sort == Waiting {
		for _, j := range d.Jobs {
			if j.TGID == b.Rule {
				s += jobLines(j)
			}
		}
	}
	if b.Open {
		for _, t := range d.Timers {
			if t.TGID == b.Rule {
				s += fmt.Sprintf("\n%s: at %s, in %s", t.Kind, stamp(t.DueAt), picture.Duration(t.DueAt.Sub(d.Now)))
			}
		}
	}
	return s
}

func jobLines(j Job) (s string) {
	if j.Attempts > 0 {
		s += fmt.Sprintf("\nfailed attempts: %d; the last: %s", j.Attempts, j.LastError)
	}
	if !j.AvailableAt.IsZero() {
		s += "\nto be tried again from " + stamp(j.AvailableAt) + " on"
	}
	if !j.LeasedUntil.IsZero() {
		s += fmt.Sprintf("\nleased by %s until %s", j.LeasedBy, stamp(j.LeasedUntil))
	}
	return s
}

func stamp(t time.Time) string { return t.Format("2006-01-02 15:04:05.000") }

func (d *drawing) drawMark(l *Lane, e Event, y float64) {
	row := 0
	for _, b := range l.Bars {
		if b.Rule == e.TGID && !e.At.Before(b.From) && !e.At.After(b.To) {
			row = b.Row
		}
	}
	x, y := d.x(e.At), y+float64(row)*rowHeight+rowHeight/2
	d.c.Group("mark", e.title(), func() {
		switch {
		case isFailure(e.What):
			d.c.Circle("fail", x, y, 7.5)
			icon := picture.Cross
			if e.What == "timed out" || e.What == "lease ran out" {
				icon = picture.Hourglass
			}
			d.c.IconAround("bad", icon, x, y, 0.7)
		case e.What == "timer fired":
			d.c.Circle("due", x, y, 7.5)
			d.c.IconAround("accent", picture.Clock, x, y, 0.8)
		case e.What == "released":
			d.c.Circle("due", x, y, 7.5)
			d.c.IconAround("accent", picture.Back, x, y, 0.75)
		default: // of signals
			d.c.Circle("due", x, y, 7.5)
			d.c.IconAround("accent", picture.Signal, x, y, 0.75)
		}
	})
}

func (e Event) title() string {
	s := e.Transition + ": " + e.What
	if e.Held > 0 {
		s += ", after " + picture.Duration(e.Held)
	}
	if e.Role != "" {
		s += " (" + e.Role + ")"
	}
	if e.Detail != "" {
		s += "\n" + e.Detail
	}
	return s + "\n" + stamp(e.At)
}

// dotLevels says how far above the lanes each state's dot is: beside another, or over it.
func (d *drawing) dotLevels() []int {
	const most = 4
	levels := make([]int, len(d.States))
	var right [most]float64
	for i := range right {
		right[i] = math.Inf(-1)
	}
	for i, s := range d.States {
		x := d.x(s.At)
		for k := range most {
			if x-dotRadius >= right[k]+2 || k == most-1 {
				levels[i], right[k] = k, x+dotRadius
				break
			}
		}
	}
	return levels
}

func (d *drawing) dotRows() float64 { return float64(slices.Max(d.dotLevels()) + 1) }

func (d *drawing) drawDots() {
	for i, level := range d.dotLevels() {
		s := &d.States[i]
		x, y := d.x(s.At), d.top-4-dotRadius-float64(level)*(2*dotRadius+3)
		class := "dot"
		if s.Status != "R" {
			class += " " + strings.ToLower(s.Status)
		}
		if _, ok := d.writerName(s); !ok && s.Writer != "" {
			class += " by"
		}
		if level > 0 {
			d.c.Line("guide", x, y+dotRadius, x, d.top-4)
		}
		d.c.Group("state", d.stateTitle(s), func() {
			d.c.Circle(class, x, y, dotRadius)
			d.c.TextMiddle("small", x, y+4, fmt.Sprint(s.Version))
		})
	}
}

// writer says who wrote a state.
func writer(s *State) string {
	switch {
	case s.Writer != "":
		return s.Writer
	case s.Version == 0:
		return "(new)"
	}
	return "(reopened)"
}

var statusNames = map[string]string{"R": "", "E": "exception", "F": "final", "S": "suspended", "C": "cancelled"}

// stateTitle says all of a state.
func (d *drawing) stateTitle(s *State) string {
	lines := []string{fmt.Sprintf("state %d by %s", s.Version, writer(s))}
	if n := statusNames[s.Status]; n != "" {
		lines[0] += ": " + n
	}
	lines = append(lines, s.Changes...)
	if len(s.Fired) > 0 {
		lines = append(lines, "fired "+strings.Join(s.Fired, ", "))
	}
	if s.Error != "" {
		lines = append(lines, s.Error)
	}
	for _, e := range d.Events {
		if e.Version == s.Version && isIntervention(e.What) {
			lines = append(lines, strings.TrimSpace(strings.Join([]string{e.What, "by", e.Role, e.Detail}, " ")))
		}
	}
	return strings.Join(append(lines, stamp(s.At)), "\n")
}

// drawAxis draws the time below the lanes, and its breaks across them.
func (d *drawing) drawAxis() (bottom float64) {
	y := d.end + 6
	var taken []layered.Rect // of what is written in the first row
	for i, b := range d.axis.broken {
		if b {
			length := d.axis.times[i+1].Sub(d.axis.times[i])
			middle := d.left + (d.axis.x[i]+d.axis.x[i+1])/2
			taken = append(taken, around(middle, y, picture.Duration(length)))
			d.drawBreak(middle, d.axis.x[i+1]-d.axis.x[i], y, length)
		}
	}
	shownDate, right, rows := "", [2]float64{math.Inf(-1), math.Inf(-1)}, 1
	for _, r := range d.axis.runs() {
		x, to := d.left+d.axis.x[r.from], d.left+d.axis.x[r.to]
		if to > x {
			d.c.Line("axis", x, y, to, y)
		}
		for _, t := range d.axis.ticks(r) {
			d.c.Line("axis", d.left+t.x, y, d.left+t.x, y+5)
			box := around(d.left+t.x, y, t.text)
			if !slices.ContainsFunc(taken, func(o layered.Rect) bool { return box.X < o.X+o.Width && o.X < box.X+box.Width }) {
				d.c.TextMiddle("small muted", d.left+t.x, y+18, t.text)
			}
		}
		at := d.axis.times[r.from]
		text := at.Format("15:04:05.000")
		date := at.Format("2006-01-02")
		if date != shownDate {
			text = date + " " + text
		}
		d.c.Line("axis", x, y, x, y+5)
		from, wide := x+3, smallFont.Width(text)
		if most := d.left + d.axis.width() + afterEnd; from+wide > most {
			from = most - wide
		}
		row := slices.IndexFunc(right[:], func(taken float64) bool { return from >= taken+10 })
		if row < 0 {
			continue
		}
		rows = max(rows, row+1)
		shownDate, right[row] = date, from+wide
		down := 14 * float64(row)
		d.c.Line("axis", x, y, x, y+24)
		if row > 0 { // not through what stands above
			d.c.Line("axis", x, y+24+down, x, y+36+down)
		}
		d.c.Text("small", from, y+34+down, text)
	}
	return y + 24 + 14*float64(rows)
}

// around is the room that a text takes around x.
func around(x, y float64, text string) layered.Rect {
	w := smallFont.Width(text) + 6
	return layered.Rect{X: x - w/2, Y: y, Width: w, Height: 18}
}

func (d *drawing) drawBreak(middle, wide, y float64, length time.Duration) {
	d.c.Line("axis", middle-wide/2, y, middle-4, y)
	d.c.Line("axis", middle+4, y, middle+wide/2, y)
	for _, at := range []float64{middle - 4, middle + 4} {
		d.c.Line("axis", at-2.5, y+6, at+2.5, y-6)
	}
	var path strings.Builder
	step := 6.0
	for _, side := range []float64{middle - 3, middle + 3} {
		for k, at := 0, d.top-4; at <= d.end; k, at = k+1, at+step {
			letter := "L"
			if k == 0 {
				letter = "M"
			}
			fmt.Fprintf(&path, "%s%s,%s", letter, picture.Num(side+2*float64(k%2*2-1)), picture.Num(at))
		}
	}
	d.c.Group("break", "a break of the axis: "+picture.Duration(length), func() {
		d.c.Rect("gap", layered.Rect{X: middle - 4, Y: d.top - 4, Width: 8, Height: d.end - d.top + 4}, 0)
		d.c.Path("zigzag", path.String())
		d.c.TextMiddle("small warn", middle, y+18, picture.Duration(length))
	})
}

// drawLegend explains what is in the picture.
func (d *drawing) drawLegend(y, width float64) (bottom, right float64) {
	x := margin
	entry := func(text string, wide float64, draw func(x, y float64)) {
		w := wide + 7 + plainFont.Width(text)
		if x > margin && x+w > max(width, 620) {
			x, y = margin, y+22
		}
		draw(x, y)
		d.c.Text("muted", x+wide+7, y+4, text)
		right = max(right, x+w-margin)
		x += w + 20
	}
	has := func(match func(b *Bar) bool) bool {
		return slices.ContainsFunc(d.lanes, func(l Lane) bool {
			return slices.ContainsFunc(l.Bars, func(b Bar) bool { return match(&b) })
		})
	}
	bar := func(class string) func(x, y float64) {
		return func(x, y float64) { d.c.Rect(class, layered.Rect{X: x, Y: y - 5, Width: 26, Height: 10}, 2) }
	}
	if has(func(b *Bar) bool { return b.Sort == Waiting }) {
		entry("pending", 26, bar("waiting"))
	}
	if has(func(b *Bar) bool { return b.Sort == Delayed }) {
		entry("delay", 26, bar("delayed"))
	}
	if has(func(b *Bar) bool { return b.Sort == Working }) {
		entry("somebody at it, as far as known", 26, bar("working"))
	}
	failed := func(e Event) bool { return isFailure(e.What) }
	switch {
	case has(func(b *Bar) bool { return b.Sort == Failed }):
		entry("failed attempt", 26, bar("attempt"))
	case slices.ContainsFunc(d.Events, failed):
		entry("failed attempt", 15, func(x, y float64) {
			d.c.Group("mark", "", func() {
				d.c.Circle("fail", x+7.5, y, 7.5)
				d.c.IconAround("bad", picture.Cross, x+7.5, y, 0.7)
			})
		})
	}
	if has(func(b *Bar) bool { return base(b.Sort) == 0 && b.End == "done" }) {
		entry("done", 8, func(x, y float64) { d.c.Circle("done", x+4, y, 4) })
	}
	if has(func(b *Bar) bool { return b.End == "withdrawn" }) {
		entry("withdrawn", 12, func(x, y float64) { d.c.Icon("ink", picture.Leave, x, y-6) })
	}
	for _, k := range []struct {
		status, class, text string
	}{{"R", "dot", "state"}, {"E", "dot e", "exception"}, {"S", "dot s", "suspended"}, {"C", "dot c", "cancelled"}, {"F", "dot f", "final"}} {
		if slices.ContainsFunc(d.States, func(s State) bool { return s.Status == k.status }) {
			entry(k.text, 14, func(x, y float64) { d.c.Circle(k.class, x+7, y, 6.5) })
		}
	}
	if slices.ContainsFunc(d.States, func(s State) bool { _, ok := d.writerName(&s); return !ok && s.Writer != "" }) {
		entry("by an intervention", 14, func(x, y float64) { d.c.Circle("dot by", x+7, y, 6.5) })
	}
	return y + 6, right
}

// drawList writes the states below each other, for those who read on paper.
func (d *drawing) drawList(y, width float64) (bottom, right float64) {
	states := d.States
	const number, since, by = 26.0, 76.0, 24.0
	writers := 0.0
	for i := range states {
		writers = max(writers, smallFont.Width(smallFont.Clip(picture.Label(writer(&states[i])), widest)))
	}
	room := max(width-margin, 720) - number - since - writers - by
	for i := range states {
		if i == mostLines {
			d.c.Text("small muted", margin+number, y, fmt.Sprintf("and %d more states", len(states)-i))
			y += 16
			break
		}
		s := &states[i]
		d.c.TextEnd("small muted", margin+number-8, y, fmt.Sprint(s.Version))
		if i > 0 {
			d.c.TextEnd("small muted", margin+number+since-12, y, "+"+picture.Duration(s.At.Sub(states[i-1].At)))
		}
		d.c.Text("small", margin+number+since, y, smallFont.Clip(picture.Label(writer(s)), widest))
		class := "code muted"
		text := strings.Join(s.Changes, "  ")
		if s.Error != "" {
			class, text = "code bad", strings.TrimSpace(text+"  "+s.Error)
		}
		text = codeFont.Clip(picture.OneLine(text), room)
		x := margin + number + since + writers + by
		d.c.Text(class, x, y, text)
		right = max(right, x+codeFont.Width(text)-margin)
		y += 16
	}
	return y - 8, right
}
