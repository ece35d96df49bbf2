-- C5: a state is whole in the history, also the values that its update did not touch
-- and that are too large to lie in the row.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('archive');
set search_path = archive, wed_sql;
begin;
insert into wed_attr (aname, adv, atype) values ('n', '0', 'integer'), ('scan', null, 'text'), ('doc', null, 'jsonb');
insert into wed_trig (trname, cpred) values ('count', 'n < 2'), ('check', 'length(scan) > 100000 and n = 0');
insert into wed_trig (cpred, cfinal) values ($$n = 2 and scan is null$$, true);
commit;

insert into wed_flow (scan, doc)
select string_agg(md5(i::text), ''), jsonb_object_agg(i, md5(i::text)) from generate_series(1, 4000) i;
select pg_column_size(scan) > 8000 and pg_column_size(doc) > 8000 as are_out_of_line from wed_flow;

create temporary view seen as
select t.version, t.trw, t.trf, t.status, length(t.state ->> 'scan') as scan, md5(t.state ->> 'scan') = md5(f.scan) as same_scan,
       t.state -> 'doc' = f.doc as same_doc, t.state -> 'n' as n
  from wed_trace t join wed_flow f using (wid) order by t.version;
select pg_temp.perform(1, 'count', 'n = n + 1') -> 'n' as n;
select wed_sql.sync() is not null as synced;
select * from seen;
select trname, md5(payload ->> 'scan') = md5(scan) as same_scan, payload -> 'doc' = doc as same_doc
  from job_pool join wed_flow using (wid) order by tgid;
-- several of them in one transaction, of which the last touches it
begin;
select wed_sql.try_lock(1, 2), wed_sql.try_lock(1, 3);
set local wed_sql.completes_tgid = 3;
update wed_flow set doc = doc - '1';
set local wed_sql.completes_tgid = 2;
update wed_flow set n = 2, scan = null;
commit;
select wed_sql.sync() is not null as synced;
select * from seen;
select version, (select count(*) from jsonb_object_keys(state -> 'doc')) as keys from wed_trace order by version;

-- a state beyond what NOTIFY carries is a job like any other; many of them are, too
insert into wed_flow (scan) select repeat('x', 200000) from generate_series(1, 20);
select count(*), min(length(payload ->> 'scan')) from pg_temp.jobs() where wid > 1;
