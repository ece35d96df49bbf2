package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// ledger is a table that handlers write besides.
const ledger = `create table ledger (wid bigint, transition text);`

// enter is a handler that writes a row of the ledger in the job's transaction.
func (s *server) enter(state State) Handler {
	return func(ctx context.Context, job *Job) (State, error) {
		_, err := job.DB().Exec(ctx, "insert into "+s.flow+".ledger values ($1, $2)", job.WID, job.TrName)
		return state, err
	}
}

// insert starts n instances, and waits until their jobs pend.
func (s *server) insert(n int, sql string) {
	s.Helper()
	s.exec(sql, n)
	s.exec("select wed_sql.sync('30 s')")
}

func TestBatchIsOneTransaction(t *testing.T) {
	const instances = 200
	s := newServer(t, oneStep+ledger)
	s.insert(instances, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	of := s.worker("work", s.enter(State{"v": 1}))
	of.Batch, of.Once, of.Logger = 50, true, quiet
	if err := s.run(of); err != nil {
		t.Fatal(err)
	}
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from ledger"); n != instances {
		t.Errorf("%d rows of the handler, want %d", n, instances)
	}
	if n := get[int64](s, "select count(distinct xmin::text) from ledger"); n != instances/50 {
		t.Errorf("%d transactions, want %d", n, instances/50)
	}
}

func TestBatchesOfManyWorkersDoEveryJobOnce(t *testing.T) {
	const instances = 2000
	s := newServer(t, parallel+ledger)
	s.exec("update wed_trig set cpred = 'l = 1 and r = 1' where cfinal")
	s.insert(instances, "insert into wed_flow (l) select null from generate_series(1, $1)")
	for _, transition := range []string{"left", "right"} {
		for range 2 { // as if they were processes
			of := s.worker(transition, s.enter(State{transition[:1]: 1}))
			of.Batch, of.Concurrency, of.Logger = 40, 2, quiet
			s.start(of)
		}
	}
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from (select from ledger group by wid, transition having count(*) = 1) x"); n != 2*instances {
		t.Errorf("%d jobs have one row of the handler, want %d", n, 2*instances)
	}
	if n := get[int64](s, "select count(*) from wed_trace"); n != 3*instances {
		t.Errorf("%d states, want %d", n, 3*instances)
	}
	if n := get[int64](s, "select count(distinct xmin::text) from ledger"); n > instances {
		t.Errorf("%d transactions for %d jobs", n, 2*instances)
	}
}

// Batches of two transitions that write the same instances in opposite orders do
// not wait for each other in a circle.
func TestBatchesDoNotDeadlock(t *testing.T) {
	const instances = 60
	s := newServer(t, parallel)
	s.exec("update wed_trig set cpred = 'l = 1 and r = 1' where cfinal")
	s.insert(instances, "insert into wed_flow (l) select null from generate_series(1, $1)")
	var (
		arrived sync.WaitGroup
		leave   = make(chan struct{})
		handled atomic.Int64
	)
	arrived.Add(2)
	meet := func(attribute string, first, second int) BatchHandler {
		var once sync.Once
		return func(_ context.Context, jobs []*Job) ([]State, error) {
			once.Do(func() {
				arrived.Done()
				<-leave
			})
			handled.Add(int64(len(jobs)))
			// Of different columns, so that there are two updates: one for the upper half of
			// the instances, and one for the lower half. Which comes first is opposite in both.
			slices.SortFunc(jobs, func(a, b *Job) int {
				if first < second {
					return int(a.WID - b.WID)
				}
				return int(b.WID - a.WID)
			})
			states := make([]State, len(jobs))
			for i, job := range jobs {
				states[i] = State{attribute: 1}
				if job.WID > instances/2 {
					states[i]["note_"+attribute] = "x"
				}
			}
			return states, nil
		}
	}
	s.exec("insert into wed_attr (aname) values ('note_l'), ('note_r')")
	// The updates last long enough to meet.
	s.exec("create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.005); return new; end'")
	s.exec("create trigger slow before update on wed_flow for each row execute function slow()")
	for transition, h := range map[string]BatchHandler{"left": meet("l", 1, 2), "right": meet("r", 2, 1)} {
		of := s.worker(transition, nil)
		of.together, of.Batch = h, instances
		s.start(of)
	}
	arrived.Wait()
	close(leave)
	s.untilAllFinal()
	if n := handled.Load(); n != 2*instances {
		t.Errorf("%d jobs were performed for %d that there are", n, 2*instances)
	}
}

// Two rules of an instance may fire the same transition: a transaction that holds
// the locks of both would have to say which one it completes.
func TestTwoJobsOfOneInstanceAreNotInOneBatch(t *testing.T) {
	const instances = 40
	s := newServer(t, `
		insert into wed_attr (aname, atype) values ('a', 'integer'), ('b', 'integer');
		insert into wed_trig (tgname, trname, cpred) values ('a', 'work', 'a is null'), ('b', 'work', 'b is null');
		insert into wed_trig (cpred, cfinal) values ('a = 1 and b = 1', true);`)
	ruleA := get[int32](s, "select tgid from wed_trig where tgname = 'a'")
	s.insert(instances, "insert into wed_flow (a) select null from generate_series(1, $1)")
	var calls atomic.Int64
	of := s.worker("work", func(_ context.Context, job *Job) (State, error) {
		calls.Add(1)
		if job.TGID == ruleA {
			return State{"a": 1}, nil
		}
		return State{"b": 1}, nil
	})
	of.Batch, of.Once = 2*instances, true
	if err := s.run(of); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.untilAllFinal()
	if n := calls.Load(); n != 2*instances {
		t.Errorf("the handler was called %d times for %d jobs", n, 2*instances)
	}
}

func TestFailingJobOfABatchDoesNotKeepTheOthers(t *testing.T) {
	const instances = 30
	for name, c := range map[string]struct {
		writes       bool // before it fails
		transactions int64
		fail         func() (State, error)
	}{
		"error":           {false, 1, func() (State, error) { return nil, errors.New("no") }},
		"panic":           {false, 1, func() (State, error) { panic("ouch") }},
		"nothing":         {false, 1, func() (State, error) { return nil, nil }},
		"error and write": {true, instances - 1, func() (State, error) { return nil, errors.New("no") }},
		"refused state":   {false, instances - 1, func() (State, error) { return State{"v": "one"}, nil }},
		"no attribute":    {false, instances - 1, func() (State, error) { return State{"w": 1}, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newNamedServer(t, "batch_"+strings.ReplaceAll(name, " ", "_"), oneStep+ledger)
			s.insert(instances, "insert into wed_flow (note) select case n when 7 then 'bad' end from generate_series(1, $1) n")
			var bad atomic.Int64
			enter := s.enter(State{"v": 1})
			of := s.worker("work", func(ctx context.Context, job *Job) (State, error) {
				if !strings.Contains(string(job.Payload), "bad") {
					return enter(ctx, job)
				}
				bad.Add(1)
				if c.writes {
					if _, err := enter(ctx, job); err != nil {
						return nil, err
					}
				}
				return c.fail()
			})
			of.Batch, of.Once = instances, true
			if err := s.run(of); !errors.Is(err, ErrFailed) {
				t.Errorf("Run returns %v, want ErrFailed", err)
			}
			s.exec("select wed_sql.sync('30 s')")
			if got := get[string](s, "select string_agg(payload->>'note', ',') from job_pool"); got != "bad" {
				t.Errorf("still pending: %s", got)
			}
			if n := get[int64](s, "select count(*) from ledger"); n != instances-1 {
				t.Errorf("%d rows of the handler, want %d", n, instances-1)
			}
			if n := get[int64](s, "select count(distinct xmin::text) from ledger"); n != c.transactions {
				t.Errorf("%d transactions, want %d", n, c.transactions)
			}
			want := int64(1)
			if name == "nothing" {
				want = 0
			}
			if n := get[int64](s, "select count(*) from wed_event where event = 'failed'"); n != want {
				t.Errorf("%d failed attempts were counted, want %d", n, want)
			}
		})
	}
}

func TestBatchHandlerGetsAllJobsOfATransaction(t *testing.T) {
	s := newServer(t, oneStep+ledger)
	s.insert(20, "insert into wed_flow (note) select case n when 5 then 'wait' when 6 then 'bad' else 'x' end from generate_series(1, $1) n")
	var calls []int
	var reject atomic.Bool
	of := s.worker("work", nil)
	of.Batch, of.Once = 20, true
	of.together = func(ctx context.Context, jobs []*Job) ([]State, error) {
		calls = append(calls, len(jobs))
		states := make([]State, len(jobs))
		for i, job := range jobs {
			if _, err := jobs[0].DB().Exec(ctx, "insert into "+s.flow+".ledger values ($1)", job.WID); err != nil {
				return nil, err
			}
			switch {
			case strings.Contains(string(job.Payload), "wait"):
			case strings.Contains(string(job.Payload), "bad") && reject.Load():
				return nil, errors.New("no")
			default:
				states[i] = State{"v": 1}
			}
		}
		return states, nil
	}
	reject.Store(true)
	if err := s.run(of); !errors.Is(err, ErrFailed) {
		t.Errorf("Run returns %v", err)
	}
	if len(calls) != 21 || calls[0] != 20 {
		t.Errorf("called for %v jobs, want all of them, and then each alone", calls)
	}
	s.exec("select wed_sql.sync('30 s')")
	if got := get[string](s, "select string_agg(payload->>'note', ',' order by wid) from job_pool"); got != "wait,bad" {
		t.Errorf("still pending: %s", got)
	}
	reject.Store(false)
	calls = nil
	if err := s.run(of); !errors.Is(err, ErrFailed) {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync('30 s')")
	if got := get[string](s, "select string_agg(payload->>'note', ',' order by wid) from job_pool"); got != "wait" {
		t.Errorf("still pending: %s", got)
	}
}

// A batch of jobs that are slow together is none that has failed.
func TestBatchEndsInTimeForItsTimeout(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("update wed_trig set timeout = '8 s' where trname = 'work'")
	s.insert(20, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	begun := 0
	of := s.worker("work", func(context.Context, *Job) (State, error) {
		if begun++; begun == 5 { // more than half of the time that a transaction has
			time.Sleep(4100 * time.Millisecond)
		}
		return State{"v": 1}, nil
	})
	of.Batch, of.Once = 20, true
	if err := s.run(of); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_event"); n != 0 {
		t.Errorf("%d events, want none", n)
	}
	if n := get[int64](s, "select count(distinct (xmin::text)) from wed_flow"); n < 2 || n > 10 {
		t.Errorf("%d transactions", n)
	}
}

func TestDrainCompletesTheBegunPartOfABatch(t *testing.T) {
	s := newServer(t, oneStep)
	s.insert(10, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	running, goOn := make(chan struct{}), make(chan struct{})
	of := s.worker("work", func(context.Context, *Job) (State, error) {
		running <- struct{}{}
		<-goOn
		return State{"v": 1}, nil
	})
	of.Batch = 10
	w := s.new(of)
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	receive(s, running)
	goOn <- struct{}{}
	receive(s, running) // in the second one
	cancel()
	goOn <- struct{}{}
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync('30 s')")
	if n := get[int64](s, "select count(*) from wed_instance where status = 'F'"); n != 2 {
		t.Errorf("%d instances have ended, want the 2 that were begun", n)
	}
}

func TestAbortOfABatchLeavesAllOfIt(t *testing.T) {
	s := newServer(t, oneStep)
	s.insert(10, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	running := make(chan struct{}, 10)
	var calls atomic.Int64
	of := s.worker("work", func(ctx context.Context, _ *Job) (State, error) {
		if calls.Add(1) == 3 {
			running <- struct{}{}
			<-ctx.Done()
		}
		return State{"v": 1}, nil
	})
	of.Batch = 10
	w := s.new(of)
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	time.AfterFunc(0, func() { ended <- w.Run(ctx) })
	receive(s, running)
	cancel()
	w.Abort()
	if err := receive(s, ended); err != nil {
		t.Errorf("Run returns %v", err)
	}
	s.exec("select wed_sql.sync('30 s')")
	if n := get[int64](s, "select count(*) from job_pool"); n != 10 {
		t.Errorf("%d jobs pend, want all 10", n)
	}
}
