-- After rules were changed, resting instances are judged anew, on demand: a rehearsal says who would fire what.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all

select wed_sql.create_flow('trip');
set search_path = trip, wed_sql;
begin;
insert into wed_attr (aname, adv) values ('stage', 'new'), ('seat', null);
insert into wed_trig (trname, cpred) values ('book', $$stage = 'new'$$), ('pay', $$stage = 'booked'$$);
insert into wed_trig (cpred, cfinal) values ($$stage = 'paid'$$, true);
commit;
insert into wed_flow default values;
insert into wed_flow default values;
insert into wed_flow default values;
insert into wed_flow (stage, seat) values ('booked', '7a');
insert into wed_flow default values;
insert into wed_flow default values;
insert into wed_flow default values;
select pg_temp.perform(2, 'book', $$stage = 'lost'$$);
select count(*) from wed_sql.suspend('trip', 5);
select count(*) from wed_sql.cancel('trip', 6);
-- nothing has changed: nothing is written
select * from wed_sql.rematch('trip');
select * from wed_sql.rematch('trip', 1);
select wid, version from wed_instance order by wid;

-- a new rule: it fires where it holds; an exception that a rule leads out of is none any more
insert into wed_trig (trname, cpred) values ('find', $$stage = 'lost'$$), ('assign', $$seat is null and stage = 'new'$$);
select * from wed_sql.rematch('trip', dry_run => true);
select * from wed_sql.rematch('trip', 'wid = 2', 'found a way');
select wid, trname from pg_temp.jobs();
-- each by itself: suspended ones and those that have ended are told
select * from wed_sql.rematch('trip', 'true');
select * from pg_temp.refused($$select * from wed_sql.rematch('trip', 5)$$) \gx
select * from pg_temp.refused($$select * from wed_sql.rematch('trip', 6)$$) \gx
select wid, trname from pg_temp.jobs();
select * from wed_sql.rematch('trip');
-- what is suspended is judged when it is resumed
select * from wed_sql.resume('trip', 5);

-- a rule that is gone leaves its jobs, but for those that may be withdrawn
update wed_trig set cpred = 'false' where trname = 'book';
update wed_trig set cpred = 'false', withdrawable = true where trname = 'assign';
select * from wed_sql.rematch('trip', 'wid = 1');
-- a condition that fails is an exception, in sight
insert into wed_trig (trname, cpred) values ('check', $$stage::integer = 1$$);
select * from wed_sql.rematch('trip', 'wid = 3');
select * from wed_sql.rematch('trip', 'wid = 3');
delete from wed_trig where trname = 'check';
insert into wed_trig (trname, cpred) values ('settle', $$stage = 'new'$$);
select * from wed_sql.rematch('trip', 'wid = 3');

-- a final condition that holds now ends what has nothing pending; others end when that is done
update wed_trig set cpred = $$stage in ('paid', 'lost', 'booked')$$ where cfinal;
delete from wed_trig where trname = 'pay';
select * from wed_sql.rematch('trip', 'wid in (2, 4)');
select wed_sql.sync() \g /dev/null
select wid, version, status, pending from wed_instance where wid in (2, 4) order by wid;
select pg_temp.perform(7, 'book', $$stage = 'nowhere'$$);
select wid, trname from pg_temp.jobs() where wid = 7;
update wed_trig set cpred = $$stage in ('paid', 'nowhere')$$ where cfinal;
select * from wed_sql.rematch('trip', 'wid = 7');
-- a job that has failed too often is not tried again because rules have changed, though its condition holds
insert into wed_flow default values;
select (wed_sql.operate('wed_flow', 8, 'fail', tgid, null, 'no clerk')).error from wed_trig where trname = 'settle';
select * from wed_sql.rematch('trip', 'wid = 8');
select * from wed_sql.retry('trip', 8);
select version, state, trw, trf, status, pending, error from pg_temp.trace(2);
select version, state, trw, trf, status, pending, error from pg_temp.trace(7);
select wid, version, event, detail from wed_event where event = 'rematched' order by event_id;
-- whatever attributes there are
insert into wed_attr (aname) values ('status');
select wid, error from wed_sql.rematch('trip', dry_run => true);
select wed_sql.drop_flow('trip');
