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

func (s session) Sweep(ctx context.Context, most int) (w Swept, err error) {
	var due *time.Time
	err = s.conn.QueryRow(ctx, "select handled, next_due, now, coalesce(problem, '') from wed_sql.sweep($1)", most).
		Scan(&w.Handled, &due, &w.Now, &w.Problem)
	w.NextDue = timeOrZero(due)
	return w, err
}

func timeOrZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
