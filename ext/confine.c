/*-------------------------------------------------------------------------
 *
 * confine.c
 *		What other people's code may not do in somebody's session, though a
 *		security-restricted operation lets it.
 *
 * Locks that outlive it would be the session's own, and so would rights that
 * come with them; and what the session has open or put off is not its to
 * fetch, close or run.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/fmgroids.h"

#include "compat.h"

int			wed_confined = 0;

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_process_utility_hook = NULL;

static bool
is_advisory_lock_function(Oid function)
{
	switch (function)
	{
		case F_PG_ADVISORY_LOCK_INT8:
		case F_PG_ADVISORY_LOCK_INT4_INT4:
		case F_PG_ADVISORY_LOCK_SHARED_INT8:
		case F_PG_ADVISORY_LOCK_SHARED_INT4_INT4:
		case F_PG_TRY_ADVISORY_LOCK_INT8:
		case F_PG_TRY_ADVISORY_LOCK_INT4_INT4:
		case F_PG_TRY_ADVISORY_LOCK_SHARED_INT8:
		case F_PG_TRY_ADVISORY_LOCK_SHARED_INT4_INT4:
		case F_PG_ADVISORY_XACT_LOCK_INT8:
		case F_PG_ADVISORY_XACT_LOCK_INT4_INT4:
		case F_PG_ADVISORY_XACT_LOCK_SHARED_INT8:
		case F_PG_ADVISORY_XACT_LOCK_SHARED_INT4_INT4:
		case F_PG_TRY_ADVISORY_XACT_LOCK_INT8:
		case F_PG_TRY_ADVISORY_XACT_LOCK_INT4_INT4:
		case F_PG_TRY_ADVISORY_XACT_LOCK_SHARED_INT8:
		case F_PG_TRY_ADVISORY_XACT_LOCK_SHARED_INT4_INT4:
		case F_PG_ADVISORY_UNLOCK_INT8:
		case F_PG_ADVISORY_UNLOCK_INT4_INT4:
		case F_PG_ADVISORY_UNLOCK_SHARED_INT8:
		case F_PG_ADVISORY_UNLOCK_SHARED_INT4_INT4:
		case F_PG_ADVISORY_UNLOCK_ALL:
			return true;
		default:
			return false;
	}
}

void
wed_refuse_if_confined(const char *what)
{
	if (wed_confined > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a WED-condition or action cannot %s", what)));
}

static void
check_function(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, class_id, object_id, sub_id, arg);
	if (wed_confined > 0 && access == OAT_FUNCTION_EXECUTE && is_advisory_lock_function(object_id))
		wed_refuse_if_confined("take or release advisory locks");
}

static void
check_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	Node	   *command = pstmt->utilityStmt;
	ProcessUtility_hook_type next = prev_process_utility_hook ? prev_process_utility_hook : standard_ProcessUtility;

	if (wed_confined > 0)
	{
		switch (nodeTag(command))
		{
			case T_ConstraintsSetStmt:
			case T_FetchStmt:
			case T_ClosePortalStmt:
			case T_ExecuteStmt:
			case T_DeallocateStmt:
			case T_DiscardStmt:
			case T_UnlistenStmt:
				wed_refuse_if_confined(psprintf("execute %s", CreateCommandName(command)));
				break;
			default:
				break;
		}
	}
	next(pstmt, query, read_only_tree, context, params, environment, dest, completion);

	/* event triggers are told of a new owner by ALTER TABLE, but not by this */
	if (IsA(command, ReassignOwnedStmt))
		wed_follow_owners();
}

void
wed_confine_install(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = check_function;
	prev_process_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = check_utility;
}
