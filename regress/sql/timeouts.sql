-- What ends transactions that take too long: who may call it, and what it makes of what makes no sense. What it does is in regress/t/050_timeouts.pl.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
\set VERBOSITY terse

select wed_sql.create_flow('timeouts');
set search_path = timeouts, wed_sql;
insert into wed_attr (aname, adv) values ('a', 'x');
-- nobody lives to see it, and it stops nothing
insert into wed_trig (trname, cpred, timeout) values ('long', 'a = ''x''', '170000 years');
insert into wed_trig (trname, cpred, timeout) values ('bad', 'a = ''x''', '0');
insert into wed_trig (trname, cpred, timeout) values ('bad', 'a = ''x''', '-1 second');
insert into wed_flow default values;
select wid, trname from pg_temp.jobs();
select ended, deadline, shortest_us, complete from wed_sql.end_overdue(true);
select ended, deadline, shortest_us, complete from wed_sql.end_overdue(false);

-- one's own locks are not those of another
begin;
select wed_sql.try_lock(wid, tgid), wed_sql.try_lock(4294967296000, tgid), wed_sql.try_lock(140728898420735, tgid) from job_pool;
select count(*) from wed_sql.lock_holders();
select ended from wed_sql.end_overdue(true);
rollback;

-- who is not there is not ended
select wed_sql.end_holder(1, 1, pid, lxid, '-infinity') as ended
  from (values (0), (-1), (1), (2147483647), (-2147483648), (pg_backend_pid())) p(pid),
       (values (0::bigint), (-1), (1), (4294967296)) l(lxid)
 group by 1;
select wed_sql.end_holder(wid, 1, pid, 1, '-infinity') from (values (-1::bigint), (140728898420736), (9223372036854775807)) w(wid),
       lateral (select pid from pg_stat_activity where pid <> pg_backend_pid() and backend_type = 'client backend' union all select 1 limit 1) p group by 1;
select wed_sql.end_holder(1, 1, 1, 1, null);
select count(*) from wed_sql.take_lost_jobs();
select wed_sql.count_lost_jobs();
select wed_sql.any_running('{}'), wed_sql.any_running('{0,1,2,3,null}'), wed_sql.any_running(array[pg_current_xact_id()::xid]);

-- only the extension's owner calls them, and the engine what it needs
select p.oid::regprocedure from pg_proc p
 where p.proname in ('lock_holders', 'oldest_transaction', 'end_holder', 'end_overdue', 'end_overdue_of', 'shortest_timeout', 'longest_timeout', 'log',
                     'take_lost_jobs', 'count_lost_jobs', 'any_running', 'timeout_warnings')
   and p.pronamespace = 'wed_sql'::regnamespace and has_function_privilege('pg_monitor', p.oid, 'execute');
create role timeouts_nobody;
set role timeouts_nobody;
select * from wed_sql.lock_holders();
select wed_sql.end_holder(1, 1, 1, 1, now());
select wed_sql.end_overdue(true);
select wed_sql.log('a', 'b');
select wed_sql.take_lost_jobs();
select wed_sql.count_lost_jobs();
reset role;
create role timeouts_engine login replication;
select wed_sql.grant_engine('timeouts_engine');
set role timeouts_engine;
select ended from wed_sql.end_overdue(true);
select wed_sql.count_lost_jobs(), wed_sql.any_running('{}');
select wed_sql.end_holder(1, 1, 1, 1, now());
select wed_sql.take_lost_jobs();
select wed_sql.log('a', 'b');
reset role;
select wed_sql.revoke_engine('timeouts_engine');
set role timeouts_engine;
select wed_sql.end_overdue(true);
reset role;
drop owned by timeouts_engine;
drop role timeouts_engine, timeouts_nobody;
