package growth

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
	"github.com/wed-sql/wed_sql/worker"
)

// rules: n of them, whose conditions begin with an equality that holds for one.
func rules(ctx context.Context, s *server.Server, n, timed int) (time.Duration, error) {
	more := fmt.Sprintf(`;insert into grows.wed_trig (trname, cpred)
		select 'other_' || i, format($$kind = 'k%%s' and v < 1$$, i) from generate_series(1, %d) i`, n-1)
	return within(ctx, s, flow+more, func(db *server.Database, conn *pgx.Conn) (time.Duration, error) {
		return cost(ctx, db, conn, timed)
	})
}

// instances: n that have ended.
func instances(ctx context.Context, s *server.Server, n, timed int) (time.Duration, error) {
	return within(ctx, s, flow, func(db *server.Database, conn *pgx.Conn) (time.Duration, error) {
		if err := fill(ctx, conn, "'k0', 1", n); err != nil {
			return 0, err
		}
		return cost(ctx, db, conn, timed)
	})
}

// pending: n jobs that nobody does, of a transition beside the one that is timed.
func pending(ctx context.Context, s *server.Server, n, timed int) (time.Duration, error) {
	const more = `;insert into grows.wed_trig (trname, cpred) values ('wait', $$kind = 'k1' and v < 1$$)`
	return within(ctx, s, flow+more, func(db *server.Database, conn *pgx.Conn) (time.Duration, error) {
		if err := fill(ctx, conn, "'k1', 0", n); err != nil {
			return 0, err
		}
		return cost(ctx, db, conn, timed)
	})
}

// listeners: n sessions that listen to the transition that is fired.
func listeners(ctx context.Context, s *server.Server, n, timed int) (time.Duration, error) {
	return within(ctx, s, flow, func(db *server.Database, conn *pgx.Conn) (cost_ time.Duration, err error) {
		stop, err := db.Listen(ctx, "work", n)
		if err != nil {
			return 0, err
		}
		defer func() {
			if e := stop(); err == nil {
				err = e
			}
		}()
		return cost(ctx, db, conn, timed)
	})
}

// databases: n with the extension and a flow, all but one at rest.
func databases(ctx context.Context, s *server.Server, n, timed int) (cost_ time.Duration, err error) {
	for i := range n - 1 {
		db, err := s.Create(ctx, fmt.Sprintf("rests_%d", i))
		if err != nil {
			return 0, err
		}
		defer func() {
			if e := db.Drop(context.WithoutCancel(ctx)); err == nil {
				err = e
			}
		}()
		for _, sql := range []string{"create extension wed_sql", flow, "insert into grows.wed_flow (v) values (0)", "select wed_sql.sync('1 minute')"} {
			if err := db.Exec(ctx, sql); err != nil {
				return 0, err
			}
		}
	}
	return within(ctx, s, flow, func(db *server.Database, conn *pgx.Conn) (time.Duration, error) {
		return cost(ctx, db, conn, timed)
	})
}

// turning is how many instances go round and round, to see what their age costs.
const turning = 20

// states: a few instances get as many states as the last point says, and each point says what
// a state had cost around there: from half as many on.
func states(ctx context.Context, s *server.Server, r *report.Report, points []int) error {
	last := points[len(points)-1]
	definition := fmt.Sprintf(`select wed_sql.create_flow('grows');
		insert into grows.wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into grows.wed_trig (cpred, cfinal) values ('v > %[1]d', true);
		insert into grows.wed_trig (trname, cpred) values ('turn', 'v <= %[1]d')`, last)
	_, err := within(ctx, s, definition, func(db *server.Database, conn *pgx.Conn) (time.Duration, error) {
		if err := turn(ctx, db, conn, last); err != nil {
			return 0, err
		}
		for _, n := range points {
			var micros float64
			err := conn.QueryRow(ctx, `select extract(epoch from max(tstmp) - min(tstmp)) * 1e6 / greatest(count(*) - $2, 1)
				from grows.wed_trace where version between $1 / 2 + 1 and $1 + 1`, n, turning).Scan(&micros)
			if err != nil {
				return 0, err
			}
			r.AddAt(report.Curves[3], "wed_sql", report.MicrosPer, float64(n), micros)
		}
		return 0, nil
	})
	return err
}

func turn(ctx context.Context, db *server.Database, conn *pgx.Conn, last int) error {
	w, err := worker.New(worker.Config{DSN: db.DSN(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	counter := contest.NewCounter()
	err = w.Handle("grows", "turn", func(_ context.Context, job *worker.Job) (worker.State, error) {
		var state struct{ V int }
		if err := job.Decode(&state); err != nil {
			return nil, err
		}
		counter.Done()
		return worker.State{"v": state.V + 1}, nil
	}, worker.Options{Concurrency: 4, Batch: turning})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return w.Run(ctx) })
	if _, err := conn.Exec(ctx, "insert into grows.wed_flow (v) select 0 from generate_series(1, $1)", turning); err != nil {
		return err
	}
	if err := counter.Wait(ctx, turning*(last+1)); err != nil {
		return err
	}
	stop()
	if err := group.Wait(); err != nil {
		return err
	}
	return sync(context.WithoutCancel(ctx), conn)
}
