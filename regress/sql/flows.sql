-- C13: flows of one database with the same names in them do not disturb each other.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('one');
select wed_sql.create_flow('Two "2"');

set search_path = one, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('work', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
commit;

set search_path = "Two ""2""", wed_sql;
begin;
insert into wed_attr (aname, adv, atype) values ('stage', '0', 'integer');
insert into wed_trig (trname, cpred) values ('work', 'stage < 2');
insert into wed_trig (cpred, cfinal) values ('stage = 2', true);
commit;

insert into one.wed_flow default values;
insert into "Two ""2""".wed_flow default values;
select * from pg_temp.jobs();
select wid, tgid, trname, payload from one.job_pool;

-- the lock of one is no use in the other, though trname and wid are the same
select tgid as one_work from one.job_pool \gset
select * from pg_temp.refused(format('select wed_sql.try_lock(1, %s); update "Two ""2""".wed_flow set stage = 2', :one_work)) \gx

select pg_temp.perform(1, 'work', 'stage = 2');
select state, trw, trf, status from pg_temp.trace();
select wid, version, status, pending from one.wed_instance;

-- one goes, the other goes on
select wed_sql.drop_flow('Two "2"');
select * from pg_temp.refused($$select wed_sql.drop_flow('Two "2"')$$) \gx
set search_path = one, wed_sql;
select pg_temp.perform(1, 'work', $$stage = 'done'$$);
select state, trw, trf, status from pg_temp.trace();

-- a flow that comes back is a new one
select wed_sql.create_flow('Two "2"');
select count(*) from "Two ""2""".wed_trig;
select * from pg_temp.refused($$select wed_sql.create_flow('one')$$) \gx
-- what others put into its schema stays
create table one.mine ();
select wed_sql.drop_flow('one');
drop schema one cascade;
-- created and gone again
begin;
select wed_sql.create_flow('three');
insert into three.wed_attr (aname) values ('a');
rollback;
select wed_sql.create_flow('three');
begin;
select wed_sql.drop_flow('three');
rollback;
select count(*) from three.wed_attr;
select f.wed_flow from wed_sql.flow f order by f.flow_id;
