-- What the follower does with more rights than its role has: each function does one thing, for flows of this database.

-- Without a plan: the owner of wed_flow may have put expressions of his on it, which the planner would evaluate.
create function wed_sql.instances_after(wed_flow regclass, after bigint, most integer)
    returns table (wid bigint, version bigint)
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_instances_after';

revoke all on function wed_sql.instances_after(regclass, bigint, integer) from public;

comment on function wed_sql.instances_after(regclass, bigint, integer) is
'The next so many instances of a flow behind one, by their primary key, and the numbers of their states.';

create function wed_sql.instance_texts(wed_flow regclass, wids bigint[], most_bytes bigint)
    returns table (wid bigint, version bigint, stamp text, vals text[])
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_instance_texts';

revoke all on function wed_sql.instance_texts(regclass, bigint[], bigint) from public;

comment on function wed_sql.instance_texts(regclass, bigint[], bigint) is
'Instances of a flow, each value as text, in the order of the columns; up to about most_bytes.';

create function wed_sql.flow_name(f wed_sql.flow) returns text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
begin
    -- the second only while a backup is restored, or after a table was dropped by force
    return coalesce((select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                      where c.oid = f.wed_flow),
                    (select n.nspname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                      where c.oid in (f.wed_flow, f.wed_trace, f.job_pool, f.wed_trig, f.wed_attr)
                      limit 1),
                    'number ' || f.flow_id);
end
$$;

revoke all on function wed_sql.flow_name(wed_sql.flow) from public;

comment on function wed_sql.flow_name(wed_sql.flow) is 'Name of a flow, for messages.';

-- While a backup is restored, a flow is there long before all of its tables are whole.
create function wed_sql.obstacle(f wed_sql.flow) returns text
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        (select 'its ' || k.name || ' is missing'
           from (values (1, 'wed_flow', f.wed_flow), (2, 'wed_trace', f.wed_trace), (3, 'job_pool', f.job_pool)) k(n, name, oid)
          where not exists (select from pg_class c where c.oid = k.oid)
          order by k.n limit 1),
        (select 'its wed_flow is not in publication "wed_sql"'
          where not exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
                             where p.pubname = 'wed_sql' and r.prrelid = f.wed_flow)),
        (select 'the primary key of its ' || k.name || ' is missing'
           from (values (1, 'wed_trace', f.wed_trace), (2, 'job_pool', f.job_pool)) k(n, name, oid)
          where not exists (select from pg_constraint c where c.conrelid = k.oid and c.contype = 'p')
          order by k.n limit 1),
        (select 'its wed_flow has changed: ' || string_agg(flaw, '; ') from wed_sql.flaws(f) flaw))
$$;

revoke all on function wed_sql.obstacle(wed_sql.flow) from public;

comment on function wed_sql.obstacle(wed_sql.flow) is 'Why a flow cannot be followed; null if nothing is known to be in the way.';

create function wed_sql.unhealed(out flow_id integer, out name text, out obstacle text) returns setof record
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select f.flow_id, wed_sql.flow_name(f), wed_sql.obstacle(f)
      from wed_sql.flow f
     where not exists (select from wed_sql.followed w where w.flow_id = f.flow_id and w.since is not null)
     order by f.flow_id
$$;

revoke all on function wed_sql.unhealed() from public;

comment on function wed_sql.unhealed() is 'Flows that are not followed, and what is in the way of healing them.';

create function wed_sql.flow_to_read(flow_id integer) returns wed_sql.flow
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    select * into f from wed_sql.flow where flow.flow_id = flow_to_read.flow_id;
    if not found then
        raise exception 'there is no WED-flow of number %', flow_id using errcode = 'undefined_object';
    end if;
    return f;
end
$$;

revoke all on function wed_sql.flow_to_read(integer) from public;

comment on function wed_sql.flow_to_read(integer) is 'A flow; an error if there is none of this number.';

create function wed_sql.lock_instances(flow_id integer) returns void
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_to_read(flow_id);
    obstacle text := wed_sql.obstacle(f);
begin
    if obstacle is not null then
        raise exception '%', obstacle using errcode = 'object_not_in_prerequisite_state';
    end if;
    execute format('lock table only %s in access share mode', f.wed_flow);
end
$$;

revoke all on function wed_sql.lock_instances(integer) from public;

comment on function wed_sql.lock_instances(integer) is 'Keeps the columns of a flow''s wed_flow as they are until the end of the transaction.';

-- Stable: all that these look at is of one snapshot, that of the statement which calls them.
create function wed_sql.unseen(flow_id integer, after bigint, most integer, out looked bigint, out last bigint, out wids bigint[])
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_to_read(flow_id);
begin
    execute format($sql$
        select count(*), max(i.wid), coalesce(array_agg(i.wid order by i.wid) filter (
                   where not exists (select from %s t where t.wid = i.wid and t.version = i.version)), '{}')
          from wed_sql.instances_after($1, $2, $3) i
    $sql$, f.wed_trace)
       into looked, last, wids
      using f.wed_flow, after, most;
end
$$;

revoke all on function wed_sql.unseen(integer, bigint, integer) from public;

comment on function wed_sql.unseen(integer, bigint, integer) is
'Of so many instances of a flow that come after one: those whose state has no line in wed_trace, and how many there are and the last of all.';

create function wed_sql.states(flow_id integer, wids bigint[], most_bytes bigint)
    returns table (wid bigint, stamp text, vals text[], seen boolean, gap boolean,
                   tgids integer[], versions bigint[], pooled boolean[], at timestamp with time zone)
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_to_read(flow_id);
begin
    return query execute format($sql$
        select i.wid, i.stamp, i.vals,
               exists (select from %1$s t where t.wid = i.wid and t.version = i.version),
               i.version > 0 and not exists (select from %1$s t where t.wid = i.wid and t.version = i.version - 1),
               coalesce(k.tgids, '{}'), coalesce(k.versions, '{}'), coalesce(k.pooled, '{}'),
               statement_timestamp()
          from wed_sql.instance_texts($1, $2, $3) i,
               lateral (select array_agg(k.tgid) as tgids, array_agg(k.version) as versions, array_agg(k.pooled) as pooled
                          from (select j.tgid, j.version, true as pooled from %2$s j where j.wid = i.wid
                                 union all
                                select t.tgid, t.version, false from wed_sql.timer t
                                 where t.flow_id = $4 and t.wid = i.wid and t.kind in ('d', 'a')) k) k
    $sql$, f.wed_trace, f.job_pool)
      using f.wed_flow, wids, most_bytes, f.flow_id;
end
$$;

revoke all on function wed_sql.states(integer, bigint[], bigint) from public;

comment on function wed_sql.states(integer, bigint[], bigint) is
'States of instances as they are now, each value as text, whether wed_trace has a line for them and lacks the one before, and their jobs and timers.';

create function wed_sql.current_value(flow_id integer, wid bigint, attribute text, out type oid, out value text)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_to_read(flow_id);
    place bigint;
begin
    execute format('lock table only %s in access share mode', f.wed_flow);
    select a.atttypid, a.place into type, place
      from (select attname, atttypid, row_number() over (order by attnum) as place
              from pg_attribute
             where attrelid = f.wed_flow and attnum > 0 and not attisdropped and attgenerated = ''
               and attname not in ('wid', '_stamp')) a
     where a.attname = attribute;
    if found then
        select i.vals[place] into value from wed_sql.instance_texts(f.wed_flow, array[wid], 1) i;
    end if;
end
$$;

revoke all on function wed_sql.current_value(integer, bigint, text) from public;

comment on function wed_sql.current_value(integer, bigint, text) is 'Type of a WED-attribute and its value in an instance, as text.';

-- What is wrong without stopping the engine.
create function wed_sql.warnings() returns setof text
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select format('WED-flow "%s" is not followed: %s', wed_sql.flow_name(f),
                  coalesce(wed_sql.obstacle(f), w.error, 'its instances have not been healed yet'))
      from wed_sql.flow f
      left join wed_sql.followed w on w.flow_id = f.flow_id
     where w.since is null
     order by f.flow_id;
    return query
    select distinct format('WED-flow "%s": constraint "%s" is deferred: what the engine writes by itself, and wed_sql.purge(), fails where it would have to be checked; make it INITIALLY IMMEDIATE',
                           wed_sql.flow_name(f), c.conname)
      from wed_sql.flow f
      join pg_trigger t on t.tgrelid = f.wed_flow and t.tginitdeferred and t.tgenabled <> 'D'
                       and t.tgtype & 24 <> 0 -- update or delete
      join pg_constraint c on c.oid = t.tgconstraint;
    return query select * from wed_sql.lock_warnings();
    return query select * from wed_sql.timeout_warnings();
end
$$;

revoke all on function wed_sql.warnings() from public;
grant execute on function wed_sql.warnings() to pg_monitor;

comment on function wed_sql.warnings() is 'What is wrong in this database without stopping the engine; shown in wed_sql.status.';

-- The end of a restored backup is when wed_flow is put into the publication, its keys and triggers are made.
create function wed_sql.look_again() returns event_trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_tag = 'ALTER PUBLICATION' then
        -- what is not in the publication even for a moment has states that the stream does not bring
        update wed_sql.followed w set since = null
          from wed_sql.flow f
         where f.flow_id = w.flow_id and w.since is not null
           and not exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
                            where p.pubname = 'wed_sql' and r.prrelid = f.wed_flow)
           and exists (select from pg_class c where c.oid = f.wed_flow);
    end if;
    if exists (select from wed_sql.flow f
                where not exists (select from wed_sql.followed w where w.flow_id = f.flow_id and w.since is not null))
    then
        perform wed_sql.discover();
    end if;
end
$$;

revoke all on function wed_sql.look_again() from public;

comment on function wed_sql.look_again() is 'Event trigger: has the engine look again at flows that it does not follow.';

create event trigger wed_sql_published on ddl_command_end
    when tag in ('ALTER PUBLICATION', 'ALTER TABLE', 'CREATE TRIGGER')
    execute function wed_sql.look_again();
alter event trigger wed_sql_published enable always;

-- The engine's role. Who may lock instances for reading is one: so a backup brings the roles back with their rights.
create view wed_sql.engine_role as
select a.grantee::regrole as role
  from pg_proc p, aclexplode(p.proacl) a
 where p.oid = 'wed_sql.lock_instances(integer)'::regprocedure
   and a.privilege_type = 'EXECUTE' and a.grantee not in (0, p.proowner);

comment on view wed_sql.engine_role is 'roles that the engine can run as, besides superusers; see wed_sql.grant_engine()';

create function wed_sql.grant_flow_to_engine(f wed_sql.flow) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    roles text := (select string_agg(role::text, ', ') from wed_sql.engine_role);
    schema text := wed_sql.flow_name(f);
begin
    if exists (select from pg_policy where polrelid = f.job_pool and polname = 'wed_sql_engine') then
        execute format('drop policy wed_sql_engine on %s', f.job_pool);
    end if;
    if roles is not null then
        execute format('grant usage on schema %I to %s', schema, roles);
        execute format('grant select, insert on %s, %s to %s', f.job_pool, f.wed_trace, roles);
        execute format('grant update, delete on %s to %s', f.job_pool, roles);
        execute format('create policy wed_sql_engine on %s to %s using (true) with check (true)', f.job_pool, roles);
    end if;
end
$$;

revoke all on function wed_sql.grant_flow_to_engine(wed_sql.flow) from public;

comment on function wed_sql.grant_flow_to_engine(wed_sql.flow) is 'Lets the engine''s roles write the jobs and the history of a flow.';

create function wed_sql.engine_functions() returns text
    language sql immutable
    set search_path = pg_catalog, pg_temp
as $$
    select 'wed_sql.' || array_to_string(array[
        'await_transactions(xid[])', 'log_running_transactions()', 'notify_listeners(text[], text[])', 'unhealed()', 'lock_instances(integer)',
        'unseen(integer, bigint, integer)', 'states(integer, bigint[], bigint)', 'current_value(integer, bigint, text)',
        'warnings()', 'sweep(integer, integer)', 'sweep_claimed(wed_sql.timer)', 'put_off_claimed(wed_sql.timer)', 'end_overdue(boolean)', 'count_lost_jobs()', 'any_running(xid[])',
        'add_counts(jsonb, jsonb)', 'has_counted_events()', 'transition_statistics(bigint)', 'timer_statistics(bigint)'], ', wed_sql.')
$$;

revoke all on function wed_sql.engine_functions() from public;

comment on function wed_sql.engine_functions() is 'What the engine''s role may execute, as GRANT wants it.';

create function wed_sql.grant_engine(role regrole) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    r pg_roles;
begin
    select * into strict r from pg_roles where oid = role;
    if not r.rolcanlogin or not r.rolreplication then
        raise exception 'role "%" cannot run the engine', r.rolname
            using errcode = 'object_not_in_prerequisite_state',
                  hint = format('ALTER ROLE %I LOGIN REPLICATION.', r.rolname);
    end if;
    execute format('grant usage on schema wed_sql to %s', role);
    execute format('grant select on wed_sql.flow, wed_sql.rule, wed_sql.follower, wed_sql.followed, wed_sql.timer, wed_sql.signal to %s', role);
    execute format('grant insert, update, delete on wed_sql.timer to %s', role);
    execute format('grant update on wed_sql.follower to %s', role);
    execute format('grant insert, update on wed_sql.followed to %s', role);
    execute format('grant execute on function %s to %s', wed_sql.engine_functions(), role);
    perform wed_sql.grant_flow_to_engine(f) from wed_sql.flow f where exists (select from pg_class where oid = f.job_pool);
    perform wed_sql.discover();
end
$$;

revoke all on function wed_sql.grant_engine(regrole) from public;

comment on function wed_sql.grant_engine(regrole) is
'Lets the engine run as a role (wed_sql.conninfo) that has LOGIN and REPLICATION and needs no more: in this database, with the flows that are here and those that will be. For superusers.';

create function wed_sql.revoke_engine(role regrole) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    execute format('revoke all on wed_sql.flow, wed_sql.rule, wed_sql.follower, wed_sql.followed, wed_sql.timer, wed_sql.signal from %s', role);
    execute format('revoke all on function %s from %s', wed_sql.engine_functions(), role);
    for f in select flow.* from wed_sql.flow join pg_class c on c.oid = flow.job_pool
    loop
        perform wed_sql.grant_flow_to_engine(f);
        execute format('revoke all on %s, %s from %s', f.job_pool, f.wed_trace, role);
        execute format('revoke usage on schema %I from %s', wed_sql.flow_name(f), role);
    end loop;
    perform wed_sql.revoke_schema_usage(role);
end
$$;

revoke all on function wed_sql.revoke_engine(regrole) from public;

comment on function wed_sql.revoke_engine(regrole) is 'Takes back what wed_sql.grant_engine() has given. For superusers.';
