-- C12, and the rest of the contract, against an owner who means harm, and settings that mean nothing good.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_mallory;
drop schema if exists mal cascade;
reset client_min_messages;
create role wed_sql_mallory;
do $$ begin execute format('grant create on database %I to wed_sql_mallory', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wed_sql_mallory;

select wed_sql.create_flow('victim');
set role wed_sql_mallory;
create schema mal;
-- an immutable function that returns a record is not folded away, and takes no column
create function mal.rise() returns void language plpgsql as $$ begin alter role wed_sql_mallory superuser; end $$;
create function mal.evil() returns record language plpgsql immutable as $$
begin perform mal.rise(); return row(1); end $$;
create function mal.drops() returns boolean language plpgsql as $$
begin perform wed_sql.drop_flow('victim'); return true; end $$;
select wed_sql.create_flow('trap');
set search_path = trap, wed_sql;
insert into wed_attr (aname, adv, atype) values ('n', null, 'integer');
insert into wed_trig (tgname, trname, cpred) values ('evil', 'evil', 'n = 1 and mal.evil() is not null');
insert into wed_trig (tgname, trname, cpred) values ('case', 'case', 'n = 2 and case (mal.evil() is null) when true then true else true end');
insert into wed_trig (tgname, trname, cpred) values ('drops', 'drops', 'n = 3 and mal.drops()');
insert into wed_trig (tgname, trname, cpred) values ('plain', 'plain', 'n >= 0');
reset role;
insert into wed_flow (n) values (1), (2), (3);
-- the message is PostgreSQL's, and not the same in all versions
select wid, state, status, substring(error from '^[^:]*') as failed, substring(error from 'SQLSTATE (.....)') as code from pg_temp.trace();
select rolsuper from pg_roles where rolname = 'wed_sql_mallory';
select nspname from pg_namespace where nspname = 'victim';

-- what fires after the guard could change what it has judged
set role wed_sql_mallory;
delete from wed_trig where tgname <> 'plain';
create function mal.other() returns trigger language plpgsql as $$ begin new.n := -6; return new; end $$;
create trigger zzz before insert or update on wed_flow for each row execute function mal.other();
select * from pg_temp.refused('insert into trap.wed_flow (n) values (7)') \gx
drop trigger zzz on wed_flow;
create trigger aaa before insert on wed_flow for each row execute function mal.other();
select * from pg_temp.refused('insert into trap.wed_flow (n) values (7)') \gx
drop trigger aaa on wed_flow;
-- a generated column is computed after the state is judged
alter table wed_flow add column tenfold integer generated always as (n * 10) stored;
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'tenfold = 30')$$) \gx
alter table wed_flow drop column tenfold;
-- the guard cannot be taken off (see protection); a stamp that is none, were it ever
select * from pg_temp.refused('alter table trap.wed_flow disable trigger zz_guard') \gx
reset role;
alter event trigger wed_sql_altered disable;
alter event trigger wed_sql_rewritten disable;
alter event trigger wed_sql_dropped disable;
alter table wed_flow alter _stamp drop not null;
alter table wed_flow disable trigger zz_guard;
insert into wed_flow (n) values (99);
alter table wed_flow enable always trigger zz_guard;
select * from pg_temp.refused('update trap.wed_flow set n = 1 where n = 99') \gx
create type mal.fake as (version bigint, rules bigint, by integer, pending bigint, matched bigint, final boolean, error text, trw text);
alter table wed_flow disable trigger zz_guard;
drop view wed_instance;
alter table wed_flow alter _stamp type mal.fake using row(0, 1, null, 4711, 4711, false, null, null)::mal.fake;
alter table wed_flow enable always trigger zz_guard;
select * from pg_temp.refused('update trap.wed_flow set n = 1 where n = 99') \gx
alter event trigger wed_sql_altered enable always;
alter event trigger wed_sql_rewritten enable always;
alter event trigger wed_sql_dropped enable always;
create view wed_instance as select;
select wed_sql.drop_flow('trap');

-- a condition that is mended is mended for sessions that saw it broken, too
set role wed_sql_mallory;
create function mal.even(integer) returns boolean language sql as 'select $1 % 2 = 0';
select wed_sql.create_flow('trap');
insert into wed_attr (aname, atype) values ('n', 'integer');
insert into wed_trig (tgname, trname, cpred) values ('even', 'even', 'mal.even(n)');
alter function mal.even(integer) rename to odd;
insert into wed_flow (n) values (2);
alter function mal.odd(integer) rename to even;
insert into wed_flow (n) values (2);
reset role;
select wid, status, trf, error from pg_temp.trace();
-- an error's text is not a book
set role wed_sql_mallory;
create function mal.book() returns boolean language plpgsql as $$ begin raise exception '%', repeat('é', 100000); end $$;
insert into wed_trig (tgname, trname, cpred) values ('book', 'book', 'n = 4 and mal.book()');
insert into wed_flow (n) values (4);
reset role;
select wid, status, length(error) < 1100 as short from pg_temp.trace(3);
delete from wed_trig where tgname = 'book';

-- the session's settings do not change what a condition or a name means
set transform_null_equals = on;
set lock_timeout = '1ms';
insert into wed_trig (tgname, trname, cpred) values ('null', 'null', 'n = null');
insert into wed_flow (n) values (2);
select * from pg_temp.refused('insert into trap.wed_flow (n) values (null)') \gx
reset transform_null_equals;
reset lock_timeout;
set standard_conforming_strings = off;
set escape_string_warning = off;
insert into wed_attr (aname) values ('fine');
reset standard_conforming_strings;
reset escape_string_warning;

-- an instance that nobody could lock
select * from pg_temp.refused('insert into trap.wed_flow (wid, n) overriding system value values (-3, 2)') \gx
select * from pg_temp.refused('insert into trap.wed_flow (wid, n) overriding system value values (1000000000000000, 2)') \gx
insert into wed_flow (wid, n) overriding system value values (5000000000, 2);
select pg_temp.perform(5000000000, 'even', 'n = 8');
select wid, version, trw, trf from pg_temp.trace(5000000000);

-- a schema that was dropped by other means is no obstacle
set client_min_messages = error;
drop schema trap cascade;
reset client_min_messages;
select wed_sql.create_flow('trap');
select count(*) from wed_sql.flow;
select wed_sql.drop_flow('trap');
select wed_sql.drop_flow('victim');
drop type mal.fake;
drop owned by wed_sql_mallory;
drop role wed_sql_mallory;
