package record

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/judge"
	"github.com/wed-sql/wed_sql/torture/predicate"
)

// LoadFlow reads what the judge must know of a flow.
func LoadFlow(ctx context.Context, db Querier, name string) (*judge.Flow, error) {
	f := &judge.Flow{Definitions: map[int64]*flow.Definition{}}
	err := db.QueryRow(ctx, "select excpt_tgid from wed_sql.flow where wed_flow = $1::text::regclass", predicate.QuoteIdent(name)+".wed_flow").Scan(&f.Exception)
	if err != nil {
		return nil, fmt.Errorf("read flow %s: %w", name, err)
	}
	rows, err := db.Query(ctx, "select version, body from torture.definition where flow = $1", name)
	if err != nil {
		return nil, fmt.Errorf("read the definitions of %s: %w", name, err)
	}
	var version int64
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&version, &body}, func() error {
		d := &flow.Definition{}
		f.Definitions[version] = d
		return json.Unmarshal(body, d)
	})
	if err != nil {
		return nil, fmt.Errorf("read the definitions of %s: %w", name, err)
	}
	return f, nil
}

// LoadInstances reads all that there is of the instances of a flow: of those from one to another. It is to be called in a
// transaction that sees one moment.
func LoadInstances(ctx context.Context, db Querier, name string, from, to int64) (map[int64]*judge.Instance, error) {
	l := &loader{db: db, flow: name, from: from, to: to, found: map[int64]*judge.Instance{}}
	for _, read := range []func(context.Context) error{l.states, l.writes, l.lines, l.jobs, l.events, l.statuses} {
		if err := read(ctx); err != nil {
			return nil, fmt.Errorf("read the instances of %s: %w", name, err)
		}
	}
	return l.found, nil
}

type loader struct {
	db       Querier
	flow     string
	from, to int64
	found    map[int64]*judge.Instance
}

func (l *loader) of(wid int64) *judge.Instance {
	if l.found[wid] == nil {
		l.found[wid] = &judge.Instance{WID: wid}
	}
	return l.found[wid]
}

// each scans the rows of a query, whose condition on wid is $1 to $2.
func (l *loader) each(ctx context.Context, sql string, scan []any, f func()) error {
	rows, err := l.db.Query(ctx, fmt.Sprintf(sql, predicate.QuoteIdent(l.flow), predicate.QuoteLiteral(l.flow)), l.from, l.to)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, scan, func() error { f(); return nil })
	return err
}

func (l *loader) states(ctx context.Context) error {
	var wid int64
	var s judge.State
	var state []byte
	return l.each(ctx, "select wid, xid, state, by_rule, rules, low, high, at from torture.state where flow = %[2]s and wid between $1 and $2 order by wid, seq",
		[]any{&wid, &s.XID, &state, &s.By, &s.Rules, &s.Low, &s.High, &s.At}, func() {
			s.State = append(json.RawMessage(nil), state...)
			l.of(wid).States = append(l.of(wid).States, s)
		})
}

func (l *loader) writes(ctx context.Context) error {
	var wid int64
	var w judge.Write
	var set []byte
	var failed error
	err := l.each(ctx, `select wid, xid, coalesce(tgid, 0), coalesce(transition, ''), protocol, set
	                      from torture.written where flow = %[2]s and wid between $1 and $2 order by wid, n`,
		[]any{&wid, &w.XID, &w.TGID, &w.Transition, &w.Protocol, &set}, func() {
			w.Set = nil
			if err := json.Unmarshal(set, &w.Set); err != nil {
				failed = err
			}
			l.of(wid).Writes = append(l.of(wid).Writes, w)
		})
	if err == nil {
		err = failed
	}
	return err
}

func (l *loader) lines(ctx context.Context) error {
	var wid int64
	var n judge.Line
	var state []byte
	return l.each(ctx, `select wid, version, state, trw, trf, status::text, tstmp, pending, error, healed
	                      from %[1]s.wed_trace where wid between $1 and $2 order by wid, version`,
		[]any{&wid, &n.Version, &state, &n.Trw, &n.Trf, &n.Status, &n.At, &n.Pending, &n.Error, &n.Healed}, func() {
			n.State = append(json.RawMessage(nil), state...)
			l.of(wid).Lines = append(l.of(wid).Lines, n)
			n = judge.Line{}
		})
}

func (l *loader) jobs(ctx context.Context) error {
	var wid int64
	var j judge.Job
	var payload []byte
	return l.each(ctx, "select wid, tgid, trname, version, payload from %[1]s.job_pool where wid between $1 and $2",
		[]any{&wid, &j.TGID, &j.Transition, &j.Version, &payload}, func() {
			j.Payload = append(json.RawMessage(nil), payload...)
			l.of(wid).Jobs = append(l.of(wid).Jobs, j)
		})
}

func (l *loader) events(ctx context.Context) error {
	var wid int64
	var e judge.Event
	var held float64
	return l.each(ctx, "select wid, coalesce(tgid, 0), coalesce(version, -1), event, coalesce(extract(epoch from held), 0)::float8, at from %[1]s.wed_event where wid between $1 and $2 order by event_id",
		[]any{&wid, &e.TGID, &e.Version, &e.Event, &held, &e.At}, func() {
			e.Held = time.Duration(held * float64(time.Second))
			l.of(wid).Events = append(l.of(wid).Events, e)
		})
}

func (l *loader) statuses(ctx context.Context) error {
	var wid int64
	var status string
	return l.each(ctx, "select wid, status::text from %[1]s.wed_instance where wid between $1 and $2",
		[]any{&wid, &status}, func() { l.of(wid).Status = status })
}
