-- C10: names of any script and spelling; those that begin with an underscore are reserved.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

-- reserved, empty, too long
select * from pg_temp.refused($$select wed_sql.create_flow('_mine')$$) \gx
select * from pg_temp.refused($$select wed_sql.create_flow('')$$) \gx
select * from pg_temp.refused($$select wed_sql.create_flow(repeat('x', 64))$$) \gx
select * from pg_temp.refused($$select wed_sql.create_flow('public')$$) \gx
select * from pg_temp.refused($$select wed_sql.create_flow('pg_mine')$$) \gx

select wed_sql.create_flow('Größe "α"');
set search_path = "Größe ""α""", wed_sql;
select * from pg_temp.refused($$insert into wed_attr (aname) values ('_a')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values ('_stamp')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values ('wid')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values ('ctid')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values ('')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values (null)$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values (repeat('ж', 32))$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('_FINAL', 'true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('_EXCPT', 'true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('_mine', 'true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values ('', 'true')$$) \gx
select * from pg_temp.refused($$insert into wed_trig (trname, cpred) values (repeat('x', 64), 'true')$$) \gx

-- anything else goes
begin;
insert into wed_attr (aname, adv) values
    ('select', '1'), ('Mixed Case', '2'), ('naïve', '3'), ('状態', '4'), ('الحالة', '5'), ('état d''âme', '6'), ('"quoted"', '7'),
    ('back\slash', '8'), ('$1', '9'), ('%s', '10'), ('version', '11'), ('a.b', '12'), (repeat('x', 63), '13');
insert into wed_trig (trname, cpred) values
    ('Buchen für Zwei', $$"Mixed Case" = '2' and "select" = '1'$$),
    ('予約', $$"状態" = '4' and "الحالة" = '5'$$),
    ('o''clock', $$"état d'âme" = '6' and """quoted""" = '7'$$),
    ('"', $$"back\slash" = '8' and "$1" = '9'$$),
    ('drop table wed_flow; --', $$"%s" = '10' and version = '11'$$),
    (repeat('y', 63), $$"a.b" = '12' and xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx = '13'$$);
-- several rules may share a transition
insert into wed_trig (tgname, trname, cpred) values
    ('one', '予約', $$naïve = '3'$$), ('two', '予約', $$naïve <> '4'$$);
insert into wed_trig (cpred, cfinal) values ($$"Mixed Case" = 'done'$$, true);
commit;

insert into wed_flow default values;
select wid, trname from pg_temp.jobs();
select tgid, trname from job_pool order by tgid;
select payload from job_pool limit 1;

-- a shared transition is several jobs
select * from pg_temp.refused($$update wed_flow set "状態" = 'x'$$) \gx
begin;
select wed_sql.try_lock(1, 9);
update wed_flow set "naïve" = '4';
commit;
select version, trw, trf, status, pending from pg_temp.trace();
select pending from wed_instance;

select wed_sql.drop_flow('Größe "α"');
