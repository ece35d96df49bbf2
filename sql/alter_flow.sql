-- What belongs to a flow as a whole. It judges no state, so it makes no new version of the definition: instances that
-- have ended cannot be reopened for it.

create function wed_sql.alter_flow_for(flow text, consistent text, max_states bigint, caller name) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    f wed_sql.flow := wed_sql.flow_of_owner(flow, caller);
begin
    if consistent <> '' then
        perform wed_sql.condition_attributes(f.wed_flow, consistent);
    end if;
    if max_states < -1 then
        raise exception 'max_states must not be negative' using errcode = 'invalid_parameter_value',
            hint = '0 is no limit; -1 has wed_sql.max_states decide.';
    end if;
    update wed_sql.flow w
       set consistent = case when alter_flow_for.consistent is null then w.consistent else nullif(alter_flow_for.consistent, '') end,
           max_states = case when alter_flow_for.max_states is null then w.max_states else nullif(alter_flow_for.max_states, -1) end
     where w.flow_id = f.flow_id;
    perform wed_sql.definition_changed(f.wed_flow);
end
$$;

revoke all on function wed_sql.alter_flow_for(text, text, bigint, name) from public;

comment on function wed_sql.alter_flow_for(text, text, bigint, name) is 'Alters a WED-flow, for a caller.';

create function wed_sql.alter_flow(flow text, consistent text default null, max_states bigint default null) returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_alter_flow';

comment on function wed_sql.alter_flow(text, text, bigint) is
'Sets the condition of the states that wed_sql.compensate() leads back to ('''' for none), and the number of states that an instance may go through without an intervention (0 for no limit, -1 for that of wed_sql.max_states). What is null stays as it is. For the owner of the flow.';
