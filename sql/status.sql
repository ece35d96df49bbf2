-- What the engine does.

create function wed_sql.engine_status(
        out datid oid, out datname name, out state text, out since timestamp with time zone,
        out applied_lsn pg_lsn, out flushed_lsn pg_lsn, out last_commit timestamp with time zone, out states bigint,
        out last_error text, out last_error_at timestamp with time zone, out warning text,
        out engine_pid integer, out engine_started timestamp with time zone)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_engine_status';

comment on function wed_sql.engine_status() is 'What the engine has reported about each database; see wed_sql.status.';

-- What the slot keeps is asked of the server: it is so whatever becomes of the engine.
create view wed_sql.status as
select e.datname, e.state, e.since, s.slot_name, e.applied_lsn, e.flushed_lsn,
       case when e.applied_lsn is not null
            then greatest(pg_wal_lsn_diff(l.lsn, e.applied_lsn), 0)::bigint end as lag_bytes,
       case when e.applied_lsn is null then null
            when e.applied_lsn >= l.lsn then 0
            else greatest(extract(epoch from clock_timestamp() - coalesce(e.last_commit, e.since)), 0)
       end::double precision as lag_seconds,
       case when s.restart_lsn is not null
            then greatest(pg_wal_lsn_diff(l.lsn, s.restart_lsn), 0)::bigint end as retained_bytes,
       e.states, e.last_error, e.last_error_at, e.warning, e.engine_pid, e.engine_started
  from wed_sql.engine_status() e
  left join pg_replication_slots s on s.slot_name = 'wed_sql_' || e.datid::text and s.datoid = e.datid
 cross join (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                         else pg_current_wal_flush_lsn() end) l(lsn);

revoke all on function wed_sql.engine_status() from public;
grant execute on function wed_sql.engine_status() to pg_monitor;
grant select on wed_sql.status to pg_monitor;

comment on view wed_sql.status is 'the engine, per database that it serves or that has a slot of its';
comment on column wed_sql.status.state is 'starting, healing, streaming, backing off or left alone (see last_error), off (wed_sql.enabled), not running, standby';
comment on column wed_sql.status.since is 'when it came into this state';
comment on column wed_sql.status.applied_lsn is 'everything committed up to here has been matched';
comment on column wed_sql.status.flushed_lsn is 'WAL up to here is not needed any more';
comment on column wed_sql.status.lag_bytes is 'WAL between applied_lsn and the end of the flushed WAL, in bytes';
comment on column wed_sql.status.lag_seconds is 'age of the last state that was matched while there is more to read, else 0; in seconds';
comment on column wed_sql.status.slot_name is 'its replication slot, if it has one';
comment on column wed_sql.status.retained_bytes is 'WAL that the slot keeps back, in bytes';
comment on column wed_sql.status.warning is 'what is wrong now without stopping the follower';
comment on column wed_sql.status.states is 'WED-states matched since the engine started';

-- The rest of CREATE EXTENSION: say what is missing, and wake the engine.
do $$
declare
    senders integer := current_setting('max_wal_senders');
    slots integer := current_setting('max_replication_slots');
begin
    if not wed_sql.is_preloaded() then
        raise exception 'wed_sql must be loaded via shared_preload_libraries'
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'Add wed_sql to shared_preload_libraries in postgresql.conf, restart the server, and try again.';
    end if;
    if current_setting('wal_level') <> 'logical' then
        raise warning 'wal_level is "%": no WED-transition will fire', current_setting('wal_level')
            using hint = 'Set wal_level = logical in postgresql.conf, and restart the server.';
    elsif (select count(*) >= slots from pg_replication_slots) then
        raise warning 'all % replication slots are in use: no WED-transition will fire', slots
            using hint = 'Increase max_replication_slots in postgresql.conf, and restart the server.';
    elsif (select count(*) >= senders from pg_stat_activity where backend_type = 'walsender') then
        raise warning 'all % walsenders are in use: no WED-transition will fire', senders
            using hint = 'Increase max_wal_senders in postgresql.conf, and restart the server.';
    end if;
end
$$;
select wed_sql.check_version();
select wed_sql.discover();
