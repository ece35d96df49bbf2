-- Roles that may perform one transition or another, and nothing else. The guard, try_lock and the row security
-- policies read wed_sql.worker (ext/rights.c).

create table wed_sql.worker (
    flow_id integer not null,
    trname  text not null,
    role    regrole not null,
    constraint worker_pkey primary key (flow_id, trname, role)
);

comment on table wed_sql.worker is 'worker roles: which WED-transitions each may perform; see wed_sql.grant_worker()';

-- without roles that have been dropped: their numbers may be another's elsewhere
select pg_catalog.pg_extension_config_dump('wed_sql.worker',
    'where exists (select from pg_catalog.pg_roles r where r.oid = role)');
grant select on wed_sql.worker to pg_monitor;

create function wed_sql.may_perform(role oid, wed_flow regclass, trname text) returns boolean
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_may_perform_sql';

comment on function wed_sql.may_perform(oid, regclass, text) is
'Whether a role may perform a WED-transition: it may UPDATE the whole of wed_flow, or was named to wed_sql.grant_worker().';

revoke all on function wed_sql.may_perform(oid, regclass, text) from public;
grant execute on function wed_sql.may_perform(oid, regclass, text) to pg_monitor;

create function wed_sql.visible_transitions(wed_flow regclass) returns text[]
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_visible_transitions';

comment on function wed_sql.visible_transitions(regclass) is
'WED-transitions whose jobs the current user may see; null for all. For row security policies.';

create function wed_sql.has_visible_job(wed_flow regclass, wid bigint) returns boolean
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_has_visible_job';

comment on function wed_sql.has_visible_job(regclass, bigint) is
'Whether a job of the instance is pending that the current user may perform, or this transaction has performed one. For row security policies.';

create function wed_sql.flow_named(name text) returns wed_sql.flow
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    f wed_sql.flow;
begin
    select flow.* into f
      from wed_sql.flow
      join pg_class c on c.oid = flow.wed_flow
      join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = name and c.relname = 'wed_flow';
    if not found then
        raise exception 'WED-flow "%" does not exist', name using errcode = 'undefined_object';
    end if;
    return f;
end
$$;

revoke all on function wed_sql.flow_named(text) from public;

comment on function wed_sql.flow_named(text) is 'The flow of this name; an error if there is none.';

create function wed_sql.flow_of_owner(name text, caller name) returns wed_sql.flow
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_named(name);
    owner name;
begin
    select pg_get_userbyid(relowner) into strict owner from pg_class where oid = f.wed_flow;
    if not pg_has_role(caller, owner, 'usage') then
        raise exception 'must be owner of WED-flow "%"', name using errcode = 'insufficient_privilege';
    end if;
    return f;
end
$$;

revoke all on function wed_sql.flow_of_owner(text, name) from public;

comment on function wed_sql.flow_of_owner(text, name) is 'The flow of this name; an error unless the caller has the rights of its owner.';

-- Workers, the follower and readers of the view lock these tables in different orders, and no order of ours would
-- deadlock with none of them. So only the first is waited for as long as it takes.
create function wed_sql.lock_flow(f wed_sql.flow) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    tables regclass[] := array[f.wed_flow, f.job_pool, f.wed_trace];
    patience text := current_setting('lock_timeout');
    has_first boolean;
    tries integer := 0;
begin
    loop
        begin
            has_first := false;
            execute format('lock table %s', tables[tries % 3 + 1]);
            has_first := true;
            perform set_config('lock_timeout', '50ms', true);
            execute format('lock table %I.wed_instance, %s, %s, %s',
                           wed_sql.flow_name(f), f.wed_flow, f.job_pool, f.wed_trace);
            perform set_config('lock_timeout', patience, true);
            return;
        exception when lock_not_available then
            if not has_first then
                raise;
            end if;
            tries := tries + 1;
        end;
    end loop;
end
$$;

revoke all on function wed_sql.lock_flow(wed_sql.flow) from public;

comment on function wed_sql.lock_flow(wed_sql.flow) is 'Waits until nobody uses the tables of a flow, and keeps others out until the transaction ends; does not deadlock with who uses them.';

create function wed_sql.check_role(role name) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_roles where rolname = role) then
        raise exception 'role "%" does not exist', role using errcode = 'undefined_object';
    end if;
end
$$;

revoke all on function wed_sql.check_role(name) from public;

comment on function wed_sql.check_role(name) is 'An error if there is no such role.';

-- Column by column: to see or write the whole table is the owner's, and those whom he lets. The stamp is among what is
-- read because a row as a whole (jsonb_populate_record) has it.
create function wed_sql.grant_columns(f wed_sql.flow, role regrole) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    columns text;
    attributes text;
begin
    select string_agg(quote_ident(attname), ', '),
           string_agg(quote_ident(attname), ', ')
               filter (where attname not in ('wid', '_stamp') and attgenerated = '')
      into columns, attributes
      from pg_attribute
     where attrelid = f.wed_flow and attnum > 0 and not attisdropped;
    execute format('grant select (%s) on %s to %s', columns, f.wed_flow, role);
    if attributes is not null then
        execute format('grant update (%s) on %s to %s', attributes, f.wed_flow, role);
    end if;
end
$$;

revoke all on function wed_sql.grant_columns(wed_sql.flow, regrole) from public;

comment on function wed_sql.grant_columns(wed_sql.flow, regrole) is 'Lets a worker role read the columns of wed_flow and write the attributes, in the rows that it sees.';

create function wed_sql.show_workers_their_own(f wed_sql.flow) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_policy where polrelid = f.wed_flow and polname = 'wed_sql_worker') then
        return;
    end if;
    perform wed_sql.lock_flow(f);
    execute format('create policy wed_sql_worker on %1$s
                        using ((select wed_sql.visible_transitions(%1$L)) is null
                               or wed_sql.has_visible_job(%1$L, wid))
                        with check (true)', f.wed_flow);
    execute format('alter table %s enable row level security', f.wed_flow);
    execute format('create policy wed_sql_worker on %s
                        using ((select wed_sql.visible_transitions(%2$L)) is null
                               or trname = any ((select wed_sql.visible_transitions(%2$L))::text[]))',
                   f.job_pool, f.wed_flow);
    execute format('alter table %s enable row level security', f.job_pool);
end
$$;

revoke all on function wed_sql.show_workers_their_own(wed_sql.flow) from public;

comment on function wed_sql.show_workers_their_own(wed_sql.flow) is 'Puts the row security policies for worker roles on wed_flow and job_pool.';

create function wed_sql.grant_worker_for(flow text, transition text, role name, caller name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_of_owner(flow, caller);
    owner name;
    known text;
begin
    perform wed_sql.check_role(role);
    if transition <> '_EXCPT' and not exists (
        select from wed_sql.rule r
         where r.flow_id = f.flow_id and r.valid_until = 9223372036854775807 and r.trname = transition)
    then
        select string_agg(distinct r.trname, ', ') into known
          from wed_sql.rule r where r.flow_id = f.flow_id and r.valid_until = 9223372036854775807;
        raise exception 'WED-flow "%" has no WED-transition "%"', flow, transition
            using errcode = 'undefined_object', hint = format('It has %s.', coalesce(known || ', _EXCPT', '_EXCPT'));
    end if;

    select pg_get_userbyid(relowner) into strict owner from pg_class where oid = f.wed_flow;
    if pg_has_role(role, owner, 'usage') then
        raise notice 'role "%" has the rights of the owner of WED-flow "%" already', role, flow;
        return;
    end if;
    perform wed_sql.show_workers_their_own(f);
    delete from wed_sql.worker w where not exists (select from pg_roles r where r.oid = w.role);
    insert into wed_sql.worker values (f.flow_id, transition, quote_ident(role)::regrole) on conflict do nothing;
    execute format('grant usage on schema %I, wed_sql to %I', flow, role);
    execute format('grant select on %s to %I', f.job_pool, role);
    perform wed_sql.grant_columns(f, quote_ident(role)::regrole);
    perform wed_sql.definition_changed(f.wed_flow);
    perform wed_sql.discover();
end
$$;

revoke all on function wed_sql.grant_worker_for(text, text, name, name) from public;

comment on function wed_sql.grant_worker_for(text, text, name, name) is 'Gives a worker role the right to perform a WED-transition, for a caller.';

-- What a role was given besides must not keep it from being dropped.
create function wed_sql.revoke_schema_usage(role regrole) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from wed_sql.worker w where w.role = revoke_schema_usage.role)
       and not exists (select from wed_sql.engine_role e where e.role = revoke_schema_usage.role)
    then
        execute format('revoke usage on schema wed_sql from %s', role);
    end if;
end
$$;

revoke all on function wed_sql.revoke_schema_usage(regrole) from public;

comment on function wed_sql.revoke_schema_usage(regrole) is 'Takes back USAGE on schema wed_sql from a role that is neither a worker nor the engine.';

create function wed_sql.revoke_worker_for(flow text, transition text, role name, caller name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_of_owner(flow, caller);
begin
    perform wed_sql.check_role(role);
    delete from wed_sql.worker w
     where w.flow_id = f.flow_id and w.trname = transition and w.role = quote_ident(revoke_worker_for.role)::regrole;
    if not found then
        raise notice 'role "%" was not granted WED-transition "%" of WED-flow "%"', role, transition, flow;
        return;
    end if;
    if not exists (select from wed_sql.worker w
                    where w.flow_id = f.flow_id and w.role = quote_ident(revoke_worker_for.role)::regrole)
    then
        execute format('revoke all on %s, %s from %I', f.job_pool, f.wed_flow, role);
        execute format('revoke usage on schema %I from %I', flow, role);
        perform wed_sql.revoke_schema_usage(quote_ident(role)::regrole);
    end if;
    perform wed_sql.definition_changed(f.wed_flow);
end
$$;

revoke all on function wed_sql.revoke_worker_for(text, text, name, name) from public;

comment on function wed_sql.revoke_worker_for(text, text, name, name) is 'Takes the right to perform a WED-transition from a worker role, for a caller.';

create function wed_sql.grant_worker(flow text, transition text, role name) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_grant_worker';

revoke all on function wed_sql.grant_worker(text, text, name) from public;

comment on function wed_sql.grant_worker(text, text, name) is
'Gives a role the right to perform one WED-transition of a flow (_EXCPT included), and nothing else: to see its jobs and their instances, to take their locks, to write the attributes. For the owner of the flow. The first call on a flow puts row security on its tables.';

create function wed_sql.revoke_worker(flow text, transition text, role name) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_revoke_worker';

revoke all on function wed_sql.revoke_worker(text, text, name) from public;

comment on function wed_sql.revoke_worker(text, text, name) is
'Takes the right to perform a WED-transition from a role. For the owner of the flow.';
