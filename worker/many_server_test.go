package worker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// figure2 is the paper's flow of that figure: two transitions side by side, and a last one.
const figure2 = `
	insert into wed_attr (aname, adv) values ('a1', 'ready'), ('a2', null), ('a3', null);
	insert into wed_trig (trname, cpred) values
		('tr_a2', 'a1 = ''ready'' and a2 is null'),
		('tr_a3', 'a1 = ''ready'' and a3 is null'),
		('tr_final', 'a1 = ''ready'' and a2 is not null and a3 is not null');
	insert into wed_trig (cpred, cfinal) values ('a1 <> ''ready''', true);`

var figure2States = map[string]State{"tr_a2": {"a2": "done"}, "tr_a3": {"a3": "done"}, "tr_final": {"a1": "done"}}

// sessions are those of a worker of the flow, by the application's name.
const sessions = "from pg_stat_activity where application_name = $1"

func TestWorkerOfManyTransitionsHasOneConnectionThatListens(t *testing.T) {
	s := newServer(t, figure2)
	second := s.flow + "_2"
	s.define(second, figure2)
	s.exec("select set_config('search_path', $1, false)", s.flow)

	of := s.worker("", nil)
	name := "test " + s.flow
	of.DSN += " application_name='" + name + "'"
	w, err := New(of.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, flow := range []string{s.flow, second} {
		for transition, state := range figure2States {
			if err := w.Handle(flow, transition, returns(state), Options{Concurrency: 4}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.startWorker(w)
	s.until("select count(*) = 1 "+sessions+" and query like 'listen %'", name)
	for range 20 { // one after the other
		s.exec("insert into wed_flow default values")
		s.exec("insert into " + second + ".wed_flow default values")
		s.untilAllFinal()
		s.until("select not exists (select from " + second + ".wed_instance where status <> 'F' or since is null)")
	}
	if n := get[int64](s, "select count(*) "+sessions+" and query like 'listen %'", name); n != 1 {
		t.Errorf("%d sessions listen, want 1", n)
	}
	// 24 jobs might run side by side; never more than these two flows' four did.
	if n := get[int64](s, "select count(*) "+sessions, name); n > 24/2 {
		t.Errorf("%d connections", n)
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	s := newServer(t, oneStep)
	var running, most atomic.Int64
	of := s.worker("work", func(context.Context, *Job) (State, error) {
		n := running.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		running.Add(-1)
		return State{"v": 1}, nil
	})
	of.Concurrency, of.Connections, of.Logger = 20, 3, quiet
	s.insert(50, "insert into wed_flow (note) select 'x' from generate_series(1, $1)")
	s.start(of)
	s.untilAllFinal()
	if n := most.Load(); n > 3 {
		t.Errorf("%d jobs ran side by side on 3 connections", n)
	}
	if n := get[int64](s, "select count(*) from pg_stat_activity where application_name like 'wed_sql worker ' || $1 || '%'", s.flow); n > 4 {
		t.Errorf("%d connections", n)
	}
}

// All sessions of a worker are ended, again and again, while it works.
func TestWorkerThatLosesItsConnectionsLosesAndDoublesNothing(t *testing.T) {
	const instances, cuts = 600, 25
	for name, o := range map[string]Options{
		"jobs":    {Concurrency: 3},
		"batches": {Concurrency: 2, Batch: 10},
		"leases":  {Concurrency: 3, Lease: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := newNamedServer(t, "cut_"+name, figure2+ledger)
			of := s.worker("", nil)
			application := "cut " + name
			of.DSN += " application_name='" + application + "'"
			of.Logger = quiet
			of.Wakeup = time.Second
			w, err := New(of.Config)
			if err != nil {
				t.Fatal(err)
			}
			for transition, state := range figure2States {
				if err := w.Handle(s.flow, transition, s.enterLater(state), o); err != nil {
					t.Fatal(err)
				}
			}
			s.insert(instances/2, "insert into wed_flow (a2) select null from generate_series(1, $1)")
			s.startWorker(w)
			s.until("select count(*) = 1 "+sessions+" and query like 'listen %'", application) // it has begun
			for range cuts {
				s.insert(instances/2/cuts, "insert into wed_flow (a2) select null from generate_series(1, $1)")
				time.Sleep(rand.N(50 * time.Millisecond)) // at any point
				s.exec("select pg_terminate_backend(pid) "+sessions, application)
			}
			s.untilAllFinal()
			if n := get[int64](s, "select count(*) from wed_trace"); n != 4*instances {
				t.Errorf("%d states, want %d", n, 4*instances)
			}
			if n := get[int64](s, `select count(*) from (select from ledger group by wid, transition having count(*) = 1) x`); n != 3*instances {
				t.Errorf("%d jobs have one row of the handler, want %d", n, 3*instances)
			}
			if n := get[int64](s, "select count(*) from ledger"); n != 3*instances {
				t.Errorf("%d rows of handlers, want %d", n, 3*instances)
			}
		})
	}
}

// What is fired while nobody listens is found without waiting for a wake-up.
func TestAfterAReconnectThePoolIsReadForAllTransitions(t *testing.T) {
	s := newServer(t, parallel)
	s.exec("update wed_trig set cpred = 'l = 1 and r = 1' where cfinal")
	name := "test " + s.flow
	of := s.worker("", nil)
	of.DSN += " application_name='" + name + "'"
	w, err := New(of.Config)
	if err != nil {
		t.Fatal(err)
	}
	for transition, state := range map[string]State{"left": {"l": 1}, "right": {"r": 1}} {
		if err := w.Handle(s.flow, transition, returns(state), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	s.startWorker(w)
	for range 5 {
		s.until("select count(*) = 1 "+sessions+" and query like 'listen %'", name)
		s.exec("select pg_terminate_backend(pid) "+sessions, name)
		s.exec("insert into wed_flow default values")
		s.untilAllFinal()
	}
}

func TestSignals(t *testing.T) {
	s := newServer(t, oneStep)
	for _, twice := range []bool{false, true} {
		running, goOn := make(chan struct{}), make(chan struct{})
		draining := make(chan struct{}, 2)
		of := s.worker("work", func(ctx context.Context, _ *Job) (State, error) {
			running <- struct{}{}
			if twice {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			<-goOn
			return State{"v": 1}, ctx.Err()
		})
		of.Logger = watchLog("told to stop, will finish what runs", draining)
		w := s.new(of)
		ended := make(chan error, 1)
		time.AfterFunc(0, func() { ended <- RunUntilSignal(s.ctx, w, syscall.SIGUSR1) })
		if !twice {
			s.exec("insert into wed_flow default values")
		} else {
			s.exec("insert into wed_flow (note) values ('aborted')")
		}
		receive(s, running)
		signalMyself(t)
		receive(s, draining)
		if twice {
			signalMyself(t)
		} else {
			close(goOn)
		}
		if err := receive(s, ended); err != nil {
			t.Errorf("it returns %v", err)
		}
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select string_agg(status::text || coalesce(note, ''), ',' order by wid) from wed_flow join wed_instance using (wid)"); got != "F,Raborted" {
		t.Errorf("the instances are %s", got)
	}
}

func signalMyself(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
}

// watchLog is a logger that tells when a message is logged.
func watchLog(message string, c chan<- struct{}) *slog.Logger {
	return slog.New(&watcher{Handler: slog.DiscardHandler, message: message, seen: c})
}

type watcher struct {
	slog.Handler
	message string
	seen    chan<- struct{}
}

func (w *watcher) Enabled(context.Context, slog.Level) bool { return true }
func (w *watcher) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *watcher) Handle(_ context.Context, r slog.Record) error {
	if r.Message == w.message {
		w.seen <- struct{}{}
	}
	return nil
}
