package stress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const (
	workers   = 16
	flowName  = "stress_figure2"
	killEvery = time.Second
)

// instances is 1,000, or what WED_SQL_STRESS_INSTANCES says.
func instances(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("WED_SQL_STRESS_INSTANCES"))
	if os.Getenv("WED_SQL_STRESS_INSTANCES") == "" {
		return 1000
	}
	if err != nil {
		t.Fatalf("WED_SQL_STRESS_INSTANCES: %v", err)
	}
	return n
}

func connect(ctx context.Context, t *testing.T) *pgx.Conn {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(ctx context.Context, t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](ctx context.Context, t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// The engine dies every second; every instance still ends as Algorithm 1 says.
func TestKilledEngineLosesAndDoublesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	conn := connect(ctx, t)
	n := instances(t)
	started := query[time.Time](ctx, t, conn, "select pg_postmaster_start_time()")
	defineFigure2(ctx, t, conn, flowName)
	execute(ctx, t, conn, "select wed_sql.sync('2 minutes')") // there is a slot: from here on no state is to be missed

	kills := killer(ctx, t)
	drive(ctx, t, n)
	killed := kills()
	execute(ctx, t, conn, "select wed_sql.sync('2 minutes')")

	judgeAll(ctx, t, conn, flowName, n)
	if left := query[int](ctx, t, conn, "select count(*) from "+flowName+".job_pool"); left != 0 {
		t.Errorf("%d jobs are left", left)
	}
	if again := query[time.Time](ctx, t, conn, "select pg_postmaster_start_time()"); !again.Equal(started) {
		t.Errorf("the server was restarted at %v", again)
	}
	if killed == 0 {
		t.Error("the engine was never killed")
	}
	t.Logf("%d instances, %d workers, engine killed %d times", n, workers, killed)
	execute(ctx, t, conn, "select wed_sql.drop_flow($1)", flowName)
}

func defineFigure2(ctx context.Context, t *testing.T, conn *pgx.Conn, flow string) {
	execute(ctx, t, conn, "create extension if not exists wed_sql")
	if query[bool](ctx, t, conn, "select exists (select from pg_namespace where nspname = $1)", flow) {
		execute(ctx, t, conn, "select wed_sql.drop_flow($1)", flow)
	}
	execute(ctx, t, conn, "select wed_sql.create_flow($1)", flow)
	execute(ctx, t, conn, "insert into "+flow+".wed_attr (aname, adv) values ('a1', 'ready'), ('a2', null), ('a3', null)")
	execute(ctx, t, conn, "insert into "+flow+`.wed_trig (trname, cpred, cfinal) values
	    ('tr_a2', $$a1='ready' and (a2 is null)$$, false), ('tr_a3', $$a1='ready' and (a3 is null)$$, false),
	    ('tr_final', $$a1='ready' and (a2 is not null) and (a3 is not null)$$, false), (null, $$a1 <> 'ready'$$, true)`)
}

// killer kills the engine every second until the function that it returns is called, which says how often. One that has
// written nothing yet is spared for a while: on a machine on which it takes a second to start, nothing would go on.
func killer(ctx context.Context, t *testing.T) func() int64 {
	ctx, cancel := context.WithCancel(ctx)
	conn := connect(ctx, t)
	ended := make(chan int64)
	go func() {
		const patience = 10 // ticks
		var kills int64
		var written string
		spared := 0
		tick := time.NewTicker(killEvery)
		defer tick.Stop()
		for {
			var pid *int
			var at string
			err := conn.QueryRow(context.WithoutCancel(ctx),
				"select max(engine_pid), (select applied_lsn::text from wed_sql.follower) from wed_sql.status").Scan(&pid, &at)
			if spared++; err == nil && pid != nil && (at != written || spared > patience) && syscall.Kill(*pid, syscall.SIGKILL) == nil {
				kills++
				written, spared = at, 0
			}
			select {
			case <-ctx.Done():
				ended <- kills
				return
			case <-tick.C:
			}
		}
	}()
	return func() int64 {
		cancel()
		return <-ended
	}
}

// drive starts n instances and works until all of them are final.
func drive(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	var started, ended atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range workers {
		conn := connect(ctx, t)
		execute(ctx, t, conn, "listen tr_a2; listen tr_a3; listen tr_final")
		group.Go(func() error {
			for ended.Load() < int64(n) {
				if started.Add(1) <= int64(n) {
					if _, err := conn.Exec(ctx, "insert into "+flowName+".wed_flow default values"); err != nil {
						return err
					}
				}
				done, err := workOnce(ctx, conn)
				if err != nil {
					return err
				}
				ended.Add(done)
				if done == 0 && started.Load() > int64(n) {
					if err := awaitHint(ctx, conn); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("a worker failed: %v", err)
	}
}

// awaitHint waits until something is notified, but not for long: what was pending before is not notified again.
func awaitHint(ctx context.Context, conn *pgx.Conn) error {
	wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err := conn.WaitForNotification(wait)
	if pgconn.Timeout(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// workOnce takes a few pending jobs and does those that nobody else has, each in a transaction of its own. It returns how
// many instances it ended.
func workOnce(ctx context.Context, conn *pgx.Conn) (ended int64, err error) {
	type job struct {
		wid    int64
		tgid   int32
		trname string
	}
	rows, err := conn.Query(ctx, "select wid, tgid, trname from "+flowName+".job_pool order by random() limit 20")
	if err != nil {
		return 0, err
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j job, err error) {
		err = row.Scan(&j.wid, &j.tgid, &j.trname)
		return j, err
	})
	if err != nil {
		return 0, err
	}
	for _, j := range jobs {
		set := map[string]string{"tr_a2": "a2 = 'done'", "tr_a3": "a3 = 'done'", "tr_final": "a1 = 'closed'"}[j.trname]
		if set == "" {
			return ended, fmt.Errorf("instance %d has a job %s", j.wid, j.trname)
		}
		done, err := perform(ctx, conn, j.wid, j.tgid, set)
		if err != nil {
			return ended, fmt.Errorf("%s of instance %d: %w", j.trname, j.wid, err)
		}
		if done && j.trname == "tr_final" {
			ended++
		}
	}
	return ended, nil
}

func perform(ctx context.Context, conn *pgx.Conn, wid int64, tgid int32, set string) (bool, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx)
	var locked bool
	if err := tx.QueryRow(ctx, "select wed_sql.try_lock($1, $2)", wid, tgid).Scan(&locked); err != nil || !locked {
		return false, err
	}
	_, err = tx.Exec(ctx, "update "+flowName+".wed_flow set "+set+" where wid = $1", wid)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == "WED03" || refused.Code == "WED08") { // somebody did it before the lock was free
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}

func judgeAll(ctx context.Context, t *testing.T, conn *pgx.Conn, flow string, n int) {
	t.Helper()
	rows, err := conn.Query(ctx, `select wid, version, state->>'a1', state->>'a2', state->>'a3', trw, trf, status::text, tstmp
	                                from `+flow+`.wed_trace order by wid, version`)
	if err != nil {
		t.Fatal(err)
	}
	histories := map[int64][]line{}
	var wid int64
	var l line
	_, err = pgx.ForEachRow(rows, []any{&wid, &l.Version, &l.State.A1, &l.State.A2, &l.State.A3, &l.Trw, &l.Trf, &l.Status, &l.Tstmp},
		func() error {
			histories[wid] = append(histories[wid], l)
			l = line{}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if len(histories) != n {
		t.Errorf("%d instances have a history, not %d", len(histories), n)
	}
	wrong := 0
	for wid, h := range histories {
		err := judge(h)
		if err == nil && h[len(h)-1].Status != "F" {
			err = errors.New("it did not end")
		}
		if err != nil {
			if wrong++; wrong <= 10 {
				t.Errorf("instance %d: %v", wid, err)
			}
		}
	}
	if wrong > 10 {
		t.Errorf("%d instances are wrong in all", wrong)
	}
}
