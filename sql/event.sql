-- What happens to an instance besides its states is written down here.

create function wed_sql.record_event(
        f wed_sql.flow, wid bigint, version bigint, tgid integer, trname text, event text,
        role name default null, pid integer default null, held interval default null, detail text default null) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    perform wed_sql.execute_planned(format('insert into %s (wid, version, tgid, trname, event, role, pid, held, detail)
                    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)', f.wed_event),
                                    wid, version, tgid, trname, event, role, pid, held, detail);
    perform wed_sql.count_event(f.flow_id, trname, event);
end
$$;

revoke all on function wed_sql.record_event(wed_sql.flow, bigint, bigint, integer, text, text, name, integer, interval, text) from public;

comment on function wed_sql.record_event(wed_sql.flow, bigint, bigint, integer, text, text, name, integer, interval, text) is
'Writes a line of wed_event of a flow.';
