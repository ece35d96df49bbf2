-- What operators do to instances: each is a line of the history, each can be rehearsed, on one instance or on many.
\set ECHO none
\i regress/include/tools.psql
-- Rehearses a call, does it, and tells whether that came to the same.
create function pg_temp.both(call text) returns table (wid bigint, version bigint, status "char", pending text[], fired text[], withdrawn text[], error text, as_rehearsed boolean)
language plpgsql as $$
declare
    rehearsed wed_sql.intervention[];
    done wed_sql.intervention[];
begin
    perform wed_sql.sync();
    execute format('select coalesce(array_agg(i), ''{}'') from wed_sql.%s, dry_run => true) i', left(call, -1)) into rehearsed;
    execute format('select coalesce(array_agg(i), ''{}'') from wed_sql.%s i', call) into done;
    return query select d.*, rehearsed = done from unnest(done) d;
end
$$;
\set ECHO all

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new'), ('seat', null), ('bill', null);
insert into wed_trig (trname, cpred) values
    ('book', $$stage = 'new'$$), ('seat', 'seat is null'), ('pay', $$stage = 'booked'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'paid'$$, true);
commit;

-- suspended, an instance has no jobs, and nobody changes it; resumed, it goes on where it was
insert into wed_flow default values;
begin;
select pg_temp.perform(1, 'seat', $$seat = '12a'$$);
commit;
select * from pg_temp.both($$suspend('trip', 1, reason => 'strike')$$);
select * from pg_temp.jobs();
select wed_sql.sync() \g /dev/null
select wid, version, status, pending, error from wed_instance;
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set stage = ''booked'' where wid = 1') \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 1, 'book')$$) \gx
select * from pg_temp.both($$resume('trip', 1)$$);
select * from pg_temp.jobs();
select * from pg_temp.refused($$select * from wed_sql.resume('trip', 1)$$) \gx
-- a job that pended though its condition held no more is due again, too
insert into wed_flow default values;
select pg_temp.perform(2, 'book', $$stage = 'booked', seat = '1b'$$);
select count(*) from wed_sql.suspend('trip', 2);
select * from pg_temp.both($$resume('trip', 2)$$);
select wid, trname from pg_temp.jobs();

-- until a time: a timer that the engine looks after; once more, the time is another
select count(*) from wed_sql.suspend('trip', 2, now() + interval '1 day');
select wid, tgid, kind, version, due_at > now() + interval '23 hours' as tomorrow from wed_sql.timer;
select * from wed_sql.suspend('trip', 2, now() + interval '7 days');
select wid, tgid, kind, version, due_at > now() + interval '6 days' as in_a_week from wed_sql.timer;
select count(*) from wed_sql.suspend('trip', 2);
select count(*) from wed_sql.timer;
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 2, '2001-01-01')$$) \gx
select count(*) from wed_sql.suspend('trip', 2, now() + interval '1 day');
-- what the engine does when it is due: not for a suspension that another has followed
begin;
select wed_sql.sweep_suspension(f, 2, 4) from wed_sql.flow f;
select version, status from wed_instance where wid = 2;
select wed_sql.sweep_suspension(f, 2, 3) from wed_sql.flow f;
rollback;
select wed_sql.sweep_suspension(f, 2, version) from wed_sql.flow f, wed_instance where wid = 2;
delete from wed_sql.timer where kind = 's'; -- as the engine has done before that
select wed_sql.sync() \g /dev/null
select version, status, pending from wed_instance where wid = 2;
-- by itself
select count(*) from wed_sql.suspend('trip', 2, clock_timestamp() + interval '1 second');
do $$
begin
    for i in 1 .. 3000 loop
        exit when (select status from trip.wed_instance where wid = 2) = 'R';
        commit;
        perform pg_sleep(0.01);
    end loop;
    perform wed_sql.sync();
end $$;
select version, trw, trf, status from (select * from wed_trace where wid = 2 order by version desc limit 2) t order by version;
select wid, tgid, kind from wed_sql.timer;

-- a job is skipped as if it had been performed; without a new state its condition does not make it due once more
insert into wed_flow default values;
select * from pg_temp.both($$skip('trip', 3, 'seat', reason => 'no seats on this one')$$);
select * from pg_temp.both($$skip('trip', 3, 'book', $a$stage = 'booked', bill = '12.30', seat = '4c'$a$)$$);
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 3, 'book')$$) \gx
-- into an exception, and out of it: by a repair
select * from pg_temp.both($$skip('trip', 3, 'pay')$$);
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 3, '_EXCPT')$$) \gx
select * from pg_temp.both($$repair('trip', 3, $a$stage = 'booked'$a$, 'called the customer')$$);
select * from pg_temp.refused($$select * from wed_sql.repair('trip', 3, $a$stage = 'booked'$a$)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.repair('trip', 3, null)$$) \gx

-- rewound to a recorded state, it goes on from there; what was not an attribute then keeps its value
insert into wed_attr (aname, atype, adv) values ('points', 'integer', '5');
delete from wed_attr where aname = 'bill';
select * from pg_temp.both($$rewind('trip', 3, 0)$$);
select stage, seat, points from wed_flow where wid = 3;
select * from pg_temp.jobs() where wid = 3;
select * from pg_temp.refused($$select * from wed_sql.rewind('trip', 3, 77)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.rewind('trip', 3, null)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.rewind('trip', 3, -1)$$) \gx
-- a type that has changed since
insert into wed_attr (aname) values ('code');
insert into wed_flow default values;
select pg_temp.perform(4, 'seat', $$seat = '1a', code = 'seven'$$);
select pg_temp.perform(4, 'book', $$stage = 'booked', code = '7'$$);
select count(*) from pg_temp.trace(4);
update wed_attr set atype = 'integer' where aname = 'code';
select * from pg_temp.refused($$select * from wed_sql.rewind('trip', 4, 1)$$) \gx
select * from pg_temp.both($$rewind('trip', 4, 2)$$);
select stage, seat, points, code from wed_flow where wid = 4;

-- cancelled: an end
select * from pg_temp.both($$cancel('trip', 4, 'fraud')$$);
select * from pg_temp.jobs() where wid = 4;
select wed_sql.sync() \g /dev/null
select wid, version, status, pending, error from wed_instance where wid = 4;
select * from pg_temp.refused($$select * from wed_sql.cancel('trip', 4)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 4)$$) \gx
select * from pg_temp.refused('select wed_sql.try_lock(4, 2); update wed_flow set stage = ''new'' where wid = 4') \gx
-- reopened after a change of the definition, and not before
select * from pg_temp.refused($$select * from wed_sql.reopen('trip', 4)$$) \gx
insert into wed_trig (trname, cpred) values ('thank', $$stage = 'paid'$$);
select * from pg_temp.both($$reopen('trip', 4, $a$stage = 'booked'$a$)$$);
select wid, trname from pg_temp.jobs() where wid = 4;
select * from pg_temp.refused($$select * from wed_sql.reopen('trip', 4)$$) \gx
-- a suspended one is cancelled, too, and its timer goes
select count(*) from wed_sql.suspend('trip', 4, now() + interval '1 day');
select * from pg_temp.both($$cancel('trip', 4)$$);
select count(*) from wed_sql.timer where wid = 4;

-- on many: what is not possible on one stops none of the others
insert into wed_flow (stage) select 'new' from generate_series(5, 8);
select count(*) from wed_sql.cancel('trip', 6);
select * from pg_temp.both($$suspend('trip', 'wid between 5 and 8')$$);
select * from pg_temp.both($$resume('trip', $c$status = 'S' and seat is null$c$)$$);
select * from wed_sql.suspend('trip', 'false');
-- rewound all to the beginning
select * from pg_temp.both($$rewind('trip', 'wid in (5, 7)', 0)$$);
-- many enough to be done in several steps, one of which fails
insert into wed_flow (stage) select 'new' from generate_series(9, 260);
select count(*) from wed_sql.cancel('trip', 'wid in (100, 200)');
select count(*), count(version), sum((not as_rehearsed)::integer) from pg_temp.both($$suspend('trip', 'wid between 9 and 260')$$);
select count(*), count(version), min(error) from wed_sql.cancel('trip', 'wid between 9 and 260');

-- bad input
select * from pg_temp.refused($$select * from wed_sql.suspend('nowhere', 1)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 4711)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend(null, 1)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', null::bigint)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', null::text)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 'stage')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', '')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 'true) or (true')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', 'nothing = 1')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'fly')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, null)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', 'nothing = 1')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', 'wid = 6')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', '_stamp = null')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', 'stage = 1 where true; delete from wed_sql.flow; --')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', 'stage = 1 where wid = 7 --')$$) \gx

-- attributes of any name; a state that could not be recorded
insert into wed_attr (aname) values ('wed_flow'), ('Straße a'), ('state');
select version from wed_sql.skip('trip', 8, 'seat', $$wed_flow = '1', "Straße a" = '2', state = '3', seat = '8a'$$);
select version from wed_sql.skip('trip', 8, 'book', $$wed_flow = null, "Straße a" = null, state = null, stage = 'booked'$$);
select version from wed_sql.rewind('trip', 8, 3);
select stage, seat, wed_flow.wed_flow, "Straße a", state from wed_flow where wid = 8;
select wed_sql.sync() \g /dev/null
update wed_trace set state = 'null' where wid = 8 and version = 3;
select * from pg_temp.refused($$select * from wed_sql.rewind('trip', 8, 3)$$) \gx
select wid, version from wed_sql.suspend('trip', $$"Straße a" = '2' and wed_instance.status = 'R'$$);

-- for whoever has the rights of the flow's owner
set client_min_messages = error;
drop role if exists wed_sql_owner, wed_sql_operator, wed_sql_worker;
reset client_min_messages;
create role wed_sql_owner;
create role wed_sql_operator;
create role wed_sql_worker;
alter table wed_flow owner to wed_sql_owner;
grant wed_sql_owner to wed_sql_operator;
select wed_sql.grant_worker('trip', 'book', 'wed_sql_worker');
set role wed_sql_operator;
select * from wed_sql.suspend('trip', 5, reason => 'by an operator');
select * from wed_sql.resume('trip', 'wid = 5');
-- as the owner, restricted
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', $a$stage = (select rolpassword from pg_catalog.pg_authid limit 1)$a$)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.suspend('trip', $a$exists (select from pg_catalog.pg_authid)$a$)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.skip('trip', 5, 'book', $a$stage = pg_catalog.set_config('role', 'postgres', false)$a$)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 5, $a$exists (select from pg_catalog.pg_authid)$a$)$$) \gx
reset role;
set role wed_sql_worker;
select pg_temp.refused(format('select * from wed_sql.%s', call)) from unnest(array[
    $$suspend('trip', 5)$$, $$suspend('trip', 'true')$$, $$resume('trip', 5)$$, $$cancel('trip', 5)$$, $$retry('trip', 5)$$,
    $$skip('trip', 5, 'book')$$, $$repair('trip', 5, 'stage = 1')$$, $$rewind('trip', 5, 0)$$, $$compensate('trip', 5)$$,
    $$rematch('trip')$$, $$reopen('trip', 5)$$, $$purge_batch('trip', now())$$, $$alter_flow('trip')$$]) call;
set role pg_monitor;
select message from pg_temp.refused($$select * from wed_sql.suspend('trip', 5)$$);
select message from pg_temp.refused($$call wed_sql.purge('trip', '0')$$);
reset role;

-- history
select version, state, trw, trf, status, pending, error from pg_temp.trace(3);
select wid, version, trname, event, role = session_user as by_us, pid = pg_backend_pid() as here, detail
  from wed_event where wid < 9 and detail is distinct from 'until' and event not in ('suspended', 'resumed') order by event_id;
select event, role, detail from wed_event where role like 'wed_sql%' order by event_id;

select wed_sql.drop_flow('trip');
drop owned by wed_sql_owner, wed_sql_operator, wed_sql_worker;
drop role wed_sql_owner, wed_sql_operator, wed_sql_worker;
