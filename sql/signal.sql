-- Events from outside. One that nobody waits for may be kept: it is offered to the jobs that are there (timer g, with
-- minus its number in the place of the instance), and then each job of its flow that fires asks for it (timer g of the
-- job, set by the follower).

create function wed_sql.signal(
        flow text, wid bigint, transition text, set_clause text,
        keep boolean default false, expires_at timestamp with time zone default null)
    returns bigint
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_signal';

comment on function wed_sql.signal(text, bigint, text, text, boolean, timestamp with time zone) is
'Something has happened that an instance waits for: completes a pending WED-transition of it in this transaction, with the caller''s rights. set_clause is what SQL accepts after SET. If it does not wait for it: WED19, or the signal is kept until it does, or expires_at has come. Returns the instance; null if the signal was kept.';

create function wed_sql.signal(
        flow text, condition text, transition text, set_clause text,
        keep boolean default false, expires_at timestamp with time zone default null)
    returns setof bigint
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_signal_matching';

comment on function wed_sql.signal(text, text, text, text, boolean, timestamp with time zone) is
'The same for all instances that satisfy a condition over wed_flow; a signal that is kept is for the first that does. Returns the instances; none if the signal was kept.';

create function wed_sql.deliver(
        wed_flow regclass, wid bigint, tgid integer, condition text, set_clause text, role oid,
        out outcome text, out sqlstate text, out error text)
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_deliver';

revoke all on function wed_sql.deliver(regclass, bigint, integer, text, text, oid) from public;

comment on function wed_sql.deliver(regclass, bigint, integer, text, text, oid) is
'Completes a pending WED-transition as a role, if its instance satisfies a condition. The outcome is done, busy (another session has the job), unmatched or failed.';

create function wed_sql.matching(wed_flow regclass, wids bigint[], condition text, role oid) returns bigint[]
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_matching';

revoke all on function wed_sql.matching(regclass, bigint[], text, oid) from public;

comment on function wed_sql.matching(regclass, bigint[], text, oid) is
'Those of the instances that satisfy a condition, as a role sees them; null if it fails.';

create function wed_sql.mark() returns bigint
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_mark';

revoke all on function wed_sql.mark() from public;

comment on function wed_sql.mark() is 'A place in the WAL behind all that is committed, for wed_sql.is_matched().';

create function wed_sql.is_matched(mark bigint) returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_is_matched';

revoke all on function wed_sql.is_matched(bigint) from public;

comment on function wed_sql.is_matched(bigint) is 'Whether all that was committed before the mark has been matched.';

-- Called as the extension's owner, under any search_path: no operators there.
create function wed_sql.keep_signal(
        flow_id integer, trname text, wid bigint, condition text, set_clause text, role oid, expires_at timestamp with time zone)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    kept bigint;
begin
    insert into wed_sql.signal (flow_id, trname, wid, condition, set_clause, role, expires_at)
    values (flow_id, trname, wid, condition, set_clause, role, expires_at)
    returning signal_id into kept;
    select * into strict f from wed_sql.flow w where w.flow_id = keep_signal.flow_id;
    perform wed_sql.set_timer(f, -kept, 0, 'g', 0, clock_timestamp());
    if wid is not null then
        perform wed_sql.record_event(f, wid, null, null, trname, 'signal kept', pg_get_userbyid(role), pg_backend_pid());
    end if;
end
$$;

revoke all on function wed_sql.keep_signal(integer, text, bigint, text, text, oid, timestamp with time zone) from public;

comment on function wed_sql.keep_signal(integer, text, bigint, text, text, oid, timestamp with time zone) is
'Keeps a signal until an instance waits for it.';

-- Whether the signal is done with, the job is; or when to try again.
create function wed_sql.deliver_signal(
        f wed_sql.flow, s wed_sql.signal, wid bigint, tgid integer, version bigint,
        out delivered boolean, out again timestamp with time zone)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    done record;
    leased timestamp with time zone;
begin
    delivered := false;
    perform from wed_sql.signal x where x.signal_id = s.signal_id for update skip locked;
    if not found then
        return;
    end if;
    execute format('select case when lckid is not null then leased_until end from %s
                     where wid = $1 and tgid = $2 order by version desc limit 1', f.job_pool)
       into leased using wid, tgid;
    if leased > clock_timestamp() then
        again := leased;
        return;
    end if;
    done := wed_sql.deliver(f.wed_flow, wid, tgid, s.condition, s.set_clause, s.role);
    if done.outcome = 'done' then
        delivered := true;
        delete from wed_sql.signal x where x.signal_id = s.signal_id;
        perform wed_sql.record_event(f, wid, version, tgid, s.trname, 'signal delivered', pg_get_userbyid(s.role));
    elsif done.outcome = 'busy' then
        again := clock_timestamp() + interval '1 second';
    elsif done.sqlstate in ('WED03', 'WED08', 'WED17') then
        return; -- it is not pending any more
    elsif done.sqlstate = 'WED07' then
        again := clock_timestamp() + interval '5 seconds'; -- others have to be done first
    elsif done.outcome = 'failed' and s.last_error is distinct from done.error then
        update wed_sql.signal x set last_error = done.error where x.signal_id = s.signal_id;
        perform wed_sql.record_event(f, wid, version, tgid, s.trname, 'signal failed', pg_get_userbyid(s.role), null, null, done.error);
    end if;
end
$$;

revoke all on function wed_sql.deliver_signal(wed_sql.flow, wed_sql.signal, bigint, integer, bigint) from public;

comment on function wed_sql.deliver_signal(wed_sql.flow, wed_sql.signal, bigint, integer, bigint) is
'Delivers a kept signal to a job; says when to try again, if that would make a difference.';

create function wed_sql.deliver_oldest(
        f wed_sql.flow, wid bigint, tgid integer, version bigint, transition text,
        out delivered bigint, out again timestamp with time zone)
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    s wed_sql.signal;
    done record;
    begun constant timestamp with time zone := clock_timestamp();
begin
    for s in
        select k.* from (
            select x.* from wed_sql.signal x
             where x.flow_id = f.flow_id and x.trname = transition and x.wid = deliver_oldest.wid
             union all
            select x.* from wed_sql.signal x
             where x.flow_id = f.flow_id and x.trname = transition and x.wid is null) k
         where k.expires_at is null or k.expires_at > clock_timestamp()
         order by k.signal_id
    loop
        done := wed_sql.deliver_signal(f, s, wid, tgid, version);
        if done.delivered then
            delivered := s.signal_id;
            again := null;
            return;
        end if;
        again := least(again, done.again);
        if clock_timestamp() > begun + interval '1 second' then -- others have to do with the engine, too
            again := clock_timestamp() + interval '1 second';
            return;
        end if;
    end loop;
end
$$;

revoke all on function wed_sql.deliver_oldest(wed_sql.flow, bigint, integer, bigint, text) from public;

comment on function wed_sql.deliver_oldest(wed_sql.flow, bigint, integer, bigint, text) is
'Delivers the oldest kept signal that fits to a job: its number, or when to try again.';

-- A job was fired before a signal for it was kept, and the follower came to it without knowing of the signal: so the
-- signal is offered once more when the follower has passed it. version is 0 the first time, then the mark to wait for,
-- and -1 when the signal only expires.
create function wed_sql.offer_signal(f wed_sql.flow, number bigint, version bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    s wed_sql.signal;
    wids bigint[];
    j record;
    done record;
    soonest timestamp with time zone;
    begun constant timestamp with time zone := clock_timestamp();
begin
    select * into s from wed_sql.signal where signal_id = number for update;
    if not found then
        return;
    end if;
    if s.expires_at <= clock_timestamp() then
        delete from wed_sql.signal x where x.signal_id = s.signal_id;
        if s.wid is not null then
            perform wed_sql.record_event(f, s.wid, null, null, s.trname, 'signal expired', pg_get_userbyid(s.role));
        end if;
        return;
    end if;
    if version > 0 and not wed_sql.is_matched(version) then
        perform wed_sql.set_timer(f, -number, 0, 'g', version, clock_timestamp() + interval '50 milliseconds');
        return;
    end if;

    if version >= 0 then
        if s.wid is not null then
            wids := array[s.wid];
        else
            execute format('select array_agg(distinct wid) from %s where trname = $1', f.job_pool) into wids using s.trname;
            wids := wed_sql.matching(f.wed_flow, wids, s.condition, s.role);
        end if;
        for j in execute format('select wid, tgid, version from %1$s j
                                  where trname = $1 and wid = any ($2)
                                    and not exists (select from %1$s n where n.wid = j.wid and n.tgid = j.tgid and n.version > j.version)
                                  order by fired_at, wid, tgid', f.job_pool)
                   using s.trname, wids
        loop
            -- an older one may be waiting for the same job
            done := wed_sql.deliver_oldest(f, j.wid, j.tgid, j.version, s.trname);
            if done.delivered = number then
                return;
            end if;
            soonest := least(soonest, done.again);
            if clock_timestamp() > begun + interval '1 second' then
                soonest := clock_timestamp() + interval '1 second';
                exit;
            end if;
        end loop;
    end if;
    if soonest is not null then
        perform wed_sql.set_timer(f, -number, 0, 'g', version, least(soonest, s.expires_at));
    elsif version = 0 then
        perform wed_sql.set_timer(f, -number, 0, 'g', wed_sql.mark(), clock_timestamp() + interval '20 milliseconds');
    elsif s.expires_at is not null then
        perform wed_sql.set_timer(f, -number, 0, 'g', -1, s.expires_at);
    end if;
end
$$;

revoke all on function wed_sql.offer_signal(wed_sql.flow, bigint, bigint) from public;

comment on function wed_sql.offer_signal(wed_sql.flow, bigint, bigint) is
'Offers a kept signal to the jobs that are there, or forgets it if its time has passed.';

create function wed_sql.sweep_signal(f wed_sql.flow, wid bigint, tgid integer, version bigint) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    transition text;
    done record;
begin
    if wid < 0 then
        perform wed_sql.offer_signal(f, -wid, version);
        return;
    end if;
    execute format('select trname from %s where wid = $1 and tgid = $2 and version = $3', f.job_pool)
       into transition using wid, tgid, version;
    if transition is null then
        return;
    end if;
    done := wed_sql.deliver_oldest(f, wid, tgid, version, transition);
    if done.again is not null then
        perform wed_sql.set_timer(f, wid, tgid, 'g', version, done.again);
    end if;
end
$$;

revoke all on function wed_sql.sweep_signal(wed_sql.flow, bigint, integer, bigint) from public;

comment on function wed_sql.sweep_signal(wed_sql.flow, bigint, integer, bigint) is
'Delivers the oldest kept signal that a new job waits for; for a negative number of an instance, offers a signal.';
