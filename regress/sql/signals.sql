-- Events from outside complete a pending transition: at once, or when an instance waits for them.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_clerk, wed_sql_payer, wed_sql_reader;
reset client_min_messages;
create role wed_sql_clerk;
create role wed_sql_payer;
create role wed_sql_reader;

-- Until the engine has offered the signals that are kept. It must be the engine: who did its work here would hold, to the
-- end of the transaction, what it waits for.
create function pg_temp.sweep() returns void
language plpgsql as $$
begin
    perform wed_sql.sync();
    perform pg_temp.wait_for($q$not exists (select from wed_sql.timer
                                             where kind = 'g' and due_at < clock_timestamp() + interval '1 minute')$q$);
end
$$;

select wed_sql.create_flow('orders');
set search_path = orders, wed_sql;
insert into wed_attr (aname, atype) values ('number', 'integer'), ('stage', 'text'), ('paid', 'numeric');
insert into wed_trig (trname, cpred) values ('pay', $$stage = 'open' and paid is null$$), ('cancel', $$stage = 'open'$$), ('ship', $$stage = 'packed'$$);
insert into wed_trig (trname, cpred, delay) values ('remind', $$stage = 'open'$$, '1 day');
insert into wed_trig (cpred, cfinal) values ($$stage = 'gone'$$, true);
select wed_sql.grant_worker('orders', 'pay', 'wed_sql_payer');
select wed_sql.grant_worker('orders', 'cancel', 'wed_sql_clerk');
grant usage on schema wed_sql, orders to wed_sql_reader;
insert into wed_flow (number, stage) values (10, 'open'), (20, 'open'), (30, 'open'), (30, 'open');

-- at once, though the follower may not have come to the job yet
insert into wed_flow (number, stage) values (50, 'open');
select wed_sql.signal('orders', 5, 'pay', 'paid = 9.99');
set role wed_sql_payer;
select wed_sql.signal('orders', 1, 'pay', 'paid = 9.99');
reset role;
select wid, version, trw, state ->> 'paid' as paid from pg_temp.trace(1);
select count(*) from wed_sql.signal;
-- in the caller's transaction
begin;
select wed_sql.signal('orders', 2, 'pay', 'paid = 1');
rollback;
select paid from wed_flow where wid = 2;

-- by what is known of the instances: all that wait, and satisfy it
select * from wed_sql.signal('orders', 'number = 30', 'pay', $$paid = 3 + number, stage = 'packed'$$);
select * from wed_sql.signal('orders', 'number = 20 -- the one', 'pay', 'paid = 2');
select wid, number, stage, paid from wed_flow order by wid;

-- nobody waits for it
select * from pg_temp.refused($$select wed_sql.signal('orders', 1, 'pay', 'paid = 1')$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 'number = 10', 'pay', 'paid = 1')$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 'number = 99', 'pay', 'paid = 1')$$) \gx
-- not even one whose delay is not over
select * from pg_temp.refused($$select wed_sql.signal('orders', 1, 'remind', 'paid = 1')$$) \gx
-- in the transaction that has only just started the instance
begin;
insert into wed_flow (number, stage) values (60, 'open');
select * from pg_temp.refused($$select wed_sql.signal('orders', 'number = 60', 'pay', 'paid = 1')$$) \gx
rollback;

-- kept until it does
select wed_sql.signal('orders', 1, 'ship', $$stage = 'gone'$$, keep => true);
select * from wed_sql.signal('orders', 'number = 20', 'ship', $$stage = 'gone'$$, keep => true, expires_at => 'infinity');
select wid, condition, set_clause, trname, role, expires_at, last_error from wed_sql.signal order by signal_id;
select pg_temp.sweep();
select count(*) from wed_sql.signal;
select pg_temp.perform(1, 'cancel', $$stage = 'packed'$$);
select pg_temp.perform(2, 'cancel', $$stage = 'packed'$$);
select pg_temp.sweep();
select wid, version, trw, status from pg_temp.trace() where wid in (1, 2) order by wid, version;
select count(*) from wed_sql.signal;
select wid, trname, event, role from wed_event order by event desc, wid;
-- the instance has ended
select * from pg_temp.refused($$select wed_sql.signal('orders', 1, 'pay', 'paid = 1', true)$$) \gx

-- the oldest first, one for each job, as the role that has sent it
select pg_temp.perform(5, 'cancel', $$stage = 'waits'$$);
select wid, trname from pg_temp.jobs() where wid = 5;
set role wed_sql_payer;
select wed_sql.signal('orders', 5, 'pay', $$paid = (select count(*) from orders.wed_event)$$, true);
select wed_sql.signal('orders', 5, 'pay', 'paid = 1 / (number - 50)', true);
select wed_sql.signal('orders', 5, 'pay', $$paid = 100$$, true);
select wed_sql.signal('orders', 5, 'pay', $$paid = 200$$, true);
reset role;
select pg_temp.sweep();
select count(*) from wed_sql.signal;
select pg_temp.perform(5, '_EXCPT', $$stage = 'open', paid = null$$);
select pg_temp.sweep();
select wid, trname, last_error, set_clause from wed_sql.signal order by signal_id;
select version, trw, state ->> 'paid' as paid from pg_temp.trace(5);
select event, role, detail from wed_event where wid = 5 and event like 'signal %' and event <> 'signal kept' order by event_id;
-- who has lost the right cannot deliver any more
select wed_sql.revoke_worker('orders', 'pay', 'wed_sql_payer');
select pg_temp.perform(5, 'cancel', $$stage = 'open', paid = null$$);
select pg_temp.sweep();
select version, trw, state ->> 'paid' as paid from pg_temp.trace(5) where version > 4;
select count(*), count(last_error), max(last_error) from wed_sql.signal;
select wed_sql.grant_worker('orders', 'pay', 'wed_sql_payer');
delete from wed_sql.signal;

-- one that nobody has waited for in time
select wed_sql.signal('orders', 3, 'pay', 'paid = 1', true, clock_timestamp() + interval '100 ms');
select pg_temp.sweep();
select count(*) from wed_sql.signal;
select event from wed_event where wid = 3 and event like 'signal %' order by event_id;

-- a job that is leased, or locked, is not to be had
select wid, tgid as job, lckid as token from wed_sql.lease('orders', 'ship', '1 hour', 1) \gset
select code, message, hint from pg_temp.refused(format($$select wed_sql.signal('orders', %s, 'ship', 'paid = 1')$$, :wid)) \gx
select code from pg_temp.refused(format($$select wed_sql.signal('orders', %s, 'ship', 'paid = 1', true)$$, :wid));
select wed_sql.release('orders', :wid, :job, :'token');

-- rights, and bad input
set role wed_sql_reader;
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 'true', 'pay', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.deliver('orders.wed_flow', 3, 1, null, 'paid = 1', 10)$$) \gx
select * from pg_temp.refused($$select wed_sql.keep_signal(1, 'pay', 1, null, 'paid = 1', 10, null)$$) \gx
select * from pg_temp.refused($$select wed_sql.matching('orders.wed_flow', '{1}', 'true', 10)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.signal$$) \gx
reset role;
set role wed_sql_clerk;
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', 'paid = 1', true)$$) \gx
reset role;
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'fly', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('nowhere', 3, 'pay', 'paid = 1')$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 99, 'pay', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', -1, 'pay', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', null)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', 'paid = ', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', 'nothing = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', '_stamp = null', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 'number = 10) or (true', 'pay', 'paid = 1')$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 'nothing = 10', 'pay', 'paid = 1', true)$$) \gx
select * from pg_temp.refused($$select wed_sql.signal('orders', 3, 'pay', 'paid = 1; delete from orders.wed_flow', true)$$) \gx

-- a rule that is disabled fires no more; what it has fired waits all the same
insert into wed_flow (number, stage) values (60, 'open') returning wid \gset
select wed_sql.sync();
update wed_trig set enabled = false where trname = 'cancel';
select wed_sql.signal('orders', :wid, 'cancel', $$stage = 'cancelled'$$) = :wid as delivered;
select * from pg_temp.refused(format($$select wed_sql.signal('orders', %s, 'cancel', 'paid = 1', true)$$, :wid)) \gx
update wed_trig set enabled = true where trname = 'cancel';

reset search_path;
select wed_sql.drop_flow('orders');
drop owned by wed_sql_clerk, wed_sql_payer, wed_sql_reader;
drop role wed_sql_clerk, wed_sql_payer, wed_sql_reader;
