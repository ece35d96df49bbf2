/*-------------------------------------------------------------------------
 *
 * database.c
 *		What becomes of databases and of the extension in them: the engine is
 *		told, and leaves a database that a command needs for itself.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/timestamp.h"

#include "compat.h"

/* how long a command waits for the walsender of a database that was left */
#define WALSENDER_TIMEOUT_MS 5000
/* and for other sessions, before it leaves that to the server, which looks every 100 ms */
#define SESSIONS_TIMEOUT_MS 50
#define POLL_MS 2

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_process_utility_hook = NULL;

/* to be done when the transaction ends: before that, the engine would see nothing new */
static bool look_here = false;	/* if it commits */
static bool list_databases = false; /* if it commits */
static bool come_back = false;

PG_FUNCTION_INFO_V1(wed_engine_discover);

static void
tell_engine(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (look_here && event != XACT_EVENT_ABORT)
		wed_request_look(MyDatabaseId);
	if (list_databases && event != XACT_EVENT_ABORT)
		wed_request_look(InvalidOid);
	if (come_back)				/* also if the session ends with an error */
		wed_end_leave(InvalidOid);
	look_here = list_databases = come_back = false;
}

static void
notice_drop_extension(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, class_id, object_id, sub_id, arg);

	if (access == OAT_DROP && class_id == ExtensionRelationId &&
		object_id == get_extension_oid("wed_sql", true))
		look_here = true;
}

/*
 * The database that a command needs to have for itself, so that the engine
 * would be in its way; NULL if there is none.
 */
static const char *
database_to_leave(Node *command)
{
	ListCell   *cell;

	switch (nodeTag(command))
	{
		case T_DropdbStmt:
			return castNode(DropdbStmt, command)->dbname;
		case T_RenameStmt:
			if (castNode(RenameStmt, command)->renameType == OBJECT_DATABASE)
				return castNode(RenameStmt, command)->subname;
			return NULL;
		case T_AlterDatabaseStmt:
			foreach(cell, castNode(AlterDatabaseStmt, command)->options)
			{
				if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0)
					return castNode(AlterDatabaseStmt, command)->dbname;
			}
			return NULL;
		case T_CreatedbStmt:
			foreach(cell, castNode(CreatedbStmt, command)->options)
			{
				DefElem    *option = lfirst_node(DefElem, cell);

				if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
					return defGetString(option);
			}
			return NULL;
		default:
			return NULL;
	}
}

/* Whether the list of databases, as the engine sees it, may be another one after a command. */
static bool
changes_databases(Node *command)
{
	return IsA(command, CreatedbStmt) || IsA(command, AlterDatabaseStmt);
}

static bool
walsender_is_there(Oid datid)
{
	bool		active;

	return wed_own_slot_exists(datid, &active) && active;
}

static bool
sessions_are_there(Oid datid)
{
	return CountDBBackends(datid) > 0;
}

static void
wait_while(bool (*there) (Oid), Oid datid, int timeout_ms)
{
	int64		deadline = wed_monotonic_ms() + timeout_ms;

	while (there(datid) && wed_monotonic_ms() < deadline)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * When the engine has hung up, its server processes take a moment to notice:
 * for the walsender of a slot, DROP DATABASE does not wait at all.
 */
static void
wait_for_engines_sessions(Oid datid)
{
	wait_while(walsender_is_there, datid, WALSENDER_TIMEOUT_MS);
	wait_while(sessions_are_there, datid, SESSIONS_TIMEOUT_MS);
}

/*
 * Commands on a whole database are refused while others are connected to it,
 * and DROP DATABASE while a logical slot of it is in use: so the engine leaves
 * first, and comes back when the transaction has ended, whatever came of it.
 * The slot stays: DROP DATABASE itself drops it, once nothing can fail any more.
 */
static void
leave_database_alone(PlannedStmt *pstmt, const char *query, bool read_only_tree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	ProcessUtility_hook_type next = prev_process_utility_hook ? prev_process_utility_hook : standard_ProcessUtility;
	const char *name = database_to_leave(pstmt->utilityStmt);
	Oid			datid = name ? get_database_oid(name, true) : InvalidOid;

	if (changes_databases(pstmt->utilityStmt))
		list_databases = true;
	if (!OidIsValid(datid) || datid == MyDatabaseId ||
		!object_ownercheck(DatabaseRelationId, datid, GetUserId()))
	{
		next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
		return;
	}

	come_back = true;
	PG_TRY();
	{
		wed_leave_database(datid);
		wait_for_engines_sessions(datid);
		next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
	}
	PG_CATCH();
	{
		wed_end_leave(datid);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * wed_sql.discover() -> void: has the engine look whether this database has
 * the extension, once this transaction has committed.
 */
Datum
wed_engine_discover(PG_FUNCTION_ARGS)
{
	look_here = true;
	PG_RETURN_VOID();
}

void
wed_database_install(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = notice_drop_extension;
	prev_process_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = leave_database_alone;
	RegisterXactCallback(tell_engine, NULL);
}
