-- What rules are about: which WED-attributes their conditions read, and their actions set.

create function wed_sql.set_clause_attributes(wed_flow regclass, set_clause text) returns text[]
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_set_clause_attributes';

revoke all on function wed_sql.set_clause_attributes(regclass, text) from public;

comment on function wed_sql.set_clause_attributes(regclass, text) is
'Attributes that a SET clause sets, by its syntax.';

-- A condition that is not valid any more (a function that it calls was dropped) says nothing, and stops nobody from
-- learning about the others.
create function wed_sql.attributes_read(wed_flow regclass, cpred text) returns text[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    return wed_sql.condition_attributes(wed_flow, cpred);
exception when others then
    return null;
end
$$;

revoke all on function wed_sql.attributes_read(regclass, text) from public;

comment on function wed_sql.attributes_read(regclass, text) is
'Attributes that a WED-condition uses; null if it is not valid.';

create function wed_sql.rule_attributes_for(flow text, caller name)
    returns table (tgid integer, trname text, reads text[], sets text[])
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_named(flow);
begin
    if not (has_schema_privilege(caller, flow, 'usage') and has_table_privilege(caller, f.wed_trig, 'select')) then
        raise exception 'permission denied to read the WED-triggers of WED-flow "%"', flow
            using errcode = 'insufficient_privilege', hint = format('It takes USAGE on its schema, and SELECT on %s.', f.wed_trig);
    end if;
    return query execute format(
        'select t.tgid, t.trname, wed_sql.attributes_read($1, t.cpred), wed_sql.set_clause_attributes($1, t.action)
           from %s t order by t.tgid', f.wed_trig) using f.wed_flow;
end
$$;

revoke all on function wed_sql.rule_attributes_for(text, name) from public;

comment on function wed_sql.rule_attributes_for(text, name) is
'Which WED-attributes the WED-triggers of a flow are about, for a caller.';

create function wed_sql.rule_attributes(flow text, out tgid integer, out trname text, out reads text[], out sets text[])
    returns setof record
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_rule_attributes';

comment on function wed_sql.rule_attributes(text) is
'Which WED-attributes the condition of each WED-trigger of a flow reads (null: it is not valid any more), and which its action sets (null: it has none). For whoever may read wed_trig.';
