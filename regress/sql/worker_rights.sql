-- A worker role may perform its transitions and nothing else: that is enforced, not agreed.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_owner, wed_sql_booker, wed_sql_payer, wed_sql_agent, wed_sql_stranger;
reset client_min_messages;
create role wed_sql_owner;
create role wed_sql_booker;
create role wed_sql_payer;
create role wed_sql_agent;
create role wed_sql_stranger;
do $$ begin execute format('grant create on database %I to wed_sql_owner', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text), wed_sql.grant_worker(text, text, name),
    wed_sql.revoke_worker(text, text, name) to wed_sql_owner;

set role wed_sql_owner;
select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
insert into wed_attr (aname, atype) values ('seat', 'text'), ('paid', 'boolean');
insert into wed_trig (trname, cpred) values ('book', 'seat is null'), ('pay', 'paid is null'), ('close', 'seat is not null and paid');
insert into wed_trig (cpred, cfinal) values ($$seat = 'gone'$$, true);
insert into wed_flow default values;
insert into wed_flow (seat) values ('1a');

-- only the owner grants, and only what there is
select wed_sql.grant_worker('trip', 'book', 'wed_sql_booker');
select wed_sql.grant_worker('trip', 'pay', 'wed_sql_payer');
select wed_sql.grant_worker('trip', 'book', 'wed_sql_booker');
select * from pg_temp.refused($$select wed_sql.grant_worker('trip', 'fly', 'wed_sql_booker')$$) \gx
select * from pg_temp.refused($$select wed_sql.grant_worker('trip', 'book', 'nobody at all')$$) \gx
select * from pg_temp.refused($$select wed_sql.grant_worker('nowhere', 'book', 'wed_sql_booker')$$) \gx
reset role;
grant execute on function wed_sql.grant_worker(text, text, name) to wed_sql_stranger;
set role wed_sql_stranger;
select * from pg_temp.refused($$select wed_sql.grant_worker('trip', 'book', 'wed_sql_stranger')$$) \gx
reset role;
revoke execute on function wed_sql.grant_worker(text, text, name) from wed_sql_stranger;
set role wed_sql_stranger;
select * from pg_temp.refused($$select wed_sql.grant_worker('trip', 'book', 'wed_sql_stranger')$$) \gx
select * from pg_temp.refused('select * from trip.job_pool') \gx
reset role;
select wed_sql.sync();

-- it sees the jobs of its transition, their instances, and nothing else
set role wed_sql_booker;
select wid, trname from job_pool;
select wid, seat, paid from wed_flow;
select * from pg_temp.refused('select * from trip.wed_trace') \gx
select * from pg_temp.refused('select * from trip.wed_instance') \gx
select * from pg_temp.refused('select cpred from trip.wed_trig') \gx
select * from pg_temp.refused('insert into trip.wed_flow default values') \gx
select * from pg_temp.refused('delete from trip.job_pool') \gx
select * from pg_temp.refused('delete from trip.wed_flow') \gx
select * from pg_temp.refused('update trip.wed_flow set wid = 3') \gx
select * from pg_temp.refused('update trip.wed_flow set _stamp = null') \gx
reset role;

-- the lock of another's job is not for it, by our function; and by PostgreSQL's own it does not help
select tgid as pay from wed_trig where trname = 'pay' \gset
select tgid as book from wed_trig where trname = 'book' \gset
set role wed_sql_booker;
select * from pg_temp.refused(format('select wed_sql.try_lock(1, %s)', :pay)) \gx
select wed_sql.try_lock(2, :book) as not_pending;
select * from pg_temp.refused(format($$select pg_advisory_xact_lock(1, %s); update trip.wed_flow set paid = true where wid = 1$$, :pay)) \gx
-- what it does not see it cannot write
begin;
select pg_try_advisory_xact_lock(2, :pay);
update wed_flow set paid = true where wid = 2 returning wid;
commit;

-- its own it performs: by the raw protocol, reading what it sets
begin;
select pg_try_advisory_xact_lock(1, :book);
update wed_flow set seat = coalesce(seat, '') || '2b' where wid = 1 returning wid, seat;
commit;
-- and then it is not its instance any more
select wid, trname from job_pool;
select wid from wed_flow;
reset role;
select wid, version, trw, trf, status from pg_temp.trace();

-- an attribute that comes later, and one of a name that needs quotes
set role wed_sql_owner;
insert into wed_attr (aname) values ('Größe "x"');
reset role;
set role wed_sql_payer;
begin;
select wed_sql.try_lock(1, :pay);
update wed_flow set paid = true, "Größe ""x""" = 'm' where wid = 1 returning wid;
commit;
select wid, trname from job_pool;
reset role;

-- one role may have several, by membership too; an operator that may see all sees all
grant wed_sql_booker, wed_sql_payer to wed_sql_agent;
insert into wed_flow default values;
select wed_sql.sync();
set role wed_sql_agent;
select wid, trname from job_pool order by wid, tgid;
select wid from wed_flow order by wid;
reset role;
grant usage on schema trip to wed_sql_stranger;
grant select on wed_flow, job_pool to wed_sql_stranger;
set role wed_sql_stranger;
select wid, trname from job_pool order by wid, tgid;
select wid from wed_flow order by wid;
select * from pg_temp.refused('update trip.wed_flow set paid = true where wid = 2') \gx
reset role;
revoke all on wed_flow, job_pool from wed_sql_stranger;
revoke usage on schema trip from wed_sql_stranger;

-- the recovery of exceptions is a transition like any other
select wed_sql.grant_worker('trip', '_EXCPT', 'wed_sql_agent');
-- taken back, it is as it was before
set role wed_sql_owner;
select wed_sql.revoke_worker('trip', 'pay', 'wed_sql_payer');
select wed_sql.revoke_worker('trip', 'pay', 'wed_sql_payer');
reset role;
set role wed_sql_payer;
select * from pg_temp.refused('select * from trip.job_pool') \gx
select * from pg_temp.refused('update trip.wed_flow set paid = true') \gx
reset role;
select flow_id is not null as of_flow, trname, role from wed_sql.worker order by 2;
-- a role that is gone is in nobody's way
reset search_path;
drop owned by wed_sql_booker;
revoke wed_sql_booker from wed_sql_agent;
drop role wed_sql_booker;
set search_path = trip, wed_sql;
insert into wed_attr (aname) values ('later');
select wed_sql.grant_worker('trip', 'book', 'wed_sql_payer');
select trname, role from wed_sql.worker order by 1;
-- dropped with the flow
select wed_sql.drop_flow('trip');
select count(*) from wed_sql.worker;

drop owned by wed_sql_owner, wed_sql_payer, wed_sql_agent, wed_sql_stranger;
drop role wed_sql_owner, wed_sql_payer, wed_sql_agent, wed_sql_stranger;
