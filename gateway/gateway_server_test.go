package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
)

func TestAJobIsLeasedExtendedAndCompleted(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{}).url)
	if jobs, status, p, err := w.lease(s.ctx, ``); err != nil || status != http.StatusNoContent || len(jobs) != 0 {
		t.Fatalf("nothing is there, but: %d %+v, %v", status, p, err)
	}
	s.exec("insert into wed_flow (note) values ('<ö>')")
	s.exec("select wed_sql.sync()")
	j := s.mustLease(w, `{"lease":"10s"}`)
	if j.WID != 1 || j.TrName != "work" || j.Lckid == "" || j.Attempts != 0 || j.FiredAt.IsZero() ||
		!strings.Contains(string(j.Payload), `"<ö>"`) || time.Until(j.LeasedUntil) > 10*time.Second {
		t.Errorf("job %+v, payload %s", j, j.Payload)
	}
	var until struct {
		LeasedUntil time.Time `json:"leased_until"`
	}
	status, p, err := w.ask(s.ctx, fmt.Sprintf("/jobs/%d/%d/extend", j.WID, j.TGID), fmt.Sprintf(`{"lckid":%q,"lease":600}`, j.Lckid), &until)
	if err != nil || status != http.StatusOK || time.Until(until.LeasedUntil) < 9*time.Minute {
		t.Errorf("extend: %d %+v, %v; until %s", status, p, err, until.LeasedUntil)
	}
	s.mustDo(w, j, "complete", `,"state":{"v":1,"note":"done"}`)
	s.untilAllFinal()
	if note := get[string](s, "select note from wed_flow"); note != "done" {
		t.Errorf("note %q", note)
	}
}

func TestAWorkerThatWaitsGetsWhatIsFired(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	got := make(chan *Job)
	parts, _ := group.New(s.ctx)
	parts.Go("worker", func(ctx context.Context) error {
		defer close(got)
		for range 3 {
			jobs, status, p, err := w.lease(ctx, `{"wait":"1m"}`)
			if err != nil || status != http.StatusOK || len(jobs) != 1 {
				return fmt.Errorf("lease: %d %+v, %w", status, p, err)
			}
			got <- jobs[0]
		}
		return nil
	})
	for i := range 3 {
		s.untilWaiting(g, 1)
		s.exec("insert into wed_flow default values")
		if j := <-got; j == nil || j.WID != int64(i+1) {
			t.Errorf("job %+v, want instance %d", j, i+1)
		}
	}
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsFailedIsTriedAgainAndWhatIsReleasedIsFree(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{}).url)
	s.exec("insert into wed_flow default values")
	j := s.mustLease(w, `{"wait":"1m"}`)
	s.mustDo(w, j, "fail", `,"error":"no\u0000 luck"`)
	j = s.mustLease(w, `{"wait":"1m"}`)
	if j.Attempts != 1 || j.LastError == nil || *j.LastError != "no luck" {
		t.Errorf("after a failure: %+v", j)
	}
	s.mustDo(w, j, "release", ``)
	if j = s.mustLease(w, `{"wait":"1m"}`); j.Attempts != 1 {
		t.Errorf("after a release: %+v", j)
	}
}

func TestWhoseLeaseHasEndedIsTold(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{}).url)
	s.exec("insert into wed_flow default values")
	stale := s.mustLease(w, `{"wait":"1m","lease":"1ms"}`)
	j := s.mustLease(w, `{"wait":"1m"}`) // when the engine has seen it
	for what, more := range map[string]string{"extend": ``, "complete": `,"state":{"v":1}`, "fail": `,"error":"x"`, "release": ``} {
		status, p, err := w.do(s.ctx, stale, what, more)
		s.refused(what, status, p, err, http.StatusConflict, stateLeased)
	}
	s.mustDo(w, j, "complete", `,"state":{"v":1}`)
	s.untilAllFinal()
	status, p, err := w.do(s.ctx, j, "complete", `,"state":{"v":1}`)
	s.refused("twice", status, p, err, http.StatusConflict, stateNotPending)
}

func TestAJobWhoseWorkerHasGoneIsGivenToAnother(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	// The lease is long: who gets the job within the test has got it because it was released.
	for range 20 {
		ctx, leave := context.WithCancel(s.ctx)
		parts, _ := group.New(s.ctx)
		for range 5 {
			parts.Go("impatient", func(context.Context) error {
				for ctx.Err() == nil { // it may get what the last round has left
					_, _, _, _ = w.lease(ctx, `{"wait":"1m","lease":"1h"}`)
				}
				return nil
			})
		}
		s.untilWaiting(g, 5)
		s.exec("insert into wed_flow default values")
		leave()
		if err := parts.Wait(); err != nil {
			t.Fatal(err)
		}
		s.untilWaiting(g, 0)
	}
	// What they were sent just before they left is theirs, until their leases end.
	theirs := get[int](s, "select count(*) from job_pool where lckid is not null")
	for range 20 - theirs {
		s.mustLease(w, `{"wait":"1m","lease":"1h"}`)
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	s := newServer(t, oneStep+`
		alter table wed_flow add constraint small check (v < 1000);
		insert into wed_attr (aname, atype) values ('never', 'boolean');`)
	g := s.start(Config{})
	w := s.worker(g.url)
	s.exec("insert into wed_flow default values")
	j := s.mustLease(w, `{"wait":"1m"}`)
	for state, sqlstate := range map[string]string{
		`{"v":"many"}`:      "22P02",
		`{"v":1000}`:        "23514",
		`{"nothing":1}`:     "42703",
		`{"note":"\u0000"}`: "22P05",
		`{"wid":9}`:         "WED05",
	} {
		status, p, err := w.do(s.ctx, j, "complete", `,"state":`+state)
		s.refused(state, status, p, err, http.StatusUnprocessableEntity, sqlstate)
		if p.Message == "" {
			t.Errorf("%s: no message: %+v", state, p)
		}
	}
	s.mustDo(w, j, "complete", `,"state":{"v":1}`) // nothing of it was written
	other := *w
	other.flow = "no_such_flow"
	_, status, p, err := other.lease(s.ctx, ``)
	s.refused("flow", status, p, err, http.StatusNotFound, "42704")
	_, status, p, err = other.lease(s.ctx, `{"wait":"1m"}`)
	s.refused("flow", status, p, err, http.StatusNotFound, "42704")
	other = *w
	other.transition = "no_such_transition"
	_, status, p, err = other.lease(s.ctx, `{"wait":"1m"}`)
	s.refused("transition", status, p, err, http.StatusNotFound, "42704")
}

// What fails only when it commits was not done, and must not be said to be.
func TestACompletionThatFailsAtItsCommitIsRefused(t *testing.T) {
	s := newServer(t, oneStep+`
		create function no() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$;
		create constraint trigger no after update on wed_flow deferrable initially deferred for each row execute function no();`)
	w := s.worker(s.start(Config{}).url)
	s.exec("insert into wed_flow default values")
	j := s.mustLease(w, `{"wait":"1m"}`)
	status, p, err := w.do(s.ctx, j, "complete", `,"state":{"v":1}`)
	s.refused("complete", status, p, err, http.StatusUnprocessableEntity, "P0001")
	if p.Message != "not now" {
		t.Errorf("%+v", p)
	}
}

func TestDrainingSendsWorkersAwayAndReleasesWhatTheyDidNotGet(t *testing.T) {
	s := newServer(t, oneStep)
	g := s.start(Config{})
	w := s.worker(g.url)
	s.exec("insert into wed_flow default values")
	j := s.mustLease(w, `{"wait":"1m","lease":"1h"}`)
	parts, _ := group.New(s.ctx)
	for range 5 {
		parts.Go("worker", func(ctx context.Context) error {
			if _, status, p, err := w.lease(ctx, `{"wait":"1m"}`); err != nil || status != http.StatusNoContent {
				return fmt.Errorf("lease: %d %+v, %w", status, p, err)
			}
			return nil
		})
	}
	s.untilWaiting(g, 5)
	// A completion that waits is finished.
	other := s.connect()
	if _, err := other.Exec(s.ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(s.ctx, "lock table "+s.flow+".wed_flow in share mode"); err != nil {
		t.Fatal(err)
	}
	parts.Go("completion", func(ctx context.Context) error {
		if status, p, err := w.do(ctx, j, "complete", `,"state":{"v":1}`); err != nil || status != http.StatusNoContent {
			return fmt.Errorf("complete: %d %+v, %w", status, p, err)
		}
		return nil
	})
	for !get[bool](s, "select exists (select from pg_locks where not granted and relation = to_regclass('wed_flow'))") {
	}
	stopped, _ := group.New(s.ctx)
	stopped.Go("stop", func(context.Context) error { g.stop(); return nil })
	for g.dispatch.ready() != errDraining {
		time.Sleep(time.Millisecond)
	}
	if _, err := other.Exec(s.ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
	_ = stopped.Wait()
	s.untilAllFinal()
	for get[bool](s, "select exists (select from pg_stat_activity where application_name = $1)", applicationName) {
	}
}

func TestRolesAreHeldToTheirRights(t *testing.T) {
	s := newServer(t, oneStep)
	role, gatekeeper := "gateway_test_worker", "gateway_test_gateway"
	drop := func() {
		s.exec("drop role if exists " + role)
		s.exec("drop role if exists " + gatekeeper)
	}
	drop()
	s.exec("create role " + role)
	s.exec("create role " + gatekeeper + " login noinherit in role " + role)
	s.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), s.dsn)
		if err != nil {
			t.Error(err)
			return
		}
		defer hangUp(conn)
		for _, sql := range []string{"select wed_sql.revoke_worker('" + s.flow + "', 'work', '" + role + "')",
			"drop owned by " + role, "drop role " + gatekeeper, "drop role " + role} {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	})
	worker, tokens := s.tokens(entry{Name: "with", Allow: []string{"*/*"}, Role: role},
		entry{Name: "without", Allow: []string{"*/*"}}, entry{Name: "stranger", Allow: []string{"*/*"}, Role: "pg_monitor"})
	g := s.start(Config{DSN: s.dsn + " user=" + gatekeeper, Tokens: tokens})
	w := s.worker(g.url)
	s.exec("insert into wed_flow default values")
	s.exec("select wed_sql.sync()")

	w.token = worker[0]
	_, status, p, err := w.lease(s.ctx, `{"wait":"1m"}`)
	s.refused("not granted", status, p, err, http.StatusForbidden, stateNoPrivilege)
	s.exec("select wed_sql.grant_worker($1, 'work', $2)", s.flow, role)
	w.token = worker[1]
	_, status, p, err = w.lease(s.ctx, `{"wait":"1m"}`)
	s.refused("the gateway itself", status, p, err, http.StatusForbidden, stateNoPrivilege)
	w.token = worker[2]
	_, status, p, err = w.lease(s.ctx, ``)
	s.refused("another's role", status, p, err, http.StatusForbidden, stateNoPrivilege)

	w.token = worker[0]
	j := s.mustLease(w, `{"wait":"1m"}`)
	if by := get[string](s, "select leased_by from job_pool"); by != role {
		t.Errorf("leased by %s", by)
	}
	s.mustDo(w, j, "complete", `,"state":{"v":1}`)
	s.untilAllFinal()
}

func TestTextsAreUTF8WhateverTheServerSpeaks(t *testing.T) {
	s := newServer(t, oneStep)
	w := s.worker(s.start(Config{DSN: s.dsn + " options='-c client_encoding=LATIN1'"}).url)
	s.exec("insert into wed_flow (note) values ('naïf')")
	s.exec("select wed_sql.sync()")
	j := s.mustLease(w, `{"lease":"10s"}`)
	if !strings.Contains(string(j.Payload), "naïf") {
		t.Errorf("the payload is %q", j.Payload)
	}
	s.mustDo(w, j, "complete", `,"state":{"v":1,"note":"Größe"}`)
	s.untilAllFinal()
	if note := get[string](s, "select note from wed_flow"); note != "Größe" {
		t.Errorf("written was %q", note)
	}
}
