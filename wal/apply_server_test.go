package wal

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lagging starts a follower, has prepare run, stops it, and returns what starts it again.
func (s *server) lagging(prepare func(*running)) (catchUp func() *running) {
	s.Helper()
	f := s.follow()
	f.ready()
	prepare(f)
	f.sync()
	f.stop()
	return func() *running {
		s.Helper()
		f := s.follow()
		f.ready()
		f.sync()
		return f
	}
}

func (s *server) state(wid int64, version int) string {
	s.Helper()
	return get[string](s, "select state::text from travel.wed_trace where wid = $1 and version = $2", wid, version)
}

func TestDDLInMidStreamIsHarmless(t *testing.T) {
	s := newServer(t)
	catchUp := s.lagging(func(*running) {})
	var wids []int64
	wids = append(wids, s.begin())
	s.exec("insert into wed_attr (aname, adv, atype) values ('n', '1', 'int'), ('Ünï \"x\"', 'v', 'text')")
	wids = append(wids, s.begin())
	s.exec("begin; insert into wed_attr (aname, atype) values ('j', 'jsonb'); insert into wed_flow (j) values ('[1]'); delete from wed_attr where aname = 'n'; insert into wed_flow (j) values ('[2]'); commit")
	wids = append(wids, wids[1]+1, wids[1]+2)
	s.exec("update wed_attr set atype = 'int' where aname = 'j' and false; delete from wed_attr where aname = 'j'")
	wids = append(wids, s.begin())
	catchUp()
	for i, want := range []string{
		`{"a1": "ready", "a2": null, "a3": null}`,
		`{"n": 1, "a1": "ready", "a2": null, "a3": null, "Ünï \"x\"": "v"}`,
		`{"j": [1], "n": 1, "a1": "ready", "a2": null, "a3": null, "Ünï \"x\"": "v"}`,
		`{"j": [2], "a1": "ready", "a2": null, "a3": null, "Ünï \"x\"": "v"}`,
		`{"a1": "ready", "a2": null, "a3": null, "Ünï \"x\"": "v"}`,
	} {
		if got := s.state(wids[i], 0); got != want {
			t.Errorf("instance %d: got %s, want %s", wids[i], got, want)
		}
	}
}

func TestAValueOutOfLineThatWasNotChangedIsInTheState(t *testing.T) {
	s := newServer(t)
	s.exec("insert into wed_attr (aname, atype) values ('doc', 'text'), ('j', 'jsonb')")
	s.exec("alter table travel.wed_flow alter doc set storage external, alter j set storage external")
	long := strings.Repeat("0123456789", 1000)
	check := func(wid int64, versions int) {
		t.Helper()
		for v := range versions {
			if !get[bool](s, "select state->>'doc' = $3 and state #>> '{j,0}' = $3 and status <> 'E' from travel.wed_trace where wid = $1 and version = $2", wid, v, long) {
				t.Errorf("instance %d, version %d: not whole", wid, v)
			}
		}
	}
	start := func() int64 {
		return get[int64](s, "insert into travel.wed_flow (doc, j) values ($1, jsonb_build_array($1::text)) returning wid", long)
	}
	f := s.follow()
	f.ready()
	streamed, lost := start(), start()
	f.sync()
	s.must(s.complete(s.conn, streamed, "tr_a2", "a2 = 'x'")) // from the trace line before
	f.sync()
	f.stop()
	s.must(s.complete(s.conn, streamed, "tr_a3", "a3 = 'x'"))
	batch := s.connect()
	s.must(pgx.BeginFunc(s.ctx, batch, func(tx pgx.Tx) error { // two states in a batch, from each other
		for _, tr := range []string{"tr_a2", "tr_a3"} {
			if _, err := tx.Exec(s.ctx, "select wed_sql.try_lock(wid, tgid), set_config('wed_sql.completes_tgid', tgid::text, true) from travel.job_pool where wid = $1 and trname = $2", lost, tr); err != nil {
				return err
			}
			if _, err := tx.Exec(s.ctx, "update travel.wed_flow set "+tr[3:]+" = 'x' where wid = $1", lost); err != nil {
				return err
			}
		}
		return nil
	}))
	f = s.follow()
	f.ready()
	f.sync()
	check(streamed, 3)
	check(lost, 3)

	// The line before is not there: the row still has the value.
	s.exec("delete from travel.wed_trace where wid = $1", streamed)
	s.must(s.complete(s.conn, streamed, "tr_final", "a2 = 'y'"))
	f.sync()
	if !get[bool](s, "select state->>'doc' = $2 from travel.wed_trace where wid = $1 and version = 3", streamed, long) {
		t.Error("the value was not found in the row")
	}
}

func TestAStateHasTheNamesThatWereInForceWhenItWasWritten(t *testing.T) {
	s := newServer(t)
	catchUp := s.lagging(func(*running) {})
	before := s.begin()
	s.exec("update wed_trig set trname = 'renamed', timeout = '1 minute' where trname = 'tr_a2'; delete from wed_trig where trname = 'tr_a3'")
	after := s.begin()
	s.exec("begin; insert into wed_trig (trname, cpred) values ('new one', 'a2 is null'); insert into wed_flow default values; commit")
	catchUp()
	s.checkTrace(before, []string{"0 R by - fires {tr_a2,tr_a3}"})
	s.checkTrace(after, []string{"0 R by - fires {renamed}"})
	s.checkTrace(after+1, []string{`0 R by - fires {renamed,"new one"}`})
	if got := get[string](s, "select string_agg(timeout::text, ' ' order by wid) from travel.job_pool where trname in ('tr_a2', 'renamed')"); got != "3 days 18:00:00 00:01:00 00:01:00" {
		t.Errorf("timeouts: %s", got)
	}
}

func TestAFlowThatIsDroppedOrRenamedStopsNoOther(t *testing.T) {
	s := newServer(t)
	for _, name := range []string{"dropped", "renamed", "emptied"} {
		s.exec("select wed_sql.create_flow('" + name + "'); set search_path = " + name + ", wed_sql; " + figure2)
	}
	everywhere := func() {
		s.exec("insert into travel.wed_flow default values; insert into emptied.wed_flow default values; insert into renamed.wed_flow default values")
	}
	f := s.follow()
	f.ready()
	everywhere()
	s.exec("insert into dropped.wed_flow default values")
	f.sync() // statements are prepared for all of them
	f.stop()
	everywhere()
	s.exec("insert into dropped.wed_flow default values")
	s.exec("select wed_sql.drop_flow('dropped')")
	f = s.follow()
	f.ready()
	f.sync()
	s.exec("alter schema renamed rename to other")
	s.exec("insert into travel.wed_flow default values; insert into other.wed_flow default values")
	f.sync()
	for flow, want := range map[string]int{"travel": 3, "other": 3, "emptied": 2} {
		if n := get[int](s, "select count(*) from "+flow+".wed_trace"); n != want {
			t.Errorf("flow %s: %d lines, want %d", flow, n, want)
		}
	}
	// Damage: a table is gone.
	s.exec("alter event trigger wed_sql_dropped disable; drop table emptied.wed_trace cascade")
	s.exec("insert into emptied.wed_flow default values; insert into travel.wed_flow default values")
	f.sync()
	if n := get[int](s, "select count(*) from travel.wed_trace"); n != 4 {
		t.Errorf("flow travel: %d lines, want 4", n)
	}
	if warning := get[string](s, "select string_agg(w, ' ') from wed_sql.warnings() w"); warning != `WED-flow "emptied" is not followed: its wed_trace is missing` {
		t.Errorf("warnings: %s", warning)
	}
}

func TestAStateThatCannotBeRecordedStopsNoOther(t *testing.T) {
	s := newServer(t)
	s.exec("alter table travel.wed_trace add check (state->>'a2' is distinct from 'poison')")
	catchUp := s.lagging(func(*running) {})
	s.exec("insert into travel.wed_flow (a2) select case when g = 17 then 'poison' end from generate_series(1, 40) g")
	s.begin()
	catchUp()
	if n := get[int](s, "select count(*) from travel.wed_trace where state <> 'null'"); n != 40 {
		t.Errorf("%d states were recorded, want 40", n)
	}
	wid := get[int64](s, "select wid from travel.wed_flow where a2 = 'poison'")
	if got := get[string](s, "select error from travel.wed_trace where wid = $1", wid); !strings.Contains(got, "violates check constraint") {
		t.Errorf("error of the poisoned line: %s", got)
	}
	s.checkJobs(wid, "tr_a3")
}

func TestJSONThatJSONBRefusesIsKeptAsText(t *testing.T) {
	s := newServer(t)
	s.exec("insert into wed_attr (aname, atype) values ('j', 'json'), ('x', 'float8'), ('n', 'numeric')")
	catchUp := s.lagging(func(*running) {})
	bad := []string{`"\u0000"`, `["\ud800"]`, `1e400000`, strings.Repeat("9", 140_000)}
	for _, j := range bad {
		s.exec("insert into travel.wed_flow (j, x, n) values ($1::text::json, 'NaN', '-Infinity')", j)
	}
	s.exec("insert into travel.wed_flow (j, n) values ('{\"a\": 1e3}', 12345678901234567890.10)")
	catchUp()
	for i, j := range bad {
		if !get[bool](s, "select state->>'j' = $2 and state->>'x' = 'NaN' and state->>'n' = '-Infinity' from travel.wed_trace where wid = $1", i+1, j) {
			t.Errorf("%.20s: %.200s", j, s.state(int64(i+1), 0))
		}
	}
	want := `{"j": {"a": 1000}, "n": 12345678901234567890.10, "x": null, "a1": "ready", "a2": null, "a3": null}`
	if got := s.state(int64(len(bad)+1), 0); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestALineThatIsThereAlreadyIsKept(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	first := s.begin()
	f.sync()
	s.exec("insert into travel.wed_trace (wid, version, state, trf, status, tstmp, pending) values ($1, 0, '{}', '{}', 'R', now(), '{}')", first+1)
	s.exec("insert into travel.wed_flow (a1) select 'ready' from generate_series(1, 3)")
	f.sync()
	if n := get[int](s, "select count(*) from travel.wed_trace where state <> '{}'"); n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
	s.checkJobs(first+2, "tr_a2", "tr_a3")
}

func TestAJobThatIsThereAlreadyIsKept(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	wid := s.begin()
	f.sync()
	s.exec("insert into travel.job_pool (wid, tgid, trname, payload, fired_at, version) select $1, tgid, trname, '{\"mine\": true}', now(), 0 from travel.wed_trig where trname = 'tr_a2'", wid+2)
	s.exec("insert into travel.wed_flow (a1) select 'ready' from generate_series(1, 3)")
	f.sync()
	s.checkJobs(wid+2, "tr_a2", "tr_a3")
	if n := get[int](s, "select count(*) from travel.job_pool where payload ? 'mine'"); n != 1 {
		t.Errorf("%d jobs were kept", n)
	}
}

// full is a database whose notification queue is full.
type full struct {
	*pgx.Conn
	refused int
}

func (f *full) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	notifies := false
	for _, q := range b.QueuedQueries {
		notifies = notifies || strings.Contains(q.SQL, "notify_listeners")
	}
	if notifies {
		f.refused++
		b.Queue("select 1 / 0") // behind everything, as PreCommit_Notify fails
		return refusing{f.Conn.SendBatch(ctx, b)}
	}
	return f.Conn.SendBatch(ctx, b)
}

type refusing struct{ pgx.BatchResults }

func (r refusing) Close() error {
	if err := r.BatchResults.Close(); code(err) != divisionByZero {
		return err
	}
	return &pgconn.PgError{Code: programLimit, Message: "too many notifications in the NOTIFY queue"}
}

func TestAFullNotificationQueueDoesNotStopTheFollower(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	wid := s.begin()
	f.sync()
	f.stop()
	conn, err := pgx.ConnectConfig(s.ctx, sessionConfig(s.config))
	s.must(err)
	t.Cleanup(func() { _ = closeConn(conn.PgConn()) })
	row, err := takeOver(s.ctx, conn)
	s.must(err)
	db := &full{Conn: conn}
	a := newApplier(db, testLog(s), row.epoch)
	relation := get[uint32](s, "select 'travel.wed_flow'::regclass::oid")
	tgid := get[int32](s, "select tgid from travel.wed_trig where trname = 'tr_a2'")
	rules := get[int64](s, "select rules_version from wed_sql.flow")
	batch := []Commit{{End: row.applied + 8, Versions: []Version{{Relation: relation, Wid: wid + 1,
		State: "{}", Stamp: Stamp{Rules: rules, Matched: []int32{tgid}}}}}}
	if _, err := a.apply(s.ctx, batch, row.applied+8); err != nil {
		t.Fatal(err)
	}
	if db.refused == 0 || !s.log.has("without notifications") {
		t.Errorf("refused %d times", db.refused)
		s.log.show()
	}
	s.checkJobs(wid+1, "tr_a2")
}
