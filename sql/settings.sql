-- What belongs to a flow as a whole, and who may perform its transitions: for its owner, who cannot read the tables in
-- which it is kept, for they are of all flows.

create view wed_sql.flow_settings with (security_barrier) as
select n.nspname as flow, r.rolname as owner, f.rules_version, f.consistent, f.max_states
  from wed_sql.flow f
  join pg_class c on c.oid = f.wed_flow
  join pg_namespace n on n.oid = c.relnamespace
  join pg_roles r on r.oid = c.relowner
 where pg_has_role(c.relowner, 'usage') or pg_has_role('pg_monitor', 'usage');

comment on view wed_sql.flow_settings is 'WED-flows whose owner''s rights the current user has; all of them for pg_monitor';
comment on column wed_sql.flow_settings.flow is 'name of the flow';
comment on column wed_sql.flow_settings.owner is 'role that owns the flow';
comment on column wed_sql.flow_settings.rules_version is 'number of the definition in force';
comment on column wed_sql.flow_settings.consistent is 'condition of the states that wed_sql.compensate() leads back to; see wed_sql.alter_flow()';
comment on column wed_sql.flow_settings.max_states is 'number of states that an instance may go through without an intervention; null: wed_sql.max_states';

create view wed_sql.flow_worker with (security_barrier) as
select n.nspname as flow, w.trname, r.rolname as role
  from wed_sql.worker w
  join wed_sql.flow f on f.flow_id = w.flow_id
  join pg_class c on c.oid = f.wed_flow
  join pg_namespace n on n.oid = c.relnamespace
  join pg_roles r on r.oid = w.role
 where pg_has_role(c.relowner, 'usage') or pg_has_role('pg_monitor', 'usage');

comment on view wed_sql.flow_worker is 'worker roles of the flows whose owner''s rights the current user has: which WED-transitions each may perform; see wed_sql.grant_worker()';
comment on column wed_sql.flow_worker.flow is 'name of the flow';
comment on column wed_sql.flow_worker.trname is 'WED-transition that it may perform';
comment on column wed_sql.flow_worker.role is 'worker role';

grant select on wed_sql.flow_settings, wed_sql.flow_worker to public;
