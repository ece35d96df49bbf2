package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/timeline"
)

// wantsTimeline reports whether a trace is to be drawn.
func (c *console) wantsTimeline(cmd *cli.Context) (bool, error) {
	out := cmd.String("out")
	switch {
	case !cmd.Bool("svg") && out != "":
		return false, usagef("--out is for the picture that --svg draws")
	case !cmd.Bool("svg"):
		return false, nil
	case cmd.Bool("full") || cmd.IsSet("output"):
		return false, usagef("--svg draws everything, as SVG: --full and --output are for text")
	case c.shown && out == "":
		return false, usagef("a picture is not for a terminal: give --out FILE, or redirect the output")
	}
	return true, nil
}

// drawLife draws the history of an instance.
func (c *console) drawLife(ctx context.Context, conn *pgx.Conn, flow string, wid int64, out string) error {
	life, err := readLife(ctx, conn, flow, wid)
	if err != nil {
		return needs(err, rightsOfPainter)
	}
	if len(life.States) == 0 {
		return noHistory(flow, wid)
	}
	return c.writePicture(out, life.SVG())
}

// readLife reads what is known of an instance, from one snapshot. What the role
// may not read besides the history is left out.
func readLife(ctx context.Context, conn *pgx.Conn, flow string, wid int64) (*timeline.Life, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback(ctx)
	r := lifeReader{tx: tx, flow: flow, life: &timeline.Life{Flow: flow, WID: wid, Rules: make(map[int32]timeline.Rule)}}
	for _, read := range []func(context.Context) error{r.readNow, r.readRules, r.readStates, r.readEvents, r.readJobs, r.readTimers, r.readBegan} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	return r.life, nil
}

// lifeReader reads the parts of a life.
type lifeReader struct {
	tx   pgx.Tx
	flow string
	life *timeline.Life
}

func (r *lifeReader) table(name string) string { return pgx.Identifier{r.flow, name}.Sanitize() }

// mayRead reports whether the role may read a column.
func (r *lifeReader) mayRead(ctx context.Context, table, column string) (may bool, err error) {
	err = r.tx.QueryRow(ctx, `select has_column_privilege($1, $2::text, 'select')`, r.table(table), column).Scan(&may)
	if err != nil {
		return false, fmt.Errorf("look for rights on %s: %w", table, err)
	}
	return may, nil
}

func (r *lifeReader) readNow(ctx context.Context) error {
	if err := r.tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&r.life.Now); err != nil {
		return fmt.Errorf("ask for the time: %w", err)
	}
	return nil
}

func (r *lifeReader) readRules(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, `select tgid, trname, cpred from `+r.table("wed_trig")+` where not cfinal`)
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	var tgid int32
	var rule timeline.Rule
	_, err = pgx.ForEachRow(rows, []any{&tgid, &rule.Transition, &rule.Predicate}, func() error {
		r.life.Rules[tgid] = rule
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	return nil
}

func (r *lifeReader) readStates(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, `select version, tstmp, coalesce(trw, ''), trf, pending, status::text, coalesce(error, ''), state, healed
		from `+r.table("wed_trace")+` where wid = $1 order by version`, r.life.WID)
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	var before json.RawMessage
	r.life.States, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s timeline.State, err error) {
		var state json.RawMessage
		err = row.Scan(&s.Version, &s.At, &s.Writer, &s.Fired, &s.Pending, &s.Status, &s.Error, &state, &s.Healed)
		if err == nil {
			s.Changes = changeList(before, state)
			before = state
		}
		return s, err
	})
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	return nil
}

func (r *lifeReader) readEvents(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, `select at, coalesce(version, -1), coalesce(tgid, 0), coalesce(trname, ''), event, coalesce(role::text, ''),
			coalesce(extract(epoch from held), 0)::float8, coalesce(detail, '')
		from `+r.table("wed_event")+` where wid = $1 order by at, event_id`, r.life.WID)
	if err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	r.life.Events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e timeline.Event, err error) {
		var held float64
		err = row.Scan(&e.At, &e.Version, &e.TGID, &e.Transition, &e.What, &e.Role, &held, &e.Detail)
		e.Held = ofSeconds(held)
		return e, err
	})
	if err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	return nil
}

func (r *lifeReader) readJobs(ctx context.Context) error {
	if may, err := r.mayRead(ctx, "job_pool", "wid"); err != nil || !may {
		return err
	}
	rows, err := r.tx.Query(ctx, `select tgid, trname, attempts, coalesce(last_error, ''), available_at, leased_until, coalesce(leased_by::text, '')
		from `+r.table("job_pool")+` where wid = $1 order by tgid`, r.life.WID)
	if err != nil {
		return fmt.Errorf("read the jobs: %w", err)
	}
	r.life.Jobs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (j timeline.Job, err error) {
		var available, leased *time.Time
		err = row.Scan(&j.TGID, &j.Transition, &j.Attempts, &j.LastError, &available, &leased, &j.LeasedBy)
		if available != nil {
			j.AvailableAt = *available
		}
		if leased != nil {
			j.LeasedUntil = *leased
		}
		return j, err
	})
	if err != nil {
		return fmt.Errorf("read the jobs: %w", err)
	}
	return nil
}

func (r *lifeReader) readTimers(ctx context.Context) error {
	if may, err := r.mayRead(ctx, "wed_timer", "wid"); err != nil || !may {
		return err
	}
	rows, err := r.tx.Query(ctx, `select tgid, kind, due_at from `+r.table("wed_timer")+` where wid = $1 order by due_at, tgid`, r.life.WID)
	if err != nil {
		return fmt.Errorf("read the timers: %w", err)
	}
	r.life.Timers, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t timeline.Timer, err error) {
		return t, row.Scan(&t.TGID, &t.Kind, &t.DueAt)
	})
	if err != nil {
		return fmt.Errorf("read the timers: %w", err)
	}
	return nil
}

// readBegan looks when the transaction of the last state began: the instance
// says it, the history does not.
func (r *lifeReader) readBegan(ctx context.Context) error {
	if len(r.life.States) == 0 {
		return nil
	}
	if may, err := r.mayRead(ctx, "wed_flow", "_stamp"); err != nil || !may {
		return err
	}
	last := r.life.States[len(r.life.States)-1].Version
	var began *time.Time
	err := r.tx.QueryRow(ctx, `select (select (_stamp).began_at from only `+r.table("wed_flow")+` where wid = $1 and (_stamp).version = $2)`,
		r.life.WID, last).Scan(&began)
	if err != nil {
		return fmt.Errorf("read the instance: %w", err)
	}
	if began != nil {
		r.life.Began = *began
	}
	return nil
}
