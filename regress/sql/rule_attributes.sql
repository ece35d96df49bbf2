-- Which attributes rules read and set: for whoever may read the rules, and nobody else.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_owner, wed_sql_reader, wed_sql_stranger;
reset client_min_messages;
create role wed_sql_owner;
create role wed_sql_reader;
create role wed_sql_stranger;
do $$ begin execute format('grant create on database %I to wed_sql_owner', current_database()); end $$;
grant execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) to wed_sql_owner;
create function public.is_large(integer) returns boolean language sql immutable as 'select $1 > 9';

set role wed_sql_owner;
select wed_sql.create_flow('it''s');
set search_path = "it's", wed_sql;
insert into wed_attr (aname, atype) values ('a', 'integer'), ('b', 'integer'), ('select', 'text'), ('Ключ "x"', 'text');
insert into wed_trig (trname, cpred, action) values
    ('plain',    'a is null',                                                            null),
    ('acting',   'a > 1 and b < 2 and a <> wid',                                         'b = a + 1, "Ключ ""x""" = ''b = 1, a = 2'''),
    ('together', $$"select" = 'b'$$,                                                     '(a, "select") = (select 1, ''x''), b = default'),
    ('outside',  'exists (select from pg_class c where c.relname = "Ключ ""x""" and a = 1)', null),
    ('nothing',  'false',                                                                null),
    ('function', 'public.is_large(b)',                                                   null);
insert into wed_trig (cpred, cfinal) values ('a = 9', true);
select trname, reads, sets from wed_sql.rule_attributes('it''s') order by tgid;

-- a condition that is not valid any more hides no other
reset role;
alter function public.is_large(integer) rename to is_big;
select trname, reads, sets from wed_sql.rule_attributes('it''s') order by tgid;
alter function public.is_big(integer) rename to is_large;

-- who may read the rules, and who may not
set role wed_sql_stranger;
select * from pg_temp.refused($$select wed_sql.rule_attributes('it''s')$$) \gx
reset role;
grant select on "it's".wed_trig to wed_sql_reader;
set role wed_sql_reader;
select * from pg_temp.refused($$select wed_sql.rule_attributes('it''s')$$) \gx
reset role;
grant usage on schema "it's" to wed_sql_reader, wed_sql_stranger;
grant select (tgid, trname) on "it's".wed_trig to wed_sql_stranger;
set role wed_sql_stranger;
select * from pg_temp.refused($$select wed_sql.rule_attributes('it''s')$$) \gx
select * from pg_temp.refused($$select wed_sql.rule_attributes_for('it''s', 'wed_sql_owner')$$) \gx
select * from pg_temp.refused($$select wed_sql.condition_attributes('"it''s".wed_flow', 'a = 1')$$) \gx
select * from pg_temp.refused($$select wed_sql.set_clause_attributes('"it''s".wed_flow', 'a = 1')$$) \gx
set role wed_sql_reader;
select count(*) from wed_sql.rule_attributes('it''s');
begin read only;
select count(*) from wed_sql.rule_attributes('it''s');
commit;
select * from pg_temp.refused($$select wed_sql.rule_attributes('nowhere')$$) \gx
select count(*) from wed_sql.rule_attributes(null);

reset role;
select wed_sql.drop_flow('it''s');
drop function public.is_large(integer);
do $$ begin execute format('revoke create on database %I from wed_sql_owner', current_database()); end $$;
revoke execute on function wed_sql.create_flow(text), wed_sql.drop_flow(text) from wed_sql_owner;
drop role wed_sql_owner, wed_sql_reader, wed_sql_stranger;
