package wal

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func testLog(s *server) *slog.Logger { return slog.New(s.log) }

func TestInstancesFromBeforeTheFirstFollowerAreHealed(t *testing.T) {
	s := newServer(t)
	s.exec("insert into travel.wed_flow (a1) select 'ready' from generate_series(1, 1200)") // more than a chunk
	done := get[int64](s, "insert into travel.wed_flow (a1) values ('done') returning wid")
	f := s.follow()
	f.ready()
	f.sync()
	if n := get[int](s, "select count(*) from travel.wed_trace where version = 0 and not healed and trf = '{tr_a2,tr_a3}'"); n != 1200 {
		t.Errorf("%d lines, want 1200", n)
	}
	if n := get[int](s, "select count(*) from travel.job_pool"); n != 2400 {
		t.Errorf("%d jobs, want 2400", n)
	}
	s.checkTrace(done, []string{"0 F by - fires {}"})
}

func TestALostSlotIsHealedFromTheTables(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	untouched, one, both := s.begin(), s.begin(), s.begin()
	f.sync()
	f.stop()
	s.must(s.complete(s.conn, one, "tr_a2", "a2 = 'x'"))
	s.must(s.complete(s.conn, both, "tr_a2", "a2 = 'x'"))
	s.must(s.complete(s.conn, both, "tr_a3", "a3 = 'y'"))
	fresh := s.begin()
	s.must(DropSlot(s.ctx, s.conn, s.oid))
	after := s.begin()
	// as if the server's clock had been wrong then
	s.exec("update travel.wed_trace set tstmp = tstmp + interval '1 hour' where wid = $1", both)

	f = s.follow()
	f.ready()
	last := s.begin()
	f.sync()
	s.checkTrace(untouched, figure2Trace[:1])
	s.checkTrace(one, figure2Trace[:2]) // no line is missing
	s.checkTrace(both, []string{figure2Trace[0], figure2Trace[2] + " healed"})
	for _, wid := range []int64{fresh, after, last} {
		s.checkTrace(wid, figure2Trace[:1])
		s.checkJobs(wid, "tr_a2", "tr_a3")
	}
	s.checkJobs(untouched, "tr_a2", "tr_a3")
	s.checkJobs(one, "tr_a3")
	s.checkJobs(both, "tr_final")
	s.must(s.complete(s.conn, both, "tr_final", "a1 = 'done'"))
	f.sync()
	s.checkTrace(both, []string{figure2Trace[0], figure2Trace[2] + " healed", figure2Trace[3]})
	s.judge("travel")
	if !s.log.has("replication slot is missing") {
		s.log.show()
		t.Error("nobody was told")
	}
}

// What is written while the slot is made is either healed or streamed.
func TestNothingIsLostOrDoubledWhileItHeals(t *testing.T) {
	s := newServer(t)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	writer := s.connect()
	written := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(time.Millisecond): // all that is there is healed each time
			}
			if _, err := writer.Exec(s.ctx, "insert into travel.wed_flow default values"); err != nil {
				stopped <- err
				return
			}
			written++
		}
	}()
	f := s.follow()
	for range 6 {
		f.ready()
		f.sync()
		f.stop()
		s.must(DropSlot(s.ctx, s.conn, s.oid))
		f = s.follow()
	}
	f.ready()
	close(stop)
	s.must(<-stopped)
	f.sync()
	if n := get[int](s, "select count(*) from travel.wed_trace where trf = '{tr_a2,tr_a3}'"); n != written {
		t.Errorf("%d lines, want %d", n, written)
	}
	if n := get[int](s, "select count(*) from travel.job_pool"); n != 2*written {
		t.Errorf("%d jobs, want %d", n, 2*written)
	}
}

func TestASlotThatIsAheadOfTheTablesIsMadeAnew(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	wid := s.begin()
	f.sync()
	f.stop()
	s.must(s.complete(s.conn, wid, "tr_a2", "a2 = 'x'"))
	s.must(whileInUse(s.ctx, func() error {
		_, err := s.conn.Exec(s.ctx, "select pg_replication_slot_advance($1, pg_current_wal_lsn())", SlotName(s.oid))
		return err
	}))
	f = s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, figure2Trace[:2])
	s.checkJobs(wid, "tr_a3")
}

func TestARestoredDatabaseIsFollowedAnew(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	wid := s.begin()
	f.sync()
	f.stop()
	s.must(s.complete(s.conn, wid, "tr_a2", "a2 = 'x'"))
	// As if the tables came from the backup of another cluster.
	s.exec("update wed_sql.follower set system_identifier = system_identifier + 1")
	f = s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, figure2Trace[:2])
	if !s.log.has("copied from another cluster") {
		t.Error("nobody was told")
	}
}

func TestAFlowThatCannotBeHealedIsTriedAgain(t *testing.T) {
	s := newServer(t)
	wid := s.begin()
	s.exec("create function travel.no() returns trigger language plpgsql as 'begin raise exception $$not today$$; end'; create trigger no before insert on travel.job_pool for each row execute function travel.no()")
	recheck := make(chan struct{})
	f := s.follow(func(c *Settings) { c.Recheck = recheck })
	f.ready()
	f.sync()
	if warning := s.warnings(); !strings.Contains(warning, `WED-flow "travel" is not followed: not today`) {
		t.Errorf("warnings: %s", warning)
	}
	s.exec("drop trigger no on travel.job_pool")
	recheck <- struct{}{}
	s.healthy()
	s.checkTrace(wid, figure2Trace[:1])
	s.judge("travel")
}

func (s *server) warnings() string {
	s.Helper()
	return get[string](s, "select coalesce(string_agg(w, ' '), '') from wed_sql.warnings() w")
}

// healthy waits until all flows are followed.
func (s *server) healthy() {
	s.Helper()
	for s.warnings() != "" {
		if s.ctx.Err() != nil {
			s.Fatal("not within the test's time")
		}
	}
}

// judge compares a flow with what its instances and Algorithm 1 say.
func (s *server) judge(flow string) {
	s.Helper()
	for what, sql := range map[string]string{
		"current states without a line": `select count(*) from FLOW.wed_flow f
			where not exists (select from FLOW.wed_trace t where t.wid = f.wid and t.version = (f._stamp).version)`,
		"instances whose jobs are not what pends": `select count(*) from FLOW.wed_flow f join FLOW.wed_trace t on t.wid = f.wid and t.version = (f._stamp).version
			where t.pending <> array(select j.tgid from FLOW.job_pool j where j.wid = f.wid order by 1)`,
		"lines that say healed without a gap, or the reverse": `select count(*) from FLOW.wed_trace t
			where healed <> (version > 0 and not exists (select from FLOW.wed_trace p where p.wid = t.wid and p.version = t.version - 1))`,
		"times that are not in order": `select count(*) from FLOW.wed_trace a join FLOW.wed_trace b on a.wid = b.wid and a.version < b.version and a.tstmp >= b.tstmp`,
	} {
		if n := get[int](s, strings.ReplaceAll(sql, "FLOW", flow)); n != 0 {
			s.log.show()
			s.Errorf("flow %s: %d %s", flow, n, what)
		}
	}
}

// A restored backup brings flows that the stream has brought nothing of.
func TestAFlowThatIsNotFollowedIsHealedWhileItGoesOn(t *testing.T) {
	s := newServer(t)
	s.exec("insert into travel.wed_flow (a1) select 'ready' from generate_series(1, 3000)")
	recheck := make(chan struct{})
	f := s.follow(func(c *Settings) { c.Recheck = recheck })
	f.ready()
	f.sync()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	writer := s.connect()
	go func() {
		for wid := int64(1); ; wid++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			for _, step := range [][2]string{{"tr_a2", "a2 = 'x'"}, {"tr_a3", "a3 = 'x'"}} {
				if err := s.complete(writer, wid, step[0], step[1]); err != nil {
					stopped <- err
					return
				}
			}
			if _, err := writer.Exec(s.ctx, "insert into travel.wed_flow default values"); err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 10 {
		s.exec("update wed_sql.followed set since = null")
		recheck <- struct{}{}
		s.healthy()
	}
	close(stop)
	s.must(<-stopped)
	f.sync()
	s.judge("travel")
	if !s.log.has("was healed") {
		t.Error("nothing was healed")
	}
}

// The stream may be behind what healing has seen: what it brings then is not new.
func TestAStateThatWasHealedIsNotTakenFromTheStreamAgain(t *testing.T) {
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
	const since = LSN(1 << 50)
	s.exec("insert into travel.wed_trace (wid, version, state, trf, status, tstmp, pending, healed) values ($1, 2, '{}', '{}', 'R', now(), '{}', true)", wid)
	s.exec("update wed_sql.followed set since = $1::text::pg_lsn", since.String())
	tgid := get[int32](s, "select tgid from travel.wed_trig where trname = 'tr_final'")
	state := func(at LSN, version int64) Commit {
		return Commit{At: at, End: at + 8, Versions: []Version{{Relation: get[uint32](s, "select 'travel.wed_flow'::regclass::oid"), Wid: wid, State: "{}",
			Stamp: Stamp{Version: version, Rules: get[int64](s, "select rules_version from wed_sql.flow"), Matched: []int32{tgid}}}}}
	}
	a := newApplier(conn, testLog(s), row.epoch)
	a.dedupe = false // nothing is left of a restart
	if _, err := a.apply(s.ctx, []Commit{state(since-8, 1)}, since); err != nil {
		t.Fatal(err)
	}
	s.checkTrace(wid, []string{figure2Trace[0], "2 R by - fires {} healed"})
	s.checkJobs(wid, "tr_a2", "tr_a3")
	if _, err := a.apply(s.ctx, []Commit{state(since, 3)}, since+16); err != nil {
		t.Fatal(err)
	}
	s.checkTrace(wid, []string{figure2Trace[0], "2 R by - fires {} healed", "3 R by - fires {tr_final}"})
}

func TestAFlowThatIsLockedStopsNoOther(t *testing.T) {
	s := newServer(t)
	s.exec("select wed_sql.create_flow('other'); set search_path = other, wed_sql; " + figure2)
	s.exec("insert into other.wed_flow default values")
	locker := s.connect()
	hold := func(table string) func() {
		_, err := locker.Exec(s.ctx, "begin; lock table "+table)
		s.must(err)
		return func() {
			_, err := locker.Exec(s.ctx, "rollback")
			s.must(err)
		}
	}
	recheck := make(chan struct{})

	f := s.follow(func(c *Settings) { c.Recheck = recheck })
	f.ready()
	f.stop()
	s.exec("insert into other.wed_flow default values; update wed_sql.followed set since = null")
	release := hold("other.wed_flow")
	f = s.follow(func(c *Settings) { c.Recheck = recheck })
	f.ready()
	wid := s.begin()
	f.sync()
	s.checkTrace(wid, figure2Trace[:1])
	if !strings.Contains(s.warnings(), `WED-flow "other" is not followed: canceling statement due to lock timeout`) {
		t.Errorf("warnings: %s", s.warnings())
	}
	release()
	recheck <- struct{}{}
	s.healthy()
	s.judge("other")

	// Only the extension's owner can lock these: he is waited for, and no line is lost.
	healed := get[int](s, "select count(*) from other.wed_trace where healed")
	for _, table := range []string{"other.wed_trace", "other.job_pool"} {
		release = hold(table)
		s.exec("insert into other.wed_flow default values; insert into travel.wed_flow default values")
		for !get[bool](s, "select exists (select from pg_locks where not granted and relation = $1::regclass)", table) {
		}
		release()
		f.sync()
		s.judge("other")
		s.judge("travel")
	}
	if n := get[int](s, "select count(*) from other.wed_trace where healed"); n != healed {
		t.Errorf("%d healed lines, want %d", n, healed)
	}
	if n := get[int](s, "select count(*) from other.wed_trace"); n != 4 {
		t.Errorf("%d lines, want 4", n)
	}
}

func TestAFlowThatLeavesThePublicationIsHealedWhenItIsBack(t *testing.T) {
	s := newServer(t)
	recheck := make(chan struct{})
	f := s.follow(func(c *Settings) { c.Recheck = recheck })
	f.ready()
	wid := s.begin()
	f.sync()
	s.exec("alter publication wed_sql drop table travel.wed_flow")
	s.must(s.complete(s.conn, wid, "tr_a2", "a2 = 'x'"))
	s.must(s.complete(s.conn, wid, "tr_a3", "a3 = 'x'"))
	if !strings.Contains(s.warnings(), "not in publication") {
		t.Errorf("warnings: %s", s.warnings())
	}
	s.exec("alter publication wed_sql add table travel.wed_flow")
	recheck <- struct{}{}
	s.healthy()
	s.judge("travel")
	s.checkTrace(wid, []string{figure2Trace[0], figure2Trace[2] + " healed"})
	s.must(s.complete(s.conn, wid, "tr_final", "a1 = 'done'"))
	f.sync()
	s.judge("travel")
}

// A server's commits must not wait for a standby that waits for them.
func TestTheFollowerRefusesToBeASynchronousStandby(t *testing.T) {
	s := newServer(t)
	set := func(names string) {
		s.exec("alter system set synchronous_standby_names = '" + names + "'")
		s.exec("select pg_reload_conf()")
	}
	t.Cleanup(func() { s.end("alter system reset synchronous_standby_names"); s.end("select pg_reload_conf()") })
	for _, names := range []string{"*", "FIRST 1 (nobody, *)", "any 2 ( nobody , \"WED_SQL engine\" )"} {
		set(names)
		for get[string](s, "show synchronous_standby_names") != names {
		}
		f := s.follow()
		if err := f.ended(); !errors.Is(err, errSynchronous) {
			t.Errorf("%s: Follow: %v", names, err)
		}
	}
	set("nobody, wed_sql")
	for get[string](s, "show synchronous_standby_names") != "nobody, wed_sql" {
	}
	s.exec("set synchronous_commit = local")
	if err := checkSynchronous(s.ctx, s.conn, 0); err != nil {
		t.Errorf("a name that is not the engine's: %v", err)
	}
}

func TestAnExceptionIsHealed(t *testing.T) {
	s := newServer(t)
	s.exec("insert into wed_trig (trname, cpred) values ('tr_bad', $$case when a2 = 'bad' then 1 / length(replace(a3, 'zero', '')) > 0 end$$)")
	f := s.follow()
	f.ready()
	wid := s.begin()
	f.sync()
	f.stop()
	s.must(s.complete(s.conn, wid, "tr_a3", "a3 = 'zero'"))
	s.must(s.complete(s.conn, wid, "tr_a2", "a2 = 'bad'"))
	s.must(DropSlot(s.ctx, s.conn, s.oid))
	f = s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, []string{figure2Trace[0], "2 E by tr_a2 fires {_EXCPT} healed"})
	s.checkJobs(wid, "_EXCPT")
	if got := get[string](s, "select error from travel.wed_trace where wid = $1 and version = 2", wid); got == "" {
		t.Error("no error in the trace")
	}
}

func TestSlotsAreDropped(t *testing.T) {
	s := newServer(t)
	f := s.follow()
	f.ready()
	f.stop()
	s.must(DropSlot(s.ctx, s.conn, s.oid))
	s.must(DropSlot(s.ctx, s.conn, s.oid)) // once more: it is not there
	if n := get[int](s, "select count(*) from pg_replication_slots where slot_name = $1", SlotName(s.oid)); n != 0 {
		t.Error("it is still there")
	}
}

// What a flow's owner has put into his table runs as the owner, if at all.
func TestHealingGivesAFlowsOwnerNoPower(t *testing.T) {
	s := newServer(t)
	s.exec("drop role if exists wal_test_mallory; create role wal_test_mallory; grant create on database " + pgx.Identifier{s.config.Database}.Sanitize() + " to wal_test_mallory")
	t.Cleanup(func() { s.end("drop owned by wal_test_mallory cascade; drop role wal_test_mallory") })
	s.exec(`grant usage on schema wed_sql to wal_test_mallory; grant execute on all functions in schema wed_sql to wal_test_mallory;
set role wal_test_mallory;
select wed_sql.create_flow('evil');
set search_path = evil;
insert into wed_attr (aname, adv) values ('a', '1');
insert into wed_trig (trname, cpred) values ('go', 'a is not null');
create function evil.noisy(i int) returns int language plpgsql immutable as $$
begin
    if current_user <> 'wal_test_mallory' then
        raise exception 'runs as %', current_user;
    end if;
    return i;
end $$;
create index on evil.wed_flow (evil.noisy(1), a);
insert into wed_flow default values;
reset role`)
	f := s.follow()
	f.ready()
	f.sync()
	if n := get[int](s, "select count(*) from evil.wed_trace"); n != 1 {
		s.log.show()
		t.Errorf("%d lines, want 1", n)
	}
}

func TestAFlowThatCannotBeReadStopsNoOther(t *testing.T) {
	s := newServer(t)
	s.exec(`select wed_sql.create_flow('broken'); set search_path = broken;
insert into wed_attr (aname, adv) values ('a', '1'); insert into wed_trig (trname, cpred) values ('go', 'a is not null');
insert into wed_flow default values; alter event trigger wed_sql_altered disable; alter table broken.wed_flow rename wid to other`)
	wid := s.begin()
	f := s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, figure2Trace[:1])
	if !strings.Contains(s.warnings(), `WED-flow "broken" is not followed: its wed_flow has changed`) || !s.log.has(s.warnings()) {
		s.log.show()
		t.Errorf("warnings: %s", s.warnings())
	}
}
