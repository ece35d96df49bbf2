-- A flow's tables stay what the flow needs, whoever owns wed_flow: DDL works, or is refused with a reason.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_owner, wed_sql_heir;
reset client_min_messages;
create role wed_sql_owner;
do $$ begin execute format('grant create on database %I to wed_sql_owner', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wed_sql_owner;
set role wed_sql_owner;
select wed_sql.create_flow('kept');
set search_path = kept, wed_sql;
insert into wed_attr (aname, atype) values ('n', 'integer');
insert into wed_trig (trname, cpred) values ('go', 'n > 0');
insert into wed_flow (n) values (1);

create schema kept_code;
create function kept_code.four() returns integer language sql as 'select 4';
-- the commands that would break it
create function pg_temp.tried(command text) returns text language plpgsql as $$
declare
    code text; message text; detail text;
begin
    execute command;
    return 'NOT REFUSED';
exception when others then
    get stacked diagnostics code = returned_sqlstate, message = message_text, detail = pg_exception_detail;
    return code || ' ' || case code when 'WED15' then coalesce(nullif(detail, ''), message) else message end;
end
$$;
select command, pg_temp.tried(command) from unnest(array[
    'alter table wed_flow disable trigger zz_guard',
    'alter table wed_flow disable trigger all',
    'alter table wed_flow enable replica trigger zz_guard',
    'alter table wed_flow enable trigger zz_guard_truncate',
    'drop trigger zz_guard on wed_flow',
    'alter trigger zz_guard on wed_flow rename to aa_guard',
    'create or replace trigger zz_guard before insert on wed_flow for each row execute function suppress_redundant_updates_trigger()',
    'alter table wed_flow drop column n',
    'alter table wed_flow drop column wid cascade',
    'alter table wed_flow drop column _stamp cascade',
    'alter table wed_flow alter n type text',
    'alter table wed_flow alter _stamp drop not null',
    'alter table wed_flow alter wid drop identity',
    'alter table wed_flow rename n to m',
    'alter table wed_flow rename wid to id',
    'alter table wed_flow rename to flow',
    'alter table wed_flow add column other text',
    'alter table wed_flow set unlogged',
    'alter table wed_flow set schema public',
    'alter table wed_flow replica identity nothing',
    'alter table wed_flow force row level security',
    'alter table wed_flow drop constraint wed_flow_pkey',
    'create rule r as on update to wed_flow do instead nothing',
    'create table child () inherits (wed_flow)',
    'alter table wed_flow alter n type integer using 4711',
    'alter table wed_flow alter n set default kept_code.four()',
    'alter view wed_flow rename column n to m',
    'alter index wed_flow rename to flow',
    'alter type wed_flow rename attribute n to m',
    'alter foreign table wed_flow rename column wid to id',
    'truncate wed_flow',
    'truncate wed_flow cascade',
    'truncate job_pool',
    'truncate wed_attr',
    'truncate wed_trig',
    'drop table wed_flow',
    'drop table job_pool',
    'alter table job_pool add column x text',
    'alter table wed_trace add column x text',
    'create trigger t before insert on job_pool for each row execute function suppress_redundant_updates_trigger()',
    'create rule r as on insert to wed_trace do instead nothing',
    'create index on wed_trace (trw)',
    'drop view wed_instance',
    'create or replace view wed_instance as select 1 as wid',
    'alter schema kept rename to lost',
    'drop schema kept cascade'
]) command \gx

-- those that do no harm
select command, pg_temp.tried(command) from unnest(array[
    'create index mine on wed_flow (n)',
    'alter table wed_flow add constraint positive check (n > 0)',
    'alter table wed_flow add column twice integer generated always as (n * 2) stored',
    'alter table wed_flow alter n set statistics 100',
    'alter table wed_flow set (fillfactor = 50)',
    'alter table wed_flow drop column twice',
    'alter table wed_flow drop constraint positive',
    'drop index mine',
    'create table other (wid bigint references wed_flow)',
    'drop table other'
]) command;
-- and the way that is meant
insert into wed_attr (aname) values ('a'), ('b');
update wed_attr set atype = 'bigint' where aname = 'n';
update wed_attr set aname = 'c' where aname = 'b';
delete from wed_attr where aname = 'c';
select attname, atttypid::regtype from pg_attribute where attrelid = 'wed_flow'::regclass and attnum > 0 and not attisdropped order by attname;
select pg_temp.perform(1, 'go', 'n = 2');
reset role;

-- a superuser can do more, but not break it by mistake
select command, pg_temp.tried(command) from unnest(array[
    'drop table job_pool',
    'drop table wed_trace cascade',
    'drop table wed_attr',
    'drop table wed_trig',
    'drop trigger zz_guard on wed_flow',
    'drop publication wed_sql',
    'drop function wed_sql.guard() cascade',
    'create table child () inherits (wed_flow)',
    'drop event trigger wed_sql_dropped'
]) command;
alter schema kept rename to moved;
set search_path = moved, wed_sql;
select pg_temp.perform(1, 'go', 'n = 3');
select version, trw, trf from pg_temp.trace();
set session_replication_role = replica;
select * from pg_temp.refused('update moved.wed_flow set n = 7') \gx
select * from pg_temp.refused($$insert into moved.wed_trig (trname, cpred) values ('t', 'nonsense')$$) \gx
select pg_temp.tried('alter table wed_flow disable trigger zz_guard');
reset session_replication_role;

-- whoever drops wed_flow drops the flow
set client_min_messages = warning;
alter schema moved rename to kept;
set search_path = kept, wed_sql;
begin;
drop owned by wed_sql_owner cascade;
select count(*) from wed_sql.flow;
select count(*) from pg_class where relnamespace = (select oid from pg_namespace where nspname = 'kept');
rollback;
begin;
drop schema kept cascade;
select count(*) from wed_sql.flow;
rollback;
begin;
set role wed_sql_owner;
drop table wed_flow cascade;
reset role;
select count(*) from wed_sql.flow;
select nspname from pg_namespace where nspname = 'kept';
rollback;
select pg_temp.perform(1, 'go', 'n = 4');
select wed_sql.drop_flow('kept');

-- a flow that changes hands is the new owner's, and nobody else's
create role wed_sql_heir;
set role wed_sql_owner;
select wed_sql.create_flow('left');
reset role;
alter table "left".wed_flow owner to wed_sql_heir;
set role wed_sql_owner;
select pg_temp.tried($$insert into "left".wed_trig (trname, cpred) values ('t', 'true')$$);
reset role;
set role wed_sql_heir;
insert into "left".wed_attr (aname) values ('a');
insert into "left".wed_trig (trname, cpred) values ('go', 'a is null');
insert into "left".wed_flow default values;
create table "left".mine ();
reset role;
reassign owned by wed_sql_heir to wed_sql_owner;
set role wed_sql_heir;
select pg_temp.tried('select from "left".wed_trig');
reset role;
set role wed_sql_owner;
insert into "left".wed_trig (trname, cpred) values ('stay', 'true');
drop table "left".mine;
reset role;
select wed_sql.drop_flow('left');

drop owned by wed_sql_owner, wed_sql_heir;
drop role wed_sql_owner, wed_sql_heir;
