-- Interventions as operators call them (intervention.sql does them). Anybody may: the rights of the flow's owner are looked for each
-- time.

create function wed_sql.suspend(flow text, wid bigint, until timestamp with time zone default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.suspend(text, bigint, timestamp with time zone, text, boolean) is
'Has an instance rest, until a time or wed_sql.resume(): nothing pends meanwhile, and nobody can change it. Once more, with another time, changes the time. For the owner of the flow.';

create function wed_sql.suspend(flow text, instances text, until timestamp with time zone default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.suspend(text, text, timestamp with time zone, text, boolean) is
'Has the instances that satisfy a condition rest, until a time or wed_sql.resume(): nothing pends meanwhile, and nobody can change them. Once more, with another time, changes the time. For the owner of the flow.';

create function wed_sql.resume(flow text, wid bigint, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.resume(text, bigint, text, boolean) is
'Has an instance that was suspended go on: what pended is due again, and the state is judged anew. For the owner of the flow.';

create function wed_sql.resume(flow text, instances text, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.resume(text, text, text, boolean) is
'Has the instances that satisfy a condition and are suspended go on: what pended is due again, and the state is judged anew. For the owner of the flow.';

create function wed_sql.cancel(flow text, wid bigint, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.cancel(text, bigint, text, boolean) is
'Ends an instance where it is, whatever pends; its status is C. For the owner of the flow.';

create function wed_sql.cancel(flow text, instances text, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.cancel(text, text, text, boolean) is
'Ends the instances that satisfy a condition where they are, whatever pends; their status is C. For the owner of the flow.';

create function wed_sql.retry(flow text, wid bigint, transition text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.retry(text, bigint, text, text, boolean) is
'Has jobs of an instance that have failed be tried again at once; of an exception, has those be due again whose attempts are used up, and judges the state anew. For the owner of the flow.';

create function wed_sql.retry(flow text, instances text, transition text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.retry(text, text, text, text, boolean) is
'Has jobs of the instances that satisfy a condition and have failed be tried again at once; of an exception, has those be due again whose attempts are used up, and judges their states anew. For the owner of the flow.';

create function wed_sql.skip(flow text, wid bigint, transition text, set_clause text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.skip(text, bigint, text, text, text, boolean) is
'Withdraws the pending jobs of a WED-transition of an instance as if it had been performed, with a new state or without. For the owner of the flow.';

create function wed_sql.skip(flow text, instances text, transition text, set_clause text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.skip(text, text, text, text, text, boolean) is
'Withdraws the pending jobs of a WED-transition of the instances that satisfy a condition as if it had been performed, with a new state or without. For the owner of the flow.';

create function wed_sql.repair(flow text, wid bigint, set_clause text, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.repair(text, bigint, text, text, boolean) is
'Leads an instance out of an exception by a new state. For the owner of the flow.';

create function wed_sql.repair(flow text, instances text, set_clause text, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.repair(text, text, text, text, boolean) is
'Leads the instances that satisfy a condition out of an exception by a new state. For the owner of the flow.';

create function wed_sql.rewind(flow text, wid bigint, version bigint, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.rewind(text, bigint, bigint, text, boolean) is
'Sets the WED-attributes of an instance to what they were in a recorded state, from which it goes on. For the owner of the flow.';

create function wed_sql.rewind(flow text, instances text, version bigint, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.rewind(text, text, bigint, text, boolean) is
'Sets the WED-attributes of the instances that satisfy a condition to what they were in a recorded state, from which they go on. For the owner of the flow.';

create function wed_sql.compensate(flow text, wid bigint, consistent text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.compensate(text, bigint, text, text, boolean) is
'Has the declared undo WED-transitions of an instance become due one after the other, the latest first, back to its newest state that is consistent. For the owner of the flow.';

create function wed_sql.compensate(flow text, instances text, consistent text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.compensate(text, text, text, text, boolean) is
'Has the declared undo WED-transitions of the instances that satisfy a condition become due one after the other, the latest first, each back to its newest state that is consistent. For the owner of the flow.';

create function wed_sql.rematch(flow text, wid bigint, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.rematch(text, bigint, text, boolean) is
'Judges the state of an instance anew, by the rules in force; returns those for which that changes anything. For the owner of the flow.';

create function wed_sql.rematch(flow text, instances text default $$wed_instance.status in ('R', 'E')$$, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.rematch(text, text, text, boolean) is
'Judges the states of the instances that satisfy a condition anew, by the rules in force; returns those for which that changes anything. For the owner of the flow.';

create function wed_sql.reopen(flow text, wid bigint, set_clause text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.reopen(text, bigint, text, text, boolean) is
'Has an instance that has ended go on, after WED-attributes or WED-triggers were added or changed. For the owner of the flow.';

create function wed_sql.reopen(flow text, instances text, set_clause text default null, reason text default null, dry_run boolean default false)
    returns setof wed_sql.intervention
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_intervene';

comment on function wed_sql.reopen(text, text, text, text, boolean) is
'Has the instances that satisfy a condition and have ended go on, after WED-attributes or WED-triggers were added or changed. For the owner of the flow.';
