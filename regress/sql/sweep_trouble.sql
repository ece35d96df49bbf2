-- What goes wrong with one timer stops no other, and is told where one looks.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('good');
insert into good.wed_attr (aname, atype) values ('x', 'integer');
insert into good.wed_trig (trname, cpred, delay) values ('later', 'x = 1', '1 hour');
insert into good.wed_trig (cpred, cfinal) values ('x = 9', true);
select wed_sql.create_flow('bad');
insert into bad.wed_attr (aname, atype) values ('x', 'integer');
insert into bad.wed_trig (trname, cpred, delay) values ('never', 'x = 1', '1 hour');
insert into bad.wed_trig (trname, cpred, delay, action) values ('act', 'x = 2', '1 hour', 'x = 9');
insert into bad.wed_trig (trname, cpred, action, max_attempts, backoff) values
    ('nothing', 'x = 3', 'x = o.x from (select x from good.wed_flow where x = 77) o', 1, '1 hour'),
    ('fails', 'x = 4', 'x = 9', 1, '1 hour');
insert into bad.wed_trig (trname, cpred) values ('wait', 'x < 9');
select * from pg_temp.refused($$update bad.wed_trig set delay = '300000 years' where trname = 'never'$$) \gx

-- a clock that can fire nothing any more fires what it was
insert into good.wed_flow (x) values (1);
insert into bad.wed_flow (x) values (1);
select wed_sql.sync();
update bad.wed_trig set cfinal = true, trname = null, delay = null, cpred = 'x = 9' where trname = 'never';
update wed_sql.timer set due_at = clock_timestamp() - interval '1 s' where kind = 'd';
select pg_temp.wait_for('exists (select from good.job_pool) and (select count(*) from bad.job_pool) = 2');
select trname from good.job_pool;
select trname from bad.job_pool order by trname;

-- a rule that loses its delay while its clock runs is done when its time has come
insert into bad.wed_flow (x) values (2);
select wed_sql.sync();
update bad.wed_trig set delay = null where trname = 'act';
update wed_sql.timer set due_at = clock_timestamp() where kind = 'a' and wid = 2;
select pg_temp.wait_for('exists (select from bad.job_pool where wid = 2 and attempts > 0)');
-- another job stands in the way of the end: the attempt has failed, and says so
select trname, attempts > 0 as failed, last_error from bad.job_pool where wid = 2 order by trname;
update bad.wed_trig set withdrawable = true where trname = 'wait';
update wed_sql.timer set due_at = clock_timestamp() where kind = 'a' and wid = 2;
select pg_temp.wait_for($$(select status from bad.wed_instance where wid = 2) = 'F'$$);

-- an action that writes nothing has failed
insert into bad.wed_flow (x) values (3);
select pg_temp.wait_for($$(select status from bad.wed_instance where wid = 3) = 'E'$$);
select error from bad.wed_instance where wid = 3;

-- and one whose own code raises an error of ours
create function bad.meddle() returns trigger language plpgsql as $$
begin
    raise exception 'mine' using errcode = 'WED03';
end $$;
create trigger meddle after update on bad.wed_flow for each row when (old.x = 4) execute function bad.meddle();
insert into bad.wed_flow (x) values (4);
select pg_temp.wait_for($$exists (select from bad.wed_event where wid = 4 and event = 'action failed')$$);
select event, detail from bad.wed_event where wid = 4;
drop trigger meddle on bad.wed_flow;

-- the shortest timeout is one, too
insert into bad.wed_trig (trname, cpred, action, timeout, max_attempts) values
    ('short', 'x = 5', 'x = 9 + length(pg_sleep(10)::text)', '0.1 ms', 1);
insert into bad.wed_flow (x) values (5);
select pg_temp.wait_for($$(select status from bad.wed_instance where wid = 5) = 'E'$$);
select error from bad.wed_instance where wid = 5;

-- a timer that outlives its action brings back nothing that is done
insert into bad.wed_trig (trname, cpred, action, backoff) values ('by_hand', 'x = 6', 'x = 1 / 0', '1 hour');
insert into bad.wed_flow (x) values (6);
select pg_temp.wait_for($$exists (select from bad.job_pool where wid = 6 and attempts = 1)$$);
update bad.wed_trig set action = null where trname = 'by_hand';
update bad.job_pool set available_at = null where wid = 6;
set search_path = bad, wed_sql;
select pg_temp.perform(6, 'by_hand', 'x = 7');
reset search_path;
update wed_sql.timer set due_at = clock_timestamp() where wid = 6;
select pg_temp.wait_for('not exists (select from wed_sql.timer where wid = 6)');
select trname from bad.job_pool where wid = 6;
-- and what pends of a rule that is given one is done
update bad.wed_trig set action = 'x = 9' where trname = 'wait';
select pg_temp.wait_for($$(select status from bad.wed_instance where wid = 6) = 'F'$$);

drop function bad.meddle();
select wed_sql.drop_flow('bad'), wed_sql.drop_flow('good');
-- what was being put off at that moment is forgotten when it is due
select pg_temp.wait_for('not exists (select from wed_sql.timer)');
