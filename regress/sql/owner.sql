-- C12: a flow is its owner's, and gives him no rights that he has not.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_owner, wed_sql_worker;
reset client_min_messages;
create role wed_sql_owner;
create role wed_sql_worker;

set role wed_sql_owner;
select * from pg_temp.refused($$select wed_sql.create_flow('mine')$$) \gx
reset role;
do $$ begin execute format('grant create on database %I to wed_sql_owner', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wed_sql_owner;

set role wed_sql_owner;
select wed_sql.create_flow('mine');
set search_path = mine, wed_sql;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('work', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
insert into wed_flow default values;
select wid, trname from pg_temp.jobs();
-- he reads what the engine writes, and does not write it
select * from pg_temp.refused($$insert into job_pool values (1, 9, 'x', null, null, '{}', now())$$) \gx
select * from pg_temp.refused('delete from wed_trace') \gx
select * from pg_temp.refused('create trigger t before insert on job_pool for each row execute function suppress_redundant_updates_trigger()') \gx
select * from pg_temp.refused('insert into wed_sql.rule select * from wed_sql.rule') \gx
-- a worker needs nothing but the tables
grant usage on schema mine to wed_sql_worker;
grant select, update on wed_flow to wed_sql_worker;
grant select on job_pool, wed_trace to wed_sql_worker;
set role wed_sql_worker;
select pg_temp.perform(1, 'work', $$stage = 'done'$$);
select version, trw, status from pg_temp.trace();
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true')$$) \gx
select * from pg_temp.refused($$select wed_sql.drop_flow('mine')$$) \gx
reset role;

-- a condition is the owner's, whoever writes the state
create table public.secret as select 42 as answer;
create function public.who() returns text language sql as 'select current_user::text';
create function public.steal() returns boolean language plpgsql as $$
begin
    perform set_config('role', 'none', true);
    return true;
end $$;
create function public.plunder() returns boolean language plpgsql as $$
begin
    return (select answer from public.secret) = 42;
end $$;
insert into wed_trig (trname, cpred) values
    ('ask', $$stage = 'ask' and public.who() = 'wed_sql_owner'$$),
    ('steal', $$stage = 'steal' and public.steal()$$),
    ('plunder', $$stage = 'plunder' and public.plunder()$$),
    ('read', $$stage = 'read' and 42 = (select answer from public.secret)$$);
-- even when that is a superuser
insert into wed_flow (stage) values ('ask'), ('steal'), ('plunder'), ('read');
select wid, trf, status, error from pg_temp.trace() where wid > 1;

select wed_sql.drop_flow('mine');
drop table public.secret;
drop function public.who, public.steal, public.plunder;
drop owned by wed_sql_owner, wed_sql_worker;
drop role wed_sql_owner, wed_sql_worker;
