-- Interventions: what operators do to instances. Each is asked for by a C function that knows its caller
-- (ext/definer.c), done here with the extension's rights for whoever has those of the flow's owner, and written as the
-- owner, restricted (ext/operation.c). Each is a state of the instance, or a line of wed_event, or both.

create type wed_sql.intervention as (
    wid       bigint,
    version   bigint,
    status    "char",
    pending   text[],
    fired     text[],
    withdrawn text[],
    error     text
);

comment on type wed_sql.intervention is 'what an intervention has made of an instance: the number and status of its state, the WED-transitions that pend now, those of them that the intervention has fired, those that pended before and were withdrawn, and the error of a WED-condition that failed; without a version, the error is why it was not possible';

create type wed_sql.instruction as (
    operation  text,
    role       name,
    flow       text,
    wid        bigint,
    instances  text,
    until      timestamp with time zone,
    transition text,
    set_clause text,
    version    bigint,
    consistent text,
    reason     text,
    dry_run    boolean
);

revoke all on type wed_sql.instruction from public;

comment on type wed_sql.instruction is 'what an intervention is asked to do, by whom: the arguments of the functions';

-- In PL/pgSQL: SQL functions are planned anew by each call.
create function wed_sql.transition_names(f wed_sql.flow, tgids integer[]) returns text[]
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select case when t = f.excpt_tgid then '_EXCPT'
                             else coalesce((select r.trname from wed_sql.rule r where r.tgid = t order by r.valid_from desc limit 1),
                                           'rule ' || t) end
                   from unnest(tgids) t order by t);
end
$$;

revoke all on function wed_sql.transition_names(wed_sql.flow, integer[]) from public;

comment on function wed_sql.transition_names(wed_sql.flow, integer[]) is 'WED-transitions of WED-triggers, by tgid.';

-- The same as ext/stamp.c and the engine's package fold compute.
create function wed_sql.pending_after(
        f wed_sql.flow, s wed_sql.stamp, out pending integer[], out fired integer[], out status "char")
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    kept constant integer[] := array(
        select p from unnest(s.pending) p
         where p is distinct from s.written_by and p <> all (coalesce(s.withdrawn, '{}')));
begin
    status := coalesce(s.status, case when s.final then 'F' end::"char");
    if status is null then
        pending := array(select unnest(kept) union select unnest(s.matched));
        status := case when s.error is not null or pending = '{}' then 'E' else 'R' end;
        if status = 'E' then
            pending := array(select unnest(pending) union select f.excpt_tgid);
        end if;
    end if;
    pending := array(select p from unnest(pending) p order by p);
    fired := array(select p from unnest(pending) p where p <> all (kept) order by p);
end
$$;

revoke all on function wed_sql.pending_after(wed_sql.flow, wed_sql.stamp) from public;

comment on function wed_sql.pending_after(wed_sql.flow, wed_sql.stamp) is 'WED-triggers that pend after a state, those that it has fired, and its status.';

create function wed_sql.refuse_intervention(f wed_sql.flow, wid bigint, why text, detail text default null, hint text default null) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if detail is null and hint is null then
        raise exception 'instance % of WED-flow "%" %', wid, wed_sql.flow_name(f), why using errcode = 'WED18';
    elsif hint is null then
        raise exception 'instance % of WED-flow "%" %', wid, wed_sql.flow_name(f), why using errcode = 'WED18', detail = detail;
    elsif detail is null then
        raise exception 'instance % of WED-flow "%" %', wid, wed_sql.flow_name(f), why using errcode = 'WED18', hint = hint;
    else
        raise exception 'instance % of WED-flow "%" %', wid, wed_sql.flow_name(f), why
            using errcode = 'WED18', detail = detail, hint = hint;
    end if;
end
$$;

revoke all on function wed_sql.refuse_intervention(wed_sql.flow, bigint, text, text, text) from public;

comment on function wed_sql.refuse_intervention(wed_sql.flow, bigint, text, text, text) is 'Refuses (WED18) an intervention that makes no sense.';

create function wed_sql.refuse_if_resting(f wed_sql.flow, wid bigint, s wed_sql.stamp) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if s.status = 'S' then
        raise exception 'instance % of WED-flow "%" is suspended', wid, wed_sql.flow_name(f)
            using errcode = 'WED17', hint = 'wed_sql.resume() has it go on.';
    elsif s.final then
        raise exception 'instance % of WED-flow "%" is final and cannot be changed', wid, wed_sql.flow_name(f)
            using errcode = 'WED08', hint = 'It can be reopened after WED-attributes or WED-triggers were added or changed.';
    end if;
end
$$;

revoke all on function wed_sql.refuse_if_resting(wed_sql.flow, bigint, wed_sql.stamp) from public;

comment on function wed_sql.refuse_if_resting(wed_sql.flow, bigint, wed_sql.stamp) is 'Refuses what is only done to an instance that goes on: not to a suspended one (WED17), nor to one that has ended (WED08).';

create function wed_sql.refuse_if_not_recorded(f wed_sql.flow, wid bigint, version bigint) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    recorded boolean;
begin
    execute format('select exists (select from %s t where t.wid = $1 and t.version = $2)', f.wed_trace)
       into recorded using wid, version;
    if not recorded then
        raise exception 'state % of instance % of WED-flow "%" is not in wed_trace yet', version, wid, wed_sql.flow_name(f)
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'The engine records it after its commit: wed_sql.sync() waits for that.';
    end if;
end
$$;

revoke all on function wed_sql.refuse_if_not_recorded(wed_sql.flow, bigint, bigint) from public;

comment on function wed_sql.refuse_if_not_recorded(wed_sql.flow, bigint, bigint) is 'An error if the history of an instance does not go as far as its present state.';

-- Mostly there is none.
create function wed_sql.forget_suspension(f wed_sql.flow, instance bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from wed_sql.timer t where t.flow_id = f.flow_id and t.wid = instance and t.tgid = 0 and t.kind = 's') then
        perform wed_sql.remove_timers(f, instance, 0, '{s}');
    end if;
end
$$;

revoke all on function wed_sql.forget_suspension(wed_sql.flow, bigint) from public;

comment on function wed_sql.forget_suspension(wed_sql.flow, bigint) is 'Removes the timer that would end the suspension of an instance, if there is one.';

-- How each of them is done: given the stamp of the present state, which is locked, they return that of the next one, or
-- null if they write none, and what the history is to say.

create function wed_sql.do_suspend(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    if what.until <= clock_timestamp() then
        raise exception 'a suspension must end in the future' using errcode = 'invalid_parameter_value',
            detail = format('It is to end at %s.', what.until);
    end if;
    -- who suspends it once more gives it another date
    if before.status is distinct from 'S' then
        after := wed_sql.operate(f.wed_flow, wid, 'suspend');
    end if;
    if isfinite(what.until) then
        perform wed_sql.set_timer(f, wid, 0, 's', coalesce(after.version, before.version), what.until);
        detail := 'until ' || (to_jsonb(what.until) #>> '{}');
    else
        perform wed_sql.forget_suspension(f, wid);
    end if;
end
$$;

create function wed_sql.do_resume(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    after := wed_sql.operate(f.wed_flow, wid, 'resume');
    perform wed_sql.forget_suspension(f, wid);
end
$$;

create function wed_sql.do_cancel(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    after := wed_sql.operate(f.wed_flow, wid, 'cancel');
    perform wed_sql.forget_suspension(f, wid);
end
$$;

-- A state '_FAIL' withdraws the one job that has failed and fires none but _EXCPT: what pended before and does not after
-- is that job. All of them count that have failed since the instance was no exception the last time; that it was
-- suspended meanwhile changes nothing.
create function wed_sql.failed_rules(f wed_sql.flow, wid bigint, before wed_sql.stamp) returns integer[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    failed integer[];
begin
    if before.trw is distinct from '_FAIL' then
        perform wed_sql.refuse_if_not_recorded(f, wid, before.version);
    end if;
    execute format($sql$
        select array(select p from unnest($4) p where $5 = '_FAIL'
                     union
                     select p
                       from %1$s t
                       join %1$s b on b.wid = t.wid and b.version = t.version - 1,
                            unnest(b.pending) p
                      where t.wid = $1 and t.trw = '_FAIL' and p <> all (t.pending)
                        and t.version > (select coalesce(max(n.version), -1) from %1$s n
                                          where n.wid = $1 and n.version < $2 and $3 <> all (n.pending) and n.status <> 'S')
                      order by 1)
        $sql$, f.wed_trace)
       into failed using wid, before.version, f.excpt_tgid, before.withdrawn, before.trw;
    -- those that are not rules any more are not tried again
    return array(select r.tgid from wed_sql.rule r
                  where r.tgid = any (failed) and r.valid_until = 9223372036854775807 and r.enabled order by r.tgid);
end
$$;

-- Who counts a failure has the job and wants the instance; we have the instance, and do not wait for the job.
create function wed_sql.retry_jobs(f wed_sql.flow, wid bigint, transition text) returns text[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    j record;
    retried text[] := '{}';
begin
    for j in execute format($sql$
        with failed as materialized (
            select j.tgid from %1$s j
             where j.wid = $1 and (j.attempts > 0 or j.available_at > clock_timestamp())
               and (j.lckid is null or j.leased_until <= clock_timestamp())
               and ($2 is null or j.trname = $2)
               for update skip locked)
        update %1$s j set attempts = 0, available_at = null
          from failed where j.wid = $1 and j.tgid = failed.tgid
        returning j.tgid, j.trname, j.version
        $sql$, f.job_pool) using wid, transition
    loop
        perform wed_sql.remove_timers(f, wid, j.tgid, '{r,a}');
        if (wed_sql.last_rule(j.tgid)).action is not null then
            perform wed_sql.set_timer(f, wid, j.tgid, 'a', j.version, clock_timestamp());
        else
            perform wed_sql.notify_job(f, wid, j.tgid);
        end if;
        retried := retried || j.trname;
    end loop;
    return retried;
end
$$;

create function wed_sql.do_retry(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    failed integer[];
    jobs text[];
begin
    perform wed_sql.refuse_if_resting(f, wid, before);
    if f.excpt_tgid = any ((wed_sql.pending_after(f, before)).pending) then
        failed := wed_sql.failed_rules(f, wid, before);
        if what.transition is null or what.transition = any (wed_sql.transition_names(f, failed)) then
            after := wed_sql.operate(f.wed_flow, wid, 'retry', null, null, null, failed);
        end if;
    end if;
    jobs := wed_sql.retry_jobs(f, wid, what.transition);
    if after.version is null and jobs = '{}' then
        perform wed_sql.refuse_intervention(f, wid,
            'has nothing to retry' || coalesce(' of WED-transition "' || what.transition || '"', ''),
            'It is no exception that this would mend, and none of its jobs has failed or waits for its next attempt.');
    end if;
    detail := nullif(array_to_string(wed_sql.transition_names(f, failed) || jobs, ', '), '');
end
$$;

create function wed_sql.do_skip(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    pending constant integer[] := (wed_sql.pending_after(f, before)).pending;
    skipped integer[];
begin
    perform wed_sql.refuse_if_resting(f, wid, before);
    if what.transition = '_EXCPT' then
        perform wed_sql.refuse_intervention(f, wid, 'cannot skip what leads out of an exception', null,
                                            'wed_sql.repair() and wed_sql.retry() do.');
    end if;
    skipped := array(select p from unnest(pending) p where wed_sql.transition_names(f, array[p]) = array[what.transition]);
    if skipped = '{}' then
        perform wed_sql.refuse_intervention(f, wid, format('has no pending job of WED-transition "%s"', what.transition),
            format('Pending: %s.', array_to_string(wed_sql.transition_names(f, pending), ', ')));
    end if;
    after := wed_sql.operate(f.wed_flow, wid, 'skip', null, what.set_clause, null, skipped);
    detail := what.set_clause;
end
$$;

create function wed_sql.do_repair(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    after := wed_sql.operate(f.wed_flow, wid, 'repair', null, what.set_clause);
    detail := what.set_clause;
end
$$;

-- The recorded attributes that are still columns, as a SET clause; null if there are none.
create function wed_sql.set_clause_for(f wed_sql.flow, state jsonb) returns text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    columns text;
    sources text;
begin
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum),
           string_agg('_state.' || quote_ident(a.attname), ', ' order by a.attnum)
      into columns, sources
      from pg_attribute a
     where a.attrelid = f.wed_flow and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
       and a.attname not in ('wid', '_stamp') and state ? a.attname;
    return format('(%s) = (select %s from pg_catalog.jsonb_populate_record(row(wed_flow.*)::%I.wed_flow, %L) as _state)',
                  columns, sources, wed_sql.flow_name(f), state) where columns is not null;
end
$$;

create function wed_sql.do_rewind(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    line record;
    code text;
    problem text;
begin
    execute format('select t.state, t.pending from %s t where t.wid = $1 and t.version = $2', f.wed_trace)
       into line using wid, what.version;
    if line.state is null then
        if what.version between 0 and before.version then
            perform wed_sql.refuse_if_not_recorded(f, wid, what.version);
        end if;
        perform wed_sql.refuse_intervention(f, wid, format('has no state %s', what.version),
                                            format('Its present state is number %s.', before.version));
    end if;
    if jsonb_typeof(line.state) <> 'object' then
        perform wed_sql.refuse_intervention(f, wid, format('cannot be rewound to state %s, which could not be recorded', what.version));
    end if;
    begin
        after := wed_sql.operate(f.wed_flow, wid, 'rewind', null, wed_sql.set_clause_for(f, line.state), null, line.pending);
    exception when data_exception or integrity_constraint_violation or cannot_coerce or datatype_mismatch then
        get stacked diagnostics code = returned_sqlstate, problem = message_text;
        raise exception 'instance % of WED-flow "%" cannot be rewound to state %: %', wid, wed_sql.flow_name(f), what.version, problem
            using errcode = code, hint = 'The WED-attributes may have changed since: wed_sql.repair() or wed_sql.skip() write any state.';
    end;
    detail := format('to state %s', what.version);
end
$$;

-- The transitions since a state that have not been undone, the latest first, each with what undoes it (null: nothing
-- does). A stretch that was rewound counts as if it had not been, and an undoing one undoes the latest of its kind,
-- however it came about.
create function wed_sql.not_undone(f wed_sql.flow, instance bigint, since bigint)
    returns table (version bigint, trname text, undo integer)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    line record;
    before integer[] := '{}';
    versions bigint[] := '{}';
    names text[] := '{}';
    undos text[] := '{}';
    n integer := 0;
    i integer;
    target bigint;
begin
    for line in execute format('select t.version, t.trw, t.pending from %s t where t.wid = $1 order by t.version', f.wed_trace)
        using instance
    loop
        if line.trw = '_REWIND' then
            execute format($sql$
                select coalesce(max((regexp_match(e.detail, '^to state (\d+)'))[1]::bigint), -1)
                  from %s e where e.wid = $1 and e.version = $2 and e.event = 'rewound'
                $sql$, f.wed_event)
               into target using instance, line.version;
            while n > 0 and versions[n] > target loop
                n := n - 1;
            end loop;
        elsif left(line.trw, 1) <> '_' then
            i := n;
            while i > 0 and undos[i] is distinct from line.trw loop
                i := i - 1;
            end loop;
            if i > 0 then
                versions := versions[:i - 1] || versions[i + 1:n];
                names := names[:i - 1] || names[i + 1:n];
                undos := undos[:i - 1] || undos[i + 1:n];
                n := n - 1;
            else
                n := n + 1;
                versions[n] := line.version;
                names[n] := line.trw;
                undos[n] := (select r.undo from wed_sql.rule r
                              where r.flow_id = f.flow_id and r.trname = line.trw
                              order by r.tgid = any (before) desc, r.valid_from desc, r.tgid limit 1);
            end if;
        end if;
        before := line.pending;
    end loop;
    return query
    select d.version, d.trname, (select min(r.tgid) from wed_sql.rule r
                                  where r.flow_id = f.flow_id and r.valid_until = 9223372036854775807 and r.trname = d.undo)
      from unnest(versions[:n], names[:n], undos[:n]) d(version, trname, undo)
     where d.version > since
     order by d.version desc;
end
$$;

create function wed_sql.do_compensate(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    condition constant text := coalesce(what.consistent, f.consistent);
    target bigint;
    undone text;
    kept text;
    undo integer[];
begin
    perform wed_sql.refuse_if_resting(f, wid, before);
    if condition is null then
        raise exception 'WED-flow "%" has no consistency condition', wed_sql.flow_name(f)
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Give one to wed_sql.alter_flow(), or to wed_sql.compensate().';
    end if;
    perform wed_sql.condition_attributes(f.wed_flow, condition);
    perform wed_sql.refuse_if_not_recorded(f, wid, before.version);
    target := wed_sql.newest_state_with(f.wed_flow, wid, before.version, condition);
    if target is null then
        perform wed_sql.refuse_intervention(f, wid, 'has no recorded state that is consistent',
                                            format('The consistency condition is %s.', condition));
    elsif target = before.version then
        perform wed_sql.refuse_intervention(f, wid, 'is consistent as it is',
                                            format('The consistency condition is %s.', condition));
    end if;
    select array_agg(d.undo order by d.version desc) filter (where d.undo is not null),
           string_agg(format('%s (%s)', d.trname, d.version), ', ' order by d.version desc) filter (where d.undo is not null),
           string_agg(format('%s (%s)', d.trname, d.version), ', ' order by d.version desc) filter (where d.undo is null)
      into undo, undone, kept
      from wed_sql.not_undone(f, wid, target) d;
    if undo is null then
        perform wed_sql.refuse_intervention(f, wid, format('has no WED-transition since state %s that can be undone', target),
                                            'Nothing undoes ' || kept || '.', 'wed_sql.rewind() leads back without undoing.');
    end if;
    after := wed_sql.operate(f.wed_flow, wid, 'compensate', null, null, null, undo);
    detail := format('back to state %s, to undo %s', target, undone) || coalesce(', nothing undoes ' || kept, '');
end
$$;

create function wed_sql.do_rematch(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    pends record := wed_sql.pending_after(f, before);
begin
    -- an exception for what the conditions say of this state may end by their saying something else; one because jobs
    -- have failed does not, nor one of an earlier state: wed_sql.retry() is for these
    if f.excpt_tgid = any (pends.pending) and (before.trw in ('_FAIL', '_RESUME') or f.excpt_tgid <> all (pends.fired)) then
        return;
    end if;
    after := wed_sql.operate(f.wed_flow, wid, 'rematch');
end
$$;

create function wed_sql.do_reopen(
        f wed_sql.flow, wid bigint, before wed_sql.stamp, what wed_sql.instruction, out after wed_sql.stamp, out detail text)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    after := wed_sql.operate(f.wed_flow, wid, 'reopen', null, what.set_clause);
    detail := what.set_clause;
end
$$;

-- Null if it has changed nothing.
create function wed_sql.intervene_on(f wed_sql.flow, instance bigint, what wed_sql.instruction) returns wed_sql.intervention
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    before wed_sql.stamp := wed_sql.lock_instance(f.wed_flow, instance, true);
    done record;
    pended record;
    pends record;
    became wed_sql.intervention;
begin
    if before.version is null then
        raise exception 'WED-flow "%" has no instance %', wed_sql.flow_name(f), instance using errcode = 'no_data_found';
    end if;
    case what.operation
        when 'suspend' then done := wed_sql.do_suspend(f, instance, before, what);
        when 'resume' then done := wed_sql.do_resume(f, instance, before, what);
        when 'cancel' then done := wed_sql.do_cancel(f, instance, before, what);
        when 'retry' then done := wed_sql.do_retry(f, instance, before, what);
        when 'skip' then done := wed_sql.do_skip(f, instance, before, what);
        when 'repair' then done := wed_sql.do_repair(f, instance, before, what);
        when 'rewind' then done := wed_sql.do_rewind(f, instance, before, what);
        when 'compensate' then done := wed_sql.do_compensate(f, instance, before, what);
        when 'rematch' then done := wed_sql.do_rematch(f, instance, before, what);
        when 'reopen' then done := wed_sql.do_reopen(f, instance, before, what);
    end case;

    if (done.after).version is null and what.operation = 'rematch' then
        return null;
    elsif (done.after).version is null then
        pends := wed_sql.pending_after(f, before);
        became := (instance, before.version, pends.status, wed_sql.transition_names(f, pends.pending), '{}', '{}', before.error);
    else
        pends := wed_sql.pending_after(f, done.after);
        if what.operation = 'rematch' then
            pended := wed_sql.pending_after(f, before);
            if (pends.pending, (done.after).final, (done.after).error) is not distinct from (pended.pending, false, before.error) then
                return null;
            end if;
        end if;
        became := (instance, (done.after).version, pends.status, wed_sql.transition_names(f, pends.pending),
                   wed_sql.transition_names(f, pends.fired), wed_sql.transition_names(f, (done.after).withdrawn), (done.after).error);
    end if;
    perform wed_sql.record_event(f, instance, became.version, null, what.transition,
        case what.operation when 'suspend' then 'suspended' when 'resume' then 'resumed' when 'cancel' then 'cancelled'
                            when 'retry' then 'retried' when 'skip' then 'skipped' when 'repair' then 'repaired'
                            when 'rewind' then 'rewound' when 'compensate' then 'compensated' when 'rematch' then 'rematched'
                            when 'reopen' then 'reopened' end,
        what.role, pg_backend_pid(), null, nullif(concat_ws('; ', done.detail, what.reason), ''));
    return became;
end
$$;

create function wed_sql.check_instruction(what wed_sql.instruction, needed text[]) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text;
begin
    select n into missing from unnest(needed) n where to_jsonb(what) -> n = 'null' limit 1;
    if found then
        raise exception 'wed_sql.%() needs %', what.operation, missing using errcode = 'null_value_not_allowed';
    end if;
end
$$;

-- On many instances, planning the same small queries anew would take as long as all the rest.
create function wed_sql.intervene(operation text, args jsonb, caller name) returns setof wed_sql.intervention
    language plpgsql
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    -- a subtransaction each would cost the whole server more than doing some of them once more
    together constant integer := case when operation = 'rematch' or args ? 'wid' then 1 else 100 end;
    what wed_sql.instruction := jsonb_populate_record(null::wed_sql.instruction, args);
    f wed_sql.flow;
    wids bigint[];
    became wed_sql.intervention[];
    one wed_sql.intervention;
    unchanged boolean;
    rehearsed boolean := false;
    code text;
    problem text;
begin
    what.operation := operation;
    what.role := caller;
    perform wed_sql.check_instruction(what, array['flow'] || case when args ? 'wid' then '{wid}' else '{instances}'::text[] end
        || case operation when 'skip' then '{transition}' when 'repair' then '{set_clause}'
                          when 'rewind' then '{version}' else '{}'::text[] end);
    f := wed_sql.flow_of_owner(what.flow, caller);
    if operation in ('retry', 'rewind', 'compensate') then
        -- they look at the history; what it lacks all the same, they say
        begin
            perform wed_sql.sync(interval '5 seconds');
        exception when sqlstate 'WED14' then
            null;
        end;
    end if;
    if args ? 'wid' then
        wids := array[what.wid];
    else
        wids := wed_sql.select_instances(f.wed_flow, what.instances);
    end if;

    begin
        for begins in 1 .. cardinality(wids) by together loop
            begin
                became := '{}';
                unchanged := false;
                for i in begins .. least(begins + together - 1, cardinality(wids)) loop
                    one := wed_sql.intervene_on(f, wids[i], what);
                    became := became || one;
                    unchanged := one.wid is null;
                end loop;
                if unchanged then
                    raise exception 'nothing has changed';
                end if;
                return query select * from unnest(became);
            exception when others then
                continue when unchanged;
                if args ? 'wid' then
                    raise;
                end if;
                -- who is in the way of the others?
                for i in begins .. least(begins + together - 1, cardinality(wids)) loop
                    begin
                        one := wed_sql.intervene_on(f, wids[i], what);
                        if one.wid is not null then
                            return next one;
                        end if;
                    exception when others then
                        get stacked diagnostics code = returned_sqlstate, problem = message_text;
                        one := null;
                        one.wid := wids[i];
                        one.error := format('%s (SQLSTATE %s)', problem, code);
                        return next one;
                    end;
                end loop;
            end;
        end loop;
        if what.dry_run then
            rehearsed := true;
            raise exception 'so it would be';
        end if;
    exception when others then
        if not rehearsed then
            raise;
        end if;
    end;
end
$$;

comment on function wed_sql.do_suspend(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.suspend() on one instance.';
comment on function wed_sql.do_resume(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.resume() on one instance.';
comment on function wed_sql.do_cancel(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.cancel() on one instance.';
comment on function wed_sql.do_retry(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.retry() on one instance.';
comment on function wed_sql.do_skip(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.skip() on one instance.';
comment on function wed_sql.do_repair(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.repair() on one instance.';
comment on function wed_sql.do_rewind(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.rewind() on one instance.';
comment on function wed_sql.do_compensate(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.compensate() on one instance.';
comment on function wed_sql.do_rematch(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.rematch() on one instance.';
comment on function wed_sql.do_reopen(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction) is 'wed_sql.reopen() on one instance.';
comment on function wed_sql.failed_rules(wed_sql.flow, bigint, wed_sql.stamp) is 'WED-triggers whose jobs have failed so often that the instance became the exception that it is.';
comment on function wed_sql.retry_jobs(wed_sql.flow, bigint, text) is 'Has the jobs of an instance that have failed be tried again at once; returns their WED-transitions.';
comment on function wed_sql.set_clause_for(wed_sql.flow, jsonb) is 'A SET clause that leads to a recorded state.';
comment on function wed_sql.not_undone(wed_sql.flow, bigint, bigint) is 'WED-transitions of an instance since a state that have not been undone, the latest first, and what undoes each.';
comment on function wed_sql.intervene_on(wed_sql.flow, bigint, wed_sql.instruction) is 'An intervention on one instance, and its line in wed_event; null if nothing would change.';
comment on function wed_sql.check_instruction(wed_sql.instruction, text[]) is 'An error if an argument is missing.';
comment on function wed_sql.intervene(text, jsonb, name) is 'An intervention on one instance or a set of them, for a caller.';

revoke all on function wed_sql.do_suspend(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_resume(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_cancel(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_retry(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_skip(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_repair(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_rewind(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_compensate(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_rematch(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.do_reopen(wed_sql.flow, bigint, wed_sql.stamp, wed_sql.instruction),
    wed_sql.failed_rules(wed_sql.flow, bigint, wed_sql.stamp),
    wed_sql.retry_jobs(wed_sql.flow, bigint, text),
    wed_sql.set_clause_for(wed_sql.flow, jsonb),
    wed_sql.not_undone(wed_sql.flow, bigint, bigint),
    wed_sql.intervene_on(wed_sql.flow, bigint, wed_sql.instruction),
    wed_sql.check_instruction(wed_sql.instruction, text[]),
    wed_sql.intervene(text, jsonb, name) from public;

-- Nobody waits here for an instance that somebody else writes: it is looked at again a second later.
create function wed_sql.sweep_suspension(f wed_sql.flow, wid bigint, version bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    s wed_sql.stamp := wed_sql.lock_instance(f.wed_flow, wid, false);
    problem text;
begin
    if s.version is null then
        if exists (select from wed_sql.instance_texts(f.wed_flow, array[wid], 1)) then
            perform wed_sql.set_timer(f, wid, 0, 's', version, clock_timestamp() + interval '1 second');
        end if;
        return;
    end if;
    if s.version <> version or s.status is distinct from 'S' then
        return;
    end if;
    begin
        s := wed_sql.operate(f.wed_flow, wid, 'resume');
        perform wed_sql.record_event(f, wid, s.version, null, null, 'resumed', null, null, null, 'the suspension is over');
    exception when others then
        get stacked diagnostics problem = message_text;
        perform wed_sql.record_event(f, wid, version, null, null, 'not resumed', null, null, null, problem);
        perform wed_sql.set_timer(f, wid, 0, 's', version, clock_timestamp() + interval '1 minute');
    end;
end
$$;

revoke all on function wed_sql.sweep_suspension(wed_sql.flow, bigint, bigint) from public;

comment on function wed_sql.sweep_suspension(wed_sql.flow, bigint, bigint) is
'The time of a suspension is over: the instance goes on, if it is still suspended by that state.';
