package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/torture/cluster"
	"github.com/wed-sql/wed_sql/torture/fault"
)

// some are the faults that are tried when nobody asks for others: one of each kind that is different, and short.
var some = []string{
	"engine killed", "worker killed", "postmaster killed", "slot dropped", "disk full", "notification queue full",
	"savepoints and rollbacks",
	"engine killed: " + faultpoint.SlotCreated, "engine killed: " + faultpoint.TraceWritten,
	"engine killed: " + faultpoint.BatchCommitted,
	"engine panics: " + faultpoint.Notified, "engine killed: " + faultpoint.TimerClaimed,
	"server killed: " + faultpoint.BatchCommitted,
	// The engine, whose clock was not moved, may be late by a minute now.
	"clock moved",
}

// world is a cluster with one database, one flow, and one worker in this process.
type world struct {
	c    *cluster.Cluster
	rand *rand.Rand

	mu      sync.Mutex
	victims []*os.Process // to be killed in the worker's place
}

func (w *world) Cluster() *cluster.Cluster { return w.c }
func (w *world) Databases() []string       { return []string{"flows"} }
func (w *world) Rand() *rand.Rand          { return w.rand }

func (w *world) Processes() []*os.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.victims
}

// keepVictim has always somebody to be killed.
func (w *world) keepVictim(ctx context.Context) error {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, "sleep", "1000")
		if err := cmd.Start(); err != nil {
			return err
		}
		w.mu.Lock()
		w.victims = []*os.Process{cmd.Process}
		w.mu.Unlock()
		_ = cmd.Wait() // it was killed
	}
	return nil
}

func newWorld(ctx context.Context, t *testing.T) *world {
	t.Helper()
	if os.Getenv("WED_SQL_TEST_CONN") == "" {
		t.Skip("needs a server's installation with wed_sql: WED_SQL_TEST_CONN is not set")
	}
	dir, err := os.MkdirTemp("", "f")
	if err != nil {
		t.Fatal(err)
	}
	bindir := os.Getenv("WED_SQL_FAULTPOINT_BINDIR")
	equipment, err := fault.Equip(ctx, dir, bindir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir, Bindir: bindir, Env: equipment.Env,
		Settings: append(equipment.Settings, "max_connections = 30")})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{c: c, rand: rand.New(rand.NewSource(1))}
	t.Cleanup(func() {
		if t.Failed() {
			log, err := os.ReadFile(c.LogFile())
			t.Logf("the server's log, %v:\n%s", err, log[max(0, len(log)-200000):])
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	execute(ctx, t, c, "postgres", "create database flows")
	execute(ctx, t, c, "flows", "create extension wed_sql", "select wed_sql.create_flow('f')",
		"insert into f.wed_attr (aname, adv, atype) values ('a', '0', 'integer'), ('b', null, 'text')",
		`insert into f.wed_trig (trname, cpred, timeout) values ('count', 'a < 3', '1 second')`,
		`insert into f.wed_trig (trname, cpred, delay, action) values ('tick', 'b is null', '100 ms', $$b = 'x'$$)`,
		`insert into f.wed_trig (cpred, cfinal) values ('a >= 3 and b is not null', true)`)
	if err := c.Streaming(ctx, w.Databases()); err != nil {
		t.Fatal(err)
	}
	return w
}

func execute(ctx context.Context, t *testing.T, c *cluster.Cluster, database string, commands ...string) {
	t.Helper()
	conn, err := c.Connect(ctx, database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range commands {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// load inserts instances and performs their transitions, and connects again whatever happens.
func load(ctx context.Context, c *cluster.Cluster, random *rand.Rand, ended *atomic.Int64) error {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, c.ConnString("flows"))
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for err == nil && ctx.Err() == nil {
			err = perform(ctx, conn, random, ended)
		}
		_ = conn.Close(context.WithoutCancel(ctx))
	}
	return nil
}

// perform performs one transition, or begins an instance: if there is none to perform, and now and then, however many
// there are, for all faults need new instances to come, with their timers, also after one that has left many jobs.
func perform(ctx context.Context, conn *pgx.Conn, random *rand.Rand, ended *atomic.Int64) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var wid int64
	err = pgx.ErrNoRows
	if random.Intn(4) > 0 {
		err = tx.QueryRow(ctx, "select wid from f.job_pool where trname = 'count' and wed_sql.try_lock(wid, tgid) limit 1").Scan(&wid)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = tx.Exec(ctx, "insert into f.wed_flow default values")
		wid = 0
	}
	if err != nil {
		return err
	}
	switch lot := random.Intn(100); {
	case wid == 0:
	case lot == 0: // longer than its timeout; the server must not sleep, it could be by a wrong clock
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
		return errors.New("late")
	case lot < 5: // gone without a word
		_ = conn.PgConn().Conn().Close()
		return errors.New("gone")
	default:
		if _, err := tx.Exec(ctx, "update f.wed_flow set a = a + 1 where wid = $1", wid); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	ended.Add(1)
	return nil
}

// flawed are instances whose history has a gap that is not marked, or is not what their state says.
const flawed = `
select count(*) from f.wed_flow w
 where (select array_agg(t.version order by t.version) from f.wed_trace t where t.wid = w.wid)
       <> array(select generate_series(0, (select max(t.version) from f.wed_trace t where t.wid = w.wid)))
   and not exists (select from f.wed_trace t where t.wid = w.wid and t.healed)`

func TestEachFaultIsSurvived(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	w := newWorld(ctx, t)
	working, stop := context.WithCancel(ctx)
	workers, _ := group.New(working)
	var performed atomic.Int64
	workers.Go("load", func(ctx context.Context) error { return load(ctx, w.c, rand.New(rand.NewSource(2)), &performed) })
	workers.Go("victim", w.keepVictim)
	defer func() { _ = workers.Wait() }()
	defer stop()
	for _, f := range chosen(t) {
		t.Run(strings.ReplaceAll(f.Name, " ", "_"), func(t *testing.T) {
			began := time.Now()
			err := f.Inject(ctx, w)
			t.Logf("%s: %v", f.Name, time.Since(began).Round(time.Millisecond))
			switch {
			case errors.Is(err, fault.ErrSkipped) && os.Getenv("WED_SQL_TEST_FAULTS") == "":
				t.Fatalf("%v; it has been chosen because it is possible everywhere", err)
			case errors.Is(err, fault.ErrSkipped):
				t.Log(err)
			case err != nil:
				t.Fatal(err)
			}
			goesOn(ctx, t, &performed)
		})
	}
	stop()
	if err := workers.Wait(); err != nil {
		t.Error(err)
	}
	conn, err := w.c.Connect(ctx, "flows")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var n int
	if err := conn.QueryRow(ctx, flawed).Scan(&n); err != nil || n > 0 {
		t.Errorf("%d histories have gaps, %v", n, err)
	}
}

// chosen are the faults to try: those that are named, or some.
func chosen(t *testing.T) []fault.Fault {
	all := map[string]fault.Fault{}
	var names []string
	for _, f := range fault.All() {
		if _, twice := all[f.Name]; twice {
			t.Errorf("there are two faults %q", f.Name)
		}
		all[f.Name] = f
		names = append(names, f.Name)
	}
	switch asked := os.Getenv("WED_SQL_TEST_FAULTS"); asked {
	case "all":
	case "":
		names = some
	default:
		names = strings.Split(asked, ",")
	}
	var faults []fault.Fault
	for _, name := range names {
		f, ok := all[name]
		if !ok {
			t.Fatalf("there is no fault %q", name)
		}
		faults = append(faults, f)
	}
	return faults
}

// goesOn waits until another transition is performed, which needs all: a job that has come, and a session.
func goesOn(ctx context.Context, t *testing.T, performed *atomic.Int64) {
	t.Helper()
	before := performed.Load()
	for late := time.Now().Add(time.Minute); performed.Load() < before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) || ctx.Err() != nil {
			t.Fatal(fmt.Errorf("nothing goes on, %w", ctx.Err()))
		}
	}
}
