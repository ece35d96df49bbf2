package stress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const timeFlow = "stress_time"

// timeRule is a rule of the flow, and what the judge must know of it.
type timeRule struct {
	trname, cpred, delay, action string
	withdrawable                 bool
	holds                        func(x int) bool
}

var timeRules = []timeRule{
	{trname: "even", cpred: "x % 2 = 0", holds: func(x int) bool { return x%2 == 0 }},
	{trname: "third", cpred: "x % 3 = 0", withdrawable: true, holds: func(x int) bool { return x%3 == 0 }},
	{trname: "fifth", cpred: "x % 5 = 0", delay: "40 ms", holds: func(x int) bool { return x%5 == 0 }},
	{trname: "seventh", cpred: "x % 7 = 0", delay: "60 ms", action: "x = x + 1, y = y + 1", holds: func(x int) bool { return x%7 == 0 }},
	{trname: "fourth", cpred: "x % 4 = 1", action: "x = x + 2", withdrawable: true, holds: func(x int) bool { return x%4 == 1 }},
}

const timeEnd = 40

func timeFinal(x int) bool { return x >= timeEnd }

// Delays, actions, withdrawal and interventions, while the engine dies every second: each history is one that the rules
// allow, every instance ends, and nothing is left of it.
func TestTimeAndInterventionsUnderKills(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	conn := connect(ctx, t)
	n := max(instances(t)/5, 20)
	tgids := defineTimeFlow(ctx, t, conn)
	execute(ctx, t, conn, "select wed_sql.sync('2 minutes')")

	kills := killer(ctx, t)
	driveTimeFlow(ctx, t, conn, n)
	killed := kills()
	execute(ctx, t, conn, "select wed_sql.sync('2 minutes')")

	judgeTimeFlow(ctx, t, conn, tgids, n)
	for _, table := range []string{timeFlow + ".job_pool", "wed_sql.timer"} {
		awaitNone(ctx, t, conn, table)
	}
	t.Logf("%d instances, engine killed %d times", n, killed)
	execute(ctx, t, conn, "select wed_sql.drop_flow($1)", timeFlow)
}

// awaitNone gives the sweeper time for what was in use when it was withdrawn.
func awaitNone(ctx context.Context, t *testing.T, conn *pgx.Conn, table string) {
	t.Helper()
	var left int
	for range 100 {
		if left = query[int](ctx, t, conn, "select count(*) from "+table); left == 0 {
			return
		}
		if _, err := conn.Exec(ctx, "select pg_sleep(0.1)"); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("%d rows are left in %s", left, table)
}

func defineTimeFlow(ctx context.Context, t *testing.T, conn *pgx.Conn) map[string]int32 {
	execute(ctx, t, conn, "create extension if not exists wed_sql")
	if query[bool](ctx, t, conn, "select exists (select from pg_namespace where nspname = $1)", timeFlow) {
		execute(ctx, t, conn, "select wed_sql.drop_flow($1)", timeFlow)
	}
	execute(ctx, t, conn, "select wed_sql.create_flow($1)", timeFlow)
	execute(ctx, t, conn, "insert into "+timeFlow+".wed_attr (aname, atype, adv) values ('x', 'integer', '0'), ('y', 'integer', '0')")
	tgids := map[string]int32{}
	for _, r := range timeRules {
		tgids[r.trname] = query[int32](ctx, t, conn, "insert into "+timeFlow+`.wed_trig (trname, cpred, delay, action, withdrawable)
		    values ($1, $2, nullif($3, '')::interval, nullif($4, ''), $5) returning tgid`, r.trname, r.cpred, r.delay, r.action, r.withdrawable)
	}
	execute(ctx, t, conn, fmt.Sprintf("insert into %s.wed_trig (cpred, cfinal) values ('x >= %d', true)", timeFlow, timeEnd))
	tgids["_EXCPT"] = query[int32](ctx, t, conn, "select excpt_tgid from wed_sql.flow where wed_flow = ($1 || '.wed_flow')::regclass", timeFlow)
	return tgids
}

func driveTimeFlow(ctx context.Context, t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	execute(ctx, t, conn, "insert into "+timeFlow+".wed_flow (x) select i % 7 from generate_series(1, $1) i", n)
	var over atomic.Bool
	group, gctx := errgroup.WithContext(ctx)
	for range workers / 2 {
		conn := connect(ctx, t)
		execute(ctx, t, conn, "listen even; listen third; listen fifth; listen \"_EXCPT\"")
		group.Go(func() error {
			for !over.Load() {
				if done, err := workOnTime(gctx, conn); err != nil {
					return err
				} else if !done {
					if err := awaitHint(gctx, conn); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	operator := connect(ctx, t)
	group.Go(func() error {
		for i := 0; !over.Load(); i++ {
			if err := intervene(gctx, operator, i, n); err != nil {
				return err
			}
		}
		_, err := operator.Exec(gctx, "select from wed_sql.resume($1, 'status = ''S''')", timeFlow)
		return err
	})
	group.Go(func() error {
		defer over.Store(true)
		watch := connect(ctx, t)
		for {
			var left int
			if err := watch.QueryRow(gctx, "select count(*) from "+timeFlow+".wed_instance where status not in ('F', 'C')").Scan(&left); err != nil {
				return err
			}
			if left == 0 {
				return nil
			}
			if _, err := watch.Exec(gctx, "select pg_sleep(0.2)"); err != nil {
				return err
			}
		}
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// workOnTime does a few jobs, and tells whether it found any.
func workOnTime(ctx context.Context, conn *pgx.Conn) (bool, error) {
	type job struct {
		wid    int64
		tgid   int32
		trname string
	}
	rows, err := conn.Query(ctx, "select wid, tgid, trname from "+timeFlow+".job_pool order by random() limit 10")
	if err != nil {
		return false, err
	}
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j job, err error) {
		err = row.Scan(&j.wid, &j.tgid, &j.trname)
		return j, err
	})
	for _, j := range jobs {
		if err := performOnTime(ctx, conn, j.wid, j.tgid, fmt.Sprintf("x = x + %d", 1+rand.N(4))); err != nil {
			if sqlState(err) != "WED07" {
				return false, fmt.Errorf("%s of instance %d: %w", j.trname, j.wid, err)
			}
			// others are pending: it ends when these are done
			if err := performOnTime(ctx, conn, j.wid, j.tgid, "y = y + 1"); err != nil {
				return false, fmt.Errorf("%s of instance %d: %w", j.trname, j.wid, err)
			}
		}
	}
	return len(jobs) > 0, err
}

func performOnTime(ctx context.Context, conn *pgx.Conn, wid int64, tgid int32, set string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	var locked bool
	if err := tx.QueryRow(ctx, "select wed_sql.try_lock($1, $2)", wid, tgid).Scan(&locked); err != nil || !locked {
		return err
	}
	_, err = tx.Exec(ctx, "update "+timeFlow+".wed_flow set "+set+" where wid = $1", wid)
	switch sqlState(err) {
	case "":
		if err != nil {
			return err
		}
		return tx.Commit(ctx)
	case "WED02", "WED03", "WED08", "WED17", "40P01": // others were faster, or it was withdrawn
		return nil
	}
	return err
}

func sqlState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// intervene does something to an instance; there are fewer of the larger things.
func intervene(ctx context.Context, conn *pgx.Conn, i, n int) error {
	wid := 1 + rand.N(int64(n))
	var err error
	switch {
	case i%50 == 49:
		_, err = conn.Exec(ctx, "select from wed_sql.cancel($1, $2::bigint)", timeFlow, wid)
	case i%20 == 19:
		_, err = conn.Exec(ctx, "select from wed_sql.rewind($1, $2::bigint, 0)", timeFlow, wid)
	case i%5 == 4:
		_, err = conn.Exec(ctx, "select from wed_sql.rematch($1, $2::bigint)", timeFlow, wid)
	case i%2 == 0:
		_, err = conn.Exec(ctx, "select from wed_sql.suspend($1, $2::bigint)", timeFlow, wid)
	default:
		_, err = conn.Exec(ctx, "select from wed_sql.resume($1, 'status = ''S''')", timeFlow)
	}
	// 55000: the state to go back to is not recorded yet
	if code := sqlState(err); err != nil && !strings.HasPrefix(code, "WED") && code != "40P01" && code != "55000" {
		return fmt.Errorf("intervention at instance %d: %w", wid, err)
	}
	_, err = conn.Exec(ctx, "select pg_sleep(0.02)")
	return err
}

// timeLine is what the judge reads of a history.
type timeLine struct {
	version int64
	x       int
	trw     string
	trf     []string
	status  string
	pending []string
}

func judgeTimeFlow(ctx context.Context, t *testing.T, conn *pgx.Conn, tgids map[string]int32, n int) {
	t.Helper()
	names := map[int32]string{}
	for name, id := range tgids {
		names[id] = name
	}
	fired := map[string]bool{} // delays that were over, by instance and transition
	rows, err := conn.Query(ctx, "select wid || ' ' || trname from "+timeFlow+".wed_event where event = 'timer fired'")
	if err != nil {
		t.Fatal(err)
	}
	var key string
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { fired[key] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	rows, err = conn.Query(ctx, "select wid, version, (state->>'x')::int, coalesce(trw, ''), trf, status::text, pending from "+timeFlow+".wed_trace order by wid, version")
	if err != nil {
		t.Fatal(err)
	}
	histories := map[int64][]timeLine{}
	var wid int64
	var l timeLine
	var pending []int32
	if _, err := pgx.ForEachRow(rows, []any{&wid, &l.version, &l.x, &l.trw, &l.trf, &l.status, &pending}, func() error {
		for _, id := range pending {
			l.pending = append(l.pending, names[id])
		}
		histories[wid] = append(histories[wid], l)
		l, pending = timeLine{}, nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(histories) != n {
		t.Errorf("%d instances have a history, not %d", len(histories), n)
	}
	wrong, operations := 0, map[string]int{}
	for wid, h := range histories {
		if err := judgeTimes(wid, h, fired, operations); err != nil {
			if wrong++; wrong <= 10 {
				t.Errorf("instance %d: %v\n%+v", wid, err, h)
			}
		}
	}
	t.Logf("%d wrong; written by: %v; %d delays were over", wrong, operations, len(fired))
}

func judgeTimes(wid int64, h []timeLine, fired map[string]bool, operations map[string]int) error {
	var before, suspended []string
	for k, l := range h {
		operations[l.trw]++
		fail := func(format string, args ...any) error {
			return fmt.Errorf("state %d: %s", l.version, fmt.Sprintf(format, args...))
		}
		if l.version != int64(k) {
			return fail("is line %d", k)
		}
		kept, matched := before, matchedAt(l)
		switch {
		case k == 0 && l.trw == "", l.trw == "_REMATCH":
		case l.trw == "_SUSPEND" || l.trw == "_CANCEL":
			if len(l.pending) > 0 || l.status != map[string]string{"_SUSPEND": "S", "_CANCEL": "C"}[l.trw] {
				return fail("pends %v, status %s", l.pending, l.status)
			}
			if l.trw == "_SUSPEND" {
				suspended = before
			}
			before = nil
			continue
		case l.trw == "_REWIND":
			kept = nil
		case l.trw == "_RESUME":
			kept = suspended
		default:
			if !slices.Contains(before, l.trw) {
				return fail("%s was not pending, but %v", l.trw, before)
			}
			kept = slices.DeleteFunc(slices.Clone(before), func(s string) bool { return s == l.trw })
		}
		if l.status == "F" {
			if !timeFinal(l.x) || len(l.pending) > 0 {
				return fail("is final at %d with %v", l.x, l.pending)
			}
			before = nil
			continue
		}
		for _, r := range timeRules {
			was, is, holds := slices.Contains(kept, r.trname), slices.Contains(l.pending, r.trname), slices.Contains(matched, r.trname)
			switch {
			case holds && !is:
				return fail("%s holds at %d and does not pend", r.trname, l.x)
			case is && !holds && !was:
				return fail("%s pends and does not hold at %d", r.trname, l.x)
			case was && !holds && is && r.withdrawable:
				return fail("%s is not withdrawn at %d", r.trname, l.x)
			case was && !holds && is && r.delay != "" && !fired[fmt.Sprint(wid, " ", r.trname)]:
				return fail("the clock of %s is not reset at %d", r.trname, l.x)
			case was && !holds && !is && !r.withdrawable && r.delay == "":
				return fail("%s was lost at %d", r.trname, l.x)
			}
			if first := is && !was && r.delay == ""; l.trw != "_RESUME" && first != slices.Contains(l.trf, r.trname) {
				return fail("%s fired: %v, and trf is %v", r.trname, first, l.trf)
			}
		}
		if except := slices.Contains(l.pending, "_EXCPT"); except && len(l.pending) > 1 || except != (l.status == "E") || len(l.pending) == 0 {
			return fail("status %s with %v", l.status, l.pending)
		}
		before = l.pending
	}
	if last := h[len(h)-1].status; last != "F" && last != "C" {
		return fmt.Errorf("ends with status %s", last)
	}
	return nil
}

func matchedAt(l timeLine) []string {
	var matched []string
	if timeFinal(l.x) {
		return nil
	}
	for _, r := range timeRules {
		if r.holds(l.x) {
			matched = append(matched, r.trname)
		}
	}
	return matched
}
