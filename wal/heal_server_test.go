package wal

import (
	"log/slog"
	"testing"

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
			default:
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

func TestAHealThatFailsIsBegunAgain(t *testing.T) {
	s := newServer(t)
	wid := s.begin()
	s.exec("alter table travel.wed_trace add constraint no check (false)")
	f := s.follow()
	if err := f.ended(); code(err) != "23514" {
		t.Fatalf("Follow: %v", err)
	}
	s.exec("alter table travel.wed_trace drop constraint no")
	f = s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, figure2Trace[:1])
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
insert into wed_flow default values; alter table broken.wed_flow rename wid to other`)
	wid := s.begin()
	f := s.follow()
	f.ready()
	f.sync()
	s.checkTrace(wid, figure2Trace[:1])
	if !s.log.has("cannot be read") {
		s.log.show()
		t.Error("nobody was told")
	}
}
