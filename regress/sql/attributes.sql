-- C11: attributes come, change and go on a running flow, and have types.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('a');
set search_path = a, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('work', $$stage = 'new'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
commit;
insert into wed_flow default values;

-- they come, with a type and a default
insert into wed_attr (aname, adv, atype) values
    ('n', '7', 'int'), ('price', '1.50', 'numeric(10,2)'), ('at', 'epoch', 'timestamptz'), ('tags', '{a,b}', 'text[]'),
    ('doc', '{"k": [1, null]}', 'jsonb'), ('ok', 'true', 'bool'), ('ratio', 'NaN', 'float8'), ('day', null, 'date'),
    ('span', '1 day 02:03', 'interval'), ('big', '9007199254740993', 'int8');
select aname, adv, atype from wed_attr order by aname;
-- the instance that was there has them, too, from its next state on
select * from pg_temp.jobs();
select pg_temp.perform(1, 'work', $$day = '2026-02-28'$$);
select * from pg_temp.jobs();

-- rules use them as what they are
insert into wed_trig (trname, cpred) values ('cheap', $$price < 2 and n = 7 and 'a' = any (tags) and doc -> 'k' ->> 0 = '1' and day is null$$);
insert into wed_flow default values;
select wid, trname from pg_temp.jobs();

-- values have to fit
select * from pg_temp.refused($$insert into wed_flow (n) values ('seven')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname, adv, atype) values ('m', 'seven', 'int')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname, atype) values ('m', 'nonsense')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname, atype) values ('m', 'int; drop table wed_flow')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname, atype) values ('m', 'serial')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname) values ('n')$$) \gx
select * from pg_temp.refused($$insert into wed_attr (aname, atype) values ('m', 'record')$$) \gx

-- they change: default, type, name
update wed_attr set adv = '8' where aname = 'n';
insert into wed_flow default values returning n;
update wed_attr set adv = null where aname = 'n';
insert into wed_flow default values returning n;
update wed_attr set atype = 'bigint', adv = '9000000000' where aname = 'n';
insert into wed_flow default values returning n, pg_typeof(n);
update wed_attr set aname = 'length', atype = 'text' where aname = 'span';
insert into wed_flow default values returning length;
select wid, state -> 'n' as n, state ? 'span' as span, state ? 'length' as length, trf from pg_temp.trace();

-- not under the feet of a rule
select * from pg_temp.refused($$delete from wed_attr where aname = 'price'$$) \gx
select * from pg_temp.refused($$update wed_attr set aname = 'cost' where aname = 'price'$$) \gx
select * from pg_temp.refused($$update wed_attr set atype = 'text' where aname = 'price'$$) \gx
select * from pg_temp.refused($$delete from wed_attr where aname = 'stage'$$) \gx
select * from pg_temp.refused($$delete from wed_attr$$) \gx
-- nor into a type that values do not fit
select * from pg_temp.refused($$update wed_attr set atype = 'int' where aname = 'tags'$$) \gx
select * from pg_temp.refused($$update wed_attr set adv = 'x' where aname = 'n'$$) \gx

-- they go, and the rest stays
delete from wed_trig where trname = 'cheap';
delete from wed_attr where aname in ('price', 'tags', 'ok', 'ratio', 'at', 'doc', 'length', 'big');
select attname, format_type(atttypid, atttypmod) from pg_attribute
 where attrelid = 'a.wed_flow'::regclass and attnum > 0 and not attisdropped order by attnum;
insert into wed_flow default values;
select * from pg_temp.jobs() where wid = 7;
-- a name can be used again, for something else
insert into wed_attr (aname, atype) values ('price', 'money');
select pg_temp.perform(7, 'work', $$price = 5$$);
-- a history does not change
select state from pg_temp.trace(2);

-- added and gone with its transaction
begin;
insert into wed_attr (aname, adv) values ('late', 'x');
insert into wed_trig (trname, cpred) values ('late', $$late = 'x'$$);
insert into wed_flow default values returning late;
rollback;
select * from pg_temp.refused('select late from wed_flow') \gx
insert into wed_flow default values;
select * from pg_temp.jobs() where wid > 7;
