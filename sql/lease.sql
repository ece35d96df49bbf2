-- Leases: work that takes minutes or days holds no transaction open. A job is leased while lckid is set and leased_until
-- has not come; who knows the token may complete it until then. Both protocols exclude each other: a lease is taken
-- under the job's lock, and try_lock() gives no lock of a leased job.

create function wed_sql.check_duration(duration interval) returns void
    language c immutable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_check_duration';

revoke all on function wed_sql.check_duration(interval) from public;

comment on function wed_sql.check_duration(interval) is 'An error if no lease can be as long.';

create function wed_sql.take_leases(
        wed_flow regclass, transition text, wids bigint[], tgids integer[], duration interval, caller name,
        out wid bigint, out tgid integer, out trname text, out lckid text, out payload jsonb, out fired_at timestamp with time zone,
        out attempts integer, out last_error text, out leased_until timestamp with time zone)
    returns setof record
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_take_leases';

revoke all on function wed_sql.take_leases(regclass, text, bigint[], integer[], interval, name) from public;

comment on function wed_sql.take_leases(regclass, text, bigint[], integer[], interval, name) is
'Leases jobs whose locks this transaction has, by priority and age. Of those that the caller may perform, but not see, it does not return the state.';

-- The index has them in this order, those that are leased apart: however many there are, only those are looked at that are
-- taken, or whose lock others have.
-- A plan that sorts would look at all, and that is what one makes of statistics from when there were few.
create function wed_sql.take_free_jobs(
        f wed_sql.flow, transition text, most integer, except_tgids integer[], only_wids bigint[], except_rows tid[],
        out wids bigint[], out tgids integer[], out rows tid[])
    language plpgsql
    set search_path = pg_catalog, pg_temp
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_seqscan = off
    set enable_sort = off
as $$
begin
    -- One by one, in order, and the limit ends it: no lock is taken but those of what is returned. Rows are locked
    -- only under the jobs' locks: nobody who performs one waits for us.
    select t.* into wids, tgids, rows from wed_sql.query_planned(format($sql$
        select array_agg(c.wid), array_agg(c.tgid), array_agg(c.ctid)
          from (select c.wid, c.tgid, c.ctid
                  from (select j.wid, j.tgid, j.ctid
                          from %1$s j
                         where j.trname = $1 and j.lckid is null
                           and (j.available_at is null or j.available_at <= clock_timestamp())
                           and j.tgid <> all ($3)
                           and ($4 is null or j.wid = any ($4))
                           and j.ctid <> all ($5)
                           and not exists (select from %1$s n where n.wid = j.wid and n.tgid = j.tgid and n.version > j.version)
                         order by j.priority desc, j.fired_at, j.wid, j.tgid
                        offset 0) c
                 where wed_sql.take_job_lock(c.wid, c.tgid)
                 limit $2) c
    $sql$, f.job_pool), transition, most, except_tgids, only_wids, except_rows) as t(wids bigint[], tgids integer[], rows tid[]);
end
$$;

revoke all on function wed_sql.take_free_jobs(wed_sql.flow, text, integer, integer[], bigint[], tid[]) from public;

comment on function wed_sql.take_free_jobs(wed_sql.flow, text, integer, integer[], bigint[], tid[]) is
'Takes the locks of jobs of a WED-transition that nobody has: by priority, and the longest pending first; null if there are none. Of only_wids, if that is not null.';

create function wed_sql.lease_for(flow text, transition text, duration interval, max_jobs integer, caller name)
    returns table (wid bigint, tgid integer, trname text, lckid text, payload jsonb, fired_at timestamp with time zone,
                   attempts integer, last_error text, leased_until timestamp with time zone)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    actions integer[];
    seen bigint[];
    wids bigint[];
    tgids integer[];
    rows tid[];
    tried tid[] := '{}';
    got integer;
    leased integer := 0;
begin
    if flow is null or transition is null then
        raise exception 'a flow and a WED-transition are needed' using errcode = 'null_value_not_allowed';
    end if;
    perform wed_sql.check_duration(duration);
    if max_jobs is null or max_jobs not between 1 and 10000 then
        raise exception 'between 1 and 10000 jobs can be leased at a time' using errcode = 'invalid_parameter_value';
    end if;
    f := wed_sql.flow_of_worker(flow, transition, caller);

    -- what the engine does itself
    actions := array(select r.tgid from wed_sql.rule r
                      where r.flow_id = f.flow_id and r.valid_until = 9223372036854775807 and r.action is not null);
    if wed_sql.is_filtered(f.wed_flow, quote_ident(caller)::regrole) then
        execute format('select array_agg(distinct j.wid) from %s j
                         where j.trname = $1 and j.lckid is null and (j.available_at is null or j.available_at <= clock_timestamp())', f.job_pool)
           into seen using transition;
        seen := coalesce(wed_sql.seen_by(f, seen, caller), '{}');
    end if;
    -- Others may take what has just been found: then there may be more, however often that happens. No row is tried
    -- twice, so it ends.
    loop
        select t.wids, t.tgids, t.rows into wids, tgids, rows
          from wed_sql.take_free_jobs(f, transition, max_jobs - leased, actions, seen, tried) t;
        exit when wids is null;
        tried := tried || rows;
        return query select * from wed_sql.take_leases(f.wed_flow, transition, wids, tgids, duration, caller);
        get diagnostics got = row_count;
        leased := leased + got;
        exit when leased >= max_jobs;
    end loop;
end
$$;

revoke all on function wed_sql.lease_for(text, text, interval, integer, name) from public;

comment on function wed_sql.lease_for(text, text, interval, integer, name) is 'Leases jobs of a WED-transition, for a caller.';

create function wed_sql.lease(
        flow text, transition text, duration interval, max_jobs integer default 1,
        out wid bigint, out tgid integer, out trname text, out lckid text, out payload jsonb, out fired_at timestamp with time zone,
        out attempts integer, out last_error text, out leased_until timestamp with time zone)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_lease';

comment on function wed_sql.lease(text, text, interval, integer) is
'Leases up to max_jobs pending jobs of a WED-transition for a time, by priority and age: each under a token (lckid) of its own, with which wed_sql.complete(), extend(), release() and fail() deal with it. No transaction need be open meanwhile.';

create function wed_sql.lease_jobs(
        flow text, transition text, wids bigint[], tgids integer[], duration interval, max_jobs integer,
        out wid bigint, out tgid integer, out trname text, out lckid text, out payload jsonb, out fired_at timestamp with time zone,
        out attempts integer, out last_error text, out leased_until timestamp with time zone)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_lease_jobs';

comment on function wed_sql.lease_jobs(text, text, bigint[], integer[], interval, integer) is
'Leases the first max_jobs of these jobs of a WED-transition that are to be had, as wed_sql.lease() does: for who knows them from notifications or a look at job_pool.';

create function wed_sql.lease_job(
        flow text, wid bigint, tgid integer, duration interval,
        out wid bigint, out tgid integer, out trname text, out lckid text, out payload jsonb, out fired_at timestamp with time zone,
        out attempts integer, out last_error text, out leased_until timestamp with time zone)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_lease_job';

comment on function wed_sql.lease_job(text, bigint, integer, interval) is
'Leases one job, as wed_sql.lease() does; no row if somebody else has it, or it is not there.';

-- The job under its token, and its row locked; an error if the token is not valid (any more).
create function wed_sql.leased_job(
        f wed_sql.flow, wid bigint, tgid integer, lckid text,
        out version bigint, out trname text, out leased_by name, out leased_until timestamp with time zone)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    token text;
begin
    select t.* into version, trname, leased_by, leased_until, token
      from wed_sql.query_planned(format('select j.version, j.trname, j.leased_by, j.leased_until, j.lckid
                      from %s j where j.wid = $1 and j.tgid = $2 order by j.version desc limit 1 for update', f.job_pool), wid, tgid)
        as t(version bigint, trname text, leased_by name, leased_until timestamp with time zone, lckid text);
    if version is null then
        raise exception 'job tgid % of instance % of WED-flow "%" is not pending', tgid, wid, wed_sql.flow_name(f)
            using errcode = 'WED03', hint = 'It was completed or withdrawn, or the instance has ended: take another job.';
    end if;
    if token is null or leased_until <= clock_timestamp() then
        perform wed_sql.refuse_lease(f, wid, tgid, true, null);
    elsif lckid is distinct from token then
        perform wed_sql.refuse_lease(f, wid, tgid, true, leased_until);
    end if;
end
$$;

revoke all on function wed_sql.leased_job(wed_sql.flow, bigint, integer, text) from public;

comment on function wed_sql.leased_job(wed_sql.flow, bigint, integer, text) is
'The job that is leased under a token; an error (WED16, WED03) if there is none.';

create function wed_sql.extend_for(flow text, wid bigint, tgid integer, lckid text, duration interval, caller name)
    returns timestamp with time zone
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    j record;
    until timestamp with time zone;
begin
    if flow is null or wid is null or tgid is null or lckid is null then
        raise exception 'a flow, an instance, a tgid and the token of the lease are needed' using errcode = 'null_value_not_allowed';
    end if;
    perform wed_sql.check_duration(duration);
    f := wed_sql.flow_of_job(flow, wid, tgid, caller);
    j := wed_sql.leased_job(f, wid, tgid, lckid);
    select t.leased_until into until
      from wed_sql.query_planned(format('update %s set leased_until = clock_timestamp() + $3
                     where wid = $1 and tgid = $2 and version = $4 returning leased_until', f.job_pool), wid, tgid, duration, j.version)
        as t(leased_until timestamp with time zone);
    -- when the timer is due, the engine sees that the lease has become longer: a heartbeat writes one row
    if until < j.leased_until then
        perform wed_sql.set_timer(f, wid, tgid, 'l', j.version, until);
    end if;
    return until;
end
$$;

revoke all on function wed_sql.extend_for(text, bigint, integer, text, interval, name) from public;

comment on function wed_sql.extend_for(text, bigint, integer, text, interval, name) is 'Extends a lease, for a caller.';

create function wed_sql.extend(flow text, wid bigint, tgid integer, lckid text, duration interval) returns timestamp with time zone
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_extend';

comment on function wed_sql.extend(text, bigint, integer, text, interval) is
'The heartbeat of who has leased a job: the lease lasts for so long from now on. Returns when it ends; WED16 if it has ended.';

create function wed_sql.release_for(flow text, wid bigint, tgid integer, lckid text, caller name) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    j record;
begin
    if flow is null or wid is null or tgid is null or lckid is null then
        raise exception 'a flow, an instance, a tgid and the token of the lease are needed' using errcode = 'null_value_not_allowed';
    end if;
    f := wed_sql.flow_of_job(flow, wid, tgid, caller);
    select t.* into j
      from wed_sql.query_planned(format('update %s j set lckid = null, leased_until = null, leased_by = null
                     where j.wid = $1 and j.tgid = $2 and j.lckid = $3 returning j.version, j.trname', f.job_pool), wid, tgid, lckid)
        as t(version bigint, trname text);
    if j.version is null then
        return false;
    end if;
    perform wed_sql.record_event(f, wid, j.version, tgid, j.trname, 'released', caller, pg_backend_pid());
    perform wed_sql.remove_timers(f, wid, tgid, '{l}', j.version);
    perform wed_sql.notify_job(f, wid, tgid);
    return true;
end
$$;

revoke all on function wed_sql.release_for(text, bigint, integer, text, name) from public;

comment on function wed_sql.release_for(text, bigint, integer, text, name) is 'Gives back a leased job, for a caller.';

create function wed_sql.release(flow text, wid bigint, tgid integer, lckid text) returns boolean
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_release';

comment on function wed_sql.release(text, bigint, integer, text) is
'Gives a leased job back, undone: others may have it at once, and no failed attempt is counted. False if it is not leased under this token any more.';

create function wed_sql.complete(flow text, wid bigint, tgid integer, lckid text, set_clause text) returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_complete';

comment on function wed_sql.complete(text, bigint, integer, text, text) is
'Completes a leased job: writes the next state of its instance, with the caller''s rights. set_clause is what SQL accepts after SET. WED16 if the lease has ended.';

create function wed_sql.complete(flow text, wid bigint, tgid integer, lckid text, state jsonb) returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_complete_json';

comment on function wed_sql.complete(text, bigint, integer, text, jsonb) is
'Completes a leased job: sets the WED-attributes that are keys of state to their values, with the caller''s rights, and leaves the others as they are. WED16 if the lease has ended.';

create function wed_sql.sweep_lease(f wed_sql.flow, wid bigint, tgid integer, version bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    j record;
    held interval;
begin
    execute format('select lckid, leased_by, leased_until from %s where wid = $1 and tgid = $2 and version = $3', f.job_pool)
       into j using wid, tgid, version;
    if j.lckid is null then
        return;
    end if;
    if j.leased_until > clock_timestamp() then
        perform wed_sql.set_timer(f, wid, tgid, 'l', version, j.leased_until);
        return;
    end if;
    -- nobody extends it, nor leases the job anew, between this and what follows from it; and the engine waits for nobody
    execute format('select lckid, leased_by, leased_until from %s
                     where wid = $1 and tgid = $2 and version = $3 and lckid = $4 and leased_until = $5 for update skip locked', f.job_pool)
       into j using wid, tgid, version, j.lckid, j.leased_until;
    if j.lckid is null then
        perform wed_sql.set_timer(f, wid, tgid, 'l', version, clock_timestamp() + interval '1 second');
        return;
    end if;
    execute format('select $3 - e.at from %s e
                     where e.wid = $1 and e.tgid = $2 and e.event = ''leased'' order by e.event_id desc limit 1', f.wed_event)
       into held using wid, tgid, j.leased_until;
    if not wed_sql.attempt_failed(f, wid, tgid, version, 'lease ran out',
                                  format('the lease of role "%s" ran out', j.leased_by), j.leased_by, null, held, j.lckid)
    then
        -- it has been withdrawn, and not been removed yet
        perform wed_sql.set_timer(f, wid, tgid, 'l', version, clock_timestamp() + interval '1 second');
    end if;
end
$$;

revoke all on function wed_sql.sweep_lease(wed_sql.flow, bigint, integer, bigint) from public;

comment on function wed_sql.sweep_lease(wed_sql.flow, bigint, integer, bigint) is
'A lease is to run out: unless it was extended, its job is to be had again, and an attempt has failed.';
