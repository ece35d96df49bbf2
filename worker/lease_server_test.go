package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

func (s *server) leased(transition string, h Handler) setup {
	s.Helper()
	of := s.worker(transition, h)
	of.Lease = 5 * time.Second // a disk may take its time for a heartbeat
	return of
}

// enterLater is a handler that writes a row of the ledger in the transaction that completes the job.
func (s *server) enterLater(state State) Handler {
	return func(_ context.Context, job *Job) (State, error) {
		job.BeforeCommit(func(ctx context.Context, db Querier) error {
			_, err := db.Exec(ctx, "insert into "+s.flow+".ledger values ($1, $2)", job.WID, job.TrName)
			return err
		})
		return state, nil
	}
}

func TestLeasedJobMayTakeLongerThanItsTimeoutAndItsLease(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	s.exec("update wed_trig set timeout = '200 ms' where trname = 'work'")
	running, goOn := make(chan struct{}), make(chan struct{})
	enter := s.enterLater(State{"v": 1})
	of := s.leased("work", func(ctx context.Context, job *Job) (State, error) {
		select {
		case running <- struct{}{}:
			<-goOn
		case <-ctx.Done():
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return enter(ctx, job)
	})
	of.Lease = 6 * time.Second
	s.start(of)
	s.exec("insert into wed_flow default values")
	receive(s, running)
	// while two leases run out that were not extended
	s.until("select clock_timestamp() > at + interval '12200 ms' from wed_event where event = 'leased'")
	if n := get[int64](s, "select count(*) from pg_stat_activity where application_name like 'wed_sql worker ' || $1 || '%' and state like 'idle in%'",
		s.flow); n != 0 {
		t.Errorf("%d transactions are open meanwhile", n)
	}
	close(goOn)
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(event, ',' order by event_id) from wed_event"); got != "leased" {
		t.Errorf("what happened: %s", got)
	}
	if n := get[int64](s, "select count(*) from ledger"); n != 1 {
		t.Errorf("%d rows were written before the commit, want 1", n)
	}
}

func TestLostLeaseEndsTheHandlerAndWritesNothing(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	causes := make(chan error, 10)
	first := true
	enter := s.enterLater(State{"v": 1})
	s.start(s.leased("work", func(ctx context.Context, job *Job) (State, error) {
		if !first {
			return nil, errors.New("taken again")
		}
		first = false
		causes <- nil
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return enter(ctx, job) // too late
	}))
	s.exec("insert into wed_flow default values")
	receive(s, causes)
	// Somebody takes it away, and has it himself.
	s.exec("begin")
	s.exec("select wed_sql.release($1, wid, tgid, lckid) from job_pool", s.flow)
	token := get[string](s, "select lckid from wed_sql.lease($1, 'work', '1 hour')", s.flow)
	s.exec("commit")
	if err := receive(s, causes); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the handler's context ended by %v, want %v", err, ErrLeaseLost)
	}
	s.exec("select wed_sql.complete($1, wid, tgid, $2, '{\"v\": 2}'::jsonb) from job_pool", s.flow, token)
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(state->>'v', ',' order by version) from wed_trace"); got != "0,2" {
		t.Errorf("the states are %s", got)
	}
	if n := get[int64](s, "select count(*) from ledger"); n != 0 {
		t.Errorf("%d rows were written under a token that was worth nothing", n)
	}
}

// The server takes the lease from a worker that cannot extend it, and another one
// has the job before the first one notices.
func TestNothingIsCompletedUnderAStaleToken(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	running, goOn := make(chan *Job), make(chan struct{})
	enter := s.enterLater(State{"v": 1})
	var calls atomic.Int64
	of := s.leased("work", func(ctx context.Context, job *Job) (State, error) {
		if calls.Add(1) > 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		running <- job
		<-goOn
		return enter(ctx, job)
	})
	of.Lease = time.Hour // it does not extend it within the test
	stop := s.start(of)
	s.exec("insert into wed_flow default values")
	receive(s, running)
	s.exec("begin")
	s.exec("select wed_sql.release($1, wid, tgid, lckid) from job_pool", s.flow)
	token := get[string](s, "select lckid from wed_sql.lease($1, 'work', '1 hour')", s.flow)
	s.exec("commit")
	close(goOn) // it tries to complete the job by its old token
	stop()
	if n := get[int64](s, "select count(*) from ledger"); n != 0 {
		t.Errorf("%d rows were written under a stale token", n)
	}
	if got := get[string](s, "select lckid from job_pool"); got != token {
		t.Errorf("the job's token is %s, want that of who has it, %s", got, token)
	}
	if n := get[int64](s, "select count(*) from wed_trace"); n != 1 {
		t.Errorf("%d states, want the first one alone", n)
	}
}

func TestLeasedJobThatLosesARaceIsCompletedLaterAndNotRedone(t *testing.T) {
	s := newServer(t, parallel+ledger)
	var lefts atomic.Int64
	refused := make(chan struct{}, 1000)
	of := s.leased("left", func(_ context.Context, job *Job) (State, error) {
		lefts.Add(1)
		job.BeforeCommit(func(ctx context.Context, db Querier) error {
			_, err := db.Exec(ctx, "insert into "+s.flow+".ledger values ($1, $2)", job.WID, job.TrName)
			return err
		})
		return State{"l": 1}, nil
	})
	of.Logger = watchLog("could not complete the job yet, will try again", refused)
	s.start(of)
	right := make(chan struct{})
	s.start(s.worker("right", func(context.Context, *Job) (State, error) {
		<-right
		return State{"r": 1}, nil
	}))
	s.exec("insert into wed_flow default values")
	receive(s, refused) // the final state, while right is pending
	receive(s, refused)
	close(right)
	s.untilAllFinal()
	if n := lefts.Load(); n != 1 {
		t.Errorf("the handler was called %d times", n)
	}
	if n := get[int64](s, "select count(*) from ledger"); n != 1 {
		t.Errorf("%d rows were written before the commit, want 1", n)
	}
}

func TestFailuresOfLeasedJobsAreCounted(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	s.exec("update wed_trig set max_attempts = 5, backoff = '10 ms' where not cfinal")
	var attempts atomic.Int64
	wrong := make(chan string, 100)
	s.start(s.leased("work", func(ctx context.Context, job *Job) (State, error) {
		n := attempts.Add(1)
		if int64(job.Attempts) != n-1 {
			wrong <- fmt.Sprintf("attempt %d knows of %d", n, job.Attempts)
		}
		switch n {
		case 1:
			return nil, errors.New("card declined")
		case 2:
			panic("ouch")
		case 3:
			job.BeforeCommit(func(ctx context.Context, db Querier) error {
				if _, err := db.Exec(ctx, "insert into "+s.flow+".ledger values (0, 'rolled back')"); err != nil {
					return err
				}
				return errors.New("no")
			})
		case 4:
			if _, err := job.DB().Exec(ctx, "select 1"); !errors.Is(err, errLeased) {
				wrong <- fmt.Sprintf("its DB answers %v", err)
			}
			return State{"v": "one"}, nil
		}
		return State{"v": 1}, nil
	}))
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_event where event = 'failed'"); n != 4 {
		t.Errorf("%d failed attempts were counted, want 4", n)
	}
	if n := get[int64](s, "select count(*) from ledger"); n != 0 {
		t.Errorf("%d rows of what was rolled back", n)
	}
	close(wrong)
	for w := range wrong {
		t.Error(w)
	}
}

func TestAbortGivesLeasedJobsBack(t *testing.T) {
	s := newServer(t, oneStep)
	running := make(chan struct{}, 1)
	of := s.leased("work", func(ctx context.Context, _ *Job) (State, error) {
		running <- struct{}{}
		<-ctx.Done()
		return State{"v": 1}, nil
	})
	of.Lease = time.Hour
	w := s.new(of)
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	s.exec("insert into wed_flow default values")
	receive(s, running)
	cancel()
	w.Abort()
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	if !get[bool](s, "select lckid is null and attempts = 0 from job_pool") {
		t.Error("the job is leased, or an attempt was counted")
	}
}

func TestDrainFinishesLeasedJobs(t *testing.T) {
	s := newServer(t, oneStep)
	running, goOn := make(chan struct{}), make(chan struct{})
	w := s.new(s.leased("work", func(ctx context.Context, _ *Job) (State, error) {
		running <- struct{}{}
		<-goOn
		return State{"v": 1}, ctx.Err()
	}))
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	s.exec("insert into wed_flow (note) values ('a'), ('b')")
	receive(s, running)
	context.AfterFunc(ctx, func() { close(goOn) })
	cancel()
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select string_agg(status::text, '' order by status) from wed_instance"); got != "FR" {
		t.Errorf("instances are %s, want one that was finished and one that was not begun", got)
	}
	if n := get[int64](s, "select count(*) from job_pool where lckid is not null"); n != 0 {
		t.Errorf("%d jobs are leased by nobody", n)
	}
}

func TestManyLeasedJobsNeedFewConnections(t *testing.T) {
	const jobs = 60
	s := newServer(t, oneStep)
	var running atomic.Int64
	all, goOn := make(chan struct{}), make(chan struct{})
	of := s.leased("work", func(context.Context, *Job) (State, error) {
		if running.Add(1) == jobs {
			close(all)
		}
		<-goOn
		return State{"v": 1}, nil
	})
	of.Concurrency, of.Logger, of.Lease = jobs, quiet, 15*time.Second
	s.start(of)
	s.insert(jobs, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	receive(s, all)
	// while they are extended
	s.until("select clock_timestamp() > max(at) + interval '5500 ms' from wed_event where event = 'leased'")
	if n := get[int64](s, "select count(*) from pg_stat_activity where application_name like 'wed_sql worker ' || $1 || '%'", s.flow); n > briefConns+1 {
		t.Errorf("%d connections", n)
	}
	close(goOn)
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_event where event <> 'leased'"); n != 0 {
		t.Errorf("%d leases did not last", n)
	}
}

// PostgreSQL answers a COMMIT of what has failed with ROLLBACK, and no error.
func TestAnErrorThatIsIgnoredBeforeTheCommitIsAFailedAttempt(t *testing.T) {
	s := newServer(t, oneStep)
	of := s.leased("work", func(_ context.Context, job *Job) (State, error) {
		if job.Attempts == 0 {
			job.BeforeCommit(func(ctx context.Context, db Querier) error {
				_, _ = db.Exec(ctx, "select 1 / 0")
				return nil
			})
		}
		return State{"v": 1}, nil
	})
	of.Lease = time.Hour
	s.start(of)
	s.exec("insert into wed_flow default values")
	s.untilAllFinal()
	if got := get[string](s, "select string_agg(event, ',' order by event_id) from wed_event"); got != "leased,failed,leased" {
		t.Errorf("what happened: %s", got)
	}
}

// One commit for each job, but where the worker looks at the pool in between.
func TestALeasedJobIsCompletedTogetherWithTheLeaseOfTheNextOne(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow (note) select 'x' from generate_series(1, 30)")
	s.exec("select wed_sql.sync()")
	of := s.leased("work", returns(State{"v": 1}))
	of.Concurrency = 1
	s.start(of)
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_event e join wed_flow f on f.xmin = e.xmin where e.event = 'leased' and f.wid <> e.wid"); n < 20 {
		t.Errorf("%d of 30 jobs were leased with the completion of another one", n)
	}
	if n := get[int64](s, "select count(*) from wed_sql.timer"); n != 0 {
		t.Errorf("%d timers are left", n)
	}
}

func TestALeaseThatFailsTakesNoCompletionWithIt(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	s.exec("insert into wed_flow (note) select 'x' from generate_series(1, 3)")
	s.exec("select wed_sql.sync()")
	// who leases the second job fails
	s.exec(`create function no_lease() returns trigger language plpgsql set search_path from current as $$
		begin
			if (select count(*) from wed_event where event = 'leased') = 1 then
				raise 'no lease now';
			end if;
			return new;
		end $$`)
	s.exec("create trigger no_lease before insert on wed_event for each row execute function no_lease()")
	of := s.leased("work", returns(State{"v": 1}))
	of.Concurrency, of.Logger = 1, quiet
	s.start(of)
	s.until("select exists (select from wed_instance where status = 'F')")
	s.exec("drop trigger no_lease on wed_event")
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_event where event <> 'leased'"); n != 0 {
		t.Errorf("%d failures were counted", n)
	}
}
