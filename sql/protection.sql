-- What a flow's tables must be for its guard and the follower, and what keeps them so. wed_flow is its owner's: he may
-- put indexes, constraints and triggers of his own on it, but cannot take the guard off.

create function wed_sql.in_own_ddl(wed_flow regclass) returns boolean
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_in_own_ddl';

revoke all on function wed_sql.in_own_ddl(regclass) from public;

comment on function wed_sql.in_own_ddl(regclass) is 'Whether wed_sql itself is altering this wed_flow, for a change of wed_attr.';

create function wed_sql.flaws(f wed_sql.flow) returns setof text
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    select flaw
      from pg_class c,
           lateral (
               select 'its name is no longer "wed_flow"' where c.relname <> 'wed_flow'
               union all
               select 'it is no longer in the schema of the flow''s other tables'
                where c.relnamespace <> all (select relnamespace from pg_class where oid in (f.job_pool, f.wed_trace))
               union all
               select 'it is unlogged: its WED-states are not in the WAL' where c.relpersistence <> 'p'
               union all
               select 'it inherits from another table, or another inherits from it'
                where exists (select from pg_inherits where c.oid in (inhrelid, inhparent))
               union all
               select 'it has a rule, "' || rulename || '"' from (select rulename from pg_rewrite where ev_class = c.oid) r
               union all
               select 'row security is forced upon its owner' where c.relforcerowsecurity
               union all
               select 'its replica identity is not the primary key' where c.relreplident not in ('d', 'f')
               union all
               select 'its primary key (wid) is missing'
                where not exists (select from pg_constraint p
                                    join pg_attribute a on a.attrelid = p.conrelid and p.conkey = array[a.attnum]
                                   where p.conrelid = c.oid and p.contype = 'p' and a.attname = 'wid')
               union all
               select 'column "' || k.name || '" is not as wed_sql made it'
                 from (values ('wid', 'bigint'::regtype, 'a'), ('_stamp', 'wed_sql.stamp'::regtype, '')) k(name, type, identity)
                where not exists (select from pg_attribute a
                                   where a.attrelid = c.oid and a.attname = k.name and not a.attisdropped
                                     and a.atttypid = k.type and a.attnotnull and a.attidentity = k.identity::"char")
               union all
               select 'the default of column "' || a.attname || '" calls a function that is not PostgreSQL''s'
                 from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum,
                      regexp_matches(d.adbin::text, ':(?:funcid|opfuncid) (\d+)', 'g') called
                where d.adrelid = c.oid and a.attgenerated = '' and called[1]::bigint >= 16384
               union all
               -- bits of tgtype: row 1, before 2, insert 4, delete 8, update 16, truncate 32
               select 'trigger "' || k.name || '" is not as wed_sql made it'
                 from (values ('zz_guard', 31), ('zz_guard_truncate', 34)) k(name, type)
                where not exists (select from pg_trigger t
                                   where t.tgrelid = c.oid and t.tgname = k.name and t.tgtype = k.type
                                     and t.tgfoid = 'wed_sql.guard()'::regprocedure and t.tgenabled = 'A'
                                     and t.tgqual is null and t.tgattr = '' and t.tgnargs = 0)
           ) flaws(flaw)
     where c.oid = f.wed_flow
$$;

revoke all on function wed_sql.flaws(wed_sql.flow) from public;

comment on function wed_sql.flaws(wed_sql.flow) is 'What is wrong with wed_flow of a flow; nothing if it is as the flow needs it.';

create function wed_sql.attribute_flaws(f wed_sql.flow) returns setof text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return query execute format($sql$
        select 'WED-attribute "' || w.aname || '" is not a column of its type any more'
          from %s w
         where not exists (select from pg_attribute a
                            where a.attrelid = $1 and a.attname = w.aname and not a.attisdropped
                              and a.atttypid = to_regtype(w.atype) and a.attgenerated = '')
        union all
        select 'column "' || a.attname || '" is not a WED-attribute'
          from pg_attribute a
         where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
           and a.attname not in ('wid', '_stamp') and a.attname not in (select w.aname from %s w)
    $sql$, f.wed_attr, f.wed_attr) using f.wed_flow;
end
$$;

revoke all on function wed_sql.attribute_flaws(wed_sql.flow) from public;

comment on function wed_sql.attribute_flaws(wed_sql.flow) is 'Where wed_attr and the columns of wed_flow differ.';

create function wed_sql.refuse_flaws(f wed_sql.flow, command text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    flaw text;
begin
    -- a backup that is being restored makes it piece by piece
    if not exists (select from wed_sql.followed w where w.flow_id = f.flow_id and w.whole) then
        return;
    end if;
    select x into flaw from wed_sql.flaws(f) x limit 1;
    if flaw is null and not wed_sql.in_own_ddl(f.wed_flow) then
        select x into flaw from wed_sql.attribute_flaws(f) x limit 1;
    end if;
    if flaw is not null then
        raise exception '% would break the WED-flow of table %', command, f.wed_flow
            using errcode = 'WED15', detail = format('Afterwards, %s.', flaw),
                  hint = 'Attributes are changed through wed_attr, and wed_sql.drop_flow() removes a whole flow.';
    end if;
end
$$;

revoke all on function wed_sql.refuse_flaws(wed_sql.flow, text) from public;

comment on function wed_sql.refuse_flaws(wed_sql.flow, text) is 'Refuses (WED15) a command that has left wed_flow other than the flow needs it.';

-- Whoever owns wed_flow is the flow's owner: with all the rights that come with it, and nobody else with any of them.
create function wed_sql.follow_owner(f wed_sql.flow) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    schema name;
    owner oid;
    kept oid;
    others text;
begin
    select n.nspname, t.relowner, c.relowner into strict schema, owner, kept
      from pg_class t, pg_class c join pg_namespace n on n.oid = c.relnamespace
     where t.oid = f.wed_flow and c.oid = f.wed_trig;
    -- only owners have these with grant option
    select string_agg(distinct quote_ident(pg_get_userbyid(a.grantee)), ', ') into others
      from pg_class c, aclexplode(c.relacl) a
     where c.oid in (f.wed_attr, f.wed_trig) and a.is_grantable and a.privilege_type = 'INSERT'
       and a.grantor = c.relowner and a.grantee not in (0, owner, kept);
    if others is null and (owner = kept or has_table_privilege(owner, f.wed_trig, 'insert with grant option')) then
        return;
    end if;
    if others is not null then
        execute format('revoke all on %1$s, %2$s, %3$s, %4$s, %5$s, %6$I.wed_instance, %6$I.wed_timer from %7$s cascade',
                       f.wed_attr, f.wed_trig, f.job_pool, f.wed_trace, f.wed_event, schema, others);
        execute format('revoke all on schema %I from %s cascade', schema, others);
    end if;
    perform wed_sql.grant_to_owner(schema, pg_get_userbyid(owner));
end
$$;

revoke all on function wed_sql.follow_owner(wed_sql.flow) from public;

comment on function wed_sql.follow_owner(wed_sql.flow) is 'Gives the other tables of a flow to the present owner of wed_flow, and takes them from a former one.';

create function wed_sql.follow_owners() returns void
    language sql
    set search_path = pg_catalog, pg_temp
as $$
    select wed_sql.follow_owner(f) from wed_sql.flow f join pg_class c on c.oid = f.wed_flow
$$;

revoke all on function wed_sql.follow_owners() from public;

comment on function wed_sql.follow_owners() is 'The same for every flow, after REASSIGN OWNED.';

create function wed_sql.check_rewritten() returns event_trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    -- 4: the type of a column is altered, and USING can give it any value
    if pg_event_trigger_table_rewrite_reason() & 4 <> 0
       and not wed_sql.in_own_ddl(pg_event_trigger_table_rewrite_oid())
       and exists (select from wed_sql.flow where wed_flow = pg_event_trigger_table_rewrite_oid())
    then
        raise exception '% would rewrite the instances of table %', tg_tag, pg_event_trigger_table_rewrite_oid()::regclass
            using errcode = 'WED15', hint = 'Change atype in wed_attr: that keeps the values.';
    end if;
end
$$;

revoke all on function wed_sql.check_rewritten() from public;

comment on function wed_sql.check_rewritten() is
'Event trigger: refuses to rewrite the WED-states of a wed_flow, which no guard would see.';

create function wed_sql.check_altered() returns event_trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    for f in
        select flow.*
          from wed_sql.flow
         where flow.wed_flow in (
                   select coalesce(t.tgrelid, r.ev_class, p.polrelid, o.objid)
                     from pg_event_trigger_ddl_commands() o
                     left join pg_trigger t on o.classid = 'pg_trigger'::regclass and t.oid = o.objid
                     left join pg_rewrite r on o.classid = 'pg_rewrite'::regclass and r.oid = o.objid
                     left join pg_policy p on o.classid = 'pg_policy'::regclass and p.oid = o.objid
                    union all
                   select i.inhparent
                     from pg_event_trigger_ddl_commands() o
                     join pg_inherits i on i.inhrelid = o.objid
                    where o.classid = 'pg_class'::regclass)
    loop
        perform wed_sql.refuse_flaws(f, tg_tag);
        perform wed_sql.follow_owner(f);
        perform wed_sql.grant_columns(f, w.role)
           from (select distinct role from wed_sql.worker where flow_id = f.flow_id) w
           join pg_roles r on r.oid = w.role;
    end loop;
end
$$;

revoke all on function wed_sql.check_altered() from public;

comment on function wed_sql.check_altered() is
'Event trigger: refuses to alter a wed_flow so that its flow would not work any more.';

-- Who drops wed_flow drops the flow (that is what DROP OWNED and DROP SCHEMA come to); nothing else of it can be dropped.
create function wed_sql.check_dropped() returns event_trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    gone text;
begin
    for f in
        select distinct flow.*
          from pg_event_trigger_dropped_objects() o
          join wed_sql.flow on o.objid in (flow.wed_flow, flow.wed_attr, flow.wed_trig, flow.job_pool, flow.wed_trace, flow.wed_event)
         where o.classid = 'pg_class'::regclass
    loop
        if exists (select from pg_class where oid = f.wed_flow) then
            select o.object_identity into gone
              from pg_event_trigger_dropped_objects() o
             where o.classid = 'pg_class'::regclass and o.objsubid = 0
               and o.objid in (f.wed_attr, f.wed_trig, f.job_pool, f.wed_trace, f.wed_event)
             limit 1;
            if found then
                raise exception 'table % cannot be dropped: a WED-flow needs it', gone
                    using errcode = 'WED15', hint = 'wed_sql.drop_flow() removes a whole flow.';
            end if;
            perform wed_sql.refuse_flaws(f, tg_tag);
            continue;
        end if;
        perform wed_sql.drop_rest(f, (select o.schema_name from pg_event_trigger_dropped_objects() o
                                       where o.classid = 'pg_class'::regclass and o.objid = f.wed_flow and o.objsubid = 0));
    end loop;

    for f in
        select distinct flow.*
          from pg_event_trigger_dropped_objects() o
          join pg_class c on c.relname = o.address_names[2]
          join pg_namespace n on n.oid = c.relnamespace and n.nspname = o.address_names[1]
          join wed_sql.flow on flow.wed_flow = c.oid
         where o.object_type in ('trigger', 'table constraint', 'rule', 'policy')
    loop
        perform wed_sql.refuse_flaws(f, tg_tag);
    end loop;
end
$$;

revoke all on function wed_sql.check_dropped() from public;

comment on function wed_sql.check_dropped() is
'Event trigger: refuses to drop a part of a flow, and drops the rest when its wed_flow is dropped.';

create function wed_sql.drop_rest(f wed_sql.flow, schema name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    rest text;
begin
    delete from wed_sql.flow where flow_id = f.flow_id;
    select string_agg(c.oid::regclass::text, ', ') into rest
      from pg_class c where c.oid in (f.wed_trace, f.wed_event, f.job_pool, f.wed_trig, f.wed_attr);
    if rest is not null then
        execute format('drop table %s', rest);
    end if;
    if exists (select from pg_namespace where nspname = schema) then
        begin
            execute format('drop schema %I', schema);
        exception when dependent_objects_still_exist then
            raise notice 'schema "%" is kept, because there is more in it', schema;
        end;
    end if;
end
$$;

revoke all on function wed_sql.drop_rest(wed_sql.flow, name) from public;

comment on function wed_sql.drop_rest(wed_sql.flow, name) is 'Drops what is left of a flow whose wed_flow was dropped, and its schema if nothing else is in it.';

-- whatever the command: ALTER VIEW, ALTER TYPE and others alter tables, too
create event trigger wed_sql_altered on ddl_command_end
    execute function wed_sql.check_altered();
create event trigger wed_sql_rewritten on table_rewrite
    execute function wed_sql.check_rewritten();
create event trigger wed_sql_dropped on sql_drop
    execute function wed_sql.check_dropped();

-- also where replication roles switch off the others
alter event trigger wed_sql_altered enable always;
alter event trigger wed_sql_rewritten enable always;
alter event trigger wed_sql_dropped enable always;
