-- Rules with a delay: the condition must hold for so long, without a break.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('ballot');
set search_path = ballot, wed_sql;
begin;
insert into wed_attr (aname) values ('vote'), ('note');
insert into wed_trig (trname, cpred) values ('cast_vote', 'vote is null');
insert into wed_trig (trname, cpred, delay) values ('remind', 'note is null', '3 days');
insert into wed_trig (cpred, cfinal) values ($$vote = 'no' or vote = 'yes'$$, true);
commit;
create view timers as
select t.wid, t.kind, t.version, round(extract(epoch from due_at - now()) / 86400) as days from wed_sql.timer t order by due_at;

-- a clock that runs is no job, and is not in trf, but it pends
insert into wed_flow default values;
select trname from pg_temp.jobs();
select * from timers;
select version, trw, trf, status, pending from pg_temp.trace(1);

-- the condition still holds: the clock runs on
select pg_temp.perform(1, 'cast_vote', 'vote = null');
select sync();
select * from timers;

-- it does not hold: the clock is reset, and starts anew when it holds again
select pg_temp.perform(1, 'cast_vote', $$note = 'x'$$);
select sync();
select * from timers;
select pg_temp.perform(1, 'cast_vote', 'note = null');
select sync();
select * from timers;

-- in time the rule fires, with the state as it is now
select pg_temp.pass_time(1);
select pg_temp.wait_for($$exists (select from job_pool where trname = 'remind')$$);
select trname, version, payload, fired_at < now() as fired from job_pool order by trname;
select event, trname, version from wed_event;
select * from timers;
-- and then it is a job like any other: it stays, whatever becomes of the condition
select pg_temp.perform(1, 'cast_vote', $$note = 'read'$$);
select trname from pg_temp.jobs();
select * from pg_temp.refused($$select pg_temp.perform(1, 'cast_vote', 'vote = ''yes''')$$) \gx
-- after its own transition the clock starts anew
select pg_temp.perform(1, 'remind', 'note = null');
select trname from pg_temp.jobs();
select * from timers;
select version, trw, trf, status, pending from pg_temp.trace(1);

-- a clock does not stand in the way of the end
select pg_temp.perform(1, 'cast_vote', $$vote = 'yes'$$);
select trname from pg_temp.jobs();
select * from timers;
select wid, version, status, pending from wed_instance;

-- a timer is enough for an instance to begin, and not to be an exception
delete from wed_trig where trname = 'cast_vote';
insert into wed_flow default values;
select wid, version, status, pending from wed_instance where wid = 2;
select status, trf, pending from pg_temp.trace(2);

-- an instance whose rule has gone fires as the rule was last
delete from wed_trig where trname = 'remind';
select pg_temp.pass_time(2);
select pg_temp.wait_for($$exists (select from job_pool where trname = 'remind')$$);
select pg_temp.perform(2, 'remind', $$vote = 'no'$$);
select version, trw, trf, status, pending from pg_temp.trace(2);

-- what makes no sense
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, delay) values ('x', 'true', '-1 day')$$) \gx
select * from pg_temp.refused($$update wed_trig set delay = '1 day' where cfinal$$) \gx
