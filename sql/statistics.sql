-- What happened since statistics were reset, in the manner of pg_stat_*; what is pending now is looked up.

-- The engine adds to these about once a second: statistics, not history. Not dumped.
create table wed_sql.transition_counter (
    flow_id       integer not null,
    trname        text not null,
    fired         bigint not null default 0,
    done          bigint not null default 0,
    failed        bigint not null default 0,
    timed_out     bigint not null default 0,
    lost          bigint not null default 0,
    withdrawn     bigint not null default 0,
    timed         bigint not null default 0,
    wait_time     double precision not null default 0,
    max_wait_time double precision,
    run_time      double precision not null default 0,
    max_run_time  double precision,
    constraint transition_counter_pkey primary key (flow_id, trname)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

comment on table wed_sql.transition_counter is 'what wed_sql.stat_transition counts; times in milliseconds';
comment on column wed_sql.transition_counter.timed is 'how many of those that are done wait_time and run_time are the sums of';

create table wed_sql.flow_counter (
    flow_id     integer not null,
    instances   bigint not null default 0,
    states      bigint not null default 0,
    exceptions  bigint not null default 0,
    finals      bigint not null default 0,
    cancelled   bigint not null default 0,
    stats_reset timestamp with time zone,
    constraint flow_counter_pkey primary key (flow_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

comment on table wed_sql.flow_counter is 'what wed_sql.stat_flow counts';

-- Rows, not a counter that is raised: transactions that count the same thing must not wait for each other until they end.
create table wed_sql.counted_event (
    flow_id integer not null,
    trname  text not null,
    event   text not null,
    n       bigint not null default 1,
    constraint counted_event_known check (event in ('fired', 'failed', 'timed out', 'lost'))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

comment on table wed_sql.counted_event is 'failures, and firings after a delay, that the engine has not added to wed_sql.transition_counter yet';

create function wed_sql.count_event(flow_id integer, trname text, event text, n bigint default 1) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp
as $$
    insert into wed_sql.counted_event (flow_id, trname, event, n)
    select count_event.flow_id, count_event.trname, e.counted, count_event.n
      from (values ('timer fired', 'fired'),
                   ('failed', 'failed'), ('action failed', 'failed'),
                   ('timed out', 'timed out'), ('lease ran out', 'timed out'),
                   ('connection lost', 'lost')) e(event, counted)
     where e.event = count_event.event and count_event.trname is not null
$$;

revoke all on function wed_sql.count_event(integer, text, text, bigint) from public;

comment on function wed_sql.count_event(integer, text, text, bigint) is
'Counts events of wed_event, in the transaction that they belong to: firings after a delay, and failures of attempts. Others are not counted.';

create function wed_sql.forget_counters(flow_id integer) returns void
    language sql
    set search_path = pg_catalog, pg_temp
as $$
    -- and what the engine may have brought when a flow had just been dropped
    delete from wed_sql.flow_counter c
     where c.flow_id = forget_counters.flow_id or not exists (select from wed_sql.flow f where f.flow_id = c.flow_id);
    delete from wed_sql.counted_event c
     where c.flow_id = forget_counters.flow_id or not exists (select from wed_sql.flow f where f.flow_id = c.flow_id);
    delete from wed_sql.transition_counter c
     where c.flow_id = forget_counters.flow_id or not exists (select from wed_sql.flow f where f.flow_id = c.flow_id);
$$;

revoke all on function wed_sql.forget_counters(integer) from public;

comment on function wed_sql.forget_counters(integer) is 'Forgets the statistics of a flow that is dropped.';

-- The events are added to the engine's own numbers, too, by its caller.
create function wed_sql.add_counts(flows jsonb, transitions jsonb, out flow text, out trname text, out event text, out n bigint)
    returns setof record
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    insert into wed_sql.flow_counter as c (flow_id, instances, states, exceptions, finals, cancelled)
    select n.flow_id, n.instances, n.states, n.exceptions, n.finals, n.cancelled
      from jsonb_to_recordset(flows) n(flow_id integer, instances bigint, states bigint, exceptions bigint, finals bigint,
                                       cancelled bigint)
     where exists (select from wed_sql.flow f where f.flow_id = n.flow_id)
     order by n.flow_id
        on conflict (flow_id) do update
       set instances = c.instances + excluded.instances, states = c.states + excluded.states,
           exceptions = c.exceptions + excluded.exceptions, finals = c.finals + excluded.finals,
           cancelled = c.cancelled + excluded.cancelled;

    return query
    with gone as (delete from wed_sql.counted_event returning counted_event.*),
    events as materialized (
        select g.flow_id, g.trname, g.event, sum(g.n)::bigint as n from gone g group by g.flow_id, g.trname, g.event),
    new as (
        select u.flow_id, u.trname, sum(u.fired) as fired, sum(u.done) as done, sum(u.failed) as failed, sum(u.timed_out) as timed_out,
               sum(u.lost) as lost, sum(u.withdrawn) as withdrawn, sum(u.timed) as timed,
               sum(u.wait_time) as wait_time, max(u.max_wait_time) as max_wait_time,
               sum(u.run_time) as run_time, max(u.max_run_time) as max_run_time
          from (select t.flow_id, t.trname, t.fired, t.done, 0 as failed, 0 as timed_out, 0 as lost, t.withdrawn, t.timed,
                       t.wait_time, t.max_wait_time, t.run_time, t.max_run_time
                  from jsonb_to_recordset(transitions) t(flow_id integer, trname text, fired bigint, done bigint, withdrawn bigint,
                       timed bigint, wait_time double precision, max_wait_time double precision,
                       run_time double precision, max_run_time double precision)
                union all
                select e.flow_id, e.trname, case e.event when 'fired' then e.n else 0 end, 0,
                       case e.event when 'failed' then e.n else 0 end, case e.event when 'timed out' then e.n else 0 end,
                       case e.event when 'lost' then e.n else 0 end, 0, 0, 0, null, 0, null
                  from events e) u
         where exists (select from wed_sql.flow f where f.flow_id = u.flow_id)
         group by u.flow_id, u.trname
         order by u.flow_id, u.trname),
    added as (
        insert into wed_sql.transition_counter as c (flow_id, trname, fired, done, failed, timed_out, lost, withdrawn,
                                                     timed, wait_time, max_wait_time, run_time, max_run_time)
        select new.* from new
            on conflict (flow_id, trname) do update
           set fired = c.fired + excluded.fired, done = c.done + excluded.done, failed = c.failed + excluded.failed,
               timed_out = c.timed_out + excluded.timed_out, lost = c.lost + excluded.lost, withdrawn = c.withdrawn + excluded.withdrawn,
               timed = c.timed + excluded.timed,
               wait_time = c.wait_time + excluded.wait_time, max_wait_time = greatest(c.max_wait_time, excluded.max_wait_time),
               run_time = c.run_time + excluded.run_time, max_run_time = greatest(c.max_run_time, excluded.max_run_time))
    select s.nspname::text, e.trname, e.event, e.n
      from events e
      join wed_sql.flow f on f.flow_id = e.flow_id
      join pg_class t on t.oid = f.wed_flow
      join pg_namespace s on s.oid = t.relnamespace;
end
$$;

revoke all on function wed_sql.add_counts(jsonb, jsonb) from public;

comment on function wed_sql.add_counts(jsonb, jsonb) is
'Adds what the engine has counted since it did so last, and the events of wed_sql.counted_event, which it returns. Arrays of objects that have the names of columns of wed_sql.flow_counter and wed_sql.transition_counter.';

create function wed_sql.has_counted_events() returns boolean
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select exists (select from wed_sql.counted_event)
$$;

revoke all on function wed_sql.has_counted_events() from public;

comment on function wed_sql.has_counted_events() is 'Whether there are events that wed_sql.add_counts() would add.';

create function wed_sql.stat_reset(flow text default null) returns void
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    ids integer[];
begin
    select array_agg(f.flow_id)
      into ids
      from wed_sql.flow f
      join pg_class c on c.oid = f.wed_flow
      join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = stat_reset.flow or stat_reset.flow is null;
    if ids is null and stat_reset.flow is not null then
        raise exception 'WED-flow "%" does not exist', flow using errcode = 'undefined_object';
    end if;
    -- in the order of add_counts()
    insert into wed_sql.flow_counter (flow_id, stats_reset)
    select id, clock_timestamp() from unnest(ids) id order by id
        on conflict (flow_id) do update
       set instances = 0, states = 0, exceptions = 0, finals = 0, cancelled = 0, stats_reset = excluded.stats_reset;
    delete from wed_sql.counted_event where flow_id = any (ids);
    delete from wed_sql.transition_counter where flow_id = any (ids);
end
$$;

revoke all on function wed_sql.stat_reset(text) from public;

comment on function wed_sql.stat_reset(text) is
'Sets the statistics of a flow, or of all flows of the database, to zero: wed_sql.stat_flow, wed_sql.stat_transition. For superusers, and whom they grant it to.';

create function wed_sql.pending_jobs(most bigint default null,
        out flow_id integer, out trname text, out waiting bigint, out running bigint, out leased bigint,
        out oldest timestamp with time zone)
    returns setof record
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    -- what recursion is thought to cost is far from what it does
    set jit = off
as $$
declare
    f record;
begin
    for f in
        with taken as (
            select k.flow_id, array_agg(k.wid) as wids, array_agg(k.tgid) as tgids
              from wed_sql.possible_job_locks() k
             group by k.flow_id)
        select w.flow_id, w.job_pool, coalesce(t.wids, '{}') as wids, coalesce(t.tgids, '{}') as tgids
          from wed_sql.flow w
          left join taken t on t.flow_id = w.flow_id
         order by w.flow_id
    loop
        begin
            continue when not exists (select from pg_class c where c.oid = f.job_pool);
            -- a flow that is being dropped or altered is not waited for
            execute format('lock table only %s in access share mode nowait', f.job_pool);
            continue when pg_relation_size(f.job_pool) = 0;
            -- name after name, and priority after priority, by the index, however many jobs there are of each
            return query execute format($sql$
                with recursive names as (
                    (select j.trname from %1$s j order by j.trname limit 1)
                    union all
                    select (select j.trname from %1$s j where j.trname > n.trname order by j.trname limit 1)
                      from names n
                     where n.trname is not null),
                priorities as (
                    select n.trname, (select j.priority from %1$s j
                                       where j.trname = n.trname and j.lckid is null order by j.priority desc limit 1) as priority
                      from names n
                     where n.trname is not null
                    union all
                    select p.trname, (select j.priority from %1$s j
                                       where j.trname = p.trname and j.lckid is null and j.priority < p.priority
                                       order by j.priority desc limit 1)
                      from priorities p
                     where p.priority is not null),
                taken as materialized (
                    select j.wid, j.tgid, j.trname from unnest($2, $3) k(wid, tgid) join %1$s j on j.wid = k.wid and j.tgid = k.tgid),
                first as (
                    select p.trname, min(o.fired_at) as fired_at
                      from priorities p
                      left join lateral (
                           select j.fired_at from %1$s j
                            where j.trname = p.trname and j.priority = p.priority and j.lckid is null
                              and not exists (select from taken where taken.wid = j.wid and taken.tgid = j.tgid)
                            order by j.fired_at limit 1) o on true
                     group by p.trname)
                select $1, n.trname, greatest(c.pending - c.leased - t.running, 0), t.running, c.leased, least(n.fired_at, c.lapsed)
                  from first n
                 cross join lateral (
                       select count(*) as pending, count(*) filter (where j.lckid is not null and j.leased_until > clock_timestamp()) as leased,
                              min(j.fired_at) filter (where j.lckid is not null and j.leased_until <= clock_timestamp()) as lapsed
                         from (select j.lckid, j.leased_until, j.fired_at from %1$s j where j.trname = n.trname limit $4) j) c
                 cross join lateral (select count(*) as running from taken where taken.trname = n.trname) t
            $sql$, f.job_pool) using f.flow_id, f.wids, f.tgids, most;
        exception
            when lock_not_available or undefined_table then
                flow_id := f.flow_id;
                trname := null;
                return next;
        end;
    end loop;
end
$$;

revoke all on function wed_sql.pending_jobs(bigint) from public;

comment on function wed_sql.pending_jobs(bigint) is
'Jobs of each WED-transition that has any, counted up to most: waiting for a worker, locked by one (running), and leased; and when the oldest that waits was fired. trname is null for a flow whose jobs cannot be read now.';

create function wed_sql.transition_statistics(most bigint default null,
        out flow name, out trname text, out fired bigint, out done bigint, out failed bigint, out timed_out bigint,
        out lost bigint, out withdrawn bigint, out waiting bigint, out running bigint, out leased bigint,
        out oldest timestamp with time zone, out wait_time double precision, out mean_wait_time double precision,
        out max_wait_time double precision, out run_time double precision, out mean_run_time double precision,
        out max_run_time double precision, out stats_reset timestamp with time zone)
    returns setof record
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    with jobs as materialized (select * from wed_sql.pending_jobs(most)),
    events as (
        select e.flow_id, e.trname, sum(e.n) filter (where e.event = 'fired') as fired, sum(e.n) filter (where e.event = 'failed') as failed,
               sum(e.n) filter (where e.event = 'timed out') as timed_out, sum(e.n) filter (where e.event = 'lost') as lost
          from wed_sql.counted_event e group by e.flow_id, e.trname),
    names as (
        select r.flow_id, r.trname from wed_sql.rule r where r.valid_until = 9223372036854775807 and r.trname is not null
        union select c.flow_id, c.trname from wed_sql.transition_counter c
        union select e.flow_id, e.trname from events e
        union select j.flow_id, j.trname from jobs j where j.trname is not null)
    select s.nspname, n.trname, (coalesce(c.fired, 0) + coalesce(e.fired, 0))::bigint, coalesce(c.done, 0),
           (coalesce(c.failed, 0) + coalesce(e.failed, 0))::bigint, (coalesce(c.timed_out, 0) + coalesce(e.timed_out, 0))::bigint,
           (coalesce(c.lost, 0) + coalesce(e.lost, 0))::bigint, coalesce(c.withdrawn, 0),
           case when u.flow_id is null then coalesce(j.waiting, 0) end, case when u.flow_id is null then coalesce(j.running, 0) end,
           case when u.flow_id is null then coalesce(j.leased, 0) end, j.oldest,
           coalesce(c.wait_time, 0), c.wait_time / nullif(c.timed, 0), c.max_wait_time,
           coalesce(c.run_time, 0), c.run_time / nullif(c.timed, 0), c.max_run_time, w.stats_reset
      from names n
      join wed_sql.flow f on f.flow_id = n.flow_id
      join pg_class t on t.oid = f.wed_flow
      join pg_namespace s on s.oid = t.relnamespace
      left join wed_sql.transition_counter c on c.flow_id = n.flow_id and c.trname = n.trname
      left join events e on e.flow_id = n.flow_id and e.trname = n.trname
      left join jobs j on j.flow_id = n.flow_id and j.trname = n.trname
      left join jobs u on u.flow_id = n.flow_id and u.trname is null
      left join wed_sql.flow_counter w on w.flow_id = n.flow_id
$$;

revoke all on function wed_sql.transition_statistics(bigint) from public;
grant execute on function wed_sql.transition_statistics(bigint) to pg_monitor;

comment on function wed_sql.transition_statistics(bigint) is 'wed_sql.stat_transition, with the jobs of each WED-transition counted up to most.';

create view wed_sql.stat_transition as
select flow, trname, fired, done, failed, timed_out, lost, withdrawn, waiting, running, leased, oldest,
       wait_time, mean_wait_time, max_wait_time, run_time, mean_run_time, max_run_time, stats_reset
  from wed_sql.transition_statistics();

grant select on wed_sql.stat_transition to pg_monitor;

comment on view wed_sql.stat_transition is 'statistics of the WED-transitions of this database';
comment on column wed_sql.stat_transition.flow is 'WED-flow';
comment on column wed_sql.stat_transition.trname is 'WED-transition; _EXCPT is the recovery of exceptions';
comment on column wed_sql.stat_transition.fired is 'jobs that were fired';
comment on column wed_sql.stat_transition.done is 'states that it has written';
comment on column wed_sql.stat_transition.failed is 'attempts that a worker gave up, or the engine at an action';
comment on column wed_sql.stat_transition.timed_out is 'attempts that were ended because their time was up, leases that ran out included';
comment on column wed_sql.stat_transition.lost is 'attempts whose connection was lost';
comment on column wed_sql.stat_transition.withdrawn is 'jobs and timers that went because their condition no longer held';
comment on column wed_sql.stat_transition.waiting is 'jobs now that no worker has; null: they cannot be read, the flow is being dropped or altered';
comment on column wed_sql.stat_transition.running is 'jobs now whose lock a session holds';
comment on column wed_sql.stat_transition.leased is 'jobs now that are leased';
comment on column wed_sql.stat_transition.oldest is 'when the oldest job that waits was fired';
comment on column wed_sql.stat_transition.wait_time is 'of those done: time from firing to the beginning of the transaction that did it, in all, in ms';
comment on column wed_sql.stat_transition.mean_wait_time is 'the same, on average';
comment on column wed_sql.stat_transition.max_wait_time is 'the same, the longest';
comment on column wed_sql.stat_transition.run_time is 'of those done: time from the beginning of the transaction that did it to its commit, in all, in ms';
comment on column wed_sql.stat_transition.mean_run_time is 'the same, on average';
comment on column wed_sql.stat_transition.max_run_time is 'the same, the longest';
comment on column wed_sql.stat_transition.stats_reset is 'when statistics of the flow were reset';

create function wed_sql.flow_statistics(
        out flow name, out instances bigint, out states bigint, out exceptions bigint, out finals bigint,
        out cancelled bigint, out recovering bigint, out timers bigint, out stats_reset timestamp with time zone)
    returns setof record
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    with jobs as materialized (select * from wed_sql.pending_jobs())
    select s.nspname, coalesce(c.instances, 0), coalesce(c.states, 0), coalesce(c.exceptions, 0), coalesce(c.finals, 0), coalesce(c.cancelled, 0),
           case when not exists (select from jobs u where u.flow_id = f.flow_id and u.trname is null)
                then coalesce((select j.waiting + j.running + j.leased from jobs j where j.flow_id = f.flow_id and j.trname = '_EXCPT'), 0)
           end, (select count(*) from wed_sql.timer i where i.flow_id = f.flow_id), c.stats_reset
      from wed_sql.flow f
      join pg_class t on t.oid = f.wed_flow
      join pg_namespace s on s.oid = t.relnamespace
      left join wed_sql.flow_counter c on c.flow_id = f.flow_id
$$;

revoke all on function wed_sql.flow_statistics() from public;
grant execute on function wed_sql.flow_statistics() to pg_monitor;

comment on function wed_sql.flow_statistics() is 'See wed_sql.stat_flow.';

create view wed_sql.stat_flow as
select flow, instances, states, exceptions, finals, cancelled, recovering, timers, stats_reset
  from wed_sql.flow_statistics();

grant select on wed_sql.stat_flow to pg_monitor;

comment on view wed_sql.stat_flow is 'statistics of the WED-flows of this database';
comment on column wed_sql.stat_flow.flow is 'WED-flow';
comment on column wed_sql.stat_flow.instances is 'instances that were started';
comment on column wed_sql.stat_flow.states is 'WED-states that were matched, initial ones included';
comment on column wed_sql.stat_flow.exceptions is 'of these, exceptions';
comment on column wed_sql.stat_flow.finals is 'of these, final ones';
comment on column wed_sql.stat_flow.cancelled is 'instances that were cancelled';
comment on column wed_sql.stat_flow.timers is 'timers now: delays, actions, retries, leases, suspensions';
comment on column wed_sql.stat_flow.recovering is 'instances now that are exceptions: their _EXCPT is pending; null: they cannot be read now';
comment on column wed_sql.stat_flow.stats_reset is 'when its statistics were reset';

create function wed_sql.timer_statistics(most bigint, out waiting bigint, out due bigint, out late double precision)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select case when w.n < most then w.n
                else greatest(w.n, (select c.reltuples::bigint from pg_class c where c.oid = 'wed_sql.timer'::regclass)) end,
           d.n, greatest(extract(epoch from clock_timestamp() - o.due_at), 0)::double precision
      from (select count(*) as n from (select from wed_sql.timer t where t.due_at > statement_timestamp() limit most) t) w,
           (select count(*) as n from (select from wed_sql.timer t where t.due_at <= statement_timestamp() limit most) t) d,
           (select min(t.due_at) as due_at from wed_sql.timer t) o
$$;

revoke all on function wed_sql.timer_statistics(bigint) from public;
grant execute on function wed_sql.timer_statistics(bigint) to pg_monitor;

comment on function wed_sql.timer_statistics(bigint) is
'Timers that are set and those that are due, counted up to most (above it an estimate, of the former), and how late the first of these is, in seconds.';
