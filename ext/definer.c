/*-------------------------------------------------------------------------
 *
 * definer.c
 *		create_flow(), drop_flow(), grant_worker() and revoke_worker(): run as
 *		the extension's owner, on behalf of their caller.
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
#include "miscadmin.h"
#include "nodes/value.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(wed_create_flow);
PG_FUNCTION_INFO_V1(wed_drop_flow);
PG_FUNCTION_INFO_V1(wed_grant_worker);
PG_FUNCTION_INFO_V1(wed_revoke_worker);

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

/* Calls a function of the extension with our own arguments and the caller's name. */
static void
call_for_caller(FunctionCallInfo fcinfo, const char *query)
{
	Oid			caller;
	int			sec_context;
	int			nest_level;
	int			nargs = PG_NARGS();
	Oid		   *own_types;
	int			ntypes;
	Oid			types[FUNC_MAX_ARGS];
	Datum		args[FUNC_MAX_ARGS];
	NameData	caller_name;

	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot create, drop or grant WED-flows within a security-restricted operation")));

	GetUserIdAndSecContext(&caller, &sec_context);
	namestrcpy(&caller_name, GetUserNameFromId(caller, false));
	(void) get_func_signature(fcinfo->flinfo->fn_oid, &own_types, &ntypes);
	for (int i = 0; i < nargs; i++)
	{
		types[i] = own_types[i];
		args[i] = PG_GETARG_DATUM(i);
	}
	types[nargs] = NAMEOID;
	args[nargs] = NameGetDatum(&caller_name);

	SetUserIdAndSecContext(function_owner(fcinfo->flinfo->fn_oid),
						   sec_context | SECURITY_LOCAL_USERID_CHANGE);
	/* where and how tables are made is not for the caller's session to say */
	nest_level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned_settings); i++)
		(void) set_config_option(pinned_settings[i][0], pinned_settings[i][1],
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(query, nargs + 1, types, args, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
	AtEOXact_GUC(true, nest_level);
	SetUserIdAndSecContext(caller, sec_context);
}

/* wed_sql.create_flow(name text) -> void */
Datum
wed_create_flow(PG_FUNCTION_ARGS)
{
	call_for_caller(fcinfo, "select wed_sql.create_flow_for($1, $2)");
	PG_RETURN_VOID();
}

/* wed_sql.grant_worker(flow text, transition text, role name) -> void */
Datum
wed_grant_worker(PG_FUNCTION_ARGS)
{
	call_for_caller(fcinfo, "select wed_sql.grant_worker_for($1, $2, $3, $4)");
	PG_RETURN_VOID();
}

/* wed_sql.revoke_worker(flow text, transition text, role name) -> void */
Datum
wed_revoke_worker(PG_FUNCTION_ARGS)
{
	call_for_caller(fcinfo, "select wed_sql.revoke_worker_for($1, $2, $3, $4)");
	PG_RETURN_VOID();
}

/* wed_sql.drop_flow(name text) -> void */
Datum
wed_drop_flow(PG_FUNCTION_ARGS)
{
	call_for_caller(fcinfo, "select wed_sql.drop_flow_for($1, $2)");
	PG_RETURN_VOID();
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
