-- Changes of a flow's definition: rows of wed_attr become columns of wed_flow, rows of wed_trig
-- become versions of rules. The triggers know their flow by the table that they are on.

create function wed_sql.check_name(kind text, name text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
begin
    if name is null or name = '' then
        raise exception 'a % needs a name', kind using errcode = 'WED12';
    end if;
    if octet_length(name) > 63 then
        raise exception 'name of % is too long: "%"', kind, name
            using errcode = 'WED12',
                  detail = format('It has %s bytes, and 63 is the most.', octet_length(name));
    end if;
    -- the engine and its workers speak UTF-8
    perform convert_to(name, 'UTF8');
    if left(name, 1) = '_' then
        raise exception 'name of % is reserved: "%"', kind, name
            using errcode = 'WED12',
                  hint = 'Names that begin with an underscore belong to wed_sql.';
    end if;
end
$$;

revoke all on function wed_sql.check_name(text, text) from public;

comment on function wed_sql.check_name(text, text) is
'Refuses (WED12) a name that is empty, longer than an identifier can be, or reserved; and one that UTF-8 has no characters for.';

-- A new definition: each session reads it before it judges another state.
create function wed_sql.next_rules_version(flow_id integer) returns bigint
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    update wed_sql.flow set rules_version = flow.rules_version + 1
     where flow.flow_id = next_rules_version.flow_id
    returning * into strict f;
    perform wed_sql.definition_changed(f.wed_flow);
    return f.rules_version;
end
$$;

revoke all on function wed_sql.next_rules_version(integer) from public;

comment on function wed_sql.next_rules_version(integer) is
'Starts a new version of the definition of a flow, and returns its number.';

create function wed_sql.check_rule_settings(
        timeout interval, delay interval, max_attempts integer, backoff interval, max_backoff interval) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
as $$
declare
    wrong text;
begin
    wrong := case when timeout <= interval '0' then 'timeout of a WED-trigger must be positive'
                  when delay <= interval '0' then 'delay of a WED-trigger must be positive'
                  when greatest(delay, backoff, max_backoff) > interval '100 years' then 'delay, backoff and max_backoff of a WED-trigger are at most 100 years'
                  when max_attempts <= 0 then 'max_attempts of a WED-trigger must be positive'
                  when backoff < interval '0' then 'backoff of a WED-trigger must not be negative'
                  when max_backoff <= interval '0' then 'max_backoff of a WED-trigger must be positive' end;
    if wrong is not null then
        raise exception '%', wrong using errcode = 'invalid_parameter_value';
    end if;
end
$$;

revoke all on function wed_sql.check_rule_settings(interval, interval, integer, interval, interval) from public;

comment on function wed_sql.check_rule_settings(interval, interval, integer, interval, interval) is
'Refuses times and numbers of a WED-trigger that make no sense.';

create function wed_sql.check_trig() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    if tg_op = 'INSERT' then
        if new.tgid is not null then
            raise exception 'tgid is assigned by wed_sql'
                using errcode = 'WED12', hint = 'Leave it out.';
        end if;
        new.tgid := nextval('wed_sql.tgid_seq');
    elsif new.tgid is distinct from old.tgid then
        raise exception 'tgid of WED-trigger % cannot be changed', old.tgid
            using errcode = 'WED12';
    end if;

    if new.cfinal and new.trname is not null then
        raise exception 'the final condition has no WED-transition'
            using errcode = 'WED13', detail = format('trname is "%s".', new.trname),
                  hint = 'Leave trname out, or cfinal.';
    end if;
    if not new.cfinal then
        if new.trname is null then
            raise exception 'WED-trigger without a WED-transition'
                using errcode = 'WED13', hint = 'Set trname, or cfinal for the final condition.';
        end if;
        perform wed_sql.check_name('WED-transition', new.trname);
    end if;
    perform wed_sql.check_rule_settings(new.timeout, new.delay, new.max_attempts, new.backoff, new.max_backoff);
    if new.cfinal and (new.delay is not null or new.action is not null or new.undo is not null) then
        raise exception 'the final condition has no delay, no action and nothing to undo'
            using errcode = 'WED13', hint = 'Leave delay, action and undo out, or cfinal.';
    end if;

    select * into strict f from wed_sql.flow where wed_trig = tg_relid;
    perform wed_sql.condition_attributes(f.wed_flow, new.cpred);
    if new.action is not null then
        perform wed_sql.check_set_clause(f.wed_flow, new.action);
    end if;
    return new;
end
$$;

comment on function wed_sql.check_trig() is
'Trigger of wed_trig: assigns tgid, and refuses what is not a valid WED-trigger.';

create function wed_sql.check_undo(f wed_sql.flow) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    missing text;
begin
    execute format(
        'select t.undo from %1$s t where t.undo is not null
            and not exists (select from %1$s u where u.trname = t.undo) limit 1', f.wed_trig) into missing;
    if missing is not null then
        raise exception 'there is no WED-transition "%" to undo another', missing
            using errcode = 'WED13',
                  hint = 'Define a WED-trigger of this name first, or in the same statement; its cpred may be false, so that it fires for nothing else.';
    end if;
end
$$;

revoke all on function wed_sql.check_undo(wed_sql.flow) from public;

comment on function wed_sql.check_undo(wed_sql.flow) is 'Refuses (WED13) to undo by a WED-transition that does not exist.';

create function wed_sql.trig_changed() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    version bigint;
    finals bigint;
begin
    select * into strict f from wed_sql.flow where wed_trig = tg_relid;
    version := wed_sql.next_rules_version(f.flow_id);

    perform wed_sql.check_undo(f);
    execute format('select count(*) from %s where cfinal', f.wed_trig) into finals;
    if finals > 1 then
        raise exception 'a WED-flow can have only one final condition'
            using errcode = 'WED13', hint = 'Combine several with OR, in one cpred.';
    end if;

    execute format(
        'update wed_sql.rule r set valid_until = $1
          where r.flow_id = $2 and r.valid_until = 9223372036854775807
            and not exists (select from %s t
                             where t.tgid = r.tgid
                               and (t.tgname, t.trname, t.cname, t.cpred, t.cfinal, t.enabled, t.timeout, t.delay, t.action,
                                    t.withdrawable, t.priority, t.max_attempts, t.backoff, t.max_backoff, t.undo)
                                   is not distinct from
                                   (r.tgname, r.trname, r.cname, r.cpred, r.cfinal, r.enabled, r.timeout, r.delay, r.action,
                                    r.withdrawable, r.priority, r.max_attempts, r.backoff, r.max_backoff, r.undo))',
        f.wed_trig) using version, f.flow_id;
    execute format(
        'insert into wed_sql.rule (flow_id, tgid, valid_from, tgname, trname, cname, cpred, cfinal, enabled, timeout,
                                   delay, action, withdrawable, priority, max_attempts, backoff, max_backoff, undo)
         select $2, t.tgid, $1, t.tgname, t.trname, t.cname, t.cpred, t.cfinal, t.enabled, t.timeout,
                t.delay, t.action, t.withdrawable, t.priority, t.max_attempts, t.backoff, t.max_backoff, t.undo
           from %s t
          where not exists (select from wed_sql.rule r
                             where r.tgid = t.tgid and r.valid_until = 9223372036854775807)',
        f.wed_trig) using version, f.flow_id;
    -- what pends of rules that have an action now is the engine's to perform
    execute format(
        'insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
         select $2, j.wid, j.tgid, ''a'', j.version, coalesce(j.available_at, clock_timestamp())
           from %s j
           join wed_sql.rule r on r.tgid = j.tgid and r.valid_from = $1 and r.action is not null
          where not exists (select from wed_sql.rule o where o.tgid = r.tgid and o.valid_until = $1 and o.action is not null)
             on conflict do nothing',
        f.job_pool) using version, f.flow_id;
    return null;
end
$$;

comment on function wed_sql.trig_changed() is
'Trigger of wed_trig: makes its rows the rules in force from now on.';

create function wed_sql.check_attr() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
begin
    if new.aname = 'wid' then
        raise exception 'name of WED-attribute is reserved: "wid"' using errcode = 'WED12';
    end if;
    perform wed_sql.check_name('WED-attribute', new.aname);
    new.atype := wed_sql.type_name(coalesce(new.atype, 'text'));
    perform convert_to(new.atype, 'UTF8');
    return new;
end
$$;

comment on function wed_sql.check_attr() is
'Trigger of wed_attr: refuses what is not a valid WED-attribute.';

-- Waits for those who write instances before it looks: what it finds stays true.
create function wed_sql.refuse_if_used(f wed_sql.flow, aname text, what text) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    users text;
begin
    perform wed_sql.execute_as_owner(f.wed_flow, format('lock table %s', f.wed_flow));
    execute format(
        'select string_agg(format(''%%s (tgid %%s)'', coalesce(trname, ''the final condition''), tgid), '', '' order by tgid)
           from %s where $2 = any (wed_sql.condition_attributes($1, cpred))', f.wed_trig)
       into users using f.wed_flow, aname;
    if aname = any (wed_sql.condition_attributes(f.wed_flow, f.consistent)) then
        users := concat_ws(', ', users, 'the consistency condition');
    end if;
    if users is not null then
        raise exception 'WED-attribute "%" cannot be %: WED-conditions use it', aname, what
            using errcode = 'WED11', detail = format('Used by: %s.', users),
                  hint = 'Change or delete these WED-triggers first.';
    end if;
end
$$;

revoke all on function wed_sql.refuse_if_used(wed_sql.flow, text, text) from public;

comment on function wed_sql.refuse_if_used(wed_sql.flow, text, text) is
'Refuses (WED11) to drop or rename an attribute that the condition of a WED-trigger uses.';

-- DDL runs as the flow's owner: types and domains may bring code of their own.
create function wed_sql.attr_changed() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
    alter_table text;
begin
    select * into strict f from wed_sql.flow where wed_attr = tg_relid;
    alter_table := format('alter table %s ', f.wed_flow);

    if tg_op = 'INSERT' then
        perform wed_sql.execute_as_owner(f.wed_flow, alter_table
            || format('add column %I %s', new.aname, new.atype)
            || case when new.adv is null then '' else format(' default %L', new.adv) end);
        return null;
    end if;

    if tg_op = 'DELETE' then
        perform wed_sql.refuse_if_used(f, old.aname, 'dropped');
        perform wed_sql.execute_as_owner(f.wed_flow, alter_table || format('drop column %I', old.aname));
        return null;
    end if;

    if new.aname <> old.aname then
        perform wed_sql.refuse_if_used(f, old.aname, 'renamed');
        perform wed_sql.execute_as_owner(f.wed_flow, alter_table
            || format('rename column %I to %I', old.aname, new.aname));
    end if;
    if new.atype <> old.atype then
        perform wed_sql.execute_as_owner(f.wed_flow, alter_table
            || format('alter column %1$I drop default, alter column %1$I type %2$s using %1$I::%2$s',
                      new.aname, new.atype));
        execute format('select wed_sql.condition_attributes($1, cpred) from %s', f.wed_trig)
          using f.wed_flow;
        perform wed_sql.condition_attributes(f.wed_flow, f.consistent);
    end if;
    if new.adv is distinct from old.adv or new.atype <> old.atype then
        perform wed_sql.execute_as_owner(f.wed_flow, alter_table
            || format('alter column %I ', new.aname)
            || case when new.adv is null then 'drop default' else format('set default %L', new.adv) end);
    end if;
    return null;
end
$$;

comment on function wed_sql.attr_changed() is
'Trigger of wed_attr: adds, alters or drops the column of wed_flow.';

create function wed_sql.attrs_changed() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow;
begin
    select * into strict f from wed_sql.flow where wed_attr = tg_relid;
    perform wed_sql.next_rules_version(f.flow_id);
    perform wed_sql.refuse_flaws(f, tg_op);
    return null;
end
$$;

comment on function wed_sql.attrs_changed() is
'Trigger of wed_attr: the definition of the flow has changed.';

-- Who may call them may put them on a table.
revoke all on function wed_sql.check_trig() from public;
revoke all on function wed_sql.trig_changed() from public;
revoke all on function wed_sql.check_attr() from public;
revoke all on function wed_sql.attr_changed() from public;
revoke all on function wed_sql.attrs_changed() from public;
revoke all on function wed_sql.guard() from public;
