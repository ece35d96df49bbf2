-- C1: a new instance satisfies a rule or the final condition, or is refused.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('orders');
set search_path = orders, wed_sql;

-- no rules, no instances
select * from pg_temp.refused('insert into wed_flow default values') \gx

begin;
insert into wed_attr (aname) values ('stage');
insert into wed_trig (trname, cpred) values ('accept', $$stage = 'new'$$);
insert into wed_trig (trname, cpred, enabled) values ('refuse', $$stage = 'odd'$$, false);
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
commit;

select * from pg_temp.refused('insert into wed_flow default values') \gx
select * from pg_temp.refused($$insert into wed_flow (stage) values ('old')$$) \gx
-- a rule that is not enabled does not count
select * from pg_temp.refused($$insert into wed_flow (stage) values ('odd')$$) \gx
-- one bad row refuses the statement
select * from pg_temp.refused($$insert into wed_flow (stage) values ('new'), ('old')$$) \gx
-- COPY is no way around
copy wed_flow (stage) from stdin;
new
old
\.
select * from wed_flow;

-- a final start is one state, and the end
insert into wed_flow (stage) values ('done') returning stage;
-- and several instances may start at once
insert into wed_flow (stage) values ('new'), ('new') returning stage;
-- what the caller says about the stamp is ignored
insert into wed_flow (stage, _stamp) select 'new', _stamp from wed_flow where stage = 'done'
returning stage, (_stamp).version, (_stamp).matched, (_stamp).final;
select state, trw, trf, status, pending from pg_temp.trace();
select trname, payload from pg_temp.jobs();

-- what is rolled back was never there
begin;
insert into wed_flow (stage) values ('new');
rollback;
select state, status from pg_temp.trace();
