package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// oneStep is a flow of one transition: work is done while v is below 1.
const oneStep = `
	insert into wed_attr (aname, atype, adv) values ('v', 'integer', '0'), ('note', 'text', null);
	insert into wed_trig (trname, cpred, timeout) values ('work', 'v < 1', '1 min');
	insert into wed_trig (cpred, cfinal) values ('v >= 1', true);`

// parallel is a flow whose transitions left and right run side by side.
const parallel = `
	insert into wed_attr (aname, atype) values ('l', 'integer'), ('r', 'integer');
	insert into wed_trig (trname, cpred) values ('left', 'l is null'), ('right', 'r is null');
	insert into wed_trig (cpred, cfinal) values ('l = 1', true);`

func TestEveryJobIsDoneOnce(t *testing.T) {
	const instances = 300
	s := newServer(t, `
		insert into wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into wed_trig (trname, cpred) values ('step', 'v < 3');
		insert into wed_trig (cpred, cfinal) values ('v >= 3', true);`)
	s.exec("insert into wed_flow (v) select 0 from generate_series(1, $1)", instances/2)

	var calls atomic.Int64
	step := func(_ context.Context, job *Job) (State, error) {
		calls.Add(1)
		var state struct{ V int }
		if err := job.Decode(&state); err != nil {
			return nil, err
		}
		return State{"v": state.V + 1}, nil
	}
	for range 3 { // as if they were processes
		cfg := s.worker("step", step)
		cfg.Concurrency = 4
		cfg.Logger = quiet
		s.start(cfg)
	}
	for range instances / 2 {
		s.exec("insert into wed_flow (v) values (0)")
	}
	s.untilAllFinal()

	if n := get[int64](s, "select count(*) from wed_trace"); n != 4*instances {
		t.Errorf("%d states, want %d", n, 4*instances)
	}
	if n := calls.Load(); n != 3*instances {
		t.Errorf("the handler was called %d times for %d jobs", n, 3*instances)
	}
	if n := get[int64](s, "select count(*) from job_pool"); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

func TestPendingAndNewJobsNeedNoWakeup(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow default values")
	s.exec("select wed_sql.sync()")
	done := make(chan int64, 10)
	s.start(s.worker("work", func(_ context.Context, job *Job) (State, error) {
		done <- job.WID
		return State{"v": 1}, nil
	}))
	if wid := receive(s, done); wid != 1 {
		t.Errorf("instance %d, want the one that was pending", wid)
	}
	s.exec("insert into wed_flow default values")
	if wid := receive(s, done); wid != 2 {
		t.Errorf("instance %d, want the new one", wid)
	}
	s.untilAllFinal()
}

func TestJobThatSomebodyElseGaveUpIsFoundAtTheNextWakeup(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow default values")
	s.exec("select wed_sql.sync()")
	s.exec("begin")
	if !get[bool](s, "select wed_sql.try_lock(wid, tgid) from job_pool") {
		t.Fatal("the lock is not free")
	}

	cfg := s.worker("work", returns(State{"v": 1}))
	cfg.Wakeup = 20 * time.Millisecond
	s.start(cfg)
	// It looks for jobs again and again, which the statistics of the table show.
	other := s.connect()
	for scans := int64(0); scans < 5; {
		err := other.QueryRow(s.ctx, "select idx_scan + seq_scan from pg_stat_user_tables where relid = to_regclass($1)",
			s.flow+".job_pool").Scan(&scans)
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := get[int64](s, "select count(*) from wed_trace"); n != 1 {
		t.Errorf("%d states while the job is locked, want 1", n)
	}
	s.exec("rollback")
	s.untilAllFinal()
}

func TestFailedJobIsRolledBackAndRedone(t *testing.T) {
	s := newServer(t, oneStep+`create table ledger (wid bigint, attempt integer);`)
	var attempts atomic.Int64
	s.start(s.worker("work", func(ctx context.Context, job *Job) (State, error) {
		n := attempts.Add(1)
		if _, err := job.DB().Exec(ctx, "insert into "+s.flow+".ledger values ($1, $2)", job.WID, n); err != nil {
			return nil, err
		}
		switch n {
		case 1:
			return State{"v": 1}, errors.New("no")
		case 2:
			return nil, nil
		case 3:
			panic("ouch")
		case 4:
			return State{"v": "one"}, nil
		case 5:
			return State{"w": 1}, nil
		}
		return State{"v": 1}, nil
	}))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(attempt::text, ',') from ledger"); got != "6" {
		t.Errorf("attempts %s have committed, want only the last one, 6", got)
	}
	if n := get[int64](s, "select count(*) from wed_trace"); n != 2 {
		t.Errorf("%d states, want 2", n)
	}
}

func TestServerCountsFailuresAndSaysWhenTheJobIsToBeTriedAgain(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("update wed_trig set backoff = '50 ms', max_attempts = 3 where not cfinal")
	s.start(s.worker("work", func(context.Context, *Job) (State, error) { return nil, errors.New("card declined") }))
	s.exec("insert into wed_flow default values")
	s.until("select count(*) = 1 from wed_trace where status = 'E'")
	want := `WED-transition "work" has failed 3 times: card declined`
	if got := get[string](s, "select error from wed_trace where status = 'E'"); got != want {
		t.Errorf("the exception is %q, want %q", got, want)
	}
	if n := get[int64](s, "select count(*) from wed_event where event = 'failed' and detail = 'card declined'"); n != 3 {
		t.Errorf("%d failed attempts in the history, want 3", n)
	}
}

func TestFinalBeforeItsSiblingIsRedone(t *testing.T) {
	s := newServer(t, parallel)
	left := make(chan struct{}, 100)
	right := make(chan struct{})
	s.start(s.worker("left", func(context.Context, *Job) (State, error) {
		left <- struct{}{}
		return State{"l": 1}, nil
	}))
	s.start(s.worker("right", func(context.Context, *Job) (State, error) {
		<-right
		return State{"r": 1}, nil
	}))
	s.exec("insert into wed_flow default values")
	for range 3 { // refused each time, because right is pending
		receive(s, left)
	}
	close(right)
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(trw, ',' order by version) from wed_trace"); got != "right,left" {
		t.Errorf("written by %s", got)
	}
}

func TestTimeoutEndsTheHandler(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("update wed_trig set timeout = '100 ms' where trname = 'work'")
	causes := make(chan error, 100)
	var attempts atomic.Int64
	s.start(s.worker("work", func(ctx context.Context, job *Job) (State, error) {
		if job.Timeout != 100*time.Millisecond {
			return nil, fmt.Errorf("the timeout is %s", job.Timeout)
		}
		if attempts.Add(1) == 1 {
			<-ctx.Done()
			causes <- context.Cause(ctx)
		}
		return State{"v": 1}, nil // too late the first time
	}))
	s.exec("insert into wed_flow default values")
	if err := receive(s, causes); !errors.Is(err, errTimeout) {
		t.Errorf("the context ended by %v", err)
	}
	s.untilAllFinal()
	if n := attempts.Load(); n < 2 {
		t.Errorf("what came too late was committed")
	}
}

func TestLostConnectionsAreReplaced(t *testing.T) {
	s := newServer(t, oneStep)
	running := make(chan struct{}, 100)
	goOn := make(chan struct{})
	s.start(s.worker("work", func(context.Context, *Job) (State, error) {
		running <- struct{}{}
		<-goOn
		return State{"v": 1}, nil
	}))
	// one of an earlier one that is just going away is none of the two
	const connected = `select count(*) = 2 and count(*) filter (where query like 'listen %') = 1 from pg_stat_activity
		where application_name = 'wed_sql worker ' || $1 || '.work'`
	const terminate = `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where application_name = 'wed_sql worker ' || $1 || '.work'`

	s.exec("insert into wed_flow default values")
	receive(s, running)
	s.until(connected, s.flow)
	if n := get[int64](s, terminate, s.flow); n != 2 {
		t.Errorf("%d connections, want one for the job and one that listens", n)
	}
	close(goOn)
	receive(s, running) // again, for the first transaction is lost
	s.untilAllFinal()

	s.until(connected, s.flow)
	if n := get[int64](s, terminate, s.flow); n != 2 {
		t.Errorf("%d connections, want one that is idle and one that listens", n)
	}
	s.exec("insert into wed_flow default values")
	receive(s, running)
	s.untilAllFinal()
}

func TestStoppedWorkerFinishesWhatIsRunning(t *testing.T) {
	s := newServer(t, oneStep)
	running, goOn := make(chan struct{}), make(chan struct{})
	w := s.new(s.worker("work", func(ctx context.Context, _ *Job) (State, error) {
		running <- struct{}{}
		<-goOn
		return State{"v": 1}, ctx.Err()
	}))
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	s.exec("insert into wed_flow (note) values ('a'), ('b')")
	receive(s, running)
	// Run's context ends before the handler does.
	context.AfterFunc(ctx, func() { close(goOn) })
	cancel()
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select string_agg(status::text, '' order by status) from wed_instance"); got != "FR" {
		t.Errorf("instances are %s, want one that was finished and one that was not begun", got)
	}
}

func TestAbortRollsBackWhatIsRunning(t *testing.T) {
	s := newServer(t, oneStep)
	running := make(chan struct{}, 1)
	w := s.new(s.worker("work", func(ctx context.Context, _ *Job) (State, error) {
		running <- struct{}{}
		<-ctx.Done()
		return State{"v": 1}, nil
	}))
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	s.exec("insert into wed_flow default values")
	receive(s, running)
	cancel()
	w.Abort()
	w.Abort()
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select status::text || trname from wed_instance join job_pool using (wid)"); got != "Rwork" {
		t.Errorf("the instance is %s", got)
	}
}

func TestOnceDoesWhatIsPendingAndReturns(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow (note) select 'x' from generate_series(1, $1)", minPage+50)
	s.exec("insert into wed_flow (note) values ('bad')")
	s.exec("select wed_sql.sync()")
	cfg := s.worker("work", func(_ context.Context, job *Job) (State, error) {
		if strings.Contains(string(job.Payload), "bad") {
			return nil, errors.New("no")
		}
		return State{"v": 1}, nil
	})
	cfg.Once, cfg.Concurrency, cfg.Logger = true, 3, quiet
	if err := s.run(cfg); !errors.Is(err, ErrFailed) {
		t.Errorf("Run returns %v, want ErrFailed", err)
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select string_agg(payload->>'note', ',') from job_pool"); got != "bad" {
		t.Errorf("still pending: %s", got)
	}
	cfg.handler = returns(State{"v": 1})
	for range 2 { // with one job, with none
		if err := s.run(cfg); err != nil {
			t.Errorf("Run returns %v", err)
		}
	}
	s.untilAllFinal()
}

func TestRunSaysWhatIsMissing(t *testing.T) {
	s := newServer(t, oneStep)
	for name, want := range map[string]error{"flow": ErrNoFlow, "transition": ErrNoTransition, "extension": ErrNoExtension} {
		cfg := s.worker("work", returns(nil))
		switch name {
		case "flow":
			cfg.flow = "no such flow"
		case "transition":
			cfg.transition = "no such transition"
		case "extension":
			cfg.DSN += " dbname=template1"
		}
		if err := s.run(cfg); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// A role that was granted a transition, and nothing else, performs it; no other.
func TestAWorkerRoleIsEnough(t *testing.T) {
	s := newServer(t, parallel)
	const role = "wed_sql_test_worker"
	s.exec("drop role if exists " + role)
	s.exec("create role " + role + " login")
	s.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, s.dsn)
		if err != nil {
			s.Error(err)
			return
		}
		defer hangUp(conn)
		if _, err := conn.PgConn().Exec(ctx, "drop owned by "+role+"; drop role "+role).ReadAll(); err != nil {
			s.Error(err)
		}
	})
	s.exec("select wed_sql.grant_worker($1, 'left', $2)", s.flow, role)
	cfg := s.worker("left", returns(State{"l": 2}))
	cfg.DSN += " user=" + role
	cfg.Once = true
	const each = 10
	ways := []Options{{}, {Batch: each}, {Lease: time.Minute}}
	for _, way := range ways {
		s.insert(each, "insert into wed_flow (l) select null from generate_series(1, $1)")
		cfg.Options = way
		if err := s.run(cfg); err != nil {
			t.Errorf("Run of the granted transition, %+v: %v", way, err)
		}
	}
	s.exec("select wed_sql.sync()")
	if n := get[int64](s, "select count(*) from wed_trace where trw = 'left'"); n != int64(each*len(ways)) {
		t.Errorf("%d instances were written, want %d", n, each*len(ways))
	}
	if n := get[int64](s, "select count(distinct xmin::text) from wed_flow where l is not null"); n != int64(each*len(ways)-each+1) {
		t.Errorf("%d transactions have written them", n)
	}
	cfg.transition = "right"
	if err := s.run(cfg); !errors.Is(err, ErrNotGranted) {
		t.Errorf("Run of another transition: %v, want %v", err, ErrNotGranted)
	}
	if n := get[int64](s, "select count(*) from job_pool where trname = 'right'"); n != int64(each*len(ways)) {
		t.Errorf("%d jobs of another transition pend, want %d", n, each*len(ways))
	}
}

func TestRunEndsWhenItsFlowIsDropped(t *testing.T) {
	s := newServer(t, oneStep)
	of := s.worker("work", returns(State{"v": 1}))
	of.Wakeup = 10 * time.Millisecond
	w := s.new(of)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(s.ctx) })
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	s.exec("select wed_sql.drop_flow($1)", s.flow)
	if err := receive(s, ended); !errors.Is(err, ErrNoFlow) {
		t.Errorf("Run returns %v, want ErrNoFlow", err)
	}
}

func TestFlowsWithEqualNamesAreKeptApart(t *testing.T) {
	s := newServer(t, oneStep)
	other := s.flow + "_2"
	s.define(other, oneStep)
	s.exec("select set_config('search_path', $1, false)", s.flow)
	s.start(s.worker("work", returns(State{"v": 1})))
	s.exec("insert into " + other + ".wed_flow default values")
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from "+other+".job_pool"); n != 1 {
		t.Errorf("%d jobs of the other flow are pending, want 1", n)
	}
}

func TestNamesMayBeAnyIdentifier(t *testing.T) {
	s := newNamedServer(t, `Tra"vel – ü`, `
		insert into wed_attr (aname, atype) values ('Größe "x"', 'integer'), ('select', 'text');
		insert into wed_trig (trname, cpred) values ('найти "рейс"', '"Größe ""x""" is null');
		insert into wed_trig (cpred, cfinal) values ('"select" is not null', true);`)
	s.start(s.worker(`найти "рейс"`, returns(State{`Größe "x"`: 1, "select": "*"})))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
}

func TestValuesTakeTheAttributesTypes(t *testing.T) {
	s := newServer(t, `
		create domain positive as integer not null default 1;
		insert into wed_attr (aname, atype, adv) values
			('n', 'numeric', null), ('b', 'bigint', null), ('j', 'jsonb', null), ('a', 'integer[]', null), ('t', 'timestamptz', null),
			('y', 'bytea', null), ('x', 'text', 'set'), ('kept', 'text', 'kept'), ('o', 'boolean', null), ('d', current_schema || '.positive', '7');
		insert into wed_trig (trname, cpred) values ('work', 'o is null');
		insert into wed_trig (cpred, cfinal) values ('o', true);`)
	s.start(s.worker("work", returns(State{
		"n": json.RawMessage("1234567890123456789012345.6789"), "b": int64(9007199254740993), "j": map[string]any{"k": []int{1}},
		"a": []int{1, 2}, "t": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "y": `\x00ff`, "x": nil, "o": true,
	})))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	s.exec("set timezone = 'UTC'")
	want := "1234567890123456789012345.6789|9007199254740993|{\"k\": [1]}|{1,2}|2026-01-02 03:04:05+00|\\x00ff|null|kept|7"
	if got := get[string](s, "select concat_ws('|', n, b, j, a, t, y, coalesce(x, 'null'), kept, d) from wed_flow"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEmptyStateCompletesTheJob(t *testing.T) {
	s := newServer(t, oneStep)
	var calls atomic.Int64
	s.start(s.worker("work", func(context.Context, *Job) (State, error) {
		if calls.Add(1) < 3 {
			return State{}, nil // its condition still holds: it is fired again
		}
		return State{"v": 1}, nil
	}))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_trace"); n != 4 {
		t.Errorf("%d states, want 4", n)
	}
}

func TestExceptionIsLedBack(t *testing.T) {
	s := newServer(t, oneStep)
	s.start(s.worker("work", returns(State{"v": nil})))
	s.start(s.worker("_EXCPT", returns(State{"v": 1})))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(status::text || coalesce(trw, ''), ',' order by version) from wed_trace"); got != "R,Ework,F_EXCPT" {
		t.Errorf("the history is %s", got)
	}
}

func TestStateTooLargeForItsNotificationIsWhole(t *testing.T) {
	s := newServer(t, oneStep)
	sizes := make(chan int, 1)
	s.start(s.worker("work", func(_ context.Context, job *Job) (State, error) {
		var state struct{ Note string }
		err := job.Decode(&state)
		sizes <- len(state.Note)
		return State{"v": 1}, err
	}))
	s.exec("insert into wed_flow (note) values (repeat('x', 20000))")
	if n := receive(s, sizes); n != 20000 {
		t.Errorf("%d bytes arrived", n)
	}
	s.untilAllFinal()
}

// The rights that wedctl names in its hint are enough.
func TestWorkerNeedsFewRights(t *testing.T) {
	s := newServer(t, oneStep)
	role := s.flow + "_role"
	s.exec("create role " + role + " login")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if _, err := s.conn.Exec(ctx, "drop owned by "+role+"; drop role "+role, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	s.exec("grant usage on schema " + s.flow + " to " + role)
	s.exec("grant select on wed_trig, job_pool to " + role)
	s.exec("grant select, update on wed_flow to " + role)
	for _, way := range []Options{{}, {Batch: 2}, {Lease: time.Minute}} {
		s.insert(2, "insert into wed_flow (v) select 0 from generate_series(1, $1)")
		cfg := s.worker("work", returns(State{"v": 1}))
		cfg.DSN += " user=" + role
		cfg.Options, cfg.Once = way, true
		if err := s.run(cfg); err != nil {
			t.Errorf("%+v: %v", way, err)
		}
	}
	s.untilAllFinal()
}

// Whoever may create functions in a schema of the usual search_path must not have them
// run with the rights of the workers.
func TestFunctionsOfOthersAreNotTakenForThoseOfPostgreSQL(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("create schema usurper")
	defer s.exec("drop schema usurper cascade")
	for _, signature := range []string{
		"unnest(bigint[]) returns setof bigint", "unnest(integer[]) returns setof integer", "unnest(jsonb[]) returns setof jsonb",
		"cardinality(bigint[]) returns integer", "jsonb_populate_record(" + pgx.Identifier{s.flow, "wed_flow"}.Sanitize() + ", jsonb) returns record",
	} {
		s.exec("create function usurper." + signature + " language plpgsql as $$ begin raise 'code of somebody else'; end $$")
	}
	s.exec("insert into wed_flow (v) values (0), (0)")
	for _, batch := range []int{1, 2} {
		s.exec("insert into wed_flow (v) values (0), (0)")
		of := s.worker("work", returns(State{"v": 1}))
		if batch > 1 {
			of.handler, of.together = nil, func(_ context.Context, jobs []*Job) ([]State, error) {
				states := make([]State, len(jobs))
				for i := range states {
					states[i] = State{"v": 1}
				}
				return states, nil
			}
			of.Batch = batch
		}
		of.DSN += " search_path=usurper"
		stop := s.start(of)
		s.untilAllFinal()
		stop()
	}
}

func TestTextsAreUTF8WhateverTheServerSpeaks(t *testing.T) {
	s := newServer(t, oneStep)
	payloads := make(chan string, 1)
	of := s.worker("work", func(_ context.Context, job *Job) (State, error) {
		payloads <- string(job.Payload)
		return State{"v": 1, "note": "Größe"}, nil
	})
	of.DSN = s.dsn + " options='-c client_encoding=LATIN1'"
	s.start(of)
	s.exec("insert into wed_flow (note) values ('naïf')")
	if got := receive(s, payloads); !strings.Contains(got, "naïf") {
		t.Errorf("the payload is %q", got)
	}
	s.untilAllFinal()
	if got := get[string](s, "select note from wed_flow"); got != "Größe" {
		t.Errorf("written was %q", got)
	}
}
