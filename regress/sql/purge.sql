-- Retention: what ended long ago goes with its history; nothing that lives does.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('book', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'paid'$$, true);
commit;
insert into wed_flow (stage) select case when n % 2 = 0 then 'new' else 'paid' end from generate_series(1, 20) n;
select wed_sql.sync();
-- some ended long ago
update wed_trace set tstmp = tstmp - interval '90 days' where wid <= 9;
select count(*) from wed_sql.cancel('trip', 'wid = 10');
select wed_sql.sync();

-- a rehearsal, then for good
call wed_sql.purge('trip', '30 days', dry_run => true);
select count(*) from wed_flow;
call wed_sql.purge('trip', '30 days', 2);
select wid, status from wed_instance order by wid;
select wid from wed_trace order by wid;
call wed_sql.purge('trip', '30 days');
-- cancelled ones too, with all that is known about them; never a live one, nor a suspended one
select count(*) from wed_sql.suspend('trip', 'wid = 2');
select wid, event from wed_event order by 1, 2;
select wed_sql.sync();
call wed_sql.purge('trip', '0', 3);
select wid, status from wed_instance order by wid;
select wid, event from wed_event order by 1, 2;
select count(*) from wed_trace;

-- not before its last state is in the history
begin;
insert into wed_flow (stage) values ('paid');
select purged from wed_sql.purge_batch('trip', now() + interval '1 hour');
commit;
-- batch by batch, from where the last one ended
insert into wed_flow (stage) select 'paid' from generate_series(1, 5);
select wed_sql.sync();
select purged, last_wid from wed_sql.purge_batch('trip', now(), 4, dry_run => true);
select purged, last_wid from wed_sql.purge_batch('trip', now(), 4);
select b.purged, b.last_wid is null as no_more
  from wed_trace t, wed_sql.purge_batch('trip', now(), 4, t.tstmp, t.wid) b where t.status = 'F' order by t.tstmp desc, t.wid desc limit 1;
select purged, last_wid from wed_sql.purge_batch('trip', now());
select * from wed_sql.purge_batch('trip', now());

-- one that was reopened is live again: its line of then is not its last
insert into wed_flow (stage) values ('paid');
select max(wid) as wid from wed_flow \gset
insert into wed_trig (trname, cpred) values ('refund', $$stage = 'refund'$$);
select version, status from wed_sql.reopen('trip', :wid, $$stage = 'refund'$$);
select wed_sql.sync();
call wed_sql.purge('trip', '0');
select version, status from wed_instance where wid = :wid;
-- and it is not when it has ended once more, as long as that is not in the history
begin;
select pg_temp.perform(:wid, 'refund', $$stage = 'paid'$$);
select purged from wed_sql.purge_batch('trip', now() + interval '1 hour');
rollback;
select pg_temp.perform(:wid, 'refund', $$stage = 'paid'$$);
select wed_sql.sync();
call wed_sql.purge('trip', '0');
select count(*) from wed_trace where wid = :wid;

-- one that a table of the owner's refers to stays, and keeps none of the others
create table trip.invoice (wid bigint references wed_flow);
insert into wed_flow (stage) select 'paid' from generate_series(1, 3);
insert into trip.invoice select max(wid) - 1 from wed_flow;
select wed_sql.sync();
\set VERBOSITY terse
call wed_sql.purge('trip', '0');
\set VERBOSITY default
select count(*) from wed_flow where stage = 'paid';
drop table trip.invoice;
-- nor does one lose its history that a trigger of his keeps
create function trip.keep() returns trigger language plpgsql as 'begin return null; end';
create trigger keep before delete on wed_flow for each row execute function trip.keep();
select wid as kept from wed_flow where stage = 'paid' \gset
call wed_sql.purge('trip', '0');
select count(*) from wed_trace where wid = :kept;
drop trigger keep on wed_flow;
-- what the engine cannot check is named: it writes in a security-restricted operation
create constraint trigger later after update or delete on wed_flow deferrable initially deferred for each row execute function trip.keep();
select * from wed_sql.warnings() w where w like '%deferred%';
\set VERBOSITY terse
call wed_sql.purge('trip', '0');
\set VERBOSITY default
drop trigger later on wed_flow;
select count(*) from wed_sql.warnings() w where w like '%deferred%';
call wed_sql.purge('trip', '0');
select count(*) from wed_trace where wid = :kept;
drop function trip.keep();

-- bad input
select * from pg_temp.refused($$call wed_sql.purge('nowhere', '0')$$) \gx
select * from pg_temp.refused($$call wed_sql.purge('trip', null)$$) \gx
select * from pg_temp.refused($$call wed_sql.purge('trip', '0', 0)$$) \gx
select * from pg_temp.refused('delete from wed_flow') \gx
-- it commits, so it cannot be part of a transaction
insert into wed_flow (stage) values ('paid');
select wed_sql.sync();
begin;
call wed_sql.purge('trip', '0');
rollback;
-- nor is it led astray by whoever calls it with operators of his own
create schema wed_sql_astray;
create function wed_sql_astray.nothing(bigint, bigint) returns bigint language sql as 'select 0::bigint';
create operator wed_sql_astray.+ (leftarg = bigint, rightarg = bigint, function = wed_sql_astray.nothing);
set search_path = wed_sql_astray, pg_catalog, trip, wed_sql;
call wed_sql.purge('trip', '0');
set search_path = trip, wed_sql;
drop schema wed_sql_astray cascade;

-- for the owner of the flow
set client_min_messages = error;
drop role if exists wed_sql_owner;
reset client_min_messages;
create role wed_sql_owner;
insert into wed_flow (stage) values ('paid');
alter table wed_flow owner to wed_sql_owner;
select wed_sql.sync();
set role wed_sql_owner;
call wed_sql.purge('trip', '0');
reset role;
select wed_sql.drop_flow('trip');
drop owned by wed_sql_owner;
drop role wed_sql_owner;
