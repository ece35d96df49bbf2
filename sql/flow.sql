-- Making and removing flows.

create function wed_sql.create_tables(schema text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format($sql$
        create table %1$I.wed_attr (
            aname text not null,
            adv   text,
            atype text not null default 'text',
            constraint wed_attr_pkey primary key (aname)
        );
        create table %1$I.wed_trig (
            tgid    integer not null,
            tgname  text,
            enabled boolean not null default true,
            trname  text,
            cname   text,
            cpred   text not null,
            cfinal  boolean not null default false,
            timeout interval not null default interval '1 hour',
            delay   interval,
            action  text,
            withdrawable boolean not null default false,
            priority     integer not null default 0,
            max_attempts integer,
            backoff      interval not null default interval '0',
            max_backoff  interval not null default interval '1 hour',
            undo    text,
            constraint wed_trig_pkey primary key (tgid)
        );
        create table %1$I.wed_flow (
            wid    bigint generated always as identity (maxvalue 140728898420735),
            _stamp wed_sql.stamp not null,
            constraint wed_flow_pkey primary key (wid)
        ) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
        create table %1$I.job_pool (
            wid      bigint not null,
            tgid     integer not null,
            trname   text not null,
            lckid    text,
            timeout  interval,
            payload  jsonb not null,
            fired_at timestamp with time zone not null,
            version  bigint not null,
            priority integer not null default 0,
            attempts integer not null default 0,
            last_error   text,
            available_at timestamp with time zone,
            leased_until timestamp with time zone,
            leased_by    name,
            constraint job_pool_pkey primary key (wid, tgid, version)
        ) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
        -- leased jobs are apart: whoever looks for one that is free need not read those that others have
        create index job_pool_trname on %1$I.job_pool (trname, (lckid is null), priority desc, fired_at, wid, tgid);
        create table %1$I.wed_trace (
            wid     bigint not null,
            version bigint not null,
            state   jsonb not null,
            trw     text,
            trf     text[] not null,
            status  "char" not null,
            tstmp   timestamp with time zone not null,
            pending integer[] not null,
            error   text,
            healed  boolean not null default false,
            constraint wed_trace_pkey primary key (wid, version)
        );
        create index wed_trace_ended on %1$I.wed_trace (tstmp, wid) where status in ('F', 'C');
        create table %1$I.wed_event (
            event_id bigint generated always as identity,
            wid      bigint not null,
            version  bigint,
            tgid     integer,
            trname   text,
            event    text not null,
            role     name,
            pid      integer,
            held     interval,
            detail   text,
            at       timestamp with time zone not null default clock_timestamp(),
            constraint wed_event_pkey primary key (event_id)
        );
        create index wed_event_wid on %1$I.wed_event (wid, event_id);

        create view %1$I.wed_instance as
        select f.wid, (f._stamp).version,
               case when (f._stamp).status is not null then (f._stamp).status
                    when (f._stamp).final then 'F'
                    when (f._stamp).error is not null
                      or (cardinality((f._stamp).matched) = 0
                          and (f._stamp).pending <@ (array[(f._stamp).written_by] || (f._stamp).withdrawn)) then 'E'
                    else 'R' end::"char" as status,
               array(select j.trname from %1$I.job_pool j where j.wid = f.wid order by j.tgid) as pending,
               t.tstmp as since,
               (f._stamp).error
          from only %1$I.wed_flow f
          left join %1$I.wed_trace t on t.wid = f.wid and t.version = (f._stamp).version;

        create view %1$I.wed_timer as
        select t.wid, t.tgid, (select r.trname from wed_sql.rule r where r.tgid = t.tgid order by r.valid_from desc limit 1) as trname,
               case t.kind when 'd' then 'delay' when 'a' then 'action' when 'r' then 'retry' when 'l' then 'lease'
                           when 's' then 'suspension' when 'g' then 'signal' else 'withdrawal' end as kind,
               t.version, t.due_at
          from wed_sql.timer t
          join wed_sql.flow f on f.flow_id = t.flow_id
         where f.wed_flow = %2$L::regclass and t.wid >= 0; -- the others are of signals that are kept

        comment on table %1$I.wed_attr is 'WED-attributes: each row is a column of wed_flow';
        comment on column %1$I.wed_attr.aname is 'name of the WED-attribute, letter by letter as the column is called';
        comment on column %1$I.wed_attr.adv is 'default value, as a literal; null for none';
        comment on column %1$I.wed_attr.atype is 'type, in SQL';
        comment on table %1$I.wed_trig is 'WED-triggers: when a WED-condition holds on a state, its WED-transition is due';
        comment on column %1$I.wed_trig.tgid is 'identifies the WED-trigger in the database; assigned by wed_sql';
        comment on column %1$I.wed_trig.tgname is 'name of the WED-trigger, optional';
        comment on column %1$I.wed_trig.enabled is 'whether the WED-condition is evaluated; jobs that are pending already stay';
        comment on column %1$I.wed_trig.trname is 'name of the WED-transition and of its notification channel; null for the final condition';
        comment on column %1$I.wed_trig.cname is 'name of the WED-condition, optional';
        comment on column %1$I.wed_trig.cpred is 'WED-condition: what SQL accepts after WHERE, over the WED-attributes; names outside pg_catalog with their schema';
        comment on column %1$I.wed_trig.cfinal is 'whether this is the final condition, at most one';
        comment on column %1$I.wed_trig.timeout is 'time limit of a transaction that performs the WED-transition';
        comment on column %1$I.wed_trig.delay is 'how long the WED-condition must hold without a break before the WED-transition is due; null: at once';
        comment on column %1$I.wed_trig.action is 'what SQL accepts after SET: the engine performs the WED-transition so, as the owner of wed_flow; null: a worker performs it';
        comment on column %1$I.wed_trig.withdrawable is 'whether its job is withdrawn when the WED-condition does not hold any more, or the instance ends; else it stays';
        comment on column %1$I.wed_trig.priority is 'of its jobs among those of the WED-transition: the larger the earlier';
        comment on column %1$I.wed_trig.max_attempts is 'number of failed attempts after which the instance becomes an exception; null: no limit';
        comment on column %1$I.wed_trig.backoff is 'pause after the first failed attempt, doubled after each further one';
        comment on column %1$I.wed_trig.max_backoff is 'longest pause between two attempts';
        comment on column %1$I.wed_trig.undo is 'WED-transition that undoes this one, for wed_sql.compensate()';
        comment on table %1$I.wed_flow is 'instances of the WED-flow, each in its current WED-state; insert to start one, update to perform a WED-transition';
        comment on column %1$I.wed_flow.wid is 'identifies the instance; generated';
        comment on column %1$I.wed_flow._stamp is 'what was found out about the state when it was written; kept by wed_sql';
        comment on table %1$I.job_pool is 'pending WED-transitions';
        comment on column %1$I.job_pool.tgid is 'WED-trigger that fired; (wid, tgid) is the lock of the job';
        comment on column %1$I.job_pool.lckid is 'token of the lease, if it is leased';
        comment on column %1$I.job_pool.timeout is 'time limit of the transaction that performs it';
        comment on column %1$I.job_pool.payload is 'WED-state on which it fired: not always the current one';
        comment on column %1$I.job_pool.fired_at is 'when that state was committed';
        comment on column %1$I.job_pool.version is 'number of the WED-state on which it fired';
        comment on column %1$I.job_pool.priority is 'the larger the earlier, among the jobs of the WED-transition';
        comment on column %1$I.job_pool.attempts is 'number of attempts that have failed';
        comment on column %1$I.job_pool.last_error is 'why the last one has failed';
        comment on column %1$I.job_pool.available_at is 'it is not to be tried before; null: at any time';
        comment on column %1$I.job_pool.leased_until is 'end of the lease, if it is leased';
        comment on column %1$I.job_pool.leased_by is 'role that has leased it';
        comment on table %1$I.wed_trace is 'history: one line per WED-state, in commit order';
        comment on column %1$I.wed_trace.version is 'number of the state in its instance; 0 is the initial one';
        comment on column %1$I.wed_trace.trw is 'WED-transition that wrote the state; null for an initial one';
        comment on column %1$I.wed_trace.trf is 'WED-transitions fired by the state';
        comment on column %1$I.wed_trace.status is 'F: final, E: exception, R: regular, S: suspended, C: cancelled';
        comment on column %1$I.wed_trace.tstmp is 'when the state was committed; strictly increasing in an instance';
        comment on column %1$I.wed_trace.pending is 'WED-triggers (tgid) that pend after the state';
        comment on column %1$I.wed_trace.error is 'of a WED-condition that failed on the state';
        comment on column %1$I.wed_trace.healed is 'the lines of states before this one are missing: the follower had lost its place and went on from the table';
        comment on table %1$I.wed_event is 'history besides the WED-states: attempts that failed, leases, interventions';
        comment on column %1$I.wed_event.version is 'number of the WED-state at that time, or on which the job had fired';
        comment on column %1$I.wed_event.event is 'what happened';
        comment on column %1$I.wed_event.role is 'role of the session that it happened to, or that did it';
        comment on column %1$I.wed_event.pid is 'process of that session';
        comment on column %1$I.wed_event.held is 'how long it had the job';
        comment on column %1$I.wed_event.detail is 'more about it';
        comment on view %1$I.wed_timer is 'what will happen at a time: delays that run out, actions, pauses after failures, leases and suspensions that end';
        comment on view %1$I.wed_instance is 'instances as they are now: status as in wed_trace, pending WED-transitions, since when, last error';
    $sql$, schema, format('%I.wed_flow', schema));
end
$$;

revoke all on function wed_sql.create_tables(text) from public;

comment on function wed_sql.create_tables(text) is 'Creates the six tables of a flow, and its views.';

create function wed_sql.create_triggers(schema text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format($sql$
        create trigger check_attr before insert or update on %1$I.wed_attr
            for each row execute function wed_sql.check_attr();
        create trigger attr_changed after insert or update or delete on %1$I.wed_attr
            for each row execute function wed_sql.attr_changed();
        create trigger attrs_changed after insert or update or delete on %1$I.wed_attr
            for each statement execute function wed_sql.attrs_changed();
        create trigger check_trig before insert or update on %1$I.wed_trig
            for each row execute function wed_sql.check_trig();
        create trigger trig_changed after insert or update or delete on %1$I.wed_trig
            for each statement execute function wed_sql.trig_changed();
        create trigger zz_guard before insert or update or delete on %1$I.wed_flow
            for each row execute function wed_sql.guard();
        create trigger zz_guard_truncate before truncate on %1$I.wed_flow
            for each statement execute function wed_sql.guard();
        create trigger guard_truncate before truncate on %1$I.job_pool
            for each statement execute function wed_sql.guard();
        create trigger guard_truncate before truncate on %1$I.wed_trace
            for each statement execute function wed_sql.guard();
        create trigger guard_truncate before truncate on %1$I.wed_event
            for each statement execute function wed_sql.guard();
        create trigger guard_truncate before truncate on %1$I.wed_attr
            for each statement execute function wed_sql.guard();
        create trigger guard_truncate before truncate on %1$I.wed_trig
            for each statement execute function wed_sql.guard();

        -- replication roles do not switch off what a state must obey, nor what makes a definition one
        alter table %1$I.wed_flow enable always trigger zz_guard;
        alter table %1$I.wed_flow enable always trigger zz_guard_truncate;
        alter table %1$I.wed_attr enable always trigger check_attr;
        alter table %1$I.wed_attr enable always trigger attr_changed;
        alter table %1$I.wed_attr enable always trigger attrs_changed;
        alter table %1$I.wed_attr enable always trigger guard_truncate;
        alter table %1$I.wed_trig enable always trigger check_trig;
        alter table %1$I.wed_trig enable always trigger trig_changed;
        alter table %1$I.wed_trig enable always trigger guard_truncate;
        alter table %1$I.job_pool enable always trigger guard_truncate;
        alter table %1$I.wed_trace enable always trigger guard_truncate;
        alter table %1$I.wed_event enable always trigger guard_truncate;
    $sql$, schema);
end
$$;

revoke all on function wed_sql.create_triggers(text) from public;

comment on function wed_sql.create_triggers(text) is 'Creates the triggers on the tables of a flow.';

-- Only wed_flow is the owner's own, to put indexes and more on. The engine writes job_pool and wed_trace, and the
-- triggers of wed_attr and wed_trig read these as the extension's owner: nobody may alter them or put code there.
create function wed_sql.grant_to_owner(schema text, owner name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    execute format($sql$
        grant usage, create on schema %1$I to %2$I with grant option;
        grant select, insert, update, delete on %1$I.wed_attr, %1$I.wed_trig to %2$I with grant option;
        grant select on %1$I.job_pool, %1$I.wed_trace, %1$I.wed_event, %1$I.wed_instance, %1$I.wed_timer to %2$I with grant option;
    $sql$, schema, owner);
end
$$;

revoke all on function wed_sql.grant_to_owner(text, name) from public;

comment on function wed_sql.grant_to_owner(text, name) is 'Gives the owner of a flow what is not his by owning wed_flow: the definition to be written, jobs and history to be read.';

-- The two that users call are in C, because they have to know who calls them: ext/definer.c.
create function wed_sql.create_flow_for(name text, owner name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    perform wed_sql.check_name('WED-flow', name);
    -- what is left of flows whose tables were dropped by other means
    delete from wed_sql.flow where not exists (select from pg_class where oid = flow.wed_flow);

    if not has_database_privilege(owner, current_database(), 'create') then
        raise exception 'permission denied to create WED-flow "%"', name
            using errcode = 'insufficient_privilege',
                  hint = format('It needs a schema: GRANT CREATE ON DATABASE %I TO %I.', current_database(), owner);
    end if;
    if exists (select from pg_namespace where nspname = name) then
        raise exception 'schema "%" already exists', name
            using errcode = 'duplicate_schema',
                  hint = 'A WED-flow has a schema of its own, of the same name.';
    end if;

    -- not the flow owner's: whoever owns a schema can drop what is in it, and put something else in its place
    execute format('create schema %I', name);
    perform wed_sql.create_tables(name);
    perform wed_sql.create_triggers(name);
    insert into wed_sql.flow (wed_flow, wed_attr, wed_trig, job_pool, wed_trace, wed_event)
    select format('%I.wed_flow', name), format('%I.wed_attr', name), format('%I.wed_trig', name),
           format('%I.job_pool', name), format('%I.wed_trace', name), format('%I.wed_event', name)
    returning * into f;
    insert into wed_sql.followed (flow_id, since) values (f.flow_id, '0/0');
    execute format('alter publication wed_sql add table %s', f.wed_flow);
    perform wed_sql.grant_to_owner(name, owner);
    execute format('alter table %s owner to %I', f.wed_flow, owner);
    perform wed_sql.grant_flow_to_engine(f);
end
$$;

revoke all on function wed_sql.create_flow_for(text, name) from public;

comment on function wed_sql.create_flow_for(text, name) is 'Creates a WED-flow for a role.';

create function wed_sql.create_flow(name text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_create_flow';

revoke all on function wed_sql.create_flow(text) from public;

comment on function wed_sql.create_flow(text) is
'Creates a WED-flow: a schema of this name with the tables wed_attr, wed_trig, wed_flow, job_pool, wed_trace and wed_event. Owned by the caller, who must be allowed to create schemas.';

create function wed_sql.drop_flow_for(name text, caller name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_of_owner(name, caller);
begin
    perform wed_sql.lock_flow(f);
    -- check_dropped() does the rest
    execute format('drop view %1$I.wed_instance, %1$I.wed_timer', name);
    execute format('drop table %s, %s, %s, %s, %s, %s', f.wed_flow, f.wed_trace, f.wed_event, f.job_pool, f.wed_trig, f.wed_attr);
end
$$;

revoke all on function wed_sql.drop_flow_for(text, name) from public;

comment on function wed_sql.drop_flow_for(text, name) is 'Drops a WED-flow, if the caller has the rights of its owner.';

create function wed_sql.drop_flow(name text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_drop_flow';

revoke all on function wed_sql.drop_flow(text) from public;

comment on function wed_sql.drop_flow(text) is
'Drops a WED-flow with all its instances, jobs and history, and its schema if nothing else is in it. For its owner.';
