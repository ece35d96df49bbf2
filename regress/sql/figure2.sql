-- Figure 2 of the paper, word for word, and its protocol, in one session.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

SELECT wed_sql.create_flow('travel');
SET search_path = travel, wed_sql;

BEGIN;

INSERT INTO wed_attr (aname, adv) VALUES ('a1','ready');
INSERT INTO wed_attr (aname) VALUES ('a2'),('a3');

INSERT INTO wed_trig (tgname,trname,cname,cpred,timeout)
VALUES ('t1','tr_a2','c1', $$a1='ready' and (a2 is null)$$, '3d18h');
INSERT INTO wed_trig (tgname,trname,cname,cpred,timeout)
VALUES ('t2','tr_a3','c2', $$a1='ready' and (a3 is null)$$, '00:00:30');
INSERT INTO wed_trig (tgname,trname,cname,cpred,timeout)
VALUES ('tf','tr_final','cf', $$a1='ready'
and (a2 is not null)
and (a3 is not null)$$, '00:00:10');
INSERT INTO wed_trig (cpred,cfinal) VALUES ($$a1 <> 'ready'$$, True);

COMMIT;

select * from wed_attr order by aname;
select * from wed_trig order by tgid;

INSERT INTO wed_flow DEFAULT VALUES;

-- s_0 fires both branches
select * from pg_temp.jobs();
select tgid, trname, lckid, timeout, payload, fired_at <= now() as fired from job_pool order by tgid;
select wid, version, status, pending, error from wed_instance;

-- one branch
begin;
select pg_try_advisory_xact_lock(1, 2);
update wed_flow set a2 = 'flight' where wid = 1;
commit;
select * from pg_temp.jobs();

-- the other, and the join fires
begin;
select wed_sql.try_lock(1, 3);
update wed_flow set a3 = 'hotel' where wid = 1;
commit;
select * from pg_temp.jobs();

begin;
select wed_sql.try_lock(1, 4);
update wed_flow set a1 = 'done' where wid = 1;
commit;
select * from pg_temp.jobs();

select * from pg_temp.trace();
select wid, a1, a2, a3 from wed_flow;
select wid, version, status, pending, error from wed_instance;
select count(distinct tstmp) = 4 and bool_and(tstmp <= now()) as in_time from wed_trace;
