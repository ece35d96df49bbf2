-- Timeouts: a transaction that holds the lock of a pending job for longer than the job's timeout is ended. And what
-- becomes of a job whose worker is gone, for that reason or another.

create function wed_sql.lock_holders(
        out wid bigint, out tgid integer, out pid integer, out lxid bigint, out xact_start timestamp with time zone,
        out role oid, out application_name text)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_lock_holders';

revoke all on function wed_sql.lock_holders() from public;

comment on function wed_sql.lock_holders() is
'Transactions of other sessions that hold a lock which may be that of a job, and since when they are open.';

create function wed_sql.oldest_transaction() returns timestamp with time zone
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_oldest_transaction';

revoke all on function wed_sql.oldest_transaction() from public;

comment on function wed_sql.oldest_transaction() is
'Since when another session of this database has a transaction open, as wed_sql.lock_holders() has seen it last.';

create function wed_sql.end_holder(wid bigint, tgid integer, pid integer, lxid bigint, deadline timestamp with time zone)
    returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_end_holder';

revoke all on function wed_sql.end_holder(bigint, integer, integer, bigint, timestamp with time zone) from public;

comment on function wed_sql.end_holder(bigint, integer, integer, bigint, timestamp with time zone) is
'Terminates a session, if it is still in this transaction, which still holds the lock of the job and is not committing, and the deadline has passed; all in one step.';

create function wed_sql.any_running(xids xid[]) returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_any_running';

revoke all on function wed_sql.any_running(xid[]) from public;

comment on function wed_sql.any_running(xid[]) is 'Whether one of the transactions has not ended yet.';

create function wed_sql.log(message text, detail text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_log';

revoke all on function wed_sql.log(text, text) from public;

comment on function wed_sql.log(text, text) is 'Writes a line to the server''s log.';

create function wed_sql.take_lost_jobs(
        out wid bigint, out tgid integer, out pid integer, out role oid, out xact_start timestamp with time zone,
        out ended timestamp with time zone, out timed_out boolean)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_take_lost_jobs';

revoke all on function wed_sql.take_lost_jobs() from public;

comment on function wed_sql.take_lost_jobs() is
'Locks of jobs that sessions have held when they ended, in the middle of a transaction. They are forgotten when the caller''s transaction commits.';

-- A timeout that nobody lives to see must not make the sum of it and a time fail.
create function wed_sql.longest_timeout() returns interval
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
as $$
    select interval '100 years'
$$;

revoke all on function wed_sql.longest_timeout() from public;

comment on function wed_sql.longest_timeout() is 'What a longer timeout counts as.';

create function wed_sql.shortest_timeout(f wed_sql.flow) returns interval
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    shortest interval;
begin
    -- a job has the timeout of the version that fired it, and keeps it
    execute format($sql$
        select r.timeout
          from (select trname, min(timeout) as timeout from wed_sql.rule
                 where flow_id = $1 and trname is not null and timeout is not null group by trname) r
         where exists (select from %s j where j.trname = r.trname)
         order by r.timeout limit 1
    $sql$, f.job_pool) into shortest using f.flow_id;
    return least(shortest, wed_sql.longest_timeout());
end
$$;

revoke all on function wed_sql.shortest_timeout(wed_sql.flow) from public;

comment on function wed_sql.shortest_timeout(wed_sql.flow) is
'A timeout that is not longer than that of any pending job of a flow; null if none is pending that has one.';

-- Those of one flow. The arrays are parts of wed_sql.lock_holders().
create function wed_sql.end_overdue_of(
        f wed_sql.flow, wids bigint[], tgids integer[], pids integer[], lxids bigint[], starts timestamp with time zone[],
        roles oid[], applications text[],
        out ended integer, out deadline timestamp with time zone)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    -- all of them first, and then what is to be said of them: sorting reads to the end
    execute format($sql$
        with k as materialized (
            select k.*, j.trname, j.timeout, k.xact_start + least(j.timeout, wed_sql.longest_timeout()) as deadline
              from unnest($1, $2, $3, $4, $5, $6, $7) k(wid, tgid, pid, lxid, xact_start, role, application)
              join %1$s j on j.wid = k.wid and j.tgid = k.tgid
             where j.timeout is not null
               -- an older one has been withdrawn
               and not exists (select from %1$s n where n.wid = j.wid and n.tgid = j.tgid and n.version > j.version)),
        due as (
            select k.*, clock_timestamp() - k.xact_start as age, wed_sql.end_holder(k.wid, k.tgid, k.pid, k.lxid, k.deadline) as ended
              from k where k.deadline <= $8)
        select count(wed_sql.log(
                   format('session %%s of role "%%s" is terminated: its transaction holds the lock of job "%%s" of instance %%s of WED-flow "%%s" for longer than its timeout',
                          h.pid, pg_get_userbyid(h.role), h.trname, h.wid, $9),
                   format('It has been open since %%s, for %%s; the timeout is %%s. Application: "%%s".',
                          h.xact_start, h.age, h.timeout, h.application))),
               (select min(k.deadline) from k where k.deadline > $8)
          from (select * from due where due.ended order by due.deadline) h
    $sql$, f.job_pool)
       into ended, deadline
      using wids, tgids, pids, lxids, starts, roles, applications, clock_timestamp(), wed_sql.flow_name(f);
end
$$;

revoke all on function wed_sql.end_overdue_of(wed_sql.flow, bigint[], integer[], integer[], bigint[], timestamp with time zone[], oid[], text[]) from public;

comment on function wed_sql.end_overdue_of(wed_sql.flow, bigint[], integer[], integer[], bigint[], timestamp with time zone[], oid[], text[]) is
'Ends those of these transactions that have exceeded the timeout of a job of a flow, and returns how many, and when the next one does.';

-- It waits for nobody: a flow whose job_pool somebody has locked is left out this time.
create function wed_sql.end_overdue(
        probe boolean,
        out now timestamp with time zone, out ended integer, out deadline timestamp with time zone,
        out oldest timestamp with time zone, out shortest_us bigint, out complete boolean)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    set intervalstyle = 'postgres'
    set lock_timeout = '20ms'
as $$
declare
    f wed_sql.flow;
    held record;
    part record;
    shortest interval;
begin
    now := clock_timestamp();
    ended := 0;
    complete := true;
    for held in
        with locks as materialized (
                 select * from wed_sql.lock_holders() h
                  -- an action has a limit of its own
                  where not (h.application_name = 'wed_sql engine' and pg_get_userbyid(h.role) = session_user)),
             flows as materialized (
                 select t.tgid, r.flow_id
                   from (select distinct l.tgid from locks l) t
                   join lateral (select r.flow_id from wed_sql.rule r where r.tgid = t.tgid
                                 union
                                 select e.flow_id from wed_sql.flow e where e.excpt_tgid = t.tgid) r on true)
        select w.flow_id, array_agg(l.wid) as wids, array_agg(l.tgid) as tgids, array_agg(l.pid) as pids,
               array_agg(l.lxid) as lxids, array_agg(l.xact_start) as starts, array_agg(l.role) as roles,
               array_agg(l.application_name) as applications
          from locks l join flows w on w.tgid = l.tgid
         group by w.flow_id
    loop
        begin
            select * into f from wed_sql.flow where flow_id = held.flow_id;
            continue when not found;
            part := wed_sql.end_overdue_of(f, held.wids, held.tgids, held.pids, held.lxids, held.starts, held.roles, held.applications);
            ended := ended + part.ended;
            deadline := least(deadline, part.deadline);
        exception when lock_not_available or undefined_table then
            complete := false;
        end;
    end loop;
    oldest := wed_sql.oldest_transaction();
    if not probe then
        return;
    end if;
    for f in select * from wed_sql.flow
    loop
        begin
            shortest := least(shortest, wed_sql.shortest_timeout(f));
        exception
            when undefined_table then
                null;
            when lock_not_available then
                complete := false;
        end;
    end loop;
    shortest_us := greatest(extract(epoch from shortest) * 1000000, 1)::bigint;
    if shortest is null then
        shortest_us := null;
    end if;
end
$$;

revoke all on function wed_sql.end_overdue(boolean) from public;

comment on function wed_sql.end_overdue(boolean) is
'Ends each transaction that holds the lock of a pending job for longer than the job''s timeout. Returns what tells when to look again: the time of this look, how many were ended, when the next known one is to be, since when the oldest open transaction may take a lock, the shortest timeout of the pending jobs in microseconds (if probe; null: none is pending), and whether all flows could be looked at.';

create function wed_sql.count_lost_jobs() returns integer
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set intervalstyle = 'postgres'
    set lock_timeout = '20ms'
as $$
declare
    l record;
    f wed_sql.flow;
    j record;
    counted integer := 0;
begin
    for l in select * from wed_sql.take_lost_jobs()
    loop
        begin
            select w.* into f from wed_sql.flow w
             where w.excpt_tgid = l.tgid or w.flow_id in (select r.flow_id from wed_sql.rule r where r.tgid = l.tgid);
            continue when not found;
            -- Who has it locked by now completes it; one that was fired since is another one; and one that was leased
            -- since is not free.
            execute format('select trname, version, timeout from %1$s j
                             where wid = $1 and tgid = $2 and fired_at <= $3
                               and (lckid is null or leased_until is null or leased_until <= clock_timestamp())
                               and not exists (select from %1$s n where n.wid = $1 and n.tgid = $2 and n.version > j.version)
                               for update skip locked', f.job_pool)
               into j using l.wid, l.tgid, l.ended;
            continue when j.trname is null;
            -- Anybody can take an advisory lock: that one who has nothing to do with the job has let it go is no attempt.
            if not wed_sql.is_entitled(l.role, f.wed_flow, j.trname) then
                perform wed_sql.notify_job(f, l.wid, l.tgid);
                continue;
            end if;
            perform wed_sql.attempt_failed(
                f, l.wid, l.tgid, j.version,
                case when l.timed_out then 'timed out' else 'connection lost' end,
                case when l.timed_out
                     then format('its transaction was open for %s, and was ended; the timeout is %s', l.ended - l.xact_start, j.timeout)
                     else format('the session ended in its transaction, which was open for %s', l.ended - l.xact_start) end,
                pg_get_userbyid(l.role), l.pid, l.ended - l.xact_start);
            counted := counted + 1;
        exception when others then
            raise warning 'a failed attempt at job tgid % of instance % is not counted: %', l.tgid, l.wid, sqlerrm;
        end;
    end loop;
    return counted;
end
$$;

revoke all on function wed_sql.count_lost_jobs() from public;

comment on function wed_sql.count_lost_jobs() is
'Counts a failed attempt for each pending job that a session has had locked when it ended, if its role may perform it, and notifies the other workers.';

create function wed_sql.timeout_warnings() returns setof text
    language plpgsql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if not current_setting('track_activities')::boolean then
        return next 'track_activities is off: it is not known since when transactions are open, so no timeout is enforced';
    end if;
    return query
    select format('prepared transaction "%s" has held the lock of a job "%s" of instance %s since %s, for longer than the timeout of %s: it is not ended by itself (COMMIT PREPARED or ROLLBACK PREPARED)',
                  p.gid, r.trname, k.wid, p.prepared, r.timeout)
      from pg_prepared_xacts p
      join pg_locks x on x.locktype = 'transactionid' and x.transactionid = p.transaction and x.pid is null and x.granted
      join (select l.virtualtransaction, l.objid::bigint as tgid,
                   (((l.objsubid + 65536) % 65536 - 2)::bigint << 32) | l.classid::bigint as wid
              from pg_locks l
             where l.locktype = 'advisory' and l.pid is null and l.objsubid not in (0, 1)
               and l.database = (select d.oid from pg_database d where d.datname = current_database())) k
        on k.virtualtransaction = x.virtualtransaction
      join wed_sql.rule r on r.tgid = k.tgid and r.valid_until = 9223372036854775807
     where p.database = current_database()
       and clock_timestamp() > p.prepared + least(r.timeout, wed_sql.longest_timeout())
     order by p.prepared, k.wid, k.tgid;
end
$$;

revoke all on function wed_sql.timeout_warnings() from public;

comment on function wed_sql.timeout_warnings() is 'What keeps timeouts from being enforced.';
