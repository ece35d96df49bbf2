-- Putting things right: attempts that are used up, livelocks, and compensation by transitions that undo others.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
begin;
insert into wed_attr (aname, adv) values
    ('stage', 'new'), ('room', null), ('flight', null), ('car', null), ('paid', null);
insert into wed_trig (trname, cpred) values
    ('cancel_room', 'false'), ('cancel_flight', 'false');
insert into wed_trig (trname, cpred, undo) values
    ('book_room', $$stage = 'new' and room is null$$, 'cancel_room'),
    ('book_flight', $$stage = 'new' and room is not null and flight is null$$, 'cancel_flight'),
    ('rent_car', $$stage = 'new' and flight is not null and car is null$$, null),
    ('pay', $$stage = 'new' and car is not null and paid is null$$, null);
insert into wed_trig (trname, cpred) values ('apologise', $$stage = 'given up' and room is null$$);
insert into wed_trig (cpred, cfinal) values ($$paid is not null or stage = 'over'$$, true);
commit;
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1)$$) \gx
insert into wed_flow default values;
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1)$$) \gx
select * from pg_temp.refused($$select wed_sql.alter_flow('trip', 'nothing = 1')$$) \gx
select wed_sql.alter_flow('trip', 'room is null and flight is null');

-- back to where nothing was booked: the latest first, and what nothing undoes is said
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1)$$) \gx
select pg_temp.perform(1, 'book_room', 'room = 101');
select pg_temp.perform(1, 'book_flight', $$flight = 'LH1'$$);
select pg_temp.perform(1, 'rent_car', $$car = 'red'$$);
select * from wed_sql.compensate('trip', 1, dry_run => true);
select * from wed_sql.compensate('trip', 1, reason => 'the customer is ill');
select wid, trname from pg_temp.jobs();
-- one after the other, whatever the conditions say of the states between
select pg_temp.perform(1, 'cancel_flight', $$flight = null, stage = 'given up'$$);
select wid, trname from pg_temp.jobs();
-- it can be interrupted: it goes on where it was
select * from wed_sql.suspend('trip', 1);
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1)$$) \gx
select * from wed_sql.resume('trip', 1);
select * from pg_temp.refused($$select * from wed_sql.rematch('trip', 1)$$) \gx
-- a job of it fails for good: an exception of the instance, from which it is retried
select (s.i).version, (s.i).status, (s.i).undo from (select wed_sql.operate('wed_flow', 1, 'fail', r.tgid, null, 'hotel does not answer') as i
  from wed_trig r where trname = 'cancel_room') s;
select wid, trname from pg_temp.jobs();
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance;
select * from wed_sql.retry('trip', 1);
select wid, trname from pg_temp.jobs();
select pg_temp.perform(1, 'cancel_room', 'room = null');
-- the last one is done: judged as any state
select wid, trname from pg_temp.jobs();
-- what was undone is not undone twice
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 1, $a$stage = 'new' and room is null$a$)$$) \gx
select pg_temp.perform(1, 'apologise', $$stage = 'over'$$);
select version, state, trw, trf, status, pending, error from pg_temp.trace(1);
select version, event, detail from wed_event where wid = 1 order by event_id;

-- begun anew in the middle: only what is left; a skipped one is left, too
insert into wed_flow default values;
select pg_temp.perform(2, 'book_room', 'room = 102');
select pg_temp.perform(2, 'book_flight', $$flight = 'LH2'$$);
select wed_sql.sync();
select * from wed_sql.compensate('trip', 'wid = 2');
select pg_temp.perform(2, 'cancel_flight', 'flight = null');
select wed_sql.sync();
select * from wed_sql.compensate('trip', 2);
select * from wed_sql.skip('trip', 2, 'cancel_room');
select wed_sql.sync();
select * from wed_sql.compensate('trip', 2);
select pg_temp.perform(2, 'cancel_room', $$room = null, stage = 'given up'$$);
-- repaired in the middle, it is a compensation no more
insert into wed_flow default values;
select pg_temp.perform(3, 'book_room', 'room = 103');
select pg_temp.perform(3, 'book_flight', $$flight = 'LH3'$$);
select wed_sql.sync();
select * from wed_sql.compensate('trip', 3);
select (wed_sql.operate('wed_flow', 3, 'fail', tgid, null, 'gone')).status from wed_trig where trname = 'cancel_flight';
select * from wed_sql.repair('trip', 3, $$flight = null$$);
-- a stretch that was rewound is as if it had not been
insert into wed_flow default values;
select pg_temp.perform(4, 'book_room', 'room = 104');
select pg_temp.perform(4, 'book_flight', $$flight = 'LH4'$$);
select wed_sql.sync();
select * from wed_sql.rewind('trip', 4, 1);
select pg_temp.perform(4, 'book_flight', $$flight = 'LH5'$$);
select wed_sql.sync();
select * from wed_sql.compensate('trip', 4);
select detail from wed_event where wid = 4 and event = 'compensated';
-- nothing to be done
select * from wed_sql.cancel('trip', 'wid = 4');
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 4)$$) \gx
insert into wed_flow (room, flight) values ('105', 'LH6');
select wed_sql.sync();
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 5)$$) \gx
select pg_temp.perform(5, 'rent_car', $$car = 'blue'$$);
select wed_sql.sync();
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 5, 'car is null')$$) \gx
-- its history must be there
begin;
select pg_temp.perform(5, 'pay', $$stage = 'new'$$);
select * from pg_temp.refused($$select * from wed_sql.compensate('trip', 5)$$) \gx
rollback;
-- an attribute that the consistency condition uses stays
select * from pg_temp.refused($$delete from wed_attr where aname = 'flight'$$) \gx
select wed_sql.alter_flow('trip', '');
select consistent, max_states from wed_sql.flow;

-- jobs that wait for their next attempt, and attempts that are used up
update wed_trig set max_attempts = 2 where trname = 'book_room';
insert into wed_flow default values;
select wed_sql.sync();
update job_pool set attempts = 1, last_error = 'no', available_at = now() + interval '1 hour' where wid = 6;
insert into wed_sql.timer select f.flow_id, j.wid, j.tgid, 'r', j.version, j.available_at from wed_sql.flow f, job_pool j where j.wid = 6;
select * from wed_sql.retry('trip', 6, 'book_room', 'they are back', true);
select attempts, available_at is null as now from job_pool where wid = 6;
select * from pg_temp.refused($$select * from wed_sql.retry('trip', 6, 'pay')$$) \gx
select * from wed_sql.retry('trip', 6, 'book_room', 'they are back');
select attempts, available_at is null as now from job_pool where wid = 6;
select count(*) from wed_sql.timer where wid = 6 and kind = 'r';
select * from pg_temp.refused($$select * from wed_sql.retry('trip', 6)$$) \gx
select (wed_sql.operate('wed_flow', 6, 'fail', tgid, null, 'no room left')).error from wed_trig where trname = 'book_room';
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance where wid = 6;
select * from wed_sql.retry('trip', 'status = ''E'' and wid = 6', dry_run => true);
select * from wed_sql.retry('trip', 'status = ''E'' and wid = 6');
select wed_sql.sync();
select wid, trname, version, attempts from job_pool where wid = 6;
-- the same, as it comes about: by a worker who fails
update wed_trig set max_attempts = 1 where trname = 'book_room';
insert into wed_flow default values;
select wed_sql.sync();
begin;
select wed_sql.try_lock(wid, tgid), wed_sql.fail('trip', wid, tgid, 'hotel does not answer') from job_pool where wid = 7;
commit;
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance where wid = 7;
select * from wed_sql.retry('trip', $$error like '%does not answer%'$$, 'book_room');
select pg_temp.perform(7, 'book_room', 'room = 7');
-- a job that failed though its condition held no more; a second one fails before the first is retried
insert into wed_trig (trname, cpred) values ('wash', $$room = '108' and car is null$$), ('wax', $$room = '108' and car is null$$);
insert into wed_flow default values;
select pg_temp.perform(8, 'book_room', $$room = '108'$$);
select pg_temp.perform(8, 'book_flight', $$flight = 'LH7', car = 'green'$$);
select wid, trname from pg_temp.jobs() where wid = 8;
select (wed_sql.operate('wed_flow', 8, 'fail', tgid, null, 'no soap')).error from wed_trig where trname = 'wash';
select (wed_sql.operate('wed_flow', 8, 'fail', tgid, null, 'no wax')).error from wed_trig where trname = 'wax';
select * from pg_temp.refused($$select * from wed_sql.retry('trip', 8, 'pay')$$) \gx
select * from wed_sql.suspend('trip', 8);
select * from wed_sql.resume('trip', 8);
select * from wed_sql.rematch('trip', 8);
select * from wed_sql.retry('trip', 8);
select wid, trname from pg_temp.jobs() where wid = 8;
select pg_temp.perform(8, 'wash', $$stage = 'new'$$);
select version, trw, trf, status, pending, error from pg_temp.trace(8);

-- actions undo, too: the engine does it all
select wed_sql.create_flow('auto');
set search_path = auto, wed_sql;
insert into wed_attr (aname, adv) values ('stage', 'new'), ('room', null), ('flight', null);
insert into wed_trig (trname, cpred, action) values
    ('cancel_room', 'false', $$room = null, stage = 'undone'$$), ('cancel_flight', 'false', 'flight = null');
insert into wed_trig (trname, cpred, action, undo) values
    ('book_room', $$stage = 'new' and room is null$$, 'room = 1', 'cancel_room'),
    ('book_flight', 'room is not null and flight is null', 'flight = 2', 'cancel_flight');
insert into wed_trig (trname, cpred) values ('pay', 'flight is not null');
insert into wed_trig (cpred, cfinal) values ($$stage = 'undone'$$, true);
create procedure pg_temp.await(transition text) language plpgsql as $$
begin
    for i in 1 .. 3000 loop
        exit when exists (select from auto.wed_trace where trw = transition);
        commit;
        perform pg_sleep(0.01);
    end loop;
end
$$;
insert into wed_flow default values;
call pg_temp.await('book_flight');
select * from wed_sql.compensate('auto', 1, 'room is null');
call pg_temp.await('cancel_room');
select version, state, trw, trf, status, pending, error from pg_temp.trace(1);
select wed_sql.drop_flow('auto');

-- a livelock is an exception; repaired, it goes on
select wed_sql.create_flow('mill');
set search_path = mill, wed_sql;
insert into wed_attr (aname, atype, adv) values ('n', 'integer', '0'), ('sacks', 'integer', '0');
insert into wed_trig (trname, cpred) values ('turn', 'n >= 0'), ('fill', 'sacks = 0');
insert into wed_trig (cpred, cfinal) values ('n < 0', true);
select wed_sql.alter_flow('mill', max_states => 3);
insert into wed_flow default values;
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select wid, trname from pg_temp.jobs();
select pg_temp.perform(1, 'turn', 'n = n + 1');
select wid, trname from pg_temp.jobs();
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance;
-- what changes nothing does not help
select * from wed_sql.rematch('mill', 1);
select * from wed_sql.suspend('mill', 1);
select * from wed_sql.resume('mill', 1);
select * from wed_sql.repair('mill', 1, 'n = 7');
select wid, trname from pg_temp.jobs();
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance;
select wed_sql.alter_flow('mill', max_states => 0);
select * from wed_sql.retry('mill', 1);
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select pg_temp.perform(1, 'turn', 'n = n + 1');
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance;
select pg_temp.perform(1, 'fill', 'sacks = 3');
select pg_temp.perform(1, 'turn', 'n = -1');
select version, trw, trf, status, pending, error from pg_temp.trace(1);
-- the flow's own limit goes, and the setting counts again
select wed_sql.alter_flow('mill', max_states => -1);
select max_states from wed_sql.flow where wed_flow = 'mill.wed_flow'::regclass;
select * from pg_temp.refused($$select wed_sql.alter_flow('mill', max_states => -2)$$) \gx
-- which makes no new version of the definition: what has ended stays
select * from pg_temp.refused($$select * from wed_sql.reopen('mill', 1)$$) \gx
set wed_sql.max_states = 1;
insert into wed_flow default values;
select pg_temp.perform(2, 'turn', 'n = n + 1');
select wed_sql.sync() \g /dev/null
select wid, status, pending, error from wed_instance where wid = 2;
reset wed_sql.max_states;
select * from wed_sql.retry('mill', 2);
select wed_sql.drop_flow('mill');
select wed_sql.drop_flow('trip');
