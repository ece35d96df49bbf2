-- Rules with an action: the engine performs their transitions, as the flow's owner.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('vote');
set search_path = vote, wed_sql;
begin;
insert into wed_attr (aname, atype) values ('vote', 'text'), ('counted', 'integer'), ('by_whom', 'text');
insert into wed_trig (trname, cpred, delay, action) values ('abstain', 'vote is null', '7 days', $$vote = 'abstained'$$);
insert into wed_trig (trname, cpred, action) values ('count', 'vote is not null and counted is null', 'counted = length(vote)'),
    ('name', 'vote is not null and by_whom is null', 'by_whom = current_user');
insert into wed_trig (cpred, cfinal) values ('counted is not null and by_whom is not null', true);
commit;

-- No vote within 7 days counts as abstained: one rule.
insert into wed_flow default values;
select trname from pg_temp.jobs();
select kind, round(extract(epoch from due_at - now()) / 86400) as days from wed_sql.timer;
select pg_temp.pass_time(1);
select pg_temp.wait_for($$(select status from wed_instance where wid = 1) = 'F'$$);
select wid, vote, counted, by_whom = current_user as by_owner from wed_flow;
select count(*), array_agg(distinct trw order by trw) as trw from pg_temp.trace(1);
select * from pg_temp.jobs();
select pg_temp.wait_for('not exists (select from wed_sql.timer)');

-- The first may undo the condition of the second: each is done on a fresh look.
begin;
update wed_trig set withdrawable = true, action = $$by_whom = 'first', counted = 0$$ where trname in ('count', 'name');
commit;
insert into wed_flow (vote) values ('yes');
select pg_temp.wait_for($$(select status from wed_instance where wid = 2) = 'F'$$);
select version, status from pg_temp.trace(2);
select pg_temp.wait_for('not exists (select from wed_sql.timer)');

-- One that fails is tried again, and leaves the reason where one looks.
update wed_trig set action = 'counted = 1 / (length(vote) - 3)', backoff = '1 hour', withdrawable = false where trname = 'count';
update wed_trig set enabled = false where trname = 'name';
insert into wed_flow (vote) values ('yes');
select pg_temp.wait_for($$exists (select from job_pool where attempts = 1)$$);
select trname, attempts, last_error, available_at > now() + interval '40 minutes' as later from job_pool where wid = 3;
select event, trname, detail from wed_event where wid = 3;
update wed_trig set action = 'counted = 7, by_whom = ''x''' where trname = 'count';
select pg_temp.pass_time(3);
select pg_temp.wait_for($$(select status from wed_instance where wid = 3) = 'F'$$);
-- after max_attempts it is an exception
update wed_trig set action = 'counted = 1 / 0', max_attempts = 1 where trname = 'count';
insert into wed_flow (vote) values ('yes');
select pg_temp.wait_for($$(select status from wed_instance where wid = 4) = 'E'$$);
select version, trw, trf, status, error from pg_temp.trace(4);

-- Its time is limited, and it can do no more than its owner.
set client_min_messages = warning;
create role vote_owner;
grant usage on schema wed_sql to vote_owner;
grant execute on function wed_sql.create_flow(text) to vote_owner;
grant create on database :DBNAME to vote_owner;
set role vote_owner;
select wed_sql.create_flow('own');
set search_path = own, wed_sql;
insert into wed_attr (aname) values ('a'), ('b');
create table own.log (who text, what text);
create function own.note(what text) returns text language plpgsql as $$
begin
    insert into own.log values (current_user, what);
    return what;
end $$;
create function own.loop() returns text language plpgsql as $$ begin loop null; end loop; end $$;
create function own.grab() returns text language sql as $$ select pg_read_file('/etc/passwd') $$;
insert into wed_trig (trname, cpred, action, max_attempts) values
    ('note', $$a = 'note'$$, $$a = own.note('hello')$$, 1),
    ('loop', $$a = 'loop'$$, 'a = own.loop()', 1),
    ('grab', $$a = 'grab'$$, 'a = own.grab()', 1),
    ('lock', $$a = 'lock'$$, 'a = (pg_advisory_lock(1))::text', 1),
    ('others', $$a = 'others'$$, $$b = (with x as (select 1) select 'done' from x), a = 'others done'$$, 1);
insert into wed_trig (cpred, cfinal) values ($$a in ('hello', 'others done')$$, true);
reset role;
update own.wed_trig set timeout = '100 ms' where trname = 'loop';
insert into own.wed_flow (a) values ('note'), ('loop'), ('grab'), ('lock'), ('others');
select pg_temp.wait_for($$(select bool_and(status in ('E', 'F')) from own.wed_instance)$$);
select f.wid, f.a, i.status, i.error from own.wed_flow f join own.wed_instance i using (wid) order by wid;
select * from own.log;

-- What makes no sense is refused when it is defined.
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, action) values ('x', 'true', 'nothing = 1')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, action) values ('x', 'true', 'a = 1; delete from wed_trace')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, action) values ('x', 'true', 'a = 1 where true or (true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, action) values ('x', 'true', '')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, action) values ('x', 'true', '_stamp = null')$$) \gx
select wed_sql.drop_flow('own');
drop owned by vote_owner;
drop role vote_owner;
