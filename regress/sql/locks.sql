-- C2: a state is written by who holds the lock of a pending job, and completes that job.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('travel');
set search_path = travel, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('a1', 'ready');
insert into wed_attr (aname) values ('a2'), ('a3');
insert into wed_trig (trname, cpred) values
    ('tr_a2', $$a1 = 'ready' and a2 is null$$),
    ('tr_a3', $$a1 = 'ready' and a3 is null$$),
    ('tr_final', $$a1 = 'ready' and a2 is not null and a3 is not null$$);
insert into wed_trig (cpred, cfinal) values ($$a1 <> 'ready'$$, true);
commit;
insert into wed_flow default values;
insert into wed_flow default values;
select wid, trname from pg_temp.jobs();

-- no lock
select * from pg_temp.refused('update wed_flow set a2 = 1 where wid = 1') \gx
-- the lock of another instance
select * from pg_temp.refused('select wed_sql.try_lock(2, 2); update wed_flow set a2 = 1 where wid = 1') \gx
-- two instances, one lock
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set a2 = 1') \gx
-- a job that is not pending
select * from pg_temp.refused('select wed_sql.try_lock(1, 4); update wed_flow set a2 = 1 where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 1); update wed_flow set a2 = 1 where wid = 1') \gx
-- a rule of nobody
select * from pg_temp.refused('select wed_sql.try_lock(1, 99); update wed_flow set a2 = 1 where wid = 1') \gx
-- a shared lock is none
select * from pg_temp.refused('select pg_advisory_xact_lock_shared(1, 2); update wed_flow set a2 = 1 where wid = 1') \gx
-- a job that this transaction has completed itself
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set a2 = 1 where wid = 1;
    update wed_flow set a2 = 2 where wid = 1') \gx
-- a lock that was given up by rolling back to a savepoint
begin;
savepoint s;
select wed_sql.try_lock(1, 2);
rollback to s;
update wed_flow set a2 = 1 where wid = 1;
rollback;
\echo :LAST_ERROR_SQLSTATE

-- two locks: which?
select * from pg_temp.refused('select wed_sql.try_lock(1, 2), wed_sql.try_lock(1, 3);
    update wed_flow set a2 = 1 where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 2), wed_sql.try_lock(1, 3);
    set local wed_sql.completes_tgid = 4; update wed_flow set a2 = 1 where wid = 1') \gx
-- naming a job is not holding its lock
select * from pg_temp.refused('set local wed_sql.completes_tgid = 2; update wed_flow set a2 = 1 where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 3);
    set local wed_sql.completes_tgid = 2; update wed_flow set a2 = 1 where wid = 1') \gx

-- what is nobody's to write
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set wid = 3 where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set wid = default where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set _stamp = _stamp where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set _stamp.version = 7 where wid = 1') \gx
select * from pg_temp.refused('delete from wed_flow where wid = 1') \gx
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); delete from wed_flow where wid = 1') \gx
select * from pg_temp.refused('truncate wed_flow') \gx
select * from pg_temp.refused('truncate job_pool') \gx
select * from pg_temp.refused('truncate wed_trace') \gx
select * from pg_temp.refused('truncate wed_attr') \gx
select * from pg_temp.refused('truncate wed_trig') \gx
-- other ways to the same row
select * from pg_temp.refused('select * from wed_flow for update; update wed_flow set a2 = 1 where wid = 1') \gx
select * from pg_temp.refused('insert into wed_flow (wid) overriding system value values (1)
    on conflict (wid) do update set a2 = 1') \gx
set session_replication_role = replica;
select * from pg_temp.refused('update wed_flow set a2 = 1 where wid = 1') \gx
reset session_replication_role;

-- nothing of this has left a mark
select wid, trname from pg_temp.jobs();
select wid, version, state, status from pg_temp.trace();

-- naming one of two
begin;
select wed_sql.try_lock(1, 2), wed_sql.try_lock(1, 3);
set local wed_sql.completes_tgid = 3;
update wed_flow set a3 = 'x' where wid = 1;
commit;
-- several instances in one statement
select wed_sql.sync() is not null as synced;
begin;
select wed_sql.try_lock(1, 2), wed_sql.try_lock(2, 2);
update wed_flow set a2 = 'y';
commit;
select wid, trname from pg_temp.jobs();
-- the lock of the paper is the lock
begin;
select pg_try_advisory_xact_lock(2, 3);
update wed_flow set a3 = 'z' where wid = 2;
commit;
select wid, version, trw, trf, status, pending from pg_temp.trace();
-- a transition that is rolled back leaves its job
begin;
select wed_sql.try_lock(2, 4);
update wed_flow set a1 = 'done' where wid = 2;
rollback;
select wid, trname from pg_temp.jobs();

-- a wid beyond 32 bits has a lock of its own
insert into wed_flow (wid) overriding system value values (4294967297);
select wid, trname from pg_temp.jobs() where wid > 9;
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set a2 = 1 where wid = 4294967297') \gx
select pg_temp.perform(4294967297, 'tr_a2', 'a2 = 1');
select * from pg_temp.refused('select wed_sql.try_lock(-1, 2)') \gx
select * from pg_temp.refused('select wed_sql.try_lock(9223372036854775807, 2)') \gx
