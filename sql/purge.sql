-- Retention: instances that ended long ago go, with their history. They are found by the lines of wed_trace that end
-- them, oldest first, through an index that has no others: those that live cost nothing.

create function wed_sql.purge_instances(f wed_sql.flow, wids bigint[]) returns bigint
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    -- what a trigger of the owner's has kept, keeps its history
    removed bigint[] := wed_sql.remove_instances(f.wed_flow, wids);
begin
    execute format('delete from %s where wid = any ($1)', f.job_pool) using removed;
    execute format('delete from %s where wid = any ($1)', f.wed_event) using removed;
    execute format('delete from %s where wid = any ($1)', f.wed_trace) using removed;
    delete from wed_sql.signal s where s.flow_id = f.flow_id and s.wid = any (removed);
    -- what the engine is dealing with finds no instance
    delete from wed_sql.timer x
     where (x.flow_id, x.wid, x.tgid, x.kind, x.version) in (
               select t.flow_id, t.wid, t.tgid, t.kind, t.version from wed_sql.timer t
                where t.flow_id = f.flow_id and t.wid = any (removed) for update skip locked);
    return cardinality(removed);
end
$$;

revoke all on function wed_sql.purge_instances(wed_sql.flow, bigint[]) from public;

comment on function wed_sql.purge_instances(wed_sql.flow, bigint[]) is 'Removes instances that have ended, and all that is known about them.';

-- An instance is removed only if its last state is the one that was found: one that was reopened meanwhile has another,
-- and one that somebody is writing is left to the next time.
create function wed_sql.purge_batch_for(
        flow text, ended_before timestamp with time zone, most integer, after_time timestamp with time zone, after_wid bigint,
        dry_run boolean, caller name)
    returns table (purged bigint, last_time timestamp with time zone, last_wid bigint)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_of_owner(flow, caller);
    ended record;
    s wed_sql.stamp;
    wids bigint[] := '{}';
    problem text;
begin
    if ended_before is null or most is null then
        raise exception 'wed_sql.purge_batch() needs a time and a number' using errcode = 'null_value_not_allowed';
    end if;
    if most <= 0 then
        raise exception 'a batch must be of one instance at least' using errcode = 'invalid_parameter_value';
    end if;
    purged := 0;
    for ended in execute format($sql$
        select t.wid, t.version, t.tstmp from %s t
         where t.status in ('F', 'C') and t.tstmp < $1 and (t.tstmp, t.wid) > (coalesce($2, '-infinity'), coalesce($3, 0))
         order by t.tstmp, t.wid limit $4
        $sql$, f.wed_trace) using ended_before, after_time, after_wid, most
    loop
        last_time := ended.tstmp;
        last_wid := ended.wid;
        s := wed_sql.lock_instance(f.wed_flow, ended.wid, false);
        if s.version = ended.version and s.final then
            if dry_run then
                purged := purged + 1;
            else
                wids := wids || ended.wid;
            end if;
        end if;
    end loop;

    begin
        purged := purged + wed_sql.purge_instances(f, wids);
    exception when others then
        -- a table of the owner's may refer to one of them
        for i in 1 .. cardinality(wids) loop
            begin
                purged := purged + wed_sql.purge_instances(f, array[wids[i]]);
            exception when others then
                get stacked diagnostics problem = message_text;
                raise warning 'instance % of WED-flow "%" cannot be removed: %', wids[i], flow, problem;
            end;
        end loop;
    end;
    return next;
end
$$;

revoke all on function wed_sql.purge_batch_for(text, timestamp with time zone, integer, timestamp with time zone, bigint, boolean, name) from public;

comment on function wed_sql.purge_batch_for(text, timestamp with time zone, integer, timestamp with time zone, bigint, boolean, name) is
'wed_sql.purge_batch(), for a caller.';

create function wed_sql.purge_batch(
        flow text, ended_before timestamp with time zone, most integer default 1000,
        after_time timestamp with time zone default null, after_wid bigint default null, dry_run boolean default false)
    returns table (purged bigint, last_time timestamp with time zone, last_wid bigint)
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_purge_batch';

comment on function wed_sql.purge_batch(text, timestamp with time zone, integer, timestamp with time zone, bigint, boolean) is
'Looks at so many instances that ended before a time, the oldest first, and removes them with their history: but for those that somebody is writing, or that were reopened. Returns how many, and the last one, from which the next batch goes on; that is null when there are no more. For the owner of the flow.';

-- It commits, so it can have no search_path of its own: every name and operator here says where it is from.
create procedure wed_sql.purge(
        flow text, older_than interval, batch integer default 1000, dry_run boolean default false, inout purged bigint default 0)
    language plpgsql
as $$
declare
    ended_before pg_catalog.timestamptz := pg_catalog.statement_timestamp() operator(pg_catalog.-) older_than;
    step pg_catalog.record;
    after_time pg_catalog.timestamptz;
    after_wid pg_catalog.int8;
begin
    purged := 0;
    loop
        step := wed_sql.purge_batch(flow, ended_before, batch, after_time, after_wid, dry_run);
        purged := purged operator(pg_catalog.+) step.purged;
        exit when step.last_wid is null;
        after_time := step.last_time;
        after_wid := step.last_wid;
        raise debug 'WED-flow "%": % instances removed, up to those that ended at %', flow, purged, after_time;
        commit;
    end loop;
end
$$;

comment on procedure wed_sql.purge(text, interval, integer, boolean, bigint) is
'Removes the instances that ended so long ago, with their history, and commits after each batch; counts them. For the owner of the flow.';
