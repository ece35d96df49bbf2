-- Three branches in parallel, one join: it fires once, after the last, whatever their order.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('branches');
set search_path = branches, wed_sql;
begin;
insert into wed_attr (aname) values ('flight'), ('hotel'), ('car'), ('closed');
insert into wed_trig (trname, cpred) values
    ('book_flight', 'flight is null'),
    ('book_hotel', 'hotel is null'),
    ('rent_car', 'car is null'),
    ('close', 'flight is not null and hotel is not null and car is not null and closed is null');
insert into wed_trig (cpred, cfinal) values ('closed is not null', true);
commit;
insert into wed_flow default values;
insert into wed_flow default values;

select pg_temp.perform(1, 'book_flight', $$flight = 'LH1'$$);
select pg_temp.perform(1, 'book_hotel', $$hotel = 'Ritz'$$);
select * from pg_temp.jobs();
select pg_temp.perform(1, 'rent_car', $$car = 'Golf'$$);
select * from pg_temp.jobs();
select pg_temp.perform(1, 'close', $$closed = 'yes'$$);

select pg_temp.perform(2, 'rent_car', $$car = 'Golf'$$);
select pg_temp.perform(2, 'book_hotel', $$hotel = 'Ritz'$$);
select pg_temp.perform(2, 'book_flight', $$flight = 'LH1'$$);
select pg_temp.perform(2, 'close', $$closed = 'yes'$$);
select wid, version, trw, trf, status, pending from pg_temp.trace();

-- several states of one instance in one transaction are several states
insert into wed_flow default values;
select * from pg_temp.jobs();
begin;
select wed_sql.try_lock(3, 2), wed_sql.try_lock(3, 3), wed_sql.try_lock(3, 4);
set local wed_sql.completes_tgid = 3;
update wed_flow set hotel = 'Ritz' where wid = 3;
set local wed_sql.completes_tgid = 4;
update wed_flow set car = 'Golf' where wid = 3;
set local wed_sql.completes_tgid = 2;
update wed_flow set flight = 'LH1' where wid = 3;
commit;
select wid, version, trw, trf, status, pending from pg_temp.trace(3);
select wid, trname from pg_temp.jobs();
