package sweeper

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/wal"
)

const goodbyeTime = time.Second

// session is a [Session] of the server.
type session struct{ conn *pgx.Conn }

// Open opens a session. admit may be nil: see [wal.Settings].
func Open(ctx context.Context, config *pgx.ConnConfig, admit func(context.Context, *pgx.Conn) error) (Session, error) {
	conn, err := wal.Connect(ctx, config, admit)
	if err != nil {
		return nil, err
	}
	return session{conn}, nil
}

func (s session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTime)
	defer cancel()
	return s.conn.Close(ctx)
}

func (s session) EndOverdue(ctx context.Context, probe bool) (o Overdue, err error) {
	var deadline, oldest *time.Time
	var shortest *int64
	err = s.conn.QueryRow(ctx, "select now, ended, deadline, oldest, shortest_us, complete from wed_sql.end_overdue($1)", probe).
		Scan(&o.Now, &o.Ended, &deadline, &oldest, &shortest, &o.Complete)
	if err != nil {
		return Overdue{}, err
	}
	o.Deadline, o.Oldest = timeOrZero(deadline), timeOrZero(oldest)
	if shortest != nil {
		o.Shortest = min(time.Duration(*shortest), time.Duration(1<<62)/time.Microsecond) * time.Microsecond
	}
	return o, nil
}

func (s session) CountLost(ctx context.Context) (n int, err error) {
	err = s.conn.QueryRow(ctx, "select wed_sql.count_lost_jobs()").Scan(&n)
	return n, err
}

func (s session) AnyRunning(ctx context.Context, xids []uint32) (running bool, err error) {
	texts := make([]string, len(xids))
	for i, xid := range xids {
		texts[i] = strconv.FormatUint(uint64(xid), 10)
	}
	err = s.conn.QueryRow(ctx, "select wed_sql.any_running($1::text[]::xid[])", texts).Scan(&running)
	return running, err
}

func (s session) Sweep(ctx context.Context, most int, served int32) (w Swept, err error) {
	var due, claimedDue *time.Time
	var flow, rule *int32
	var wid, version *int64
	var kind *string
	err = s.conn.QueryRow(ctx, `
select handled, next_due, now, coalesce(problem, ''),
       (claimed).flow_id, (claimed).wid, (claimed).tgid, (claimed).kind::text, (claimed).version, (claimed).due_at
  from wed_sql.sweep($1, $2)`, most, served).
		Scan(&w.Handled, &due, &w.Now, &w.Problem, &flow, &wid, &rule, &kind, &version, &claimedDue)
	if err == nil && flow != nil {
		w.Claimed = &Timer{Flow: *flow, Wid: *wid, Rule: *rule, Kind: *kind, Version: *version, DueAt: *claimedDue}
	}
	w.NextDue = timeOrZero(due)
	return w, err
}

// aTimer is a timer as an argument.
const aTimer = `row($1::int, $2::bigint, $3::int, $4::text::"char", $5::bigint, $6::timestamptz)::wed_sql.timer`

func (s session) Do(ctx context.Context, t Timer) (problem string, err error) {
	err = s.conn.QueryRow(ctx, "select coalesce(wed_sql.sweep_claimed("+aTimer+"), '')",
		t.Flow, t.Wid, t.Rule, t.Kind, t.Version, t.DueAt).Scan(&problem)
	return problem, err
}

func (s session) PutOff(ctx context.Context, t Timer) error {
	_, err := s.conn.Exec(ctx, "select wed_sql.put_off_claimed("+aTimer+")", t.Flow, t.Wid, t.Rule, t.Kind, t.Version, t.DueAt)
	return err
}

func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
