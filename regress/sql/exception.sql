-- C4: a state that leaves nothing pending is an exception, and _EXCPT leads out of it.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_trig (trname, cpred) values ('book', $$stage = 'new'$$), ('pay', $$stage = 'booked'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'paid'$$, true);
commit;
insert into wed_flow default values;

select pg_temp.perform(1, 'book', $$stage = 'strike'$$);
select * from pg_temp.jobs();
select wid, version, status, pending, error from wed_instance;

-- nobody else can do anything about it
select * from pg_temp.refused('select wed_sql.try_lock(1, 2); update wed_flow set stage = ''new''') \gx

-- an exception may lead to an exception
select pg_temp.perform(1, '_EXCPT', $$stage = 'flood'$$);
select * from pg_temp.jobs();
-- and back into the flow
select pg_temp.perform(1, '_EXCPT', $$stage = 'booked'$$);
select * from pg_temp.jobs();
select pg_temp.perform(1, 'pay', $$stage = 'paid'$$);
select version, state, trw, trf, status, pending, error from pg_temp.trace(1);

-- or straight to the end
insert into wed_flow default values;
select pg_temp.perform(2, 'book', $$stage = null$$);
select pg_temp.perform(2, '_EXCPT', $$stage = 'paid'$$);
select version, state, trw, trf, status, pending, error from pg_temp.trace(2);
select * from pg_temp.jobs();

-- without a final condition all instances end in one
delete from wed_trig where cfinal;
insert into wed_flow default values;
select pg_temp.perform(3, 'book', $$stage = 'booked'$$);
select pg_temp.perform(3, 'pay', $$stage = 'paid'$$);
select version, state, trw, trf, status, pending, error from pg_temp.trace(3);
select wid, version, status, pending, error from wed_instance order by wid;
