-- What is due because time has passed: the engine calls wed_sql.sweep() when the first timer is due, and again until
-- nothing is left. Delays are done by the thousand, as none runs anybody's code. What writes a state is done one at a
-- time, in a transaction of its own: so it holds no more than one instance, and what it has undone is not done.

-- The job of a WED-trigger that fires later than the state that it fired on. Who writes an instance decides whether the
-- delay was over, so it is not fired while somebody does.
create function wed_sql.put_jobs(
        f wed_sql.flow, kind "char", wids bigint[], tgids integer[], versions bigint[], due timestamp with time zone[])
    returns table (wid bigint, tgid integer, version bigint, trname text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query select * from wed_sql.query_planned(format($sql$
        with held as materialized (
            select d.*, wed_sql.hold_pending($5, d.wid, d.tgid, d.version) as pends
              from unnest($1, $2, $3, $4) d(wid, tgid, version, due_at)),
        later as (
            insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
            select $6, d.wid, d.tgid, $7, d.version, clock_timestamp() + interval '50 milliseconds' from held d where d.pends is null
                on conflict do nothing)
        insert into %1$s as j (wid, tgid, trname, timeout, payload, fired_at, version, priority)
        select d.wid, d.tgid, r.trname, r.timeout,
               coalesce((select t.state from %2$s t where t.wid = d.wid order by t.version desc limit 1), '{}'),
               d.due_at, d.version, r.priority
          from held d,
               lateral (select * from wed_sql.rule r where r.tgid = d.tgid and r.trname is not null order by r.valid_from desc limit 1) r
         where d.pends
            on conflict do nothing
        returning j.wid, j.tgid, j.version, j.trname
    $sql$, f.job_pool, f.wed_trace), wids, tgids, versions, due, f.wed_flow, f.flow_id, kind)
      as (wid bigint, tgid integer, version bigint, trname text);
end
$$;

revoke all on function wed_sql.put_jobs(wed_sql.flow, "char", bigint[], integer[], bigint[], timestamp with time zone[]) from public;

comment on function wed_sql.put_jobs(wed_sql.flow, "char", bigint[], integer[], bigint[], timestamp with time zone[]) is
'Puts jobs into job_pool that pend as the rows say, with the states as they are now; returns those that were not there. For those whose rows others have locked there are timers of this kind again.';

create function wed_sql.fire_delayed(f wed_sql.flow, kind "char", wids bigint[], tgids integer[], versions bigint[], due timestamp with time zone[])
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform wed_sql.execute_planned(format($sql$
        with fired as materialized (select * from wed_sql.put_jobs($6, $7, $1, $2, $3, $4)),
        counted as (
            insert into wed_sql.counted_event (flow_id, trname, event, n)
            select $5, trname, 'fired', count(*) from fired group by trname)
        insert into %s (wid, version, tgid, trname, event)
        select wid, version, tgid, trname, 'timer fired' from fired
    $sql$, f.wed_event), wids, tgids, versions, due, f.flow_id, f, kind);
    perform wed_sql.notify_jobs(f, wids, tgids);
end
$$;

revoke all on function wed_sql.fire_delayed(wed_sql.flow, "char", bigint[], integer[], bigint[], timestamp with time zone[]) from public;

comment on function wed_sql.fire_delayed(wed_sql.flow, "char", bigint[], integer[], bigint[], timestamp with time zone[]) is
'Fires WED-triggers whose delay is over.';

-- An action is due, be it at once or after a delay. It is done under the lock of its job, like any transition.
create function wed_sql.sweep_action(f wed_sql.flow, due wed_sql.timer) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    r wed_sql.rule := wed_sql.last_rule(due.tgid);
    done record;
    pending boolean;
    available_at timestamp with time zone;
begin
    select t.* into pending, available_at
      from wed_sql.query_planned(format('select true, j.available_at from %s j
                                          where j.wid = $1 and j.tgid = $2 and j.version = $3', f.job_pool),
                                 due.wid, due.tgid, due.version) as t(pending boolean, available_at timestamp with time zone);
    pending := coalesce(pending, false);
    if available_at > clock_timestamp() then -- an attempt has failed meanwhile
        perform wed_sql.set_timer(f, due.wid, due.tgid, 'a', due.version, available_at);
        return;
    end if;
    if r.action is null or r.valid_until < 9223372036854775807 then
        if not pending then -- its delay is over, but it has no action any more
            perform wed_sql.fire_delayed(f, 'a', array[due.wid], array[due.tgid], array[due.version], array[due.due_at]);
        else
            perform wed_sql.notify_job(f, due.wid, due.tgid); -- it is a worker's now
        end if;
        return;
    end if;
    if not pending then
        if wed_sql.hold_pending(f.wed_flow, due.wid, due.tgid, due.version) is null then
            perform wed_sql.set_timer(f, due.wid, due.tgid, 'a', due.version, clock_timestamp() + interval '50 milliseconds');
            return;
        end if;
        perform wed_sql.put_jobs(f, 'a', array[due.wid], array[due.tgid], array[due.version], array[due.due_at]);
    end if;

    done := wed_sql.perform(f.wed_flow, due.wid, due.tgid, due.version, r.action,
                            greatest(least(ceil(extract(epoch from r.timeout) * 1000), 2147483647), 1)::integer);
    if done.outcome = 'gone' then -- it is done, or has been withdrawn
        execute format('delete from %s where wid = $1 and tgid = $2 and version = $3', f.job_pool)
          using due.wid, due.tgid, due.version;
        return;
    elsif done.outcome = 'busy' or done.sqlstate = 'WED16' then -- or leased
        perform wed_sql.set_timer(f, due.wid, due.tgid, 'a', due.version, clock_timestamp() + interval '1 second');
    elsif done.outcome = 'failed' then
        if not wed_sql.attempt_failed(f, due.wid, due.tgid, due.version, 'action failed', done.error) then
            perform wed_sql.set_timer(f, due.wid, due.tgid, 'a', due.version, clock_timestamp() + interval '1 second');
        end if;
    end if;
    if not pending and r.delay is not null then
        perform wed_sql.record_event(f, due.wid, due.version, due.tgid, r.trname, 'timer fired');
        perform wed_sql.count_event(f.flow_id, r.trname, 'fired');
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
    with free as materialized (
        select x.* from wed_sql.timer x
         where x.flow_id = due.flow_id and x.wid = due.wid and x.tgid = due.tgid and x.kind in ('d', 'a', 'r', 'l', 'g')
           and x.version < due.version
           for update skip locked)
    delete from wed_sql.timer t using free x
     where t.flow_id = x.flow_id and t.wid = x.wid and t.tgid = x.tgid and t.kind = x.kind and t.version = x.version;
    execute format('with free as materialized (
                        select wid, tgid, version from %1$s where wid = $1 and tgid = $2 and version < $3 for update skip locked)
                    delete from %1$s j using free where j.wid = free.wid and j.tgid = free.tgid and j.version = free.version', f.job_pool)
      using due.wid, due.tgid, due.version;
    execute format('select exists (select from %s where wid = $1 and tgid = $2 and version < $3)
                        or exists (select from wed_sql.timer t
                                    where t.flow_id = $4 and t.wid = $1 and t.tgid = $2 and t.kind in (''d'', ''a'') and t.version < $3)', f.job_pool)
       into left_over using due.wid, due.tgid, due.version, due.flow_id;
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
    perform wed_sql.fire_delayed(f, 'd', d.wids, d.tgids, d.versions, d.due_at)
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

create function wed_sql.put_off(due wed_sql.timer[], pause interval) returns void
    language sql
    set search_path = pg_catalog, pg_temp
as $$
    insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
    select d.flow_id, d.wid, d.tgid, d.kind, d.version, clock_timestamp() + pause from unnest(due) d
        on conflict (flow_id, wid, tgid, kind, version) do update set due_at = excluded.due_at
$$;

revoke all on function wed_sql.put_off(wed_sql.timer[], interval) from public;

comment on function wed_sql.put_off(wed_sql.timer[], interval) is 'Has what is due be done later.';

-- Delays, all of them or, if that fails, flow by flow, and one by one. Returns the last error.
create function wed_sql.sweep_delays_apart(due wed_sql.timer[]) returns text
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    problem text;
    part record;
begin
    perform wed_sql.sweep_delays(due);
    return null;
exception when others then
    problem := sqlerrm;
    if (select count(distinct d.flow_id) from unnest(due) d) > 1 then
        for part in select array_agg(d::wed_sql.timer) as due from unnest(due) d group by d.flow_id loop
            problem := coalesce(wed_sql.sweep_delays_apart(part.due), problem);
        end loop;
    elsif cardinality(due) > 1 and sqlstate <> '55P03' then -- not locked
        for part in select array[d::wed_sql.timer] as due from unnest(due) d loop
            problem := coalesce(wed_sql.sweep_delays_apart(part.due), problem);
        end loop;
    else
        perform wed_sql.put_off(due, interval '10 seconds');
    end if;
    return problem;
end
$$;

revoke all on function wed_sql.sweep_delays_apart(wed_sql.timer[]) from public;

comment on function wed_sql.sweep_delays_apart(wed_sql.timer[]) is
'Fires WED-triggers whose delay is over; one that fails stops no other.';

-- What comes next besides delays: actions last, as they may take their time, and another flow's first if there is one.
create function wed_sql.next_timer(moment timestamp with time zone, flow_served integer) returns wed_sql.timer
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    t wed_sql.timer;
begin
    select * into t from wed_sql.timer x
     where x.kind <> 'd' and x.kind <> 'a' and x.due_at <= moment order by x.due_at limit 1 for update skip locked;
    if not found then
        select * into t from wed_sql.timer x
         where x.kind <> 'd' and x.kind = 'a' and x.flow_id <> flow_served and x.due_at <= moment
         order by x.due_at limit 1 for update skip locked;
    end if;
    if not found then
        select * into t from wed_sql.timer x
         where x.kind <> 'd' and x.due_at <= moment order by x.due_at limit 1 for update skip locked;
    end if;
    return t;
end
$$;

revoke all on function wed_sql.next_timer(timestamp with time zone, integer) from public;

comment on function wed_sql.next_timer(timestamp with time zone, integer) is 'What is to be done next besides delays.';

create function wed_sql.sweep(
        most integer, flow_served integer, out handled integer, out next_due timestamp with time zone,
        out now timestamp with time zone, out problem text, out claimed wed_sql.timer)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    moment timestamp with time zone := clock_timestamp();
    due wed_sql.timer[];
begin
    -- a flow that somebody has locked must not hold up the others
    perform set_config('lock_timeout', '500ms', true);
    -- They are not deleted in a subtransaction, where each would get a multixact, and their index entries would not
    -- be known for dead. What was due before for the same instance may undo them.
    with chosen as materialized (
        select x.* from wed_sql.timer x
         where x.kind = 'd' and x.due_at <= moment
           and not exists (select from wed_sql.timer y
                            where y.flow_id = x.flow_id and y.wid = x.wid and y.kind <> 'd' and y.due_at < x.due_at)
         order by x.due_at limit most
           for update skip locked),
    gone as (
        delete from wed_sql.timer t using chosen c
         where t.flow_id = c.flow_id and t.wid = c.wid and t.tgid = c.tgid and t.kind = c.kind and t.version = c.version
        returning t.*)
    select array_agg(g::wed_sql.timer order by g.due_at) into due from gone g;
    handled := coalesce(cardinality(due), 0);
    if handled > 0 then
        problem := wed_sql.sweep_delays_apart(due);
    else
        -- It is put off before it is tried: if that ends with the session, the others are not kept waiting.
        claimed := wed_sql.next_timer(moment, flow_served);
        if claimed.flow_id is not null then
            claimed.due_at := moment + interval '2 seconds';
            update wed_sql.timer t set due_at = claimed.due_at
             where t.flow_id = claimed.flow_id and t.wid = claimed.wid and t.tgid = claimed.tgid
               and t.kind = claimed.kind and t.version = claimed.version;
            handled := 1;
        end if;
    end if;

    now := clock_timestamp();
    next_due := least((select min(t.due_at) from wed_sql.timer t where t.kind = 'd' and t.due_at < 'infinity'),
                      (select min(t.due_at) from wed_sql.timer t where t.kind <> 'd' and t.due_at < 'infinity'));
    if handled = 0 and next_due < now then
        next_due := now + interval '100 milliseconds'; -- somebody else has it
    end if;
end
$$;

revoke all on function wed_sql.sweep(integer, integer) from public;

comment on function wed_sql.sweep(integer, integer) is
'Fires so many delays that are over; or, if there are none, says what else is to be done, by wed_sql.sweep_claimed(). How many, when to call it again, what time it is here, and what went wrong.';

create function wed_sql.sweep_claimed(claimed wed_sql.timer, out problem text)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    -- an instance that somebody holds must not hold up the others
    perform set_config('lock_timeout', '500ms', true);
    with found as materialized (
        select x.* from wed_sql.timer x
         where x.flow_id = claimed.flow_id and x.wid = claimed.wid and x.tgid = claimed.tgid
           and x.kind = claimed.kind and x.version = claimed.version and x.due_at = claimed.due_at
           for update skip locked)
    delete from wed_sql.timer t using found x
     where t.flow_id = x.flow_id and t.wid = x.wid and t.tgid = x.tgid and t.kind = x.kind and t.version = x.version;
    if not found then
        return; -- withdrawn meanwhile, or set to another time
    end if;
    begin
        perform wed_sql.sweep_one(claimed);
    exception when others then
        problem := sqlerrm;
        perform wed_sql.put_off(array[claimed], interval '10 seconds');
    end;
end
$$;

revoke all on function wed_sql.sweep_claimed(wed_sql.timer) from public;

comment on function wed_sql.sweep_claimed(wed_sql.timer) is 'Does what wed_sql.sweep() has said is to be done; returns what went wrong.';

create function wed_sql.put_off_claimed(claimed wed_sql.timer) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp
as $$
    -- the session that it has ended may still hold it
    with free as materialized (
        select x.* from wed_sql.timer x
         where x.flow_id = claimed.flow_id and x.wid = claimed.wid and x.tgid = claimed.tgid
           and x.kind = claimed.kind and x.version = claimed.version and x.due_at = claimed.due_at
           for update skip locked)
    update wed_sql.timer t set due_at = clock_timestamp() + interval '1 minute'
      from free x
     where t.flow_id = x.flow_id and t.wid = x.wid and t.tgid = x.tgid and t.kind = x.kind and t.version = x.version
$$;

revoke all on function wed_sql.put_off_claimed(wed_sql.timer) from public;

comment on function wed_sql.put_off_claimed(wed_sql.timer) is 'For what has ended the session that was to do it.';
