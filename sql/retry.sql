-- Attempts that have failed: counted, put off, and given up.

create function wed_sql.take_job_lock(wid bigint, tgid integer) returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_take_job_lock_sql';

revoke all on function wed_sql.take_job_lock(bigint, integer) from public;

comment on function wed_sql.take_job_lock(bigint, integer) is
'Takes the lock of a job until the end of the transaction, whatever the job is; false if another session has it.';

-- As wal/lines.go makes them. Anybody may listen on any channel: the state of a private flow is not in it.
create function wed_sql.notifications(f wed_sql.flow, wids bigint[], tgids integer[]) returns table (channel text, payload text)
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set intervalstyle = postgres
as $$
begin
    return query select * from wed_sql.query_planned(format($sql$
        select j.trname,
               case when $4 or octet_length(j.head) + octet_length(j.payload) + 11 > 7999 then j.head || '"payload_omitted":true}'
                    else j.head || '"payload":' || j.payload || '}' end
          from (select p.trname, p.payload::text as payload,
                       '{"flow":' || $3 || ',"wid":' || p.wid || ',"tgid":' || p.tgid || ',"trname":' || to_json(p.trname)
                       || ',"timeout":' || coalesce(to_json(p.timeout::text)::text, 'null') || ',' as head
                  from unnest($1, $2) w(wid, tgid)
                  join %1$s p on p.wid = w.wid and p.tgid = w.tgid
                 where octet_length(p.trname) <= 63
                   and not exists (select from %1$s n where n.wid = p.wid and n.tgid = p.tgid and n.version > p.version)
                   -- the engine performs an action, no worker
                   and not exists (select from wed_sql.rule r
                                    where r.tgid = p.tgid and r.valid_until = 9223372036854775807 and r.action is not null)) j
    $sql$, f.job_pool), wids, tgids, to_json(wed_sql.flow_name(f))::text, (select relrowsecurity from pg_class where oid = f.wed_flow))
      as (channel text, payload text);
end
$$;

revoke all on function wed_sql.notifications(wed_sql.flow, bigint[], integer[]) from public;

comment on function wed_sql.notifications(wed_sql.flow, bigint[], integer[]) is
'The notifications of jobs that are in job_pool.';

create function wed_sql.notify_jobs(f wed_sql.flow, wids bigint[], tgids integer[]) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    -- A full queue makes the commit fail, and with it what the workers are to be told of. They look by themselves, too.
    if pg_notification_queue_usage() > 0.9 then
        return;
    end if;
    perform wed_sql.notify_listeners(array_agg(n.channel), array_agg(n.payload))
       from wed_sql.notifications(f, wids, tgids) n having count(*) > 0;
end
$$;

revoke all on function wed_sql.notify_jobs(wed_sql.flow, bigint[], integer[]) from public;

comment on function wed_sql.notify_jobs(wed_sql.flow, bigint[], integer[]) is
'Notifies the workers of jobs that are in job_pool already; unless the server''s queue of notifications is almost full.';

create function wed_sql.notify_job(f wed_sql.flow, wid bigint, tgid integer) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform wed_sql.notify_jobs(f, array[wid], array[tgid]);
end
$$;

revoke all on function wed_sql.notify_job(wed_sql.flow, bigint, integer) from public;

comment on function wed_sql.notify_job(wed_sql.flow, bigint, integer) is 'The same for one.';

create function wed_sql.last_rule(tgid integer) returns wed_sql.rule
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
declare
    last wed_sql.rule;
begin
    select * into last from wed_sql.rule r where r.tgid = last_rule.tgid order by r.valid_from desc limit 1;
    return last;
end
$$;

revoke all on function wed_sql.last_rule(integer) from public;

comment on function wed_sql.last_rule(integer) is
'The version of a WED-trigger that is in force, or was the last to be.';

-- In seconds: they can be multiplied, and compared, without an overflow.
create function wed_sql.pause_after(attempts integer, r wed_sql.rule) returns double precision
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
as $$
declare
    -- some thirty years: what comes after is still a date
    longest constant double precision := least(coalesce(extract(epoch from r.max_backoff)::double precision, 3600), 1e9);
    first double precision := least(coalesce(extract(epoch from r.backoff)::double precision, 0), longest);
begin
    -- nobody else slows down an action that fails
    if first <= 0 and r.action is not null then
        first := least(1, longest);
    end if;
    if first <= 0 then
        return 0;
    end if;
    return least(longest, least(longest, first * 2 ^ least(attempts - 1, 100)) * (0.8 + 0.4 * random()));
end
$$;

revoke all on function wed_sql.pause_after(integer, wed_sql.rule) from public;

comment on function wed_sql.pause_after(integer, wed_sql.rule) is
'Seconds to wait after so many failed attempts: the backoff of the WED-trigger, doubled with each, give or take a fifth.';

-- Whoever completes a job may wait for nobody who waits for him.
create function wed_sql.remove_timers(f wed_sql.flow, wid bigint, tgid integer, kinds "char"[], version bigint default null) returns void
    language plpgsql volatile
    set search_path = pg_catalog, pg_temp
    set plan_cache_mode = force_generic_plan
as $$
begin
    with t as materialized (
        select x.flow_id, x.wid, x.tgid, x.kind, x.version from wed_sql.timer x
         where x.flow_id = f.flow_id and x.wid = remove_timers.wid and x.tgid = remove_timers.tgid and x.kind = any (kinds)
           and (remove_timers.version is null or x.version = remove_timers.version)
           for update skip locked)
    delete from wed_sql.timer x using t
     where x.flow_id = t.flow_id and x.wid = t.wid and x.tgid = t.tgid and x.kind = t.kind and x.version = t.version;
end
$$;

revoke all on function wed_sql.remove_timers(wed_sql.flow, bigint, integer, "char"[], bigint) from public;

comment on function wed_sql.remove_timers(wed_sql.flow, bigint, integer, "char"[], bigint) is
'Removes timers of a job, of one version or of all, but those that somebody is dealing with.';

create function wed_sql.give_up(f wed_sql.flow, wid bigint, tgid integer, version bigint, trname text, attempts integer, reason text) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    problem text;
begin
    -- who performs it at this moment may succeed, and must not wait for us while we wait for him
    if wed_sql.take_job_lock(wid, tgid) then
        begin
            perform wed_sql.operate(f.wed_flow, wid, 'fail', tgid, null,
                                    format('WED-transition "%s" has failed %s: %s', trname,
                                           case attempts when 1 then 'once' else attempts || ' times' end, reason),
                                    version => version);
            return true;
        exception
            -- it is not pending any more, and the follower is about to see that
            when no_data_found or sqlstate 'WED03' or sqlstate 'WED08' or sqlstate 'WED17' or sqlstate 'WED18' then
                problem := null;
            when lock_not_available then
                null;
            when others then
                problem := sqlerrm;
        end;
    end if;
    if problem is not null then
        raise warning 'could not make an exception of instance % of WED-flow "%": %', wid, wed_sql.flow_name(f), problem;
    end if;
    perform wed_sql.set_timer(f, wid, tgid, 'r', version,
                              clock_timestamp() + case when problem is null then interval '1 second' else interval '1 minute' end);
    return false;
end
$$;

revoke all on function wed_sql.give_up(wed_sql.flow, bigint, integer, bigint, text, integer, text) from public;

comment on function wed_sql.give_up(wed_sql.flow, bigint, integer, bigint, text, integer, text) is
'Makes an exception of an instance whose job has failed too often; or sets a timer to try that again, if the job is in use.';

create function wed_sql.attempt_failed(
        f wed_sql.flow, wid bigint, tgid integer, version bigint, event text, reason text,
        role name default null, pid integer default null, held interval default null, token text default null) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    r wed_sql.rule;
    trname text;
    attempts integer;
    pause double precision;
    again timestamp with time zone;
    clipped constant text := left(reason, 1000);
begin
    select t.* into trname, attempts
      from wed_sql.query_planned(format('select j.trname, j.attempts + 1 from %1$s j
                     where j.wid = $1 and j.tgid = $2 and j.version = $3 and j.attempts < 2147483647
                       and (j.lckid is null or j.lckid = $4 or j.leased_until is null or j.leased_until <= clock_timestamp())
                       and not exists (select from %1$s n where n.wid = $1 and n.tgid = $2 and n.version > $3)
                       for update skip locked', f.job_pool), wid, tgid, version, token) as t(trname text, attempts integer);
    if trname is null then
        return false;
    end if;
    r := wed_sql.last_rule(tgid);
    pause := wed_sql.pause_after(attempts, r);
    if pause > 0 then
        again := clock_timestamp() + pause * interval '1 second';
    end if;
    perform wed_sql.execute_planned(format('update %s set attempts = $3, last_error = $4, available_at = $5, lckid = null, leased_until = null, leased_by = null
                     where wid = $1 and tgid = $2 and version = $6', f.job_pool), wid, tgid, attempts, clipped, again, version);
    perform wed_sql.record_event(f, wid, version, tgid, trname, event, role, pid, held, clipped);
    perform wed_sql.remove_timers(f, wid, tgid, '{l,a,r}', version);
    if attempts >= r.max_attempts and event in ('timed out', 'connection lost') then
        -- what the flow's owner has on his table is not to be run among those of others
        perform wed_sql.set_timer(f, wid, tgid, 'r', version, clock_timestamp());
    elsif attempts >= r.max_attempts then
        perform wed_sql.give_up(f, wid, tgid, version, trname, attempts, clipped);
    elsif r.action is not null then
        perform wed_sql.set_timer(f, wid, tgid, 'a', version, again);
    elsif again is not null then
        perform wed_sql.set_timer(f, wid, tgid, 'r', version, again);
    else
        perform wed_sql.notify_job(f, wid, tgid);
    end if;
    return true;
end
$$;

revoke all on function wed_sql.attempt_failed(wed_sql.flow, bigint, integer, bigint, text, text, name, integer, interval, text) from public;

comment on function wed_sql.attempt_failed(wed_sql.flow, bigint, integer, bigint, text, text, name, integer, interval, text) is
'Counts a failed attempt to perform a job, and decides when it may be tried again; after the last one the instance becomes an exception. False if the job is not there any more, somebody is writing it, or it is leased under another token.';

create function wed_sql.sweep_retry(f wed_sql.flow, wid bigint, tgid integer, version bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    j record;
begin
    execute format('select trname, attempts, last_error, available_at,
                           lckid is not null and leased_until > clock_timestamp() as leased
                      from %s where wid = $1 and tgid = $2 and version = $3', f.job_pool)
       into j using wid, tgid, version;
    if j.trname is null or j.leased then
        return;
    end if;
    if j.attempts >= (wed_sql.last_rule(tgid)).max_attempts then
        perform wed_sql.give_up(f, wid, tgid, version, j.trname, j.attempts, j.last_error);
    elsif j.available_at > clock_timestamp() then
        perform wed_sql.set_timer(f, wid, tgid, 'r', version, j.available_at);
    elsif (wed_sql.last_rule(tgid)).action is not null then
        perform wed_sql.set_timer(f, wid, tgid, 'a', version, clock_timestamp());
    else
        perform wed_sql.notify_job(f, wid, tgid);
    end if;
end
$$;

revoke all on function wed_sql.sweep_retry(wed_sql.flow, bigint, integer, bigint) from public;

comment on function wed_sql.sweep_retry(wed_sql.flow, bigint, integer, bigint) is
'The pause after a failed attempt is over: the workers are notified of the job.';

-- What workers call about a job: a function in C that knows its caller, and one of these that does it.

create function wed_sql.flow_of_worker(name text, transition text, caller name) returns wed_sql.flow
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_named(name);
begin
    if not wed_sql.may_perform(quote_ident(caller)::regrole, f.wed_flow, transition) then
        raise exception 'permission denied for WED-transition "%" of WED-flow "%"', transition, name
            using errcode = 'insufficient_privilege',
                  hint = 'wed_sql.grant_worker() gives a role the right to perform it.';
    end if;
    if transition <> '_EXCPT' and not exists (
        select from wed_sql.rule r where r.flow_id = f.flow_id and r.trname = transition)
    then
        raise exception 'WED-flow "%" has no WED-transition "%"', name, transition using errcode = 'undefined_object';
    end if;
    return f;
end
$$;

revoke all on function wed_sql.flow_of_worker(text, text, name) from public;

comment on function wed_sql.flow_of_worker(text, text, name) is
'The flow of this name; an error unless it has such a WED-transition, and the caller may perform it.';

-- By the transition alone, while there is a rule: nobody learns so what is pending.
create function wed_sql.flow_of_job(name text, wid bigint, tgid integer, caller name) returns wed_sql.flow
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_named(name);
    r wed_sql.rule := wed_sql.last_rule(tgid);
    transition text := case when tgid = f.excpt_tgid then '_EXCPT' when r.flow_id = f.flow_id then r.trname end;
    of_job text;
begin
    select t.trname into of_job
      from wed_sql.query_planned(format('select j.trname from %s j where j.wid = $1 and j.tgid = $2
                                          order by j.version desc limit 1', f.job_pool), wid, tgid) as t(trname text);
    if coalesce(of_job, transition) is null then
        raise exception 'WED-flow "%" has no WED-trigger with tgid %', name, tgid
            using errcode = 'undefined_object', hint = 'Take wid and tgid from job_pool.';
    end if;
    if not wed_sql.may_perform(quote_ident(caller)::regrole, f.wed_flow, coalesce(of_job, transition)) then
        raise exception 'permission denied for jobs of tgid %', tgid
            using errcode = 'insufficient_privilege',
                  hint = 'wed_sql.grant_worker() gives a role the right to perform a WED-transition.';
    end if;
    return f;
end
$$;

revoke all on function wed_sql.flow_of_job(text, bigint, integer, name) from public;

comment on function wed_sql.flow_of_job(text, bigint, integer, name) is
'The flow of this name; an error unless it has such a WED-trigger, and the caller may perform its WED-transition.';

-- The policies that the owner of a flow has put on wed_flow hold here, too.
create function wed_sql.is_filtered(wed_flow regclass, role oid) returns boolean
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_is_filtered_sql';

revoke all on function wed_sql.is_filtered(regclass, oid) from public;

comment on function wed_sql.is_filtered(regclass, oid) is
'Whether policies of row security say which instances a role sees.';

create function wed_sql.seen_by(f wed_sql.flow, wids bigint[], caller name) returns bigint[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    return wed_sql.matching(f.wed_flow, wids, 'true', quote_ident(caller)::regrole);
end
$$;

revoke all on function wed_sql.seen_by(wed_sql.flow, bigint[], name) from public;

comment on function wed_sql.seen_by(wed_sql.flow, bigint[], name) is
'Those of the instances that a role sees; null if it may not look.';

create function wed_sql.sees_instance(f wed_sql.flow, wid bigint, caller name) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    return not wed_sql.is_filtered(f.wed_flow, quote_ident(caller)::regrole)
           or coalesce(wid = any (wed_sql.seen_by(f, array[wid], caller)), false);
end
$$;

revoke all on function wed_sql.sees_instance(wed_sql.flow, bigint, name) from public;

comment on function wed_sql.sees_instance(wed_sql.flow, bigint, name) is
'Whether a role sees an instance, as far as row security is concerned.';

create function wed_sql.refuse_lease(f wed_sql.flow, wid bigint, tgid integer, claimed boolean, leased_until timestamp with time zone) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '%', format(case when claimed then 'the lease of job tgid %s of instance %s of WED-flow "%s" has ended'
                                     else 'job tgid %s of instance %s of WED-flow "%s" is leased' end, tgid, wid, wed_sql.flow_name(f))
        using errcode = 'WED16',
              detail = case when leased_until is null then 'It is not leased now.'
                            else format('It is leased to another until %s.', leased_until) end,
              hint = case when claimed then 'Lease another job; extend a lease before it runs out.'
                          else 'Take another job, or give the token of the lease.' end;
end
$$;

revoke all on function wed_sql.refuse_lease(wed_sql.flow, bigint, integer, boolean, timestamp with time zone) from public;

comment on function wed_sql.refuse_lease(wed_sql.flow, bigint, integer, boolean, timestamp with time zone) is
'The error (WED16) of who deals with a leased job without its token, or with one that is not valid any more.';

create function wed_sql.fail_for(flow text, wid bigint, tgid integer, error text, lckid text, caller name) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    j record;
begin
    if flow is null or wid is null or tgid is null then
        raise exception 'a flow, an instance and a tgid are needed' using errcode = 'null_value_not_allowed';
    end if;
    f := wed_sql.flow_of_job(flow, wid, tgid, caller);
    if not wed_sql.sees_instance(f, wid, caller) or not wed_sql.take_job_lock(wid, tgid) then
        return false;
    end if;
    select t.* into j
      from wed_sql.query_planned(format('select j.version, j.lckid, j.leased_until, j.leased_until > clock_timestamp() and j.lckid is not null
                      from %s j where j.wid = $1 and j.tgid = $2 order by j.version desc limit 1', f.job_pool), wid, tgid)
        as t(version bigint, lckid text, leased_until timestamp with time zone, leased boolean);
    if j.leased and fail_for.lckid is distinct from j.lckid or fail_for.lckid is not null and j.leased is not true then
        perform wed_sql.refuse_lease(f, wid, tgid, fail_for.lckid is not null, case when j.leased then j.leased_until end);
    end if;
    return j.version is not null
           and wed_sql.attempt_failed(f, wid, tgid, j.version, 'failed', coalesce(nullif(error, ''), 'no reason was given'), caller,
                                      token => fail_for.lckid);
end
$$;

revoke all on function wed_sql.fail_for(text, bigint, integer, text, text, name) from public;

comment on function wed_sql.fail_for(text, bigint, integer, text, text, name) is 'Counts a failed attempt of a job, for a caller.';

create function wed_sql.fail(flow text, wid bigint, tgid integer, error text, lckid text default null) returns boolean
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_fail';

comment on function wed_sql.fail(text, bigint, integer, text, text) is
'A worker has failed to perform a job, and says why, in a transaction of its own: the job is tried again after the backoff of its WED-trigger; after max_attempts the instance becomes an exception. With the token if the job is leased. False if another session has the job, or it is not pending any more; or the instance is hidden from the caller by row security.';
