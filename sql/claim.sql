-- The protocol of a worker for many jobs at once, in two statements: the locks, and the states. What these functions do,
-- try_lock() and UPDATE do as well; but a session plans it once, and each job is read under its lock.

create function wed_sql.claim_jobs(
        flow text, transition text, wids bigint[], tgids integer[], max_jobs integer,
        out wid bigint, out tgid integer, out version bigint, out fired_at timestamp with time zone, out payload jsonb,
        out attempts integer, out timeout interval)
    returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_claim_jobs';

comment on function wed_sql.claim_jobs(text, text, bigint[], integer[], integer) is
'Takes the locks of those of the jobs (wids[i], tgids[i]) that are pending and that nobody else has, in this order, up to max_jobs, for this transaction: what wed_sql.try_lock() does for one. Of one WED-transition; returns them as they are under their locks.';

create function wed_sql.complete_jobs(flow text, wids bigint[], states jsonb[]) returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_complete_jobs';

comment on function wed_sql.complete_jobs(text, bigint[], jsonb[]) is
'Writes the next states of instances, each of which completes the job of it that this transaction has locked: sets the WED-attributes that are keys of states[i] to their values in instance wids[i], with the caller''s rights, as UPDATE does. Rows are locked in one order for all, so that those who complete jobs of the same instances do not wait for each other in a circle.';
