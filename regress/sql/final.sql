-- C3: nothing else pends at a final state, and it stays as it is.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('orders');
set search_path = orders, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new');
insert into wed_attr (aname) values ('note');
insert into wed_trig (trname, cpred) values ('ship', $$stage = 'new'$$), ('remark', 'note is null');
insert into wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true);
commit;
insert into wed_flow default values;

select * from pg_temp.refused($$select wed_sql.try_lock(1, 2); update wed_flow set stage = 'done'$$) \gx
select * from pg_temp.refused($$select wed_sql.try_lock(1, 2); update wed_flow set stage = 'done', note = 'n'$$) \gx
select wid, trname from pg_temp.jobs();
select pg_temp.perform(1, 'remark', $$note = 'fragile'$$);
select pg_temp.perform(1, 'ship', $$stage = 'done'$$);
select * from pg_temp.jobs();

-- the end
select * from pg_temp.refused($$update wed_flow set stage = 'new'$$) \gx
select * from pg_temp.refused($$update wed_flow set note = 'x'$$) \gx
select * from pg_temp.refused($$select wed_sql.try_lock(1, 2); update wed_flow set stage = 'new'$$) \gx
select * from pg_temp.refused('delete from wed_flow') \gx

-- unless the flow has changed since: a new attribute
insert into wed_attr (aname) values ('refund');
insert into wed_trig (trname, cpred) values ('pay_back', $$refund = 'due'$$);
-- not by who means to perform a job, and does not know that the instance has ended
select * from pg_temp.refused($$select wed_sql.try_lock(1, 2); update wed_flow set refund = 'due', stage = 'returned'$$) \gx
select * from pg_temp.refused($$set local wed_sql.completes_tgid = 2; update wed_flow set refund = 'due', stage = 'returned'$$) \gx
update wed_flow set refund = 'due', stage = 'returned' where wid = 1;
select wid, trname, payload from pg_temp.jobs();
-- it runs again, under the rules of all
select * from pg_temp.refused('update wed_flow set refund = null') \gx
select pg_temp.perform(1, 'pay_back', $$stage = 'done', refund = 'paid'$$);
select version, state, trw, trf, status, pending from pg_temp.trace();
-- and ends again
select * from pg_temp.refused($$update wed_flow set stage = 'new'$$) \gx

-- a rule
update wed_trig set tgname = 'shipping' where trname = 'ship';
-- into another final state
update wed_flow set note = 'checked' where wid = 1;
select * from pg_temp.refused($$update wed_flow set stage = 'new'$$) \gx
-- into an exception
update wed_trig set tgname = null where trname = 'ship';
update wed_flow set stage = 'lost' where wid = 1;
select version, state, trw, trf, status, pending from pg_temp.trace();
select wid, version, status, pending, error from wed_instance;
