package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

const rightsOfShow = "usage on the flow's schema, select on its wed_instance, wed_flow, job_pool, wed_timer and wed_event"

func instanceShowCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "show an instance as it is now",
		ArgsUsage: "WID",
		Description: `Its attributes; the jobs that are pending, who has them, and why they failed;
what will happen at a time; and what happened to it besides its states.

Example: wedctl instance show -f travel 2`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.IntFlag{Name: "events", Value: 10, Usage: "at most so many, the last ones; 0: all"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			wid, err := oneWID(c)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			if c.Int("events") < 0 {
				return usagef("--events is a number of events, not %d", c.Int("events"))
			}
			conn, err := connect(c.Context, dsn(c), "wedctl instance show")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			flow, err := con.theFlow(c, conn)
			if err != nil {
				return needs(err, rightsOfShow)
			}
			v, err := readInstance(c.Context, conn, flow, wid, c.Int("events"))
			switch {
			case err != nil:
				return needs(err, rightsOfShow)
			case asJSON:
				return writeObject(con.out, v)
			}
			con.writeInstance(v)
			return nil
		},
	}
}

// instanceView is all that is to be seen of an instance.
type instanceView struct {
	Flow string `json:"flow"`
	instanceRow
	Jobs    []pendingJob `json:"jobs"`
	Timers  []timer      `json:"timers"`
	Events  []event      `json:"events"`
	Earlier int64        `json:"earlier_events"` // that are not in Events

	holders bool
}

// timer is a line of wed_timer.
type timer struct {
	Transition *string   `json:"transition"`
	Kind       string    `json:"kind"`
	DueAt      time.Time `json:"due_at"`
}

// event is a line of wed_event.
type event struct {
	ID         int64     `json:"event_id"`
	WID        int64     `json:"wid"`
	Version    *int64    `json:"version"`
	Transition *string   `json:"transition"`
	Event      string    `json:"event"`
	Role       *string   `json:"role"`
	PID        *int      `json:"pid"`
	Held       *string   `json:"held"`
	Detail     *string   `json:"detail"`
	At         time.Time `json:"at"`
}

func readInstance(ctx context.Context, conn *pgx.Conn, flow string, wid int64, events int) (*instanceView, error) {
	list := &instanceList{flow: flow, where: fmt.Sprintf("wid = %d", wid), limit: 1}
	_, rows, err := list.read(ctx, conn)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, noInstance(flow, wid)
	}
	v := &instanceView{Flow: flow, instanceRow: rows[0]}
	if _, v.Jobs, v.holders, err = readJobs(ctx, conn, []string{flow}, jobFilter{wid: &wid}); err != nil {
		return nil, err
	}
	table := func(name string) string { return pgx.Identifier{flow, name}.Sanitize() }
	_, v.Timers, err = readRows[timer](ctx, conn, "read the timers", `
		select trname as transition, kind, due_at from `+table("wed_timer")+` where wid = $1 order by due_at, tgid`, wid)
	if err != nil {
		return nil, err
	}
	limit := ""
	if events > 0 {
		limit = fmt.Sprintf("limit %d", events)
	}
	_, v.Events, err = readRows[event](ctx, conn, "read the events", eventsOf(flow)+` where wid = $1 order by event_id desc `+limit, wid)
	if err != nil {
		return nil, err
	}
	slices.Reverse(v.Events)
	if len(v.Events) > 0 {
		err = conn.QueryRow(ctx, `select count(*) from `+table("wed_event")+` where wid = $1 and event_id < $2`, wid, v.Events[0].ID).Scan(&v.Earlier)
		if err != nil {
			return nil, fmt.Errorf("count the events: %w", err)
		}
	}
	return v, nil
}

// eventsOf selects from wed_event.
func eventsOf(flow string) string {
	return `select event_id, wid, version, trname as transition, event, role, pid, held::text as held, detail, at from ` +
		pgx.Identifier{flow, "wed_event"}.Sanitize()
}

func noInstance(flow string, wid int64) error {
	return notFound(fmt.Sprintf("`wedctl instance list -f %s` lists the instances", quoted(flow)), "flow %q has no instance %d", flow, wid)
}

func (con *console) writeInstance(v *instanceView) {
	title := fmt.Sprintf("instance %d of flow %s", v.WID, quoted(v.Flow))
	con.hang("", fmt.Sprintf("%s  %s since %s, state %d", con.bold(title), con.statusWord(v.Status), con.moment(v.Since), v.Version))
	if v.Error != nil {
		fmt.Fprintln(con.out, con.red(*v.Error))
	} else if v.Status == "E" {
		fmt.Fprintln(con.out, con.red("nothing was due"))
	}

	con.section("ATTRIBUTES")
	var rows [][]string
	for _, n := range slices.Sorted(maps.Keys(v.Attributes)) {
		value := con.dim("null")
		if s := v.Attributes[n]; string(s) != "null" {
			value = plain(s)
		}
		rows = append(rows, []string{n, value})
	}
	con.writeTable(nil, rows, tableLook{wrap: []int{1}})

	if len(v.Jobs) > 0 {
		con.section("PENDING")
		rows = nil
		for _, j := range v.Jobs {
			rows = append(rows, []string{j.Transition, con.jobState(j.State), span(time.Since(j.FiredAt)), j.failedAttempts(), j.holder()})
		}
		con.writeTable([]string{"TRANSITION", "STATE", "AGE", "FAILED", "WHO HAS IT"}, rows, tableLook{wrap: []int{3, 4}})
		if !v.holders {
			fmt.Fprintln(con.err, con.dim("who holds a job is only shown to members of pg_monitor"))
		}
	}
	if len(v.Timers) > 0 {
		con.section("TIMERS")
		rows = nil
		for _, t := range v.Timers {
			rows = append(rows, []string{t.Kind, orDash(textOf(t.Transition)), in(t.DueAt), t.DueAt.Local().Format(time.DateTime)})
		}
		con.writeTable(nil, rows, tableLook{})
	}
	if len(v.Events) > 0 {
		con.section("EVENTS")
		if v.Earlier > 0 {
			fmt.Fprintln(con.out, con.dim(fmt.Sprintf("(%d earlier ones: --events 0)", v.Earlier)))
		}
		for _, e := range v.Events {
			con.hang(e.At.Local().Format(time.DateTime)+"  ", e.text())
		}
	}
}

// text tells an event in a line.
func (e event) text() string {
	s := e.Event
	if e.Transition != nil {
		s = *e.Transition + " " + s
	}
	if by := e.by(); by != "" {
		s += " (" + by + ")"
	}
	if e.Detail != nil {
		s += ": " + *e.Detail
	}
	return s
}

// by says who did it, and how long he had the job.
func (e event) by() string {
	var parts []string
	if e.Role != nil {
		parts = append(parts, *e.Role)
	}
	if e.PID != nil {
		parts = append(parts, fmt.Sprintf("pid %d", *e.PID))
	}
	if e.Held != nil {
		held, _, _ := strings.Cut(*e.Held, ".")
		parts = append(parts, "had it for "+held)
	}
	return strings.Join(parts, ", ")
}

func (con *console) section(title string) { fmt.Fprintf(con.out, "\n%s\n", con.bold(title)) }

// moment writes a time as a person wants it.
func (con *console) moment(t *time.Time) string {
	if t == nil {
		return "just now, not recorded yet"
	}
	return t.Local().Format(time.DateTime) + " (" + ago(*t) + ")"
}

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
