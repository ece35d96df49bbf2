-- C7: a state is judged by the rules in force in the transaction that wrote it.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('mill');
set search_path = mill, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('grind', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'flour'$$, true);
commit;

-- before and after a change, in one transaction
begin;
insert into wed_flow default values;
update wed_trig set trname = 'crush' where trname = 'grind';
insert into wed_flow default values;
insert into wed_trig (trname, cpred) values ('weigh', $$stage = 'new'$$);
insert into wed_flow default values;
update wed_trig set enabled = false where trname = 'crush';
insert into wed_flow default values;
delete from wed_trig where trname = 'weigh';
update wed_trig set enabled = true where trname = 'crush';
insert into wed_flow default values;
commit;
select wid, state, trf, status, pending from pg_temp.trace();
-- the job keeps the name it was fired with
select wid, tgid, trname from job_pool order by wid, tgid;

-- a change that is rolled back has judged nothing that stays
begin;
update wed_trig set cpred = 'true' where trname = 'crush';
insert into wed_flow (stage) values ('odd');
savepoint s;
update wed_trig set cpred = 'false' where trname = 'crush';
rollback to s;
insert into wed_flow (stage) values ('odder');
rollback;
select * from pg_temp.refused($$insert into wed_flow (stage) values ('odd')$$) \gx

-- jobs outlive their rules, and can be done
select pg_temp.perform(1, 'grind', $$stage = 'flour'$$);
delete from wed_trig where trname = 'crush';
insert into wed_trig (trname, cpred) values ('sift', $$stage = 'coarse'$$);
select pg_temp.perform(2, 'crush', $$stage = 'coarse'$$);
select pg_temp.perform(2, 'sift', $$stage = 'flour'$$);
select wid, version, trw, trf, status, pending from pg_temp.trace() where wid < 3;

-- a final condition can be edited like any other rule
update wed_trig set cpred = $$stage in ('flour', 'bran')$$ where cfinal;
insert into wed_flow (stage) values ('bran') returning wid;
update wed_trig set enabled = false where cfinal;
select * from pg_temp.refused($$insert into wed_flow (stage) values ('bran')$$) \gx
select wid, status from pg_temp.trace() where wid > 5;

-- the versions of all rules
select tgid, valid_from, nullif(valid_until, 9223372036854775807) as valid_until, trname, cpred, enabled
  from wed_sql.rule order by tgid, valid_from;
