/*-------------------------------------------------------------------------
 *
 * operation.c
 *		States that no worker writes: what an action of a WED-trigger does, and
 *		what an intervention makes of an instance. Both are written as the
 *		flow's owner, restricted; who may ask for them is for sql/ to say.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "parser/analyze.h"
#include "parser/parser.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_operate);
PG_FUNCTION_INFO_V1(wed_perform);
PG_FUNCTION_INFO_V1(wed_remove_instances);
PG_FUNCTION_INFO_V1(wed_check_set_clause);
PG_FUNCTION_INFO_V1(wed_set_clause_attributes);
PG_FUNCTION_INFO_V1(wed_lock_instance);
PG_FUNCTION_INFO_V1(wed_select_instances);
PG_FUNCTION_INFO_V1(wed_newest_state_with);

/* The one that is under way in this session, if there is one. */
static const WedOperation *current = NULL;

static const struct
{
	const char *name;
	const char *trw;
	WedOperationKind kind;
}			operations[] =
{
	{"cancel", "_CANCEL", WED_OP_CANCEL},
	{"compensate", "_COMPENSATE", WED_OP_COMPENSATE},
	{"fail", "_FAIL", WED_OP_FAIL},
	{"rematch", "_REMATCH", WED_OP_REMATCH},
	{"reopen", "_REOPEN", WED_OP_REOPEN},
	{"repair", "_REPAIR", WED_OP_REPAIR},
	{"resume", "_RESUME", WED_OP_RESUME},
	{"retry", "_RETRY", WED_OP_RETRY},
	{"rewind", "_REWIND", WED_OP_REWIND},
	{"skip", "_SKIP", WED_OP_SKIP},
	{"suspend", "_SUSPEND", WED_OP_SUSPEND},
};

/* The intervention that writes, or removes, this instance. */
const WedOperation *
wed_operation_on(Oid wed_flow, int64 wid)
{
	if (current == NULL || current->wed_flow != wed_flow || current->wid != wid)
		return NULL;
	return current;
}

/*
 * From text to update
 */

/* "a = 1, b = 2" as a statement that writes one instance, $1. */
char *
wed_update_statement(Relation wed_flow, const char *set_clause, const char *returning)
{
	return psprintf("update only %s set %s\n where wid operator(pg_catalog.=) $1%s",
					quote_qualified_identifier(get_namespace_name(RelationGetNamespace(wed_flow)),
											   RelationGetRelationName(wed_flow)),
					set_clause, returning);
}

void
wed_check_one_update(const char *statement, bool of_user)
{
	List	   *raw = raw_parser(statement, RAW_PARSE_DEFAULT);
	ListCell   *cell;

	if (list_length(raw) != 1 || !IsA(linitial_node(RawStmt, raw)->stmt, UpdateStmt))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("the SET clause is more than that"),
				 errhint("Give what SQL accepts between SET and WHERE: attribute = value, ...")));
	foreach(cell, castNode(UpdateStmt, linitial_node(RawStmt, raw)->stmt)->targetList)
	{
		const char *column = lfirst_node(ResTarget, cell)->name;

		if (of_user && (strcmp(column, "wid") == 0 || strcmp(column, "_stamp") == 0))
			ereport(ERROR,
					(errcode(ERRCODE_WED_PROTECTED_COLUMN),
					 errmsg("column \"%s\" cannot be changed", column),
					 errhint("Set the WED-attributes only.")));
	}
}

typedef struct Update
{
	Relation	wed_flow;
	const char *set_clause;		/* NULL: the attributes stay as they are */
	int64		wid;
	const char *lock_timeout;	/* NULL: does not wait for the instance at all */
	const WedFlow *flow;		/* of an action, as are the next two */
	int32		tgid;
	int64		version;		/* of the state that fired it */
	Datum		stamp;			/* out: of the state that was written, detoasted */
	bool		found;			/* out */
	bool		busy;			/* out: somebody else has the instance */
	bool		gone;			/* out: the job does not pend */
	MemoryContext context;		/* for stamp */
} Update;

static const char *
table_name(const Update *update)
{
	return quote_qualified_identifier(get_namespace_name(RelationGetNamespace(update->wed_flow)),
									  RelationGetRelationName(update->wed_flow));
}

/* Whether the job that is to be completed pends, as the row says. */
static bool
still_pends(const Update *update, Datum value)
{
	WedStamp	stamp;
	WedPending	pending;

	wed_stamp_read(value, &stamp);
	wed_stamp_pending_after(&stamp, update->flow->excpt_tgid, &pending);
	return wed_pending_since(&pending, update->tgid) == update->version;
}

/*
 * Takes the instance, if it can be had at once and the job pends: else
 * update->busy or update->gone.
 */
static bool
take_instance(Update *update)
{
	Oid			type = INT8OID;
	Datum		wid = Int64GetDatum(update->wid);
	bool		isnull;

	if (SPI_execute_with_args(psprintf("select _stamp from only %s where wid operator(pg_catalog.=) $1 for no key update skip locked",
									   table_name(update)),
							  1, &type, &wid, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "locking an instance failed: %s", SPI_result_code_string(SPI_result));
	if (SPI_processed == 1)
	{
		Datum		stamp = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);

		update->gone = isnull || !still_pends(update, stamp);
		return !update->gone;
	}
	if (SPI_execute_with_args(psprintf("select from only %s where wid operator(pg_catalog.=) $1", table_name(update)),
							  1, &type, &wid, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "reading an instance failed: %s", SPI_result_code_string(SPI_result));
	update->busy = SPI_processed == 1;
	update->gone = !update->busy;
	return false;
}

static void
keep_lock_timeout(const Update *update)
{
	(void) set_config_option("lock_timeout", update->lock_timeout,
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* The stamp that a statement about an instance has returned. */
static void
take_stamp(Update *update)
{
	bool		isnull;
	Datum		stamp;
	MemoryContext old;

	update->found = SPI_processed == 1;
	if (!update->found)
		return;
	stamp = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		elog(ERROR, "instance " INT64_FORMAT " was written without its guard", update->wid);
	old = MemoryContextSwitchTo(update->context);
	update->stamp = PointerGetDatum(DatumGetHeapTupleHeaderCopy(stamp));
	MemoryContextSwitchTo(old);
}

static void
execute_update(void *arg)
{
	Update	   *update = arg;
	char	   *statement = wed_update_statement(update->wed_flow,
											 update->set_clause ? update->set_clause : "_stamp = _stamp",
											 " returning _stamp");
	Oid			type = INT8OID;
	Datum		wid = Int64GetDatum(update->wid);
	int			outcome;

	wed_check_one_update(statement, update->set_clause != NULL);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (update->lock_timeout != NULL)
		keep_lock_timeout(update);
	else if (!take_instance(update))
	{
		SPI_finish();
		return;
	}
	outcome = SPI_execute_with_args(statement, 1, &type, &wid, NULL, false, 0);
	if (outcome != SPI_OK_UPDATE_RETURNING)
		elog(ERROR, "update of an instance failed: %s", SPI_result_code_string(outcome));
	take_stamp(update);
	if (update->flow != NULL && !update->found)
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("the action has written nothing")));
	SPI_finish();
}

static void
refuse_unknown_instance(const char *flow, int64 wid)
{
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("WED-flow \"%s\" has no instance " INT64_FORMAT, flow, wid)));
}

static int32 *
read_tgids(ArrayType *array, int *count)
{
	if (ARR_NDIM(array) > 1 || ARR_HASNULL(array) || ARR_ELEMTYPE(array) != INT4OID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("list of WED-triggers is malformed")));
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int32 *) ARR_DATA_PTR(array);
}

static void
describe_operation(const char *name, WedOperation *operation)
{
	for (int i = 0; i < lengthof(operations); i++)
	{
		if (strcmp(operations[i].name, name) == 0)
		{
			operation->kind = operations[i].kind;
			operation->trw = operations[i].trw;
			return;
		}
	}
	elog(ERROR, "unknown operation \"%s\"", name);
}

/*
 * Runs body as the flow's owner while the operation is under way. The owner's
 * triggers have no more time than an action of his.
 */
static void
under_operation(const WedOperation *operation, const WedFlow *flow, void (*body) (void *), void *arg)
{
	const WedOperation *before = current;

	current = operation;
	PG_TRY();
	{
		wed_run_limited(flow, body, arg);
	}
	PG_FINALLY();
	{
		current = before;
	}
	PG_END_TRY();
}

/*
 * wed_sql.operate(wed_flow regclass, wid bigint, operation text, tgid integer,
 * set_clause text, reason text, tgids integer[], version bigint) ->
 * wed_sql.stamp: of the state that an intervention has written.
 */
Datum
wed_operate(PG_FUNCTION_ARGS)
{
	WedOperation operation = {0};
	Update		update = {0};
	WedFlow    *flow;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("an operation needs a flow, an instance and a name")));
	update.wed_flow = table_open(PG_GETARG_OID(0), RowExclusiveLock);
	update.wid = PG_GETARG_INT64(1);
	update.set_clause = PG_ARGISNULL(4) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(4));
	update.context = CurrentMemoryContext;
	/* how long to wait for a worker who has the instance is the caller's to say */
	update.lock_timeout = pstrdup(GetConfigOption("lock_timeout", false, false));
	flow = wed_flow_get(update.wed_flow);

	describe_operation(text_to_cstring(PG_GETARG_TEXT_PP(2)), &operation);
	operation.wed_flow = flow->relid;
	operation.wid = update.wid;
	operation.tgid = PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3);
	operation.sets = !PG_ARGISNULL(4);
	operation.reason = PG_ARGISNULL(5) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(5));
	if (!PG_ARGISNULL(6))
		operation.tgids = read_tgids(PG_GETARG_ARRAYTYPE_P(6), &operation.ntgids);
	operation.version = PG_ARGISNULL(7) ? -1 : PG_GETARG_INT64(7);

	under_operation(&operation, flow, execute_update, &update);
	if (!update.found)
		refuse_unknown_instance(flow->name, update.wid);
	table_close(update.wed_flow, NoLock);
	PG_RETURN_DATUM(update.stamp);
}

/*
 * wed_sql.perform(wed_flow regclass, wid bigint, tgid integer, version bigint,
 * action text, timeout_ms integer) -> (outcome text, sqlstate text, error text):
 * performs a WED-transition that a state has fired by its action. The outcome
 * is done, gone (it does not pend any more), busy (another session has the job
 * or the instance) or failed.
 */
Datum
wed_perform(PG_FUNCTION_ARGS)
{
	Update		update = {0};
	WedFlow    *flow;
	int32		tgid = PG_GETARG_INT32(2);
	int			timeout = PG_GETARG_INT32(5);
	int			completes_before = wed_completes_tgid;
	char	   *error;
	int			sqlstate = 0;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, true, true};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	update.wed_flow = table_open(PG_GETARG_OID(0), RowExclusiveLock);
	update.wid = PG_GETARG_INT64(1);
	update.tgid = tgid;
	update.version = PG_GETARG_INT64(3);
	update.set_clause = text_to_cstring(PG_GETARG_TEXT_PP(4));
	update.context = CurrentMemoryContext;
	flow = wed_flow_get(update.wed_flow);
	update.flow = flow;

	if (!wed_take_job_lock(update.wid, tgid))
		values[0] = CStringGetTextDatum("busy");
	else
	{
		wed_completes_tgid = tgid;
		PG_TRY();
		{
			error = wed_try_action(flow, execute_update, &update, timeout, &sqlstate);
		}
		PG_FINALLY();
		{
			wed_completes_tgid = completes_before;
		}
		PG_END_TRY();
		values[0] = CStringGetTextDatum(error ? "failed" : update.busy ? "busy" : update.gone ? "gone" : "done");
		if (error != NULL)
		{
			values[1] = CStringGetTextDatum(unpack_sql_state(sqlstate));
			values[2] = CStringGetTextDatum(error);
			nulls[1] = nulls[2] = false;
		}
	}
	table_close(update.wed_flow, NoLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * Removing instances
 */

typedef struct Removal
{
	Relation	wed_flow;
	int64		wid;
	bool		removed;
} Removal;

static void
execute_removal(void *arg)
{
	Removal    *removal = arg;
	Oid			type = INT8OID;
	Datum		wid = Int64GetDatum(removal->wid);
	char	   *statement = psprintf("delete from only %s where wid operator(pg_catalog.=) $1",
									 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(removal->wed_flow)),
																RelationGetRelationName(removal->wed_flow)));

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(statement, 1, &type, &wid, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "removal of an instance failed: %s", SPI_result_code_string(SPI_result));
	removal->removed = SPI_processed == 1;
	SPI_finish();
}

/*
 * wed_sql.remove_instances(wed_flow regclass, wids bigint[]) -> bigint[]: those
 * that were removed: a trigger of the owner's may keep some. The guard sees to it
 * that they have ended.
 */
Datum
wed_remove_instances(PG_FUNCTION_ARGS)
{
	WedOperation operation = {.kind = WED_OP_REMOVE};
	Removal		removal = {0};
	WedFlow    *flow;
	Datum	   *wids;
	bool	   *nulls;
	int			nwids;
	int			nremoved = 0;

	removal.wed_flow = table_open(PG_GETARG_OID(0), RowExclusiveLock);
	flow = wed_flow_get(removal.wed_flow);
	operation.wed_flow = flow->relid;
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  &wids, &nulls, &nwids);
	for (int i = 0; i < nwids; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (nulls[i])
			continue;
		removal.wid = operation.wid = DatumGetInt64(wids[i]);
		under_operation(&operation, flow, execute_removal, &removal);
		if (removal.removed)
			wids[nremoved++] = wids[i];
	}
	table_close(removal.wed_flow, NoLock);
	PG_RETURN_ARRAYTYPE_P(construct_array(wids, nremoved, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/*
 * Checking a SET clause when it is defined
 */

typedef struct ClauseCheck
{
	const char *statement;
} ClauseCheck;

static void
analyze_update(void *arg)
{
	ClauseCheck *check = arg;
	Oid			type = INT8OID;

	wed_check_one_update(check->statement, true);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_prepare(check->statement, 1, &type) == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
}

/*
 * wed_sql.check_set_clause(wed_flow regclass, set_clause text) -> void: an
 * error if it is not what SQL accepts after SET for this table.
 */
Datum
wed_check_set_clause(PG_FUNCTION_ARGS)
{
	Relation	wed_flow = table_open(PG_GETARG_OID(0), AccessShareLock);
	ClauseCheck check;

	check.statement = wed_update_statement(wed_flow, text_to_cstring(PG_GETARG_TEXT_PP(1)), "");
	wed_run_as_owner(wed_flow->rd_rel->relowner, analyze_update, &check);
	table_close(wed_flow, NoLock);
	PG_RETURN_VOID();
}

/*
 * wed_sql.set_clause_attributes(wed_flow regclass, set_clause text) -> text[]:
 * the columns that it sets, each once, in its order. Nothing is looked up.
 */
Datum
wed_set_clause_attributes(PG_FUNCTION_ARGS)
{
	Relation	wed_flow = table_open(PG_GETARG_OID(0), AccessShareLock);
	char	   *statement = wed_update_statement(wed_flow, text_to_cstring(PG_GETARG_TEXT_PP(1)), "");
	List	   *targets;
	List	   *names = NIL;
	Datum	   *datums;
	ListCell   *cell;
	int			n = 0;

	wed_check_one_update(statement, true);
	targets = castNode(UpdateStmt, linitial_node(RawStmt, raw_parser(statement, RAW_PARSE_DEFAULT))->stmt)->targetList;
	foreach(cell, targets)
		names = list_append_unique(names, makeString(lfirst_node(ResTarget, cell)->name));

	datums = palloc(sizeof(Datum) * (list_length(names) + 1));
	foreach(cell, names)
		datums[n++] = CStringGetTextDatum(strVal(lfirst(cell)));
	table_close(wed_flow, NoLock);
	PG_RETURN_ARRAYTYPE_P(construct_array(datums, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/*
 * Looking at instances
 */

static void
execute_lock(void *arg)
{
	Update	   *update = arg;
	Oid			type = INT8OID;
	Datum		wid = Int64GetDatum(update->wid);
	const char *table = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(update->wed_flow)),
												   RelationGetRelationName(update->wed_flow));

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (update->lock_timeout != NULL)
		keep_lock_timeout(update);
	if (SPI_execute_with_args(psprintf("select _stamp from only %s where wid operator(pg_catalog.=) $1 for no key update%s",
									   table, update->lock_timeout != NULL ? "" : " skip locked"),
							  1, &type, &wid, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "locking an instance failed: %s", SPI_result_code_string(SPI_result));
	take_stamp(update);
	SPI_finish();
}

/*
 * wed_sql.lock_instance(wed_flow regclass, wid bigint, wait boolean) ->
 * wed_sql.stamp: NULL if there is no such instance or, without wait, somebody
 * else has it.
 */
Datum
wed_lock_instance(PG_FUNCTION_ARGS)
{
	Update		update = {0};

	update.wed_flow = table_open(PG_GETARG_OID(0), RowShareLock);
	update.wid = PG_GETARG_INT64(1);
	if (PG_GETARG_BOOL(2))
		update.lock_timeout = pstrdup(GetConfigOption("lock_timeout", false, false));
	update.context = CurrentMemoryContext;
	wed_run_as_owner(update.wed_flow->rd_rel->relowner, execute_lock, &update);
	table_close(update.wed_flow, NoLock);
	if (!update.found)
		PG_RETURN_NULL();
	PG_RETURN_DATUM(update.stamp);
}

typedef struct Selection
{
	const char *query;
	const char *condition;
	Datum		wids;
	MemoryContext context;
} Selection;

static void
execute_selection(void *arg)
{
	Selection  *selection = arg;
	MemoryContext old;
	bool		isnull;

	wed_check_expression(selection->condition);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute(selection->query, false, 0) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "selection of instances failed: %s", SPI_result_code_string(SPI_result));
	selection->wids = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	old = MemoryContextSwitchTo(selection->context);
	if (isnull)
		selection->wids = PointerGetDatum(construct_empty_array(INT8OID));
	else
		selection->wids = PointerGetDatum(DatumGetArrayTypePCopy(selection->wids));
	MemoryContextSwitchTo(old);
	SPI_finish();
}

/*
 * wed_sql.select_instances(wed_flow regclass, condition text) -> bigint[]: the
 * instances that satisfy it, ascending. As the flow's owner, restricted.
 */
Datum
wed_select_instances(PG_FUNCTION_ARGS)
{
	Relation	wed_flow = table_open(PG_GETARG_OID(0), AccessShareLock);
	const char *schema = quote_identifier(get_namespace_name(RelationGetNamespace(wed_flow)));
	Selection	selection = {0};

	selection.condition = text_to_cstring(PG_GETARG_TEXT_PP(1));
	selection.query = psprintf("select pg_catalog.array_agg(wid order by wid)"
							   " from only %s.wed_flow join %s.wed_instance using (wid) where (\n%s\n)",
							   schema, schema, selection.condition);
	selection.context = CurrentMemoryContext;
	wed_run_as_owner(wed_flow->rd_rel->relowner, execute_selection, &selection);
	table_close(wed_flow, NoLock);
	PG_RETURN_DATUM(selection.wids);
}

typedef struct Search
{
	const char *query;
	const char *condition;
	int64		wid;
	int64		upto;
	int64		version;		/* out: -1 if there is none */
} Search;

static void
execute_search(void *arg)
{
	Search	   *search = arg;
	Oid			types[2] = {INT8OID, INT8OID};
	Datum		values[2] = {Int64GetDatum(search->wid), Int64GetDatum(search->upto)};
	bool		isnull;

	wed_check_expression(search->condition);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(search->query, 2, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "search of the history failed: %s", SPI_result_code_string(SPI_result));
	search->version = -1;
	if (SPI_processed == 1)
		search->version = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
}

/*
 * wed_sql.newest_state_with(wed_flow regclass, wid bigint, upto bigint,
 * condition text) -> bigint: number of the newest recorded state of an
 * instance that satisfies a condition, NULL if none does. As the flow's owner,
 * restricted.
 */
Datum
wed_newest_state_with(PG_FUNCTION_ARGS)
{
	Relation	wed_flow = table_open(PG_GETARG_OID(0), AccessShareLock);
	const char *schema = quote_identifier(get_namespace_name(RelationGetNamespace(wed_flow)));
	Search		search = {0};

	search.wid = PG_GETARG_INT64(1);
	search.upto = PG_GETARG_INT64(2);
	search.condition = text_to_cstring(PG_GETARG_TEXT_PP(3));
	/* the condition sees wed_flow first: what is around it has names that no attribute can have */
	search.query = psprintf("select _version from (select version, state || pg_catalog.jsonb_build_object('wid', wid)"
							" from %s.wed_trace where wid operator(pg_catalog.=) $1 and version operator(pg_catalog.<=) $2"
							" and pg_catalog.jsonb_typeof(state) operator(pg_catalog.=) 'object' order by version desc offset 0)"
							" as _trace(_version, _state)"
							" where (select (\n%s\n) from pg_catalog.jsonb_populate_record(null::%s.wed_flow, _state) as wed_flow) limit 1",
							schema, search.condition, schema);
	wed_run_as_owner(wed_flow->rd_rel->relowner, execute_search, &search);
	table_close(wed_flow, NoLock);
	if (search.version < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(search.version);
}
