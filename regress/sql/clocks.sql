-- What pends with a delay is told by the state that fired it, not by the rule as it is later.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('loan');
set search_path = loan, wed_sql;
begin;
insert into wed_attr (aname) values ('returned'), ('note');
insert into wed_trig (trname, cpred) values ('keep', 'true');
insert into wed_trig (trname, cpred, delay) values ('remind', 'returned is null', '3 days');
insert into wed_trig (trname, cpred) values ('stamp', 'returned is null');
insert into wed_trig (cpred, cfinal) values ($$returned = 'lost'$$, true);
commit;
create view timers as
select t.wid, t.kind, t.version, round(extract(epoch from due_at - now()) / 86400) as days from wed_sql.timer t order by due_at;
create temp view clocks as select wid, (_stamp).version, (_stamp).pending, (_stamp).withdrawn, (_stamp).clocks from wed_flow;

-- a rule that was due at once is given a delay before the engine has come to its job: the job stays
begin;
insert into wed_flow default values;
select * from clocks where wid = 1;
update wed_trig set delay = '1 day' where trname = 'stamp';
update wed_trig set delay = null where trname = 'remind';
-- and a rule loses its delay: its clock stops all the same
select withdrawn, pending from wed_sql.skip('loan', 1, 'keep', $$returned = 'yes'$$);
select * from clocks where wid = 1;
commit;
select trname from pg_temp.jobs();
select * from timers;
begin;
update wed_trig set delay = null where trname = 'stamp';
update wed_trig set delay = '3 days' where trname = 'remind';
commit;

-- a delay that is over is not waited for again: when the instance is resumed
insert into wed_flow default values;
select sync();
select * from clocks where wid = 2;
select pg_temp.pass_time(2);
select pg_temp.wait_for($$exists (select from job_pool where trname = 'remind')$$);
select version from wed_sql.suspend('loan', 2);
select * from clocks where wid = 2;
select fired from wed_sql.resume('loan', 2);
select * from clocks where wid = 2;
select trname from pg_temp.jobs() where wid = 2;
select * from timers;
select version, trw, trf, status, pending from pg_temp.trace(2);
-- whatever its condition says
select pg_temp.perform(2, 'stamp', $$returned = 'yes'$$);
select version from wed_sql.suspend('loan', 2);
select fired from wed_sql.resume('loan', 2);
select trname from pg_temp.jobs() where wid = 2;
select * from timers;

-- nor when it is retried
select (wed_sql.operate('wed_flow', 2, 'fail', tgid, null, 'no paper')).error from wed_trig where trname = 'remind';
select sync();
select fired from wed_sql.retry('loan', 2);
select trname from pg_temp.jobs() where wid = 2;
select * from timers;

-- a clock that still runs when its instance is suspended starts anew, if its condition holds
insert into wed_flow default values;
select version from wed_sql.suspend('loan', 3);
select * from clocks where wid = 3;
select fired from wed_sql.resume('loan', 3);
select * from clocks where wid = 3;
select trname from pg_temp.jobs() where wid = 3;
select * from timers;
-- also if the instance is an exception, of which no condition says anything
select (wed_sql.operate('wed_flow', 3, 'fail', tgid, null, 'no ink')).error from wed_trig where trname = 'stamp';
select version from wed_sql.suspend('loan', 3);
select fired from wed_sql.resume('loan', 3);
select trname from pg_temp.jobs() where wid = 3;
select kind, version from timers;
select version, trw, trf, status, pending from pg_temp.trace(3);

-- an action whose time had come, and that failed, is done at once
select wid from wed_sql.cancel('loan', 'true') order by wid;
update wed_trig set enabled = false where trname in ('keep', 'stamp');
update wed_trig set action = 'returned = (1 / 0)::text', max_attempts = 1 where trname = 'remind';
insert into wed_flow default values;
select sync();
select kind, days from timers;
select pg_temp.pass_time(4);
select pg_temp.wait_for($$(select status from wed_instance where wid = 4) = 'E'$$);
update wed_trig set action = $$returned = 'lost'$$ where trname = 'remind';
select fired from wed_sql.retry('loan', 4);
select pg_temp.wait_for($$(select status from wed_instance where wid = 4) = 'F'$$);
select version, trw, trf, status, pending from pg_temp.trace(4);
select * from timers;

-- the last attempt of a job that was withdrawn makes no exception of an instance that the transition is due of again
update wed_trig set enabled = true, withdrawable = true where trname = 'stamp';
insert into wed_flow default values;
select sync();
select tgid from wed_trig where trname = 'stamp' \gset
begin;
select wed_sql.try_lock(5, :tgid);
select version, fired from wed_sql.suspend('loan', 5);
select version, fired from wed_sql.resume('loan', 5);
select * from pg_temp.refused(format($$select wed_sql.operate('wed_flow', 5, 'fail', %s, null, 'no ink', version => 0)$$, :tgid)) \gx
-- and what is said to pend is what does: not the clock, nor the job that is still in the pool
select version from job_pool where wid = 5;
select * from pg_temp.refused($$update wed_flow set returned = 'yes' where wid = 5$$) \gx
select version, pending from wed_sql.skip('loan', 5, 'stamp');
select * from pg_temp.refused($$update wed_flow set returned = 'yes' where wid = 5$$) \gx
rollback;
begin;
select * from pg_temp.refused($$update wed_flow set returned = 'yes' where wid = 5$$) \gx
select version from wed_sql.suspend('loan', 5);
select version from wed_sql.resume('loan', 5);
select * from pg_temp.refused($$update wed_flow set returned = 'yes' where wid = 5$$) \gx
rollback;
select (wed_sql.operate('wed_flow', 5, 'fail', :tgid, null, 'no ink', version => 0)).error;

-- who claims a lease of a job that never was leased
select * from pg_temp.refused($$select wed_sql.complete('loan', 5, 1, 'token', $x$note = 'x'$x$)$$) \gx
