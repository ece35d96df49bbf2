-- What is due because time has passed: the engine calls wed_sql.sweep() when the first timer is due, and again until
-- nothing is left. What writes a state is done one at a time, in a transaction of its own: so it holds no more than one
-- instance, and what it has undone is not done.

-- The delays of so many WED-triggers are over: their jobs are in the pool from now on.
create function wed_sql.fire_delayed(f wed_sql.flow, wids bigint[], tgids integer[], versions bigint[], due timestamp with time zone[])
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format($sql$
        with due as materialized (
            select d.*, r.trname, r.timeout, r.priority,
                   coalesce((select t.state from %2$s t where t.wid = d.wid order by t.version desc limit 1), '{}') as state
              from unnest($1, $2, $3, $4) d(wid, tgid, version, due_at),
                   lateral (select * from wed_sql.rule r where r.tgid = d.tgid order by r.valid_from desc limit 1) r),
        fired as (
            insert into %1$s (wid, tgid, trname, timeout, payload, fired_at, version, priority)
            select wid, tgid, trname, timeout, state, due_at, version, priority from due
                on conflict (wid, tgid) do nothing
            returning wid, tgid, trname, version),
        counted as (
            insert into wed_sql.counted_event (flow_id, trname, event, n)
            select $5, trname, 'fired', count(*) from fired group by trname)
        insert into %3$s (wid, version, tgid, trname, event)
        select wid, version, tgid, trname, 'timer fired' from fired
    $sql$, f.job_pool, f.wed_trace, f.wed_event)
      using wids, tgids, versions, due, f.flow_id;
    perform wed_sql.notify_jobs(f, wids, tgids);
end
$$;

revoke all on function wed_sql.fire_delayed(wed_sql.flow, bigint[], integer[], bigint[], timestamp with time zone[]) from public;

comment on function wed_sql.fire_delayed(wed_sql.flow, bigint[], integer[], bigint[], timestamp with time zone[]) is
'Fires WED-triggers whose delay is over.';

-- An action is due, be it at once or after a delay. It is done under the lock of its job, like any transition.
create function wed_sql.sweep_action(f wed_sql.flow, due wed_sql.timer) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    r wed_sql.rule;
    pending bigint;
    done record;
begin
    select * into r from wed_sql.rule where tgid = due.tgid order by valid_from desc limit 1;
    execute format('select version from %s where wid = $1 and tgid = $2', f.job_pool)
       into pending using due.wid, due.tgid;
    if pending is null and r.delay is not null then
        perform wed_sql.fire_delayed(f, array[due.wid], array[due.tgid], array[due.version], array[due.due_at]);
        pending := due.version;
    end if;
    if pending is distinct from due.version or r.action is null or r.valid_until < 9223372036854775807 then
        return; -- it is done, or somebody else's to do
    end if;

    done := wed_sql.perform(f.wed_flow, due.wid, due.tgid, r.action,
                            least(extract(epoch from r.timeout) * 1000, 2147483647)::integer);
    if done.outcome = 'busy' or done.sqlstate = 'WED16' then -- or leased
        perform wed_sql.set_timer(f, due.wid, due.tgid, 'a', due.version, clock_timestamp() + interval '1 second');
    elsif done.sqlstate in ('WED03', 'WED08', 'WED17') then
        -- it has been withdrawn, and the follower has not come to that yet
        execute format('delete from %s where wid = $1 and tgid = $2 and version = $3', f.job_pool)
          using due.wid, due.tgid, due.version;
    elsif done.outcome = 'failed' then
        perform wed_sql.attempt_failed(f, due.wid, due.tgid, due.version, 'action failed', done.error);
    end if;
end
$$;

revoke all on function wed_sql.sweep_action(wed_sql.flow, wed_sql.timer) from public;

comment on function wed_sql.sweep_action(wed_sql.flow, wed_sql.timer) is 'Performs a WED-transition by its action.';

create function wed_sql.set_timer(f wed_sql.flow, wid bigint, tgid integer, kind "char", version bigint, due_at timestamp with time zone)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
    values (f.flow_id, set_timer.wid, set_timer.tgid, set_timer.kind, set_timer.version, set_timer.due_at)
        on conflict on constraint timer_pkey
        do update set version = excluded.version, due_at = excluded.due_at;
end
$$;

revoke all on function wed_sql.set_timer(wed_sql.flow, bigint, integer, "char", bigint, timestamp with time zone) from public;

comment on function wed_sql.set_timer(wed_sql.flow, bigint, integer, "char", bigint, timestamp with time zone) is
'Has the engine do something at a time.';

-- A job or a timer was in use when it was withdrawn.
create function wed_sql.sweep_withdrawn(f wed_sql.flow, due wed_sql.timer) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    left_over boolean;
begin
    delete from wed_sql.timer t
     where t.flow_id = due.flow_id and t.wid = due.wid and t.tgid = due.tgid and t.kind in ('d', 'a', 'r', 'l', 'g')
       and t.version < due.version;
    execute format('with free as (select wid, tgid from %1$s where wid = $1 and tgid = $2 and version < $3 for update skip locked)
                    delete from %1$s j using free where j.wid = free.wid and j.tgid = free.tgid', f.job_pool)
      using due.wid, due.tgid, due.version;
    execute format('select exists (select from %s where wid = $1 and tgid = $2 and version < $3)', f.job_pool)
       into left_over using due.wid, due.tgid, due.version;
    if left_over then
        perform wed_sql.set_timer(f, due.wid, due.tgid, 'w', due.version, clock_timestamp() + interval '1 second');
    end if;
end
$$;

revoke all on function wed_sql.sweep_withdrawn(wed_sql.flow, wed_sql.timer) from public;

comment on function wed_sql.sweep_withdrawn(wed_sql.flow, wed_sql.timer) is
'Removes a withdrawn job, unless it is still in use.';

-- One thing that is due; its timer is gone already, and is set anew if it has to be.
create function wed_sql.sweep_one(due wed_sql.timer) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    select * into f from wed_sql.flow where flow_id = due.flow_id and exists (select from pg_class c where c.oid = flow.wed_flow);
    if not found then
        return;
    end if;
    case due.kind
        when 'a' then perform wed_sql.sweep_action(f, due);
        when 'w' then perform wed_sql.sweep_withdrawn(f, due);
        when 'r' then perform wed_sql.sweep_retry(f, due.wid, due.tgid, due.version);
        when 'l' then perform wed_sql.sweep_lease(f, due.wid, due.tgid, due.version);
        when 's' then perform wed_sql.sweep_suspension(f, due.wid, due.version);
        when 'g' then perform wed_sql.sweep_signal(f, due.wid, due.tgid, due.version);
    end case;
end
$$;

revoke all on function wed_sql.sweep_one(wed_sql.timer) from public;

comment on function wed_sql.sweep_one(wed_sql.timer) is 'Does what is due.';

create function wed_sql.sweep_delays(due wed_sql.timer[]) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform wed_sql.fire_delayed(f, d.wids, d.tgids, d.versions, d.due_at)
       from (select t.flow_id, array_agg(t.wid) as wids, array_agg(t.tgid) as tgids,
                    array_agg(t.version) as versions, array_agg(t.due_at) as due_at
               from unnest(due) t group by t.flow_id) d
       join wed_sql.flow f on f.flow_id = d.flow_id
       join pg_class c on c.oid = f.wed_flow;
    -- of rules that were given an action since
    insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
    select t.flow_id, t.wid, t.tgid, 'a', t.version, t.due_at
      from unnest(due) t
      join wed_sql.rule r on r.tgid = t.tgid and r.valid_until = 9223372036854775807 and r.action is not null
        on conflict do nothing;
end
$$;

revoke all on function wed_sql.sweep_delays(wed_sql.timer[]) from public;

comment on function wed_sql.sweep_delays(wed_sql.timer[]) is 'Fires WED-triggers of any flows whose delay is over.';

create function wed_sql.sweep(
        most integer, out handled integer, out next_due timestamp with time zone, out now timestamp with time zone,
        out problem text)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    moment timestamp with time zone := clock_timestamp();
    due wed_sql.timer[];
begin
    handled := 0;
    -- an instance that somebody holds must not hold up the others
    perform set_config('lock_timeout', '500ms', true);

    -- The delays that come before anything else, or that alone. They are not deleted in the subtransaction below, where
    -- each would get a multixact, and their index entries would not be known for dead.
    with first as materialized (
        select x.* from wed_sql.timer x where x.due_at <= moment order by x.due_at limit most
           for update skip locked),
    other as (select min(x.due_at) as due_at from first x where x.kind <> 'd'),
    chosen as (
        select x.* from first x, other
         where x.kind = 'd' and (x.due_at < other.due_at or other.due_at is null)
        union all
        (select x.* from first x, other
          where x.due_at = other.due_at and not exists (select from first y where y.due_at < other.due_at)
          order by x.kind <> 'd' desc limit 1)),
    gone as (
        delete from wed_sql.timer t using chosen c
         where t.flow_id = c.flow_id and t.wid = c.wid and t.tgid = c.tgid and t.kind = c.kind
        returning t.*)
    select array_agg(g::wed_sql.timer order by g.due_at) into due from gone g;

    if due is not null then
        begin
            if due[1].kind = 'd' then
                perform wed_sql.sweep_delays(due);
            else
                perform wed_sql.sweep_one(due[1]);
            end if;
        exception when others then
            problem := sqlerrm;
            insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
            select d.flow_id, d.wid, d.tgid, d.kind, d.version, clock_timestamp() + interval '1 second' from unnest(due) d
                on conflict do nothing;
        end;
        handled := cardinality(due);
    end if;

    now := clock_timestamp();
    next_due := (select min(t.due_at) from wed_sql.timer t where t.due_at < 'infinity');
    if handled = 0 and next_due < now then
        next_due := now + interval '100 milliseconds'; -- somebody else has it
    end if;
end
$$;

revoke all on function wed_sql.sweep(integer) from public;

comment on function wed_sql.sweep(integer) is
'Does what is due: so many delays at a time, or one other thing. How many, when to call it again, what time it is here, and what went wrong.';
