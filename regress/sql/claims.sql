-- claim_jobs() locks those of many jobs that are to be had, and complete_jobs() writes the states that complete them.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_booker, wed_sql_payer, wed_sql_tenant;
reset client_min_messages;
create role wed_sql_booker;
create role wed_sql_payer;
create role wed_sql_tenant;

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
insert into wed_attr (aname, atype) values ('seat', 'text'), ('paid', 'boolean'), ('price', 'numeric(6, 2)'), ('extras', 'text[]'), ('Größe "x"', 'text');
insert into wed_trig (trname, cpred) values ('book', 'seat is null'), ('pay', 'paid is null');
insert into wed_trig (cpred, cfinal) values ('seat is not null and paid', true);
select wed_sql.grant_worker('trip', 'book', 'wed_sql_booker');
select wed_sql.grant_worker('trip', 'pay', 'wed_sql_payer');
insert into wed_flow (price) select n from generate_series(1, 8) n;
select wed_sql.sync();
select tgid as book from wed_trig where trname = 'book' \gset
select tgid as pay from wed_trig where trname = 'pay' \gset

-- in the order in which they are named, and no more than that; the locks of the others are free
begin;
select wid, version, payload, attempts, timeout from claim_jobs('trip', 'book', '{3,99,1,2}', array[:book, :book, :book, :book], 2);
select count(*) = 2 and bool_and(wid in (1, 3)) as locked from job_lock;
rollback;

-- of one transition
begin;
select wid from claim_jobs('trip', 'book', '{1,2}', array[:pay, :book], 5);
-- nor what is leased, or to be tried later, or has no lock
select lckid as token from lease_job('trip', 4, :book, '1 hour') \gset
update job_pool set available_at = 'infinity' where wid = 5;
select wid from claim_jobs('trip', 'book', '{-1,4,5,6,281474976710656}', array[:book, :book, :book, :book, :book], 5);
rollback;

-- each state sets what it names; values are read as the attribute's type wants them
begin;
select count(*) from claim_jobs('trip', 'book', '{1,2,3,4}', array[:book, :book, :book, :book], 4);
select complete_jobs('trip', '{4,2,3,1}', array[
    '{"seat": "1A", "extras": ["meal", "wifi, fast"]}',
    '{"seat": "2A"}',
    '{"seat": "3A", "price": "77.7777", "Größe \"x\"": "groß"}',
    '{"extras": ["meal"], "seat": 1}']::jsonb[]);
commit;
select wid, seat, price, extras, "Größe ""x""" from wed_flow where wid <= 4 order by wid;
select sync();
select wid, version, trw, trf, status from wed_trace where wid <= 4 order by wid, version;

-- a state that changes nothing is one, too: the condition holds as it did
begin;
select count(*) from claim_jobs('trip', 'book', '{5}', array[:book], 1);
select complete_jobs('trip', '{5}', '{"{}"}');
commit;
select sync();
select version, trw, trf from wed_trace where wid = 5 order by version;

-- all or none
begin;
select count(*) from claim_jobs('trip', 'book', '{6,7}', array[:book, :book], 2);
\set VERBOSITY terse
select complete_jobs('trip', '{6,7,8}', array['{"seat": "6A"}', '{"seat": "7A"}', '{"seat": "8A"}']::jsonb[]);
rollback;
select count(*) from wed_flow where wid between 6 and 8 and seat is not null;

-- what cannot be
select claim_jobs('trip', 'book', '{1}', '{1,2}', 1);
select claim_jobs('trip', 'book', '{null}', '{1}', 1);
select claim_jobs('trip', null, '{1}', '{1}', 1);
select claim_jobs('nowhere', 'book', '{1}', '{1}', 1);
select complete_jobs('nowhere', '{1}', '{"{}"}');
select complete_jobs('trip', '{6}', '{"{}","{}"}');
select complete_jobs('trip', '{6}', null);
select complete_jobs('trip', '{6}', '{"[1]"}');
select complete_jobs('trip', '{6}', '{"{\"set\": 1}"}');
select complete_jobs('trip', '{6}', '{"{\"wid\": 1}"}');
select complete_jobs('trip', '{6,6}', '{"{}","{}"}');
select complete_jobs('trip', '{99}', '{"{}"}');
begin;
select count(*) from claim_jobs('trip', 'book', '{6}', array[:book], 1);
select complete_jobs('trip', '{6}', '{"{\"price\": \"much\"}"}');
rollback;
begin;
select count(*) from claim_jobs('trip', 'book', '{6}', array[:book], 1);
select complete_jobs('trip', '{6}', '{"{\"_stamp\": null, \"seat\": \"6A\"}"}');
rollback;
select complete_jobs('trip', '{}', '{}');
\set VERBOSITY default

-- a worker has its own transitions
set role wed_sql_booker;
begin;
select wid, payload from claim_jobs('trip', 'book', '{6}', array[:book], 1);
select complete_jobs('trip', '{6}', '{"{\"seat\": \"6A\"}"}');
commit;
select claim_jobs('trip', 'pay', '{6}', array[:pay], 1);
-- whatever tgids it names
select count(*) from claim_jobs('trip', 'book', '{6}', array[:pay], 1);
reset role;
set role wed_sql_tenant;
select claim_jobs('trip', 'book', '{6}', array[:book], 1);
reset role;

-- and the instances that it may see
grant usage on schema trip, wed_sql to wed_sql_tenant;
grant select, update on wed_flow, job_pool to wed_sql_tenant;
alter table wed_flow enable row level security;
create policy cheap on wed_flow as restrictive to wed_sql_tenant using (price < 8);
set role wed_sql_tenant;
begin;
select count(*) from claim_jobs('trip', 'book', '{8}', array[:book], 1);
\set VERBOSITY terse
select complete_jobs('trip', '{8}', '{"{\"seat\": \"8A\"}"}');
\set VERBOSITY default
rollback;
begin;
select count(*) from claim_jobs('trip', 'book', '{7}', array[:book], 1);
select complete_jobs('trip', '{7}', '{"{\"seat\": \"7A\"}"}');
commit;
reset role;

-- a plan that was made before follows the attributes
alter table wed_flow disable row level security;
insert into wed_flow (price) values (1), (2);
select sync();
select max(wid) as last from wed_flow \gset
begin;
select count(*) from claim_jobs('trip', 'book', array[:last], array[:book], 1);
select complete_jobs('trip', array[:last], '{"{\"seat\": \"9A\"}"}');
commit;
insert into wed_attr (aname, atype, adv) values ('nights', 'integer', '1');
delete from wed_attr where aname = 'extras';
begin;
select count(*) from claim_jobs('trip', 'book', array[:last - 1], array[:book], 1);
select complete_jobs('trip', array[:last - 1], '{"{\"seat\": \"10A\"}"}');
commit;
select wid, seat, nights from wed_flow where wid >= :last - 1 order by wid;

-- a job keeps the name of the transition that it was fired for
insert into wed_flow (price) values (3) returning wid as named \gset
select sync();
update wed_trig set trname = 'settle' where trname = 'pay';
begin;
select count(*) from claim_jobs('trip', 'settle', array[:named], array[:pay], 1);
select count(*) from claim_jobs('trip', 'pay', array[:named], array[:pay], 1);
select complete_jobs('trip', array[:named], '{"{\"paid\": true}"}');
commit;
select sync();
select trw, trf from wed_trace where wid = :named and version = 1;

reset search_path;
select wed_sql.drop_flow('trip');
drop owned by wed_sql_booker, wed_sql_payer, wed_sql_tenant;
drop role wed_sql_booker, wed_sql_payer, wed_sql_tenant;
