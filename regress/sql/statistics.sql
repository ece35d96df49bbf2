-- Statistics say what happened and what is pending; whoever monitors reads them, and they can be reset.
\set ECHO none
\i regress/include/tools.psql
\set ECHO all
set client_min_messages = error;
drop role if exists wed_sql_watcher, wed_sql_stranger;
reset client_min_messages;
create role wed_sql_watcher in role pg_monitor;
create role wed_sql_stranger;

-- The engine writes its counters about once a second.
create function pg_temp.until_counted(name text, wanted bigint) returns bigint
    language plpgsql
as $$
declare
    counted bigint;
    give_up timestamptz := clock_timestamp() + interval '1 minute';
begin
    loop
        select states into counted from wed_sql.stat_flow where flow = name;
        exit when counted >= wanted or clock_timestamp() > give_up;
        perform pg_sleep(0.02);
    end loop;
    return counted;
end
$$;

select wed_sql.create_flow('counted');
set search_path = counted, wed_sql;
insert into wed_attr (aname, adv) values ('a', null), ('b', null);
insert into wed_trig (trname, cpred) values ('first', 'a is null'), ('second', 'b is null'), ('never', $$a = 'never'$$);
insert into wed_trig (cpred, cfinal) values ($$a = 'x' and b = 'y'$$, true);

-- what never happened is there, too
select flow, trname, fired, done, waiting, running, oldest, mean_wait_time, stats_reset from stat_transition where flow = 'counted' order by trname;
select * from stat_flow where flow = 'counted';

insert into wed_flow default values;
insert into wed_flow default values;
insert into wed_flow default values;
select pg_temp.perform(1, 'first', $$a = 'x'$$);
select pg_temp.perform(1, 'second', $$b = 'y'$$);
select pg_temp.perform(2, 'first', $$a = 'x'$$);
select pg_temp.perform(2, 'second', $$b = 'z'$$);
select pg_temp.until_counted('counted', 7);
select flow, trname, fired, done, failed, timed_out, lost, withdrawn, waiting, running, leased from stat_transition where flow = 'counted' order by trname;
select * from stat_flow where flow = 'counted';
select t.trname, t.oldest = (select min(fired_at) from job_pool j where j.trname = t.trname) as since_the_oldest_waits
  from stat_transition t where flow = 'counted' and waiting > 0 order by trname;

select trname, wait_time > 0 as waited, run_time > 0 as ran, mean_wait_time <= max_wait_time and mean_run_time <= max_run_time as means
  from stat_transition where flow = 'counted' and done > 0 order by trname;

-- a leased job is neither waiting nor running
begin;
update job_pool set lckid = 'token', leased_until = clock_timestamp() + interval '1 hour' where wid = 3 and trname = 'second';
select trname, waiting, running, leased, oldest from stat_transition where flow = 'counted' and trname = 'second';
update job_pool set leased_until = clock_timestamp() where wid = 3 and trname = 'second';
select trname, waiting, running, leased, oldest is not null as waits from stat_transition where flow = 'counted' and trname = 'second';
rollback;

-- whoever has the lock is at it
begin;
select wed_sql.try_lock(3, (select tgid from job_pool where wid = 3 and trname = 'first'));
select trname, waiting, running, oldest from stat_transition where flow = 'counted' and trname = 'first';
rollback;
select trname, waiting, running from stat_transition where flow = 'counted' and trname = 'first';

-- failures count with the transaction that tells of them, at once
begin;
select wed_sql.count_event(flow_id, 'first', e) from wed_sql.flow, unnest('{timer fired,failed,action failed,timed out,lease ran out,connection lost,leased,suspended}'::text[]) e
 where wed_flow = 'counted.wed_flow'::regclass;
select trname, fired, failed, timed_out, lost from stat_transition where flow = 'counted' and trname = 'first';
rollback;
select trname, fired, failed, timed_out, lost from stat_transition where flow = 'counted' and trname = 'first';
select wed_sql.count_event(flow_id, 'first', e) from wed_sql.flow, unnest('{failed,failed,timed out,connection lost}'::text[]) e
 where wed_flow = 'counted.wed_flow'::regclass;
select trname, fired, failed, timed_out, lost from stat_transition where flow = 'counted' and trname = 'first';
-- ... and are added up by the engine, once
select * from wed_sql.add_counts('[]', '[]') where flow = 'counted' order by event;
select count(*) from wed_sql.counted_event e join wed_sql.flow f using (flow_id) where wed_flow = 'counted.wed_flow'::regclass;
select trname, fired, done, failed, timed_out, lost from stat_transition where flow = 'counted' and trname = 'first';

create function pg_temp.added(flows jsonb, transitions jsonb) returns bigint
    language sql
as $$ select count(*) from wed_sql.add_counts(flows, transitions) $$;
-- what the engine brings is added; what is of no flow is not kept
select pg_temp.added(jsonb_build_array(jsonb_build_object('flow_id', flow_id, 'instances', 1, 'states', 2, 'exceptions', 3, 'finals', 4, 'cancelled', 5),
                                            jsonb_build_object('flow_id', 0, 'instances', 1, 'states', 1, 'exceptions', 1, 'finals', 1, 'cancelled', 1)),
                          jsonb_build_array(jsonb_build_object('flow_id', flow_id, 'trname', 'never', 'fired', 5, 'done', 2, 'withdrawn', 1, 'timed', 2,
                                                               'wait_time', 30, 'max_wait_time', 20.5, 'run_time', 3, 'max_run_time', 2),
                                            jsonb_build_object('flow_id', 0, 'trname', 'never', 'fired', 1, 'done', 0, 'withdrawn', 0, 'timed', 0,
                                                               'wait_time', 0, 'max_wait_time', null, 'run_time', 0, 'max_run_time', null)))
  from wed_sql.flow, generate_series(1, 2) where wed_flow = 'counted.wed_flow'::regclass;
select fired, done, withdrawn, wait_time, mean_wait_time, max_wait_time, run_time, mean_run_time, max_run_time
  from stat_transition where flow = 'counted' and trname = 'never';
select * from stat_flow where flow = 'counted';
select count(*) from wed_sql.flow_counter where flow_id = 0;

-- who may see them, and reset them
set role wed_sql_watcher;
select count(*) from wed_sql.stat_transition where flow = 'counted';
select count(*) from wed_sql.stat_flow where flow = 'counted';
select * from pg_temp.refused($$select wed_sql.stat_reset('counted')$$) \gx
select * from pg_temp.refused($$select * from wed_sql.transition_counter$$) \gx
set role wed_sql_stranger;
select * from pg_temp.refused($$select * from wed_sql.stat_transition$$) \gx
select * from pg_temp.refused($$select * from wed_sql.stat_flow$$) \gx
select * from pg_temp.refused($$select wed_sql.count_event(1, 'first', 'failed')$$) \gx
select * from pg_temp.refused($$select wed_sql.add_counts('[]', '[]')$$) \gx
reset role;
grant execute on function wed_sql.stat_reset(text) to wed_sql_watcher;
set role wed_sql_watcher;
select * from pg_temp.refused($$select wed_sql.stat_reset('nowhere')$$) \gx
select wed_sql.stat_reset('counted');
select trname, fired, done, failed, waiting, wait_time, mean_wait_time, stats_reset > clock_timestamp() - interval '1 minute' as reset_now
  from wed_sql.stat_transition where flow = 'counted' order by trname;
select flow, instances, states, exceptions, finals, recovering, stats_reset > clock_timestamp() - interval '1 minute' as reset_now
  from wed_sql.stat_flow where flow = 'counted';
reset role;
revoke execute on function wed_sql.stat_reset(text) from wed_sql_watcher;

-- a delayed rule fires when its time has come
insert into wed_trig (trname, cpred, delay) values ('later', 'a is null', '1 hour');
select wed_sql.stat_reset('counted');
insert into wed_flow default values;
select pg_temp.until_counted('counted', 1);
select trname, fired, waiting from stat_transition where flow = 'counted' and trname = 'later';
select timers from stat_flow where flow = 'counted';
update wed_sql.timer set due_at = clock_timestamp() where kind = 'd' and flow_id = (select flow_id from wed_sql.flow where wed_flow = 'counted.wed_flow'::regclass);
select pg_temp.wait_for($$exists (select from counted.job_pool where trname = 'later')$$);
select trname, fired, waiting from stat_transition where flow = 'counted' and trname = 'later';
select timers from stat_flow where flow = 'counted';

-- a flow that is dropped is forgotten
select wed_sql.count_event(flow_id, 'first', 'failed') from wed_sql.flow where wed_flow = 'counted.wed_flow'::regclass;
select wed_sql.drop_flow('counted');
select count(*) from wed_sql.stat_flow where flow = 'counted';
select (select count(*) from wed_sql.flow_counter where flow_id not in (select flow_id from wed_sql.flow))
     + (select count(*) from wed_sql.transition_counter where flow_id not in (select flow_id from wed_sql.flow))
     + (select count(*) from wed_sql.counted_event where flow_id not in (select flow_id from wed_sql.flow)) as orphans;
drop role wed_sql_watcher, wed_sql_stranger;
