-- C9: a WED-condition is checked when it is defined, and may be whatever WHERE accepts.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('c');
set search_path = c, wed_sql;
insert into wed_attr (aname, atype) values ('a', 'text'), ('n', 'integer'), ('doc', 'jsonb');

-- errors point at the place
insert into wed_trig (trname, cpred) values ('t', 'a = ');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'a =='' 1');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'n > 1 and
    b is null');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'n > a');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'n + 1');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'f(n)');
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', $$n = 'one'$$);
\echo :LAST_ERROR_SQLSTATE
insert into wed_trig (trname, cpred) values ('t', 'n = 1/0');
\echo :LAST_ERROR_SQLSTATE

-- one condition, and nothing else
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', '')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', null)$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true, true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true; drop table wed_flow')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true) or (true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true from wed_flow')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'true order by 1')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'count(*) > 1')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'row_number() over () > 1')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'generate_series(1, 2) > 1')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', '$1 = a')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', '_stamp is null')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'ctid is null')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('t', 'wed_flow is null')$$) \gx

-- rules are whole
select * from pg_temp.refused($$insert into wed_trig (cpred) values ('true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, cfinal) values ('t', 'true', true)$$) \gx
select * from pg_temp.refused($$insert into wed_trig (cpred, cfinal) values ('true', true), ('false', true)$$) \gx
select * from pg_temp.refused($$insert into wed_trig (tgid, trname, cpred) values (7, 't', 'true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred, timeout) values ('t', 'true', '-1 s')$$) \gx

-- a bad predicate takes the whole definition with it
begin;
insert into wed_attr (aname) values ('b');
insert into wed_trig (trname, cpred) values ('t', 'b is null');
insert into wed_trig (trname, cpred) values ('u', 'd is null');
commit;
select aname from wed_attr order by aname;
select count(*) from wed_trig;
select attname from pg_attribute where attrelid = 'c.wed_flow'::regclass and attnum > 0 and not attisdropped order by attnum;

-- and so does one that a rule is changed into
insert into wed_trig (trname, cpred) values ('t', 'true');
select * from pg_temp.refused($$update wed_trig set cpred = 'd is null'$$) \gx
select * from pg_temp.refused($$update wed_trig set tgid = 7$$) \gx
select * from pg_temp.refused($$update wed_trig set cfinal = true$$) \gx
delete from wed_trig;

-- what WHERE accepts
create table public.limits (name text, most int);
insert into public.limits values ('n', 5);
insert into wed_trig (tgname, trname, cpred) values
    ('subquery', 't1', $$n > (select most from public.limits where name = 'n')$$),
    ('correlated', 't2', 'exists (select from public.limits l where l.most = wed_flow.n)'),
    ('in', 't3', $$a in ('x', 'y') or n between 2 and 3$$),
    ('case', 't4', 'case when n is null then a is not null else n < 0 end'),
    ('json', 't5', $$doc @> '{"vip": true}' and (doc ->> 'age')::int > 17$$),
    ('regexp', 't6', $$a ~* '^Z' -- with a comment
        and a not like '%;%' /* and another */$$),
    ('wid', 't7', 'wid = 7 and n = 7'),
    ('time', 't8', $$n = 8 and now() > '2000-01-01'$$),
    ('null', 't9', 'null'),
    ('quoted', 't10', $$"a" = 'it''s "quoted" \ $dollar$'$$),
    ('paren', 't11', $$a = '(' and ')' <> a$$);
insert into wed_flow (a, n, doc) values
    ('x', null, null), (null, 2, null), (null, 5, null), (null, 6, null), (null, null, '{"vip": true, "age": 18}'),
    ('zoo', null, null), (null, 7, null), (null, 8, null), (e'it''s "quoted" \\ $dollar$', null, null), ('(', 0, null);
select wid, state, trf, status from pg_temp.trace();

-- a subquery sees the table as it is when the state is written
update public.limits set most = 100;
insert into wed_flow (a, n) values ('x', 50), ('x', 101);
select wid, state, trf, status from pg_temp.trace() where wid > 10;
drop table public.limits;
