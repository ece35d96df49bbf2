/*-------------------------------------------------------------------------
 *
 * wed_sql.c
 *		The module's entry: settings, shared memory, the background worker,
 *		and the notice that is taken of CREATE and DROP EXTENSION.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include <limits.h>

#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_publication.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compat.h"

PG_MODULE_MAGIC_EXT(.name = "wed_sql", .version = WED_SQL_VERSION);

bool		wed_enabled = true;
char	   *wed_conninfo = NULL;
int			wed_batch_size = 1000;
int			wed_condition_timeout = 1000;
int			wed_memory_limit = 64;
int			wed_discovery_interval = 60;
int			wed_max_databases = 128;
int			wed_completes_tgid = 0;
int			wed_max_state_size = 65536;

/* how long a command waits for the engine to leave a database, at the most */
#define LEAVE_TIMEOUT_MS 5000
#define SLOT_POLL_MS 5

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_process_utility_hook = NULL;
static bool discovery_at_commit = false;
static bool discovery_at_end = false;	/* of the transaction, committed or not */

void		_PG_init(void);

PG_FUNCTION_INFO_V1(wed_engine_discover);
PG_FUNCTION_INFO_V1(wed_adopt_publication);

static void
define_settings(void)
{
	DefineCustomBoolVariable("wed_sql.enabled",
							 "Runs the engine that follows the WED-flows of all databases.",
							 "When off, states are still judged and recorded in the rows, and followed when it is on again.",
							 &wed_enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("wed_sql.conninfo",
							   "Connection string of the engine's own connections.",
							   "Empty: the server's first Unix-domain socket, as the operating system user that runs the server. The database name is added by the engine.",
							   &wed_conninfo, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.batch_size",
							"Most states that the follower writes in one transaction.",
							NULL,
							&wed_batch_size, 1000, 1, 100000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.condition_timeout",
							"Longest time that the WED-conditions of a flow may take on one state.",
							"When they take longer, the instance becomes an exception. Zero turns the limit off.",
							&wed_condition_timeout, 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.max_state_size",
							"Largest size of a WED-state.",
							"A state that is larger is refused.",
							&wed_max_state_size, 65536, 1, 200 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.memory_limit",
							"Memory that the engine tries to stay below.",
							NULL,
							&wed_memory_limit, 64, 32, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.discovery_interval",
							"Time between two looks for databases that the engine does not know yet.",
							"CREATE EXTENSION is noticed at once; this is for databases that were copied.",
							&wed_discovery_interval, 60, 1, 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.completes_tgid",
							"WED-trigger (tgid) whose job the next update of an instance completes.",
							"Needed only by a transaction that holds the locks of several pending jobs of one instance. Zero: not said.",
							&wed_completes_tgid, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("wed_sql.max_databases",
								"Most databases whose state wed_sql.status can show and wed_sql.sync() can wait for.",
								NULL,
								&wed_max_databases, 128, 1, 10000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);

	MarkGUCPrefixReserved("wed_sql");
}

/*
 * The engine looks at the databases again when a transaction that created or
 * dropped the extension has committed: before that, it would see nothing new.
 */
static void
discover_after_transaction(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	if (discovery_at_end || (discovery_at_commit && event == XACT_EVENT_COMMIT))
		wed_shared_request_discovery();
	discovery_at_end = discovery_at_commit = false;
}

static void
notice_drop_extension(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, class_id, object_id, sub_id, arg);

	if (access == OAT_DROP && class_id == ExtensionRelationId &&
		object_id == get_extension_oid("wed_sql", true))
		discovery_at_commit = true;
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

/*
 * The walsender of a slot takes a moment to notice that the engine has gone.
 * The other sessions of a database are waited for by the commands themselves.
 */
static void
wait_for_idle_slots(Oid datid, TimestampTz deadline)
{
	int			slots;
	int			active;

	while (ReplicationSlotsCountDBSlots(datid, &slots, &active) && active > 0 &&
		   GetCurrentTimestamp() < deadline)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 SLOT_POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Commands on a whole database are refused while others are connected to it,
 * and DROP DATABASE while a logical slot of it is in use: so the engine leaves
 * first, and looks for databases again afterwards, whatever came of it. The
 * slot stays: DROP DATABASE itself drops it, once nothing can fail any more.
 */
static void
leave_database_alone(PlannedStmt *pstmt, const char *query, bool read_only_tree,
					 ProcessUtilityContext context, ParamListInfo params,
					 QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	ProcessUtility_hook_type next = prev_process_utility_hook ? prev_process_utility_hook : standard_ProcessUtility;
	const char *name = database_to_leave(pstmt->utilityStmt);
	Oid			datid = name ? get_database_oid(name, true) : InvalidOid;

	if (!OidIsValid(datid) || datid == MyDatabaseId ||
		!object_ownercheck(DatabaseRelationId, datid, GetUserId()))
	{
		next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
		return;
	}

	if (wed_shared_leave_database(datid, LEAVE_TIMEOUT_MS))
		wait_for_idle_slots(datid, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LEAVE_TIMEOUT_MS));
	PG_TRY();
	{
		next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
	}
	PG_FINALLY();
	{
		discovery_at_end = true;
	}
	PG_END_TRY();
}

/*
 * wed_sql.discover() -> void: has the engine look for databases with the
 * extension once this transaction has committed.
 */
Datum
wed_engine_discover(PG_FUNCTION_ARGS)
{
	discovery_at_commit = true;
	PG_RETURN_VOID();
}

/*
 * wed_sql.adopt_publication(name text) -> void: makes a publication a member
 * of the extension, which SQL has no command for. It is dropped with the
 * extension, and pg_dump leaves it to CREATE EXTENSION. pg_upgrade does not, and
 * for want of a command makes it one that is nobody's: so the engine calls this,
 * too, when it comes to a database.
 */
Datum
wed_adopt_publication(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	ObjectAddress publication;
	ObjectAddress extension;

	/* nobody else's: it would be dropped with the extension */
	if (strcmp(name, "wed_sql") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("publication \"%s\" does not belong to extension \"wed_sql\"", name)));
	ObjectAddressSet(publication, PublicationRelationId, get_publication_oid(name, false));
	if (creating_extension)
		recordDependencyOnCurrentExtension(&publication, false);
	else if (!OidIsValid(getExtensionOfObject(PublicationRelationId, publication.objectId)))
	{
		ObjectAddressSet(extension, ExtensionRelationId, get_extension_oid("wed_sql", false));
		recordDependencyOn(&publication, &extension, DEPENDENCY_EXTENSION);
	}
	PG_RETURN_VOID();
}

void
_PG_init(void)
{
	define_settings();
	RegisterXactCallback(discover_after_transaction, NULL);

	/*
	 * Loaded into a single session, the guard works, but there is neither an
	 * engine nor shared memory; CREATE EXTENSION says so.
	 */
	if (!process_shared_preload_libraries_in_progress)
		return;

	wed_shared_install();
	prev_object_access_hook = object_access_hook;
	object_access_hook = notice_drop_extension;
	prev_process_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = leave_database_alone;

	/* pg_upgrade runs the server for itself alone */
	if (!IsBinaryUpgrade)
		wed_worker_register();
}
