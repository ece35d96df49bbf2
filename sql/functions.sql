-- The C functions that others rely on.

create function wed_sql.try_lock(wid bigint, tgid integer) returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_try_lock';

comment on function wed_sql.try_lock(bigint, integer) is
'Takes the lock of a job until the end of the transaction; false if another session has it. For a wid below 2^31 it is the lock of pg_try_advisory_xact_lock(wid, tgid).';

create function wed_sql.sync(timeout interval default interval '30 seconds') returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_sync';

comment on function wed_sql.sync(interval) is
'Waits until every state committed before the call has been matched: its jobs are in job_pool, its line is in wed_trace, its notifications are sent. SQLSTATE WED14 if that takes longer than timeout.';

create function wed_sql.guard() returns trigger
    language c
    as 'MODULE_PATHNAME', 'wed_guard';

comment on function wed_sql.guard() is
'Trigger of wed_flow: refuses what Algorithm 1 does not allow, completes the job that the transaction has locked, and stamps the state.';

-- For wed_sql itself.

-- The row type of what they return is that of the column _stamp.
create function wed_sql.operate(
        wed_flow regclass, wid bigint, operation text, tgid integer default null, set_clause text default null,
        reason text default null, tgids integer[] default null, version bigint default null)
    returns wed_sql.stamp
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_operate';

revoke all on function wed_sql.operate(regclass, bigint, text, integer, text, text, integer[], bigint) from public;

comment on function wed_sql.operate(regclass, bigint, text, integer, text, text, integer[], bigint) is
'Writes the state that an intervention makes of an instance, as the owner of its flow, and returns what was found out about it. What has failed may be said to be a job of a version, and no later one.';

create function wed_sql.lock_instance(wed_flow regclass, wid bigint, wait boolean) returns wed_sql.stamp
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_lock_instance';

revoke all on function wed_sql.lock_instance(regclass, bigint, boolean) from public;

comment on function wed_sql.lock_instance(regclass, bigint, boolean) is
'Keeps others from writing an instance until the end of the transaction, and returns the stamp of its state: null if there is none or, without waiting, somebody else writes it.';

create function wed_sql.select_instances(wed_flow regclass, condition text) returns bigint[]
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_select_instances';

revoke all on function wed_sql.select_instances(regclass, text) from public;

comment on function wed_sql.select_instances(regclass, text) is
'Instances that satisfy a condition over wed_flow and wed_instance, evaluated as the owner of the flow.';

create function wed_sql.newest_state_with(wed_flow regclass, wid bigint, upto bigint, condition text) returns bigint
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_newest_state_with';

revoke all on function wed_sql.newest_state_with(regclass, bigint, bigint, text) from public;

comment on function wed_sql.newest_state_with(regclass, bigint, bigint, text) is
'Number of the newest state in wed_trace, up to one, that satisfies a condition, evaluated as the owner of the flow; null if none does.';

create function wed_sql.perform(
        wed_flow regclass, wid bigint, tgid integer, version bigint, action text, timeout_ms integer,
        out outcome text, out sqlstate text, out error text)
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_perform';

revoke all on function wed_sql.perform(regclass, bigint, integer, bigint, text, integer) from public;

comment on function wed_sql.perform(regclass, bigint, integer, bigint, text, integer) is
'Performs a WED-transition that the state of this version has fired by its action, as the owner of the flow. The outcome is done, gone (it does not pend any more), busy (another session has the job or the instance) or failed.';

create function wed_sql.hold_pending(wed_flow regclass, wid bigint, tgid integer, version bigint) returns boolean
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_hold_pending';

revoke all on function wed_sql.hold_pending(regclass, bigint, integer, bigint) from public;

comment on function wed_sql.hold_pending(regclass, bigint, integer, bigint) is
'Whether what a WED-state of this version has fired pends, as the row of the instance says, which is locked until the end of the transaction; null if another session has locked it. Read without a plan.';

create function wed_sql.remove_instances(wed_flow regclass, wids bigint[]) returns bigint[]
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_remove_instances';

revoke all on function wed_sql.remove_instances(regclass, bigint[]) from public;

comment on function wed_sql.remove_instances(regclass, bigint[]) is
'Removes instances that have ended, as the owner of their flow; returns those that are gone.';

create function wed_sql.check_set_clause(wed_flow regclass, set_clause text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_check_set_clause';

revoke all on function wed_sql.check_set_clause(regclass, text) from public;

comment on function wed_sql.check_set_clause(regclass, text) is
'An error if a text is not what SQL accepts after SET for a wed_flow.';

create function wed_sql.await_transactions(xids xid[]) returns void
    language c strict volatile parallel unsafe
    set lock_timeout = 0
    as 'MODULE_PATHNAME', 'wed_await_transactions';

comment on function wed_sql.await_transactions(xid[]) is
'Returns when all of the transactions have ended, and new snapshots see what they did.';

create function wed_sql.notify_listeners(channels text[], payloads text[]) returns integer
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_notify_listeners';

revoke all on function wed_sql.notify_listeners(text[], text[]) from public;

comment on function wed_sql.notify_listeners(text[], text[]) is
'NOTIFY with the end of the transaction, on those channels that somebody listens to then. Returns how many sessions that wakes, as of now.';

create function wed_sql.log_running_transactions() returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_log_running_transactions';

comment on function wed_sql.log_running_transactions() is
'Writes a record to the WAL from which logical decoding can begin, as the background writer does every 15 seconds.';

revoke all on function wed_sql.log_running_transactions() from public;

create function wed_sql.condition_attributes(wed_flow regclass, cpred text) returns text[]
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_condition_attributes';

comment on function wed_sql.condition_attributes(regclass, text) is
'Attributes that a WED-condition uses; an error that points into it if it is not valid.';

create function wed_sql.type_name(type text) returns text
    language c strict stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_type_name';

comment on function wed_sql.type_name(text) is
'Name of a type as it can be written under any search_path; wed_attr has its types so.';

create function wed_sql.execute_as_owner(rel regclass, command text) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_execute_as_owner';

comment on function wed_sql.execute_as_owner(regclass, text) is
'Executes a command as the owner of a table, in a security-restricted operation.';

create function wed_sql.definition_changed(wed_flow regclass) returns void
    language c strict volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_definition_changed';

comment on function wed_sql.definition_changed(regclass) is
'Has every session read the definition of a flow anew, once this transaction has committed.';

create function wed_sql.discover() returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_engine_discover';

comment on function wed_sql.discover() is
'Has the engine look for databases with WED-flows, once this transaction has committed.';

-- Call these by a cast of each argument: they have the types that they are given.
create function wed_sql.query_planned(statement text, variadic args "any") returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_query_planned';

revoke all on function wed_sql.query_planned(text, "any") from public;

comment on function wed_sql.query_planned(text, "any") is
'EXECUTE of a statement that returns rows, which a session plans once.';

create function wed_sql.execute_planned(statement text, variadic args "any") returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_execute_planned_sql';

revoke all on function wed_sql.execute_planned(text, "any") from public;

comment on function wed_sql.execute_planned(text, "any") is
'EXECUTE of a statement that returns nothing, which a session plans once.';

create function wed_sql.module_version() returns text
    language c stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_module_version';

comment on function wed_sql.module_version() is
'Version of the module that the server has loaded; that of the extension in this database is in pg_extension.';

create function wed_sql.check_version() returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'wed_check_version';

comment on function wed_sql.check_version() is
'Warns if the extension in this database is of another version than the module that the server has loaded.';

create function wed_sql.is_preloaded() returns boolean
    language c stable parallel unsafe
    as 'MODULE_PATHNAME', 'wed_is_preloaded';

comment on function wed_sql.is_preloaded() is
'Whether the server was started with wed_sql in shared_preload_libraries.';

revoke all on function wed_sql.await_transactions(xid[]) from public;
revoke all on function wed_sql.condition_attributes(regclass, text) from public;
revoke all on function wed_sql.execute_as_owner(regclass, text) from public;
revoke all on function wed_sql.definition_changed(regclass) from public;
revoke all on function wed_sql.discover() from public;
