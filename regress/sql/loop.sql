-- A rule whose condition still holds after its own transition fires again; one
-- that is pending already does not.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('loop');
set search_path = loop, wed_sql;
begin;
insert into wed_attr (aname, adv, atype) values ('n', '0', 'integer'), ('seen', 'false', 'boolean');
insert into wed_trig (trname, cpred) values ('tick', 'n < 3'), ('look', 'not seen');
insert into wed_trig (cpred, cfinal) values ('n = 3 and seen', true);
commit;
insert into wed_flow default values;

select pg_temp.perform(1, 'tick', 'n = n + 1');
select pg_temp.perform(1, 'tick', 'n = n + 1');
-- a transition that changes nothing is a transition
select pg_temp.perform(1, 'tick', 'n = n');
select pg_temp.perform(1, 'tick', 'n = n + 1');
select * from pg_temp.jobs();
select pg_temp.perform(1, 'look', 'seen = true');
select version, state, trw, trf, status, pending from pg_temp.trace();

-- a pending job stays when its condition stops holding, and keeps its payload
insert into wed_flow default values;
select pg_temp.perform(2, 'tick', 'n = 7, seen = true');
select * from pg_temp.jobs();
select pg_temp.perform(2, 'look', 'n = 3');
select version, state, trw, trf, status, pending from pg_temp.trace(2);
