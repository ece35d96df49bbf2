/*-------------------------------------------------------------------------
 *
 * definer.c
 *		Functions that run as the extension's owner, on behalf of their caller:
 *		create_flow(), grant_worker(), suspend(), fail(), lease() and the like.
 *
 * A SECURITY DEFINER function cannot know its caller: it sees only the
 * session's role, which may be that of a victim whose statement runs code of
 * others. These are called as any function is, take note of the current user,
 * and change to the extension's owner then.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "executor/tstoreReceiver.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_create_flow);
PG_FUNCTION_INFO_V1(wed_drop_flow);
PG_FUNCTION_INFO_V1(wed_grant_worker);
PG_FUNCTION_INFO_V1(wed_revoke_worker);
PG_FUNCTION_INFO_V1(wed_fail);
PG_FUNCTION_INFO_V1(wed_lease);
PG_FUNCTION_INFO_V1(wed_extend);
PG_FUNCTION_INFO_V1(wed_release);
PG_FUNCTION_INFO_V1(wed_alter_flow);
PG_FUNCTION_INFO_V1(wed_intervene);
PG_FUNCTION_INFO_V1(wed_purge_batch);
PG_FUNCTION_INFO_V1(wed_rule_attributes);

static const char *const pinned_settings[][2] = {
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"default_toast_compression", "pglz"},
	{"check_function_bodies", "on"},
};

static Oid
function_owner(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	return owner;
}

void
wed_refuse_if_restricted(Oid function)
{
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot call wed_sql.%s() within a security-restricted operation", get_func_name(function))));
}

/*
 * A call of a function of the extension, as its owner: of an SQL function that
 * has our own arguments, and the caller's name behind them.
 */
typedef struct DefinerCall
{
	Oid			caller;
	int			sec_context;
	int			nest_level;
} DefinerCall;

/* Gives the rows to dest, or leaves them in SPI_tuptable until end_call(). */
static void
begin_call_into(FunctionCallInfo fcinfo, const char *query, DestReceiver *dest, DefinerCall *call)
{
	int			nargs = PG_NARGS();
	Oid		   *types;
	int			ntypes;
	ParamListInfo params = makeParamList(nargs + 1);
	NameData	caller_name;
	NullableDatum name = {NameGetDatum(&caller_name), false};

	wed_refuse_if_restricted(fcinfo->flinfo->fn_oid);
	GetUserIdAndSecContext(&call->caller, &call->sec_context);
	namestrcpy(&caller_name, GetUserNameFromId(call->caller, false));
	(void) get_func_signature(fcinfo->flinfo->fn_oid, &types, &ntypes);
	for (int i = 0; i < nargs; i++)
		wed_set_parameter(params, i, types[i], fcinfo->args[i]);
	wed_set_parameter(params, nargs, NAMEOID, name);

	SetUserIdAndSecContext(function_owner(fcinfo->flinfo->fn_oid),
						   call->sec_context | SECURITY_LOCAL_USERID_CHANGE);
	call->nest_level = NewGUCNestLevel();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wed_execute_planned_into(query, params, dest) != SPI_OK_SELECT)
		elog(ERROR, "could not execute a query: %s", SPI_result_code_string(SPI_result));
}

static void
begin_call(FunctionCallInfo fcinfo, const char *query, DefinerCall *call)
{
	begin_call_into(fcinfo, query, NULL, call);
}

static void
end_call(const DefinerCall *call)
{
	SPI_finish();
	AtEOXact_GUC(true, call->nest_level);
	SetUserIdAndSecContext(call->caller, call->sec_context);
}

/* A function that changes definitions: where and how tables are made is not for the caller's session to say. */
static void
define_for_caller(FunctionCallInfo fcinfo, const char *query)
{
	DefinerCall call;
	int			nest_level = NewGUCNestLevel();

	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i][0], pinned_settings[i][1],
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	begin_call(fcinfo, query, &call);
	end_call(&call);
	AtEOXact_GUC(true, nest_level);
}

/* A function that returns one value. */
static Datum
value_for_caller(FunctionCallInfo fcinfo, const char *query)
{
	DefinerCall call;
	Form_pg_attribute column;
	Datum		value;

	begin_call(fcinfo, query, &call);
	if (SPI_processed != 1)
		elog(ERROR, "%s: " UINT64_FORMAT " rows", query, SPI_processed);
	column = TupleDescAttr(SPI_tuptable->tupdesc, 0);
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &fcinfo->isnull);
	if (!fcinfo->isnull && column->atttypid != VOIDOID)
		value = SPI_datumTransfer(value, column->attbyval, column->attlen);
	end_call(&call);
	return value;
}

/* A function that returns rows, however many. */
static Datum
rows_for_caller(FunctionCallInfo fcinfo, const char *query)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	DestReceiver *dest;
	DefinerCall call;

	InitMaterializedSRF(fcinfo, 0);
	dest = CreateTuplestoreDestReceiver();
	SetTuplestoreDestReceiverParams(dest, result->setResult, result->econtext->ecxt_per_query_memory,
									false, NULL, NULL);
	begin_call_into(fcinfo, query, dest, &call);
	end_call(&call);
	dest->rDestroy(dest);
	return (Datum) 0;
}

/* Runs body as the owner of a function, which is the extension's. */
void
wed_run_as_definer(Oid function, void (*body) (void *), void *arg)
{
	Oid			caller;
	int			sec_context;

	GetUserIdAndSecContext(&caller, &sec_context);
	SetUserIdAndSecContext(function_owner(function), sec_context | SECURITY_LOCAL_USERID_CHANGE);
	body(arg);
	SetUserIdAndSecContext(caller, sec_context);
}

/* wed_sql.create_flow(name text) -> void */
Datum
wed_create_flow(PG_FUNCTION_ARGS)
{
	define_for_caller(fcinfo, "select wed_sql.create_flow_for($1, $2)");
	PG_RETURN_VOID();
}

/* wed_sql.grant_worker(flow text, transition text, role name) -> void */
Datum
wed_grant_worker(PG_FUNCTION_ARGS)
{
	define_for_caller(fcinfo, "select wed_sql.grant_worker_for($1, $2, $3, $4)");
	PG_RETURN_VOID();
}

/* wed_sql.revoke_worker(flow text, transition text, role name) -> void */
Datum
wed_revoke_worker(PG_FUNCTION_ARGS)
{
	define_for_caller(fcinfo, "select wed_sql.revoke_worker_for($1, $2, $3, $4)");
	PG_RETURN_VOID();
}

/* wed_sql.drop_flow(name text) -> void */
Datum
wed_drop_flow(PG_FUNCTION_ARGS)
{
	define_for_caller(fcinfo, "select wed_sql.drop_flow_for($1, $2)");
	PG_RETURN_VOID();
}

/* wed_sql.fail(flow text, wid bigint, tgid integer, error text, lckid text) -> boolean */
Datum
wed_fail(PG_FUNCTION_ARGS)
{
	return value_for_caller(fcinfo, "select wed_sql.fail_for($1, $2, $3, $4, $5, $6)");
}

/* wed_sql.lease(flow text, transition text, duration interval, max_jobs integer) -> setof record */
Datum
wed_lease(PG_FUNCTION_ARGS)
{
	return rows_for_caller(fcinfo, "select * from wed_sql.lease_for($1, $2, $3, $4, $5)");
}

/* wed_sql.extend(flow text, wid bigint, tgid integer, lckid text, duration interval) -> timestamptz */
Datum
wed_extend(PG_FUNCTION_ARGS)
{
	return value_for_caller(fcinfo, "select wed_sql.extend_for($1, $2, $3, $4, $5, $6)");
}

/* wed_sql.release(flow text, wid bigint, tgid integer, lckid text) -> boolean */
Datum
wed_release(PG_FUNCTION_ARGS)
{
	return value_for_caller(fcinfo, "select wed_sql.release_for($1, $2, $3, $4, $5)");
}

/* wed_sql.alter_flow(flow text, consistent text, max_states bigint) -> void */
Datum
wed_alter_flow(PG_FUNCTION_ARGS)
{
	define_for_caller(fcinfo, "select wed_sql.alter_flow_for($1, $2, $3, $4)");
	PG_RETURN_VOID();
}

/*
 * wed_sql.purge_batch(flow text, ended_before timestamptz, most integer,
 * after_time timestamptz, after_wid bigint, dry_run boolean) -> setof record
 */
Datum
wed_purge_batch(PG_FUNCTION_ARGS)
{
	return rows_for_caller(fcinfo, "select * from wed_sql.purge_batch_for($1, $2, $3, $4, $5, $6, $7)");
}

/* wed_sql.rule_attributes(flow text) -> setof record */
Datum
wed_rule_attributes(PG_FUNCTION_ARGS)
{
	return rows_for_caller(fcinfo, "select * from wed_sql.rule_attributes_for($1, $2)");
}

/* '{"flow": $1, "wid": $2, ...}': our arguments by their names. */
static char *
arguments_as_object(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	StringInfoData object;
	Datum		names;
	bool		isnull;
	char	  **list;
	int			count;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", function);
	names = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_proargnames, &isnull);
	if (isnull)
		elog(ERROR, "arguments of function %u have no names", function);
	count = get_func_input_arg_names(names, (Datum) 0, &list);
	initStringInfo(&object);
	for (int i = 0; i < count; i++)
		appendStringInfo(&object, "%s%s, $%d", i > 0 ? ", " : "", quote_literal_cstr(list[i]), i + 1);
	ReleaseSysCache(tuple);
	return psprintf("pg_catalog.jsonb_build_object(%s)", object.data);
}

/* wed_sql.suspend(...), resume(...) and so on -> setof wed_sql.intervention */
Datum
wed_intervene(PG_FUNCTION_ARGS)
{
	Oid			function = fcinfo->flinfo->fn_oid;

	return rows_for_caller(fcinfo, psprintf("select * from wed_sql.intervene(%s, %s, $%d)",
											quote_literal_cstr(get_func_name(function)),
											arguments_as_object(function), PG_NARGS() + 1));
}

/*
 * After REASSIGN OWNED: whoever owns a wed_flow now has the rights of a flow's
 * owner, and nobody else.
 */
void
wed_follow_owners(void)
{
	List	   *name = list_make2(makeString(WED_SCHEMA), makeString("follow_owners"));
	Oid			function;
	Oid			caller;
	int			sec_context;

	if (!OidIsValid(get_extension_oid("wed_sql", true)))
		return;
	function = LookupFuncName(name, 0, NULL, true);
	if (!OidIsValid(function))
		return;
	GetUserIdAndSecContext(&caller, &sec_context);
	SetUserIdAndSecContext(function_owner(function), sec_context | SECURITY_LOCAL_USERID_CHANGE);
	CommandCounterIncrement();
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute("select wed_sql.follow_owners()", false, 0) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
	SetUserIdAndSecContext(caller, sec_context);
}
