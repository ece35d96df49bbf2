package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
)

// threeSteps is a flow whose every write has a business row, by the same commit.
const threeSteps = `
	insert into wed_attr (aname, atype, adv) values ('v', 'integer', '0');
	insert into wed_trig (trname, cpred) values ('work', 'v < 3');
	insert into wed_trig (cpred, cfinal) values ('v >= 3', true);
	create table ledger (wid bigint, v integer);
	create function enter() returns trigger language plpgsql as $$
		begin execute format('insert into %I.ledger values ($1, $2)', tg_table_schema) using new.wid, new.v; return null; end $$;
	create trigger enter after update on wed_flow for each row execute function enter();`

// where tells workers which gateways there are.
type where struct {
	mu   sync.Mutex
	urls []string
}

func (w *where) set(i int, url string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.urls[i] = url
}

func (w *where) any(n int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.urls[n%len(w.urls)]
}

// labour performs jobs until ctx ends. Whatever fails is tried at the next gateway.
func (s *server) labour(ctx context.Context, n int, at *where) error {
	w := s.worker("")
	for ; ctx.Err() == nil; n++ {
		w.url = at.any(n)
		jobs, status, p, err := w.lease(ctx, `{"wait":"2s","lease":"2s","max_jobs":2}`)
		switch {
		case err != nil || status == http.StatusServiceUnavailable || status == http.StatusNoContent:
			continue
		case status != http.StatusOK:
			return fmt.Errorf("lease: %+v", p)
		}
		for _, j := range jobs {
			if err := s.finish(ctx, w, j, &n, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish completes a job, at whatever gateway, or finds that it is not there any more.
func (s *server) finish(ctx context.Context, w *worker, j *Job, n *int, at *where) error {
	var state struct{ V int }
	if err := unmarshal(j.Payload, &state); err != nil {
		return err
	}
	for ; ctx.Err() == nil; *n++ {
		w.url = at.any(*n)
		status, p, err := w.do(ctx, j, "complete", `,"state":{"v":`+strconv.Itoa(state.V+1)+`}`)
		switch {
		case err != nil, status == http.StatusServiceUnavailable, status == http.StatusLocked:
		case status == http.StatusNoContent, status == http.StatusConflict:
			return nil
		default:
			return fmt.Errorf("complete: %+v", p)
		}
	}
	return nil
}

// underLoad has workers perform instances while harm is done, and checks that each
// has been performed, once.
func (s *server) underLoad(at *where, instances int, harm func(round int)) {
	s.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	parts, _ := group.New(ctx)
	for n := range 20 {
		parts.Go("worker", func(ctx context.Context) error { return s.labour(ctx, n, at) })
	}
	for round := range instances / 20 {
		s.exec("insert into wed_flow select from generate_series(1, 20)")
		harm(round)
	}
	s.untilAllFinal()
	stop()
	if err := parts.Wait(); err != nil {
		s.Error(err)
	}
	if n := get[int](s, "select count(*) from ledger"); n != 3*instances {
		s.Errorf("%d business rows, want %d", n, 3*instances)
	}
	if n := get[int](s, "select count(*) from (select from ledger group by wid, v) l"); n != 3*instances {
		s.Errorf("%d different business rows, want %d", n, 3*instances)
	}
	if n := get[int](s, "select count(*) from wed_trace"); n != 4*instances {
		s.Errorf("%d states, want %d", n, 4*instances)
	}
}

// someDone waits until some more jobs are done.
func (s *server) someDone(conn *pgx.Conn, more int) {
	s.Helper()
	count := func() (n int) {
		if err := conn.QueryRow(s.ctx, "select count(*) from "+s.flow+".ledger").Scan(&n); err != nil {
			s.Fatal(err)
		}
		return n
	}
	for from := count(); count() < from+more; {
	}
}

func TestGatewaysThatAreKilledLoseNothing(t *testing.T) {
	s := newServer(t, threeSteps)
	gateways := []*process{s.process("kill_0"), s.process("kill_1")}
	at := &where{urls: []string{gateways[0].url, gateways[1].url}}
	watcher := s.connect()
	s.underLoad(at, 400, func(round int) {
		s.someDone(watcher, 10)
		i := round % 2
		gateways[i].kill()
		gateways[i] = s.process(fmt.Sprintf("kill_%d", i))
		at.set(i, gateways[i].url)
	})
}

func TestGatewaysWhoseSessionsEndLoseNothing(t *testing.T) {
	s := newServer(t, threeSteps)
	at := &where{urls: []string{s.start(Config{Wakeup: time.Second}).url, s.start(Config{Wakeup: time.Second}).url}}
	watcher := s.connect()
	s.underLoad(at, 400, func(int) {
		s.someDone(watcher, 10)
		s.exec("select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and random() < 0.7", applicationName)
	})
}
