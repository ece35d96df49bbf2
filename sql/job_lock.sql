-- Who holds the locks of pending jobs. An advisory lock can be taken by anybody: a stranger who has one keeps the
-- workers from that job, so he must be seen.

create function wed_sql.is_entitled(role oid, wed_flow regclass, trname text) returns boolean
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from pg_roles m
                    where pg_has_role(role, m.oid, 'member') and wed_sql.may_perform(m.oid, wed_flow, trname));
end
$$;

revoke all on function wed_sql.is_entitled(oid, regclass, text) from public;

comment on function wed_sql.is_entitled(oid, regclass, text) is
'Whether a role, or one that it is a member of, may perform a WED-transition: as a session of it may, after SET ROLE.';

-- A lock that is granted; whether its job is pending is not looked at.
create function wed_sql.possible_job_locks(out flow_id integer, out wid bigint, out tgid integer, out pid integer)
    returns setof record
    language sql stable
    set search_path = pg_catalog, pg_temp
as $$
    with locks as materialized (
        select l.pid, l.objid::bigint as tgid,
               -- beyond 32 bits, where PostgreSQL has 2 for the locks of two integers: ext/joblock.c
               (((l.objsubid + 65536) % 65536 - 2)::bigint << 32) | l.classid::bigint as wid
          from pg_locks l
         where l.locktype = 'advisory' and l.granted
           and l.database = (select d.oid from pg_database d where d.datname = current_database())
           and l.objsubid not in (0, 1))
    select f.flow_id, k.wid, k.tgid::integer, k.pid
      from locks k
      join lateral (select r.flow_id from wed_sql.rule r where r.tgid = k.tgid
                    union
                    select e.flow_id from wed_sql.flow e where e.excpt_tgid = k.tgid) f on true
$$;

revoke all on function wed_sql.possible_job_locks() from public;

comment on function wed_sql.possible_job_locks() is 'Advisory locks of this database that are those of jobs, if there are such jobs.';

create function wed_sql.job_locks(
        out flow name, out wid bigint, out tgid integer, out trname text, out pid integer, out role name,
        out application_name text, out xact_start timestamp with time zone, out backend_start timestamp with time zone,
        out entitled boolean)
    returns setof record
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f record;
begin
    for f in
        select w.wed_flow, w.job_pool, n.nspname,
               array_agg(k.pid) as pids, array_agg(k.wid) as wids, array_agg(k.tgid) as tgids
          from wed_sql.possible_job_locks() k
          join wed_sql.flow w on w.flow_id = k.flow_id
          join pg_class c on c.oid = w.wed_flow
          join pg_namespace n on n.oid = c.relnamespace
         group by w.wed_flow, w.job_pool, n.nspname
    loop
        return query execute format($sql$
            select $1::name, j.wid, j.tgid, j.trname, k.pid, a.usename, a.application_name, a.xact_start, a.backend_start,
                   wed_sql.is_entitled(a.usesysid, $2, j.trname)
              from unnest($3, $4, $5) k(pid, wid, tgid)
              join %1$s j on j.wid = k.wid and j.tgid = k.tgid
              join pg_stat_activity a on a.pid = k.pid
             where not exists (select from %1$s n where n.wid = j.wid and n.tgid = j.tgid and n.version > j.version)
        $sql$, f.job_pool) using f.nspname, f.wed_flow::regclass, f.pids, f.wids, f.tgids;
    end loop;
end
$$;

revoke all on function wed_sql.job_locks() from public;
grant execute on function wed_sql.job_locks() to pg_monitor;

comment on function wed_sql.job_locks() is 'Sessions that hold the lock of a pending job; see wed_sql.job_lock.';

create view wed_sql.job_lock as
select flow, wid, tgid, trname, pid, role, application_name, xact_start, backend_start, entitled
  from wed_sql.job_locks();

grant select on wed_sql.job_lock to pg_monitor;

comment on view wed_sql.job_lock is 'who holds the locks of the pending jobs of this database: workers, and strangers';
comment on column wed_sql.job_lock.role is 'role that the session was authenticated for';
comment on column wed_sql.job_lock.entitled is 'whether that role, or one that it is a member of, may perform the transition; if not, it keeps the workers from the job, and pg_terminate_backend(pid) ends that';

create function wed_sql.lock_warnings(patience interval default interval '5 seconds') returns setof text
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select format('session %s of role "%s" holds the lock of job "%s" of instance %s of WED-flow "%s", which it has no right to perform: no worker gets it before that session lets go (pg_terminate_backend(%s))',
                  pid, role, trname, wid, flow, pid)
      from wed_sql.job_locks()
     where not entitled and coalesce(xact_start, backend_start) <= clock_timestamp() - patience
     order by flow, wid, tgid
$$;

revoke all on function wed_sql.lock_warnings(interval) from public;
grant execute on function wed_sql.lock_warnings(interval) to pg_monitor;

comment on function wed_sql.lock_warnings(interval) is
'A line for each session that holds the lock of a pending job without the right to perform it, in a transaction older than patience.';
