-- A failed attempt is counted; the job is tried again after a pause, and after the last attempt the instance is an exception.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_booker, wed_sql_payer, wed_sql_reader;
reset client_min_messages;
create role wed_sql_booker;
create role wed_sql_payer;
create role wed_sql_reader;

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
insert into wed_attr (aname) values ('seat'), ('paid'), ('mail');
insert into wed_trig (trname, cpred, max_attempts) values ('book', 'seat is null', 3);
insert into wed_trig (trname, cpred, backoff, max_backoff) values ('pay', 'paid is null', '3 days 18 hours', '10 days');
insert into wed_trig (trname, cpred, priority) values ('mail', $$mail = 'urgent'$$, 5), ('mail', 'mail is not null', 1);
insert into wed_trig (cpred, cfinal) values ($$seat = 'gone'$$, true);
select wed_sql.grant_worker('trip', 'book', 'wed_sql_booker');
select wed_sql.grant_worker('trip', 'pay', 'wed_sql_payer');
grant usage on schema wed_sql to wed_sql_reader;
insert into wed_flow default values;
insert into wed_flow default values;
select wed_sql.sync();
select tgid as book from wed_trig where trname = 'book' \gset
select tgid as pay from wed_trig where trname = 'pay' \gset

-- a pause, doubled each time, never longer than the longest, give or take a fifth
create function pg_temp.pauses(attempts int, variadic settings text[]) returns table (shortest int, longest int)
language plpgsql as $$
declare
    r wed_sql.rule;
begin
    r.backoff := settings[1]; r.max_backoff := settings[2]; r.action := settings[3];
    return query select round(min(p))::int, round(max(p))::int
                   from (select wed_sql.pause_after(attempts, r) as p from generate_series(1, 3000)) p;
end
$$;
select a, shortest between base * 0.8 - 1 and base * 0.82 as shortest,
       longest between least(1000, base * 1.18) and least(1000, base * 1.2 + 1) as longest
  from (values (1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (6, 1000)) k(a, base), pg_temp.pauses(a, '100 s', '1000 s');
select shortest between 799 and 820 as shortest, longest from pg_temp.pauses(2147483647, '100 s', '1000 s');
select shortest > 0 as some, longest <= 1e9 as no_more from pg_temp.pauses(2147483647, '178000000 years', '178000000 years');
select shortest >= 0.8 * 324000 - 1 and longest <= 1.2 * 324000 + 1 as days from pg_temp.pauses(1, '3 days 18 hours', '10 days');
-- without one: at once; but an action must not spin
select * from pg_temp.pauses(9, '0', '1 hour');
select shortest, longest from pg_temp.pauses(3, '0', '1 s', 'a = 1');

-- a worker reports a failure: the job is there again at once, and announced
set role wed_sql_booker;
select wed_sql.fail('trip', 1, :book, 'card declined');
reset role;
select trname, attempts, last_error, available_at, lckid from job_pool where wid = 1 order by tgid;
select wid, version, tgid, trname, event, role, detail from wed_event;
select wed_sql.fail('trip', 1, :book, 'card declined again');
-- with a backoff it is not to be had before
set role wed_sql_payer;
select wed_sql.fail('trip', 1, :pay, E'no\nluck');
select wed_sql.try_lock(1, :pay) as too_early, wed_sql.try_lock(2, :pay) as another;
reset role;
select wed_sql.try_lock(1, :pay) as too_early;
select attempts, last_error, available_at > now() + interval '2 days 23 hours' and available_at < now() + interval '4 days 13 hours' as available
  from job_pool where wid = 1 and tgid = :pay;
select wid, tgid, kind, version, due_at = (select available_at from job_pool where wid = 1 and tgid = :pay) as due from wed_sql.timer order by kind, wid;

-- the last attempt: an exception, with its reason
set role wed_sql_booker;
select wed_sql.fail('trip', 1, :book, 'card declined');
reset role;
select wid, version, trw, trf, status, error from pg_temp.trace(1);
select trname, attempts from job_pool where wid = 1 order by trname;
select event, detail from wed_event where tgid = :book order by event_id;
select * from pg_temp.refused(format($$select wed_sql.try_lock(1, %s); update trip.wed_flow set seat = '1a' where wid = 1$$, :book)) \gx
-- it is not pending any more
select wed_sql.fail('trip', 1, :book, 'once more');
-- who recovers it has it tried anew, with all its attempts
select pg_temp.perform(1, '_EXCPT', $$mail = 'urgent'$$);
select wed_sql.sync();
select trname, attempts, priority from job_pool where wid = 1 order by trname, priority desc, fired_at, wid, tgid;

-- the order of the pool is that of priorities
select indexdef from pg_indexes where schemaname = 'trip' and indexname = 'job_pool_trname';

-- rights, and bad input
set role wed_sql_payer;
select * from pg_temp.refused(format($$select wed_sql.fail('trip', 2, %s, 'x')$$, :book)) \gx
reset role;
set role wed_sql_reader;
select * from pg_temp.refused(format($$select wed_sql.fail('trip', 2, %s, 'x')$$, :book)) \gx
select * from pg_temp.refused(format($$select wed_sql.fail('trip', 99, %s, 'x')$$, :book)) \gx
select * from pg_temp.refused($$select wed_sql.attempt_failed(null, 1, 1, 1, 'x', 'y')$$) \gx
select * from pg_temp.refused($$select wed_sql.take_job_lock(1, 1)$$) \gx
select * from pg_temp.refused($$select wed_sql.notify_job(null, 1, 1)$$) \gx
reset role;
select wed_sql.fail('trip', 99, :book, 'x');
select wed_sql.fail('trip', 2, :book, null);
select attempts, last_error from job_pool where wid = 2 and tgid = :book;
select * from pg_temp.refused($$select wed_sql.fail('trip', 2, 999, 'x')$$) \gx
select * from pg_temp.refused($$select wed_sql.fail('nowhere', 2, 1, 'x')$$) \gx
select * from pg_temp.refused($$select wed_sql.fail(null, 2, 1, 'x')$$) \gx
-- a token of a job that is not leased
select * from pg_temp.refused(format($$select wed_sql.fail('trip', 2, %s, 'x', 'token')$$, :book)) \gx

-- a rule that was removed decides as it last was
delete from wed_trig where trname = 'book';
select wed_sql.fail('trip', 2, :book, 'second'), wed_sql.fail('trip', 2, :book, 'third');
select version, status, error from pg_temp.trace(2);

-- a pause that is over: the job is announced, if it is still there
update wed_trig set backoff = '1 ms', max_backoff = '1 ms' where trname = 'pay';
select wed_sql.fail('trip', 2, :pay, 'x');
select wed_sql.sync();
begin;
select wed_sql.sweep_retry(f, 2, :pay, version) from wed_sql.flow f, job_pool where wid = 2 and tgid = :pay;
select wed_sql.sweep_retry(f, 2, :pay, 77), wed_sql.sweep_retry(f, 99, :pay, 0) from wed_sql.flow f;
commit;

-- the notification is that of a new job; a private flow does not show its state
select n.* from wed_sql.flow f, wed_sql.notifications(f, array[1], array[:pay]) n \gx
select wed_sql.create_flow('open "flow"');
set search_path = "open ""flow""", wed_sql;
insert into wed_attr (aname) values ('a');
insert into wed_trig (trname, cpred, timeout) values ('do "it"', 'a is not null', '3 days 18 hours');
insert into wed_trig (trname, cpred, action) values ('by itself', $$a = 'never'$$, $$a = 'x'$$);
insert into wed_trig (cpred, cfinal) values ('a is null', true);
insert into wed_flow (a) values ('x "y"'), (repeat('x', 9000));
select wed_sql.sync();
set intervalstyle = iso_8601;
select n.channel, n.payload::json from wed_sql.flow f, job_pool j, wed_sql.notifications(f, array[j.wid], array[j.tgid]) n
 where f.job_pool = 'job_pool'::regclass order by j.wid;
reset intervalstyle;
select n.* from wed_sql.flow f, wed_sql.notifications(f, array[99], array[1]) n where f.job_pool = 'job_pool'::regclass;
select wed_sql.drop_flow('open "flow"');

reset search_path;
select wed_sql.drop_flow('trip');
drop owned by wed_sql_booker, wed_sql_payer, wed_sql_reader;
drop role wed_sql_booker, wed_sql_payer, wed_sql_reader;
