-- A lease keeps a job for who has its token, without a transaction: it is extended, given back, completed, or runs out.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_booker, wed_sql_payer, wed_sql_reader, wed_sql_blind, wed_sql_tenant;
reset client_min_messages;
create role wed_sql_booker;
create role wed_sql_payer;
create role wed_sql_reader;
create role wed_sql_blind;
create role wed_sql_tenant;

-- without the times
create function pg_temp.unleased(commands text, out code text, out message text, out detail text, out hint text)
language plpgsql as $$
begin
    select r.code, r.message, regexp_replace(r.detail, 'until .*', 'until ...'), r.hint into code, message, detail, hint
      from pg_temp.refused(commands) r;
end
$$;

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
insert into wed_attr (aname, atype) values ('seat', 'text'), ('paid', 'boolean'), ('price', 'numeric'), ('Größe "x"', 'text');
insert into wed_trig (trname, cpred, priority) values ('book', 'seat is null and price > 100', 5), ('book', 'seat is null', 0);
insert into wed_trig (trname, cpred, backoff) values ('pay', 'paid is null', '1 hour');
insert into wed_trig (trname, cpred, action) values ('by_itself', $$seat = 'never'$$, $$seat = 'x'$$);
insert into wed_trig (cpred, cfinal) values ($$seat = 'gone'$$, true);
select wed_sql.grant_worker('trip', 'book', 'wed_sql_booker');
select wed_sql.grant_worker('trip', 'pay', 'wed_sql_payer');
grant usage on schema wed_sql, trip to wed_sql_reader;
insert into wed_flow default values;
insert into wed_flow (price) values (200);
insert into wed_flow (price) values (50);
select wed_sql.sync();
select min(tgid) as first_class, max(tgid) as book from wed_trig where trname = 'book' \gset
select tgid as pay from wed_trig where trname = 'pay' \gset

-- by priority, then by age; as many as there are
set role wed_sql_booker;
create temp table lease as select row_number() over () as n, * from wed_sql.lease('trip', 'book', '1 hour', 2);
select n, wid, tgid = :first_class as first_class, trname, length(lckid) as length, payload, attempts, leased_until > now() + interval '59 minutes' as lasts
  from lease order by n;
select count(distinct lckid) as tokens from lease;
select count(*) from wed_sql.lease('trip', 'book', '1 hour', 100);
select count(*) from wed_sql.lease('trip', 'book', '1 hour', 100);
reset role;
select wid, trname, leased_by, leased_until > now() as leased from job_pool where lckid is not null order by wid, trname, tgid;
select wid, tgid, kind, version from wed_sql.timer order by wid, tgid;
select wid, trname, event, role from wed_event order by wid, event_id;

-- the other protocol does not get it: by our function, or by PostgreSQL's own
select wed_sql.try_lock(2, :first_class) as leased, wed_sql.try_lock(2, :pay) as another;
select * from pg_temp.unleased(format($$select pg_try_advisory_xact_lock(2, %s); update trip.wed_flow set seat = '1a' where wid = 2$$, :first_class)) \gx
-- who has the token completes it: with a SET clause, under his own search_path
select lckid as token, tgid as job from lease where wid = 2 \gset
set role wed_sql_booker;
create function pg_temp.seat() returns text language sql as $$select '1a'$$;
reset role;
set role wed_sql_payer;
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, %L, $x$seat = '1b'$x$)$$, :job, :'token')) \gx
reset role;
set role wed_sql_booker;
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, 'guess', $x$seat = '1b'$x$)$$, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, '', $x$seat = '1b'$x$)$$, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, null, $x$seat = '1b'$x$)$$, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 1, %s, %L, $x$seat = '1b'$x$)$$, :book, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, %L, $x$seat = '1b' where wid = 3 --$x$)$$, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, %L, $x$seat = '1b'; delete from trip.wed_flow$x$)$$, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, %L, $x$wid = 7$x$)$$, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('elsewhere', 2, %s, %L, $x$seat = '1b'$x$)$$, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, 999, %L, $x$seat = '1b'$x$)$$, :'token')) \gx
select wed_sql.complete('trip', 2, :job, :'token', 'seat = pg_temp.seat() || price');
show wed_sql.lckid;
show wed_sql.completes_tgid;
-- once
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 2, %s, %L, $x$seat = '1b'$x$)$$, :job, :'token')) \gx
reset role;
select wid, version, trw, state ->> 'seat' as seat from pg_temp.trace(2);
select count(*) from wed_sql.timer where wid = 2 and tgid = :job;

-- or with values
select wid, tgid as job, lckid as token from lease where wid <> 2 \gset
set role wed_sql_booker;
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, '["a"]'::jsonb)$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, '{"nothing": 1}'::jsonb)$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, '{"price": "much"}'::jsonb)$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, '{"_stamp": null}'::jsonb)$$, :wid, :job, :'token')) \gx
show wed_sql.lckid;
select wed_sql.complete('trip', :wid, :job, :'token', '{"seat": "2b", "price": null, "Größe \"x\"": "m"}'::jsonb);
reset role;
select seat, price, "Größe ""x""", paid from wed_flow where wid = :wid;
set role wed_sql_payer;
select wid, tgid as job, lckid as token from wed_sql.lease_job('trip', :wid, :pay, '1 hour') \gset
-- in the transaction of other work, and nothing is set
begin;
set local wed_sql.lckid = 'mine';
select wed_sql.complete('trip', :wid, :job, :'token', '{}'::jsonb);
show wed_sql.lckid;
commit;
reset role;
select version, trw, status from pg_temp.trace(:wid);

-- the heartbeat
set role wed_sql_payer;
select * from pg_temp.unleased(format($$select * from wed_sql.lease_job('trip', 3, %s, '1 hour')$$, :book)) \gx
select wid, tgid as job, lckid as token, leased_until from wed_sql.lease_job('trip', 3, :pay, '1 hour') \gset
select count(*) from wed_sql.lease_job('trip', 3, :pay, '1 hour');
select count(*) from wed_sql.lease_job('trip', 99, :pay, '1 hour');
select wed_sql.extend('trip', 3, :job, :'token', '2 hours') > now() + interval '119 minutes' as longer;
reset role;
select due_at = :'leased_until' as timer_as_before from wed_sql.timer where wid = 3 and tgid = :pay;
-- the timer finds that out
select wed_sql.sweep_lease(f, 3, :pay, 0) from wed_sql.flow f;
select t.due_at = j.leased_until as timer_at_end, attempts from wed_sql.timer t join job_pool j using (wid, tgid) where wid = 3 and tgid = :pay;
set role wed_sql_payer;
select wed_sql.extend('trip', 3, :job, :'token', '1 minute') < now() + interval '61 seconds' as shorter;
reset role;
select t.due_at = j.leased_until as timer_at_end from wed_sql.timer t join job_pool j using (wid, tgid) where wid = 3 and tgid = :pay;
set role wed_sql_payer;
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', 3, %s, 'guess', '2 hours')$$, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', 3, %s, null, '2 hours')$$, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', 3, %s, %L, '-2 hours')$$, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', 99, %s, %L, '2 hours')$$, :job, :'token')) \gx
-- to be given back: no attempt has failed
select wed_sql.release('trip', 3, :job, 'guess') as guess;
select wed_sql.release('trip', 3, :job, :'token') as released, wed_sql.release('trip', 3, :job, :'token') as again;
reset role;
select lckid, leased_until, leased_by, attempts from job_pool where wid = 3 and tgid = :pay;
select event, role from wed_event where wid = 3 and tgid = :pay order by event_id;
select count(*) from wed_sql.timer where wid = 3 and tgid = :pay;

-- a failure under a lease
set role wed_sql_payer;
select wid, tgid as job, lckid as token from wed_sql.lease('trip', 'pay', '1 hour', 1) \gset
select * from pg_temp.unleased(format($$select wed_sql.fail('trip', %s, %s, 'x')$$, :wid, :job)) \gx
select * from pg_temp.unleased(format($$select wed_sql.fail('trip', %s, %s, 'x', 'guess')$$, :wid, :job)) \gx
select wed_sql.fail('trip', :wid, :job, 'bank closed', :'token');
-- not to be leased before the pause is over
select count(*) from wed_sql.lease_job('trip', :wid, :job, '1 hour');
select count(*) from wed_sql.lease('trip', 'pay', '1 hour', 10) where wid = :wid;
reset role;
select attempts, last_error, lckid, leased_until, leased_by, available_at > now() as later from job_pool where wid = :wid and tgid = :job;

-- a lease runs out
set role wed_sql_booker;
select wed_sql.release('trip', wid, tgid, lckid) from job_pool where lckid is not null and trname = 'book';
begin;
select wid, tgid as job, lckid as token, leased_until from wed_sql.lease('trip', 'book', '1 ms', 1) \gset
-- the engine does not see that it has
reset role;
delete from wed_sql.timer where wid = :wid and tgid = :job and kind = 'l';
commit;
set role wed_sql_booker;
select pg_sleep_until(:'leased_until');
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, $x$seat = '1b'$x$)$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', %s, %s, %L, '1 hour')$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$set local wed_sql.lckid = %3$L; select wed_sql.try_lock(%1$s, %2$s); update trip.wed_flow set seat = '1b' where wid = %1$s$$,
    :wid, :job, :'token')) \gx
reset role;
select wed_sql.sweep_lease(f, :wid, :job, 0), wed_sql.sweep_lease(f, 99, :job, 0) from wed_sql.flow f;
select lckid, leased_until, leased_by, attempts, last_error from job_pool where wid = :wid and tgid = :job;
select event, role, held > interval '0' and held < interval '1 minute' as held, detail
  from wed_event where wid = :wid and tgid = :job and event = 'lease ran out';
-- under a new lease, the old token is worth nothing
set role wed_sql_booker;
select lckid as token2 from wed_sql.lease_job('trip', :wid, :job, '1 hour') \gset
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, $x$seat = '1b'$x$)$$, :wid, :job, :'token')) \gx
select wed_sql.release('trip', :wid, :job, :'token') as stale;
select * from pg_temp.unleased(format($$select wed_sql.fail('trip', %s, %s, 'x', %L)$$, :wid, :job, :'token')) \gx
select wed_sql.complete('trip', :wid, :job, :'token2', $$seat = '9z'$$);
reset role;

-- of many that are known, the first that are to be had; no lock of the others is kept
insert into wed_flow (price) select 90 + n from generate_series(1, 5) n;
select wed_sql.sync();
select min(wid) as first from wed_flow where price > 90 and price < 96 \gset
set role wed_sql_booker;
begin;
-- under any search_path
create function pg_temp.same(bigint, bigint) returns boolean language sql as 'select true';
create operator pg_temp.= (leftarg = bigint, rightarg = bigint, procedure = pg_temp.same);
set local search_path = pg_temp, pg_catalog;
select wid - :first as nth, tgid = :book as book, trname, length(lckid), payload ->> 'price' as price, attempts, last_error,
       leased_until > now() + interval '59 minutes' as lasts
  from wed_sql.lease_jobs('trip', 'book', array[:first + 3, 99999, :first, -1, :first + 1, :first + 2], array[:book, :book, :book, :book, :pay, :book], '1 hour', 2);
reset role;
select wid - :first as nth, tgid = :book as book from wed_sql.job_lock where wid between :first and :first + 4 order by 1;
commit;
set role wed_sql_booker;
select wid - :first as nth from wed_sql.lease_jobs('trip', 'book', array[:first + 3, :first + 2], array[:book, :book], '1 hour', 5);
select count(*) from wed_sql.lease_jobs('trip', 'book', array[:first + 3, :first + 2], array[:book, :book], '1 hour', 5);
select count(*) from wed_sql.lease_jobs('trip', 'book', '{}', '{}', '1 hour', 5);
select count(*) from wed_sql.lease_jobs('trip', 'book', array[:first + 1], array[:book], '1 hour', 0);
reset role;
select wid - :first as nth, leased_by from job_pool where wid between :first and :first + 4 and lckid is not null order by 1;
select wid - :first as nth, kind from wed_sql.timer where wid between :first and :first + 4 order by 1;
select wid - :first as nth, trname, event, role from wed_event where wid between :first and :first + 4 order by event_id;
-- one transaction completes a job, and leases the next one
set role wed_sql_booker;
begin;
select wed_sql.complete('trip', wid, tgid, lckid, '{"seat": "3c"}'::jsonb) from job_pool where wid = :first + 3 and tgid = :book;
select wid - :first as nth from wed_sql.lease_jobs('trip', 'book', array[:first + 3, :first + 4], array[:book, :book], '1 hour', 2);
commit;
reset role;
select wid - :first as nth, tgid = :book as book from wed_sql.timer where wid between :first and :first + 4 order by 1;
-- a job keeps the name of the transition that it was fired for
update wed_trig set trname = 'reserve' where tgid = :book;
select count(*) from wed_sql.lease_jobs('trip', 'reserve', array[:first + 1], array[:book], '1 hour', 1);
select trname from wed_sql.lease_jobs('trip', 'book', array[:first + 1], array[:book], '1 hour', 1);
update wed_trig set trname = 'book' where tgid = :book;
select wed_sql.release('trip', wid, tgid, lckid) from job_pool where wid between :first and :first + 4 and lckid is not null;
select (wed_sql.operate('trip.wed_flow', wid, 'cancel')).status from wed_flow where wid between :first and :first + 4;
select wed_sql.sync();

-- a leased job of an instance that ends, or is suspended
select wed_sql.release('trip', wid, tgid, lckid) from job_pool where lckid is not null;
select wid, tgid as job, lckid as token from wed_sql.lease('trip', 'book', '1 hour', 1) \gset
begin;
select (wed_sql.operate('trip.wed_flow', :wid, 'suspend')).status;
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, $x$seat = '1b'$x$)$$, :wid, :job, :'token')) \gx
rollback;
select (wed_sql.operate('trip.wed_flow', :wid, 'cancel')).status;
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', %s, %s, %L, $x$seat = '1b'$x$)$$, :wid, :job, :'token')) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', %s, %s, %L, '1 hour')$$, :wid, :job, :'token')) \gx

-- what another transaction has lost, or a sweep has seen before, does not end a lease
insert into wed_flow (price) values (7) returning wid \gset
insert into wed_flow (price) values (8) returning wid as other \gset
select wed_sql.sync();
select lckid as token, leased_until from wed_sql.lease_job('trip', :wid, :book, '1 hour') \gset
select wed_sql.attempt_failed(f, :wid, :book, 0, 'connection lost', 'gone') as without, wed_sql.attempt_failed(f, :wid, :book, 0, 'lease ran out', 'late', token => 'guess') as another,
       wed_sql.attempt_failed(f, :wid, :book, 0, 'failed', 'mine', token => :'token') as its_own
  from wed_sql.flow f;
select attempts, last_error, lckid from job_pool where wid = :wid and tgid = :book;

-- one that was withdrawn while it was in use, beside the one that is due
insert into job_pool (wid, tgid, trname, payload, fired_at, version, priority, lckid, leased_until)
select wid, tgid, trname, payload, fired_at - interval '1 hour', version - 1, priority, 'old', now() + interval '1 hour' from job_pool where wid = :wid and tgid = :book;
select trname, attempts from wed_sql.lease_job('trip', :wid, :book, '1 hour');
select version from job_pool where wid = :wid and tgid = :book and lckid <> 'old';
select wed_sql.attempt_failed(f, :wid, :book, -1, 'lease ran out', 'late', token => 'old') as withdrawn from wed_sql.flow f;
begin;
select wed_sql.take_job_lock(:wid, :book);
select count(*) from wed_sql.job_lock where wid = :wid;
rollback;
select wed_sql.release('trip', wid, tgid, lckid) from job_pool where wid = :wid and tgid = :book and version = 0;
select payload::jsonb ->> 'tgid' = :'book' as notified from wed_sql.flow f, wed_sql.notifications(f, array[:wid], array[:book]);
delete from job_pool where wid = :wid and version = -1;

-- who may write all of wed_flow, but not read it, learns no state from a lease
grant usage on schema wed_sql, trip to wed_sql_blind, wed_sql_tenant;
grant update on wed_flow to wed_sql_blind;
set role wed_sql_blind;
select trname, lckid is not null as leased, payload, attempts, last_error from wed_sql.lease_job('trip', :wid, :book, '1 hour');
reset role;
select payload is not null as payload, attempts, last_error from job_pool where wid = :wid and tgid = :book;
select wed_sql.release('trip', wid, tgid, lckid) from job_pool where wid = :wid and tgid = :book;
-- what a policy of the owner's hides is not to be had
create policy tenant on wed_flow as restrictive to wed_sql_tenant using (price = 7);
grant select, update on wed_flow to wed_sql_tenant;
set role wed_sql_tenant;
select count(*) from wed_flow where wid in (:wid, :other);
select wid = :wid as own, payload ->> 'price' as price, last_error from wed_sql.lease('trip', 'book', '1 hour', 100);
select count(*) from wed_sql.lease_job('trip', :other, :book, '1 hour');
select wid = :wid as own, lckid as token from wed_sql.lease_jobs('trip', 'pay', array[:other, :wid], array[:pay, :pay], '1 hour', 2) \gset
\echo :own
select wed_sql.release('trip', :wid, :pay, :'token') as released;
select wed_sql.fail('trip', :other, :book, 'x') as hidden, wed_sql.fail('trip', :wid, :pay, 'x') as own;
reset role;
select wid = :wid as own, trname, attempts, leased_by from job_pool where wid in (:wid, :other) order by 1, 2;
drop policy tenant on wed_flow;
set role wed_sql_tenant;
select count(*) from wed_sql.lease_job('trip', :other, :book, '1 hour');
reset role;

-- rights, and bad input
set role wed_sql_reader;
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', 'book', '1 hour')$$) \gx
select * from pg_temp.unleased(format($$select * from wed_sql.lease_job('trip', 1, %s, '1 hour')$$, :pay)) \gx
select * from pg_temp.unleased(format($$select wed_sql.release('trip', 1, %s, 'x')$$, :pay)) \gx
select * from pg_temp.unleased(format($$select wed_sql.extend('trip', 1, %s, 'x', '1 hour')$$, :pay)) \gx
select * from pg_temp.unleased(format($$select wed_sql.complete('trip', 1, %s, 'x', 'seat = null')$$, :pay)) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease_for('trip', 'book', '1 hour', 1, 'wed_sql_booker')$$) \gx
select * from pg_temp.unleased(format($$select * from wed_sql.lease_jobs('trip', 'pay', '{1}', '{%s}', '1 hour', 1)$$, :pay)) \gx
select * from pg_temp.unleased($$select * from wed_sql.take_leases('trip.wed_flow', 'book', '{1}', '{1}', '1 hour', 'wed_sql_booker')$$) \gx
reset role;
select * from pg_temp.unleased($$select * from wed_sql.lease_job('trip', 1, 999, '1 hour')$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease_job('trip', 1, null, '1 hour')$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease_jobs('trip', 'book', '{1}', '{1,2}', '1 hour', 1)$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease_jobs('trip', 'book', '{1}', '{1}', '-1 hour', 1)$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease_jobs('nowhere', 'book', '{1}', '{1}', '1 hour', 1)$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', 'fly', '1 hour')$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('nowhere', 'book', '1 hour')$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', 'book', '0')$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', 'book', null)$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', 'book', '1 hour', 0)$$) \gx
select * from pg_temp.unleased($$select * from wed_sql.lease('trip', null, '1 hour')$$) \gx
-- what the engine does itself is not to be leased
select count(*) from wed_sql.lease('trip', 'by_itself', '1 hour');
select tgid as itself from wed_trig where trname = 'by_itself' \gset
insert into job_pool (wid, tgid, trname, payload, fired_at, version) select 1, :itself, 'by_itself', '{}', now(), 0;
select count(*) from wed_sql.lease_job('trip', 1, :itself, '1 hour');
delete from job_pool where tgid = :itself;

reset search_path;
select wed_sql.drop_flow('trip');
drop owned by wed_sql_booker, wed_sql_payer, wed_sql_reader, wed_sql_blind, wed_sql_tenant;
drop role wed_sql_booker, wed_sql_payer, wed_sql_reader, wed_sql_blind, wed_sql_tenant;
