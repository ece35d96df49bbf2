package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func instanceWatchCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "follow instances live, state by state",
		ArgsUsage: "[WID...]",
		Description: `Prints what instances have been through, and then each new state and event as
it is recorded; without WIDs, of all instances of the flow that have not ended.
Ends with the instances that are named: with status 0 if all are final, with 1
when one is cancelled or, without --patient, becomes an exception.

Example: wedctl instance watch -f travel 7`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.BoolFlag{Name: "patient", DisableDefaultText: true, Usage: "an exception is no end: wait for what comes of it"},
			&cli.DurationFlag{Name: "timeout", Usage: "give up after this `TIME`: exit status 1"},
			&cli.DurationFlag{Name: "interval", Value: 250 * time.Millisecond, Usage: "`TIME` between two looks"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			w := &watcher{con: con, asJSON: asJSON, patient: c.Bool("patient"), interval: c.Duration("interval")}
			if w.interval <= 0 {
				return usagef("--interval is a time, not %s", w.interval)
			}
			for _, arg := range c.Args().Slice() {
				wid, err := parseWID(arg)
				if err != nil {
					return err
				}
				w.wids = append(w.wids, wid)
			}
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			conn, err := connect(ctx, dsn(c), "wedctl instance watch")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			if w.flow, err = con.theFlow(c, conn); err != nil {
				return needs(err, rightsOfReader)
			}
			if t := c.Duration("timeout"); t > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, t, &failure{code: exitFailure, message: "it has not ended within " + t.String()})
				defer cancel()
			}
			err = w.run(ctx, conn)
			if ctx.Err() != nil {
				if f, ok := context.Cause(ctx).(*failure); ok {
					return f
				}
				return w.interrupted()
			}
			return needs(err, rightsOfReader)
		},
	}
}

// watcher follows instances of a flow by their history, which is looked up by its
// key: there is nothing that tells of each new state.
type watcher struct {
	con      *console
	flow     string
	wids     []int64 // that are named; none: all
	asJSON   bool
	patient  bool
	interval time.Duration

	next   map[int64]int64           // number of the next state, of each that is followed
	states map[int64]json.RawMessage // their last ones
	status map[int64]string
	newest int64          // instance that is known
	events int64          // the last one that was read
	seen   map[int64]bool // events that were read lately
}

// followedAtOnce is how many instances are looked up at once. Of a larger flow,
// the newest are followed.
const followedAtOnce = 10_000

// recent is how far back a look goes for numbers that were taken early and
// committed late.
const recent = 1000

// happening is a state or an event, in the order of time.
type happening struct {
	at    time.Time
	line  *traceLine
	event *event
	raw   json.RawMessage
}

func (w *watcher) run(ctx context.Context, conn *pgx.Conn) error {
	w.next, w.states, w.status = make(map[int64]int64), make(map[int64]json.RawMessage), make(map[int64]string)
	w.seen = make(map[int64]bool)
	var err error
	if len(w.wids) > 0 {
		err = w.beginNamed(ctx, conn)
	} else {
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			return w.beginAll(ctx, tx)
		})
	}
	if err != nil {
		return err
	}
	if !w.asJSON {
		w.header()
	}
	for {
		looked := time.Now()
		if len(w.wids) == 0 {
			if err := w.findNew(ctx, conn); err != nil {
				return err
			}
		}
		news, err := w.look(ctx, conn)
		if err != nil {
			return err
		}
		for _, h := range news {
			if err := w.print(h); err != nil {
				return err
			}
		}
		if ended, err := w.judge(); ended || err != nil {
			return err
		}
		// a large flow is looked at less often
		pause := time.NewTimer(max(w.interval, 5*time.Since(looked)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// beginNamed makes sure that what is to be followed is there.
func (w *watcher) beginNamed(ctx context.Context, conn *pgx.Conn) error {
	for _, wid := range w.wids {
		var there bool
		err := conn.QueryRow(ctx, `select exists (select from `+w.table("wed_trace")+` where wid = $1)
			or exists (select from `+w.table("wed_instance")+` where wid = $1)`, wid).Scan(&there)
		if err != nil {
			return fmt.Errorf("look for instance %d: %w", wid, err)
		}
		if !there {
			return noInstance(w.flow, wid)
		}
		w.next[wid] = 0
	}
	return nil
}

// beginAll finds out what there is to follow, and where each instance is.
func (w *watcher) beginAll(ctx context.Context, tx pgx.Tx) error {
	err := tx.QueryRow(ctx, `select coalesce(max(wid), -1), (select coalesce(max(event_id), 0) from `+w.table("wed_event")+`)
		from `+w.table("wed_trace")).Scan(&w.newest, &w.events)
	if err != nil {
		return fmt.Errorf("look at flow %q: %w", w.flow, err)
	}
	rows, err := tx.Query(ctx, `
		with live as (select wid from `+w.table("wed_instance")+` where status not in ('F', 'C') order by wid desc limit $1)
		select i.wid, t.version, t.state, t.status::text
		from (select wid from live union select wid from `+w.table("wed_trace")+` where wid > $2) i
		cross join lateral (select t.version, t.state, t.status from `+w.table("wed_trace")+` t
			where t.wid = i.wid order by t.version desc limit 1) t`, followedAtOnce, w.newest-recent)
	if err != nil {
		return fmt.Errorf("look at flow %q: %w", w.flow, err)
	}
	var (
		wid, version int64
		state        json.RawMessage
		status       string
		live         int
	)
	_, err = pgx.ForEachRow(rows, []any{&wid, &version, &state, &status}, func() error {
		w.next[wid], w.status[wid] = version+1, status
		if w.following(wid) {
			w.states[wid] = slices.Clone(state)
			live++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at flow %q: %w", w.flow, err)
	}
	if _, _, err := w.readEvents(ctx, tx); err != nil { // they are old
		return err
	}
	if !w.asJSON {
		fmt.Fprintln(w.con.err, w.con.dim(fmt.Sprintf("following %s that live, and new ones; Ctrl-C ends it", count(live, "instance"))))
		if live >= followedAtOnce {
			fmt.Fprintln(w.con.err, w.con.yellow("there are more: only the newest are followed"))
		}
	}
	return nil
}

func (w *watcher) table(name string) string { return pgx.Identifier{w.flow, name}.Sanitize() }

// findNew adds instances that were started since the last look.
func (w *watcher) findNew(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `select wid from `+pgx.Identifier{w.flow, "wed_trace"}.Sanitize()+`
		where wid > $1 and version = 0 order by wid`, w.newest-recent)
	if err != nil {
		return fmt.Errorf("look for new instances: %w", err)
	}
	wids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look for new instances: %w", err)
	}
	for _, wid := range wids {
		w.newest = max(w.newest, wid)
		if _, known := w.next[wid]; !known {
			w.next[wid] = 0
		}
	}
	for wid := range w.next {
		if wid <= w.newest-recent && !w.following(wid) {
			delete(w.next, wid)
			delete(w.status, wid)
		}
	}
	return nil
}

// look returns the new states and events.
func (w *watcher) look(ctx context.Context, conn *pgx.Conn) ([]happening, error) {
	eventRows, events, err := w.readEvents(ctx, conn)
	if err != nil {
		return nil, err
	}
	wids, versions := make([]int64, 0, len(w.next)), make([]int64, 0, len(w.next))
	for wid, version := range w.next {
		if w.following(wid) {
			wids, versions = append(wids, wid), append(versions, version)
		}
	}
	lines, err := readTrace(ctx, conn, w.flow, `join unnest($1::bigint[], $2::bigint[]) as k (wid, version)
		on t.wid = k.wid and t.version >= k.version`, wids, versions)
	if err != nil {
		return nil, err
	}
	news := make([]happening, 0, len(lines)+len(events))
	for i := range lines {
		l := &lines[i]
		w.next[l.WID] = max(w.next[l.WID], l.Version+1)
		news = append(news, happening{at: l.Tstmp, line: l, raw: l.raw})
	}
	for i := range events {
		news = append(news, happening{at: events[i].At, event: &events[i], raw: eventRows[i]})
	}
	slices.SortStableFunc(news, func(a, b happening) int { return a.at.Compare(b.at) })
	return news, nil
}

// following reports whether an instance may yet have another state. Those that
// have ended are not looked up again, until an event says that they go on.
func (w *watcher) following(wid int64) bool {
	return w.status[wid] != "F" && w.status[wid] != "C"
}

func (w *watcher) readEvents(ctx context.Context, db querier) ([]json.RawMessage, []event, error) {
	where, args := ` where event_id > $1`, []any{max(w.events-recent, 0)}
	if len(w.wids) > 0 {
		where, args = where+` and wid = any ($2)`, append(args, w.wids)
	}
	raw, events, err := readRows[event](ctx, db, "read the events", eventsOf(w.flow)+where+` order by event_id`, args...)
	if err != nil {
		return nil, nil, err
	}
	var news []event
	var newRows []json.RawMessage
	for i, e := range events {
		if w.seen[e.ID] {
			continue
		}
		w.seen[e.ID] = true
		w.events = max(w.events, e.ID)
		if _, known := w.next[e.WID]; e.Event == "reopened" && e.Version != nil && !known {
			w.next[e.WID] = *e.Version
		}
		if e.Event == "reopened" {
			w.status[e.WID] = ""
		}
		news, newRows = append(news, e), append(newRows, raw[i])
	}
	for id := range w.seen {
		if id <= w.events-recent {
			delete(w.seen, id)
		}
	}
	return newRows, news, nil
}

const watchLayout = "15:04:05.000"

// Widths of the columns of what is watched.
const (
	writerColumn = 18
	firedColumn  = 24
)

// narrow reports that there is no room for what a state has fired.
func (w *watcher) narrow() bool { return w.con.width > 0 && w.con.width < 110 }

func (w *watcher) header() {
	fired := fmt.Sprintf("%-*s  ", firedColumn, "FIRED")
	if w.narrow() {
		fired = ""
	}
	fmt.Fprintln(w.con.out, w.con.bold(fmt.Sprintf("%-12s  %6s  S  %-*s  %s%s", "TIME", "WID", writerColumn, "WRITTEN BY", fired, "NEW VALUES")))
}

// print writes a state or an event in one line.
func (w *watcher) print(h happening) error {
	c := w.con
	if l := h.line; l != nil {
		before := w.states[l.WID]
		w.states[l.WID], w.status[l.WID] = l.State, l.Status
		if !w.following(l.WID) {
			delete(w.states, l.WID)
		}
		if !w.asJSON {
			values := changes(before, l.State)
			if l.Error != nil {
				values = strings.TrimSpace(values + " " + c.red(*l.Error))
			}
			fired := fmt.Sprintf("%-*s  ", firedColumn, orDash(strings.Join(l.TrF, ", ")))
			if w.narrow() {
				fired = ""
			}
			c.hang(fmt.Sprintf("%s  %6d  %s  %-*s  %s", l.Tstmp.Local().Format(watchLayout), l.WID, c.status(l.Status), writerColumn, writer(*l), fired), values)
			return nil
		}
	}
	if e := h.event; e != nil && !w.asJSON {
		c.hang(fmt.Sprintf("%s  %6d  %s  ", e.At.Local().Format(watchLayout), e.WID, c.yellow("·")), e.text())
		return nil
	}
	kind := "state"
	if h.event != nil {
		kind = "event"
	}
	// a program gets a line for each at once
	if _, err := fmt.Fprintf(c.out, "{\"kind\":%q,%s\n", kind, strings.TrimPrefix(string(h.raw), "{")); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// judge reports whether there is nothing left to follow, and how that ended.
func (w *watcher) judge() (ended bool, err error) {
	if len(w.wids) == 0 {
		return false, nil
	}
	var bad []string
	for _, wid := range w.wids {
		switch w.status[wid] {
		case "F":
			continue
		case "C":
			bad = append(bad, fmt.Sprintf("instance %d is cancelled", wid))
			continue
		case "E":
			if !w.patient {
				return true, &failure{code: exitFailure, message: fmt.Sprintf("instance %d is an exception", wid),
					hint: fmt.Sprintf("`wedctl instance show -f %s %d` shows it, `wedctl instance retry` and `repair` lead it out", quoted(w.flow), wid)}
			}
		}
		return false, nil
	}
	if len(bad) > 0 {
		return true, &failure{code: exitFailure, message: some(bad, 8)}
	}
	return true, nil
}

// interrupted is how it ends by Ctrl-C: as it should, unless it was to wait for
// something.
func (w *watcher) interrupted() error {
	if len(w.wids) == 0 {
		return nil
	}
	return &failure{code: exitFailure, message: "interrupted"}
}
