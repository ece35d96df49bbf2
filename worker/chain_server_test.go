package worker

import (
	"context"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// What a job's completion runs into must not keep the next job, which is claimed with it.
func TestAJobWhoseCompletionFailsKeepsNoOtherFromBeingDone(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow (note) select 'x' from generate_series(1, 20)")
	s.exec("select wed_sql.sync()")
	var refused atomic.Int64
	s.start(s.worker("work", func(_ context.Context, job *Job) (State, error) {
		if job.WID%3 == 0 && refused.Add(1) <= 6 {
			return State{"no such attribute": 1}, nil
		}
		return State{"v": 1}, nil
	}))
	s.untilAllFinal()
	if n := get[int64](s, "select count(*) from wed_trace where trw = 'work'"); n != 20 {
		t.Errorf("%d states were written, want 20", n)
	}
	// Nobody is told to have failed but those that have.
	if n := get[int64](s, "select count(*) from wed_event where event = 'failed' and wid % 3 <> 0 or event not in ('failed')"); n != 0 {
		t.Errorf("%d others have failed", n)
	}
}

// Jobs are done one after the other on one connection, until somebody else needs it.
func TestWorkThatNeverEndsKeepsNobodyFromTheConnection(t *testing.T) {
	s := newServer(t, `insert into wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into wed_trig (trname, cpred) values ('round', 'v between 0 and 9000'), ('other', 'v = -1');
		insert into wed_trig (cpred, cfinal) values ('v = -2', true);`)
	s.exec("insert into wed_flow (v) select 0 from generate_series(1, 5)")
	s.exec("select wed_sql.sync()")
	of := s.worker("round", func(_ context.Context, job *Job) (State, error) {
		var state struct{ V int }
		if err := job.Decode(&state); err != nil {
			return nil, err
		}
		return State{"v": state.V + 1}, nil
	})
	of.Connections, of.Logger = 1, quiet
	w := s.new(of)
	if err := w.Handle(s.flow, "other", returns(State{"v": -2}), Options{}); err != nil {
		t.Fatal(err)
	}
	s.startWorker(w)
	s.until("select count(*) > 100 from wed_trace where trw = 'round'")
	s.exec("insert into wed_flow (v) values (-1)")
	s.until("select exists (select from wed_instance where status = 'F')")
	if done := get[bool](s, "select bool_and(v > 9000) from wed_flow where v >= 0"); done {
		t.Error("it had to wait for all the others")
	}
}

// Who is to stop finishes what he is at, and takes nothing else.
func TestNothingIsClaimedWithTheLastJobBeforeAStop(t *testing.T) {
	s := newServer(t, oneStep)
	s.exec("insert into wed_flow (note) select 'x' from generate_series(1, 5)")
	s.exec("select wed_sql.sync()")
	running, goOn := make(chan struct{}), make(chan struct{})
	w := s.new(s.worker("work", func(ctx context.Context, _ *Job) (State, error) {
		select {
		case running <- struct{}{}:
			<-goOn
		case <-ctx.Done():
		}
		return State{"v": 1}, nil
	}))
	ctx, cancel := context.WithCancel(s.ctx)
	var group errgroup.Group
	group.Go(func() error { return w.Run(ctx) })
	receive(s, running)
	cancel()
	close(goOn)
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	s.exec("select wed_sql.sync()")
	if got := get[string](s, "select count(*) || ' left, ' || coalesce(sum(attempts), 0) || ' attempts' from job_pool"); got != "4 left, 0 attempts" {
		t.Errorf("%s, want 4 left, 0 attempts", got)
	}
	if n := get[int64](s, "select count(*) from wed_event"); n != 0 {
		t.Errorf("%d events, want none", n)
	}
}
