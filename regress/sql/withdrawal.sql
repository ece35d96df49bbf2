-- A withdrawable rule: its job goes as soon as its condition stops to hold, and when the instance ends.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('claim');
set search_path = claim, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'open'), ('answer', null), ('count', '0');
insert into wed_trig (trname, cpred) values ('examine', $$stage = 'open' and count < '2'$$);
insert into wed_trig (trname, cpred, withdrawable) values ('withdraw_claim', $$stage = 'open' and answer is null$$, true);
insert into wed_trig (trname, cpred) values ('remember', $$count = '1'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'closed'$$, true);
commit;

-- deferred choice: the first event withdraws the other
insert into wed_flow default values;
select * from pg_temp.jobs();
select pg_temp.perform(1, 'examine', $$answer = 'yes'$$);
select trname from pg_temp.jobs();
select version, trw, trf, status, pending from pg_temp.trace(1);

-- due again, as another job
select pg_temp.perform(1, 'examine', $$answer = null$$);
select trname from pg_temp.jobs();
select trname, version from job_pool order by tgid;

-- who has it locked when it is withdrawn learns it when he writes, also if it is due once more
select wid, tgid from job_pool where trname = 'withdraw_claim' \gset
begin;
select wed_sql.try_lock(:wid, :tgid);
select (wed_sql.operate('wed_flow', :wid, 'rewind', set_clause => $$count = '0'$$)).trw;
select * from pg_temp.refused($$update wed_flow set stage = 'closed'$$) \gx
rollback;

-- it does not stand in the way of a final state
insert into wed_flow default values;
select trname from pg_temp.jobs() where wid = 2;
select pg_temp.perform(2, 'examine', $$stage = 'closed'$$);
select trname from pg_temp.jobs() where wid = 2;
select version, trw, trf, status, pending from pg_temp.trace(2);

-- others do
insert into wed_flow (count) values ('1');
select trname from pg_temp.jobs() where wid = 3;
select * from pg_temp.refused($$select pg_temp.perform(3, 'examine', 'stage = ''closed''')$$) \gx

-- a rule that is made withdrawable is so from the next state on; one that is gone keeps what it was last
update wed_trig set withdrawable = true where trname = 'remember';
delete from wed_trig where trname = 'withdraw_claim';
select pg_temp.perform(3, 'examine', $$count = '2'$$);
select trname from pg_temp.jobs() where wid = 3;
select version, trw, trf, status, pending from pg_temp.trace(3);

-- P_k, as the rows and the pool have it
select t.wid, t.pending, array(select tgid from job_pool j where j.wid = t.wid order by tgid) as pool
  from (select distinct on (wid) * from wed_trace order by wid, version desc) t order by wid;
