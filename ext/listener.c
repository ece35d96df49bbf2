/*-------------------------------------------------------------------------
 *
 * listener.c
 *		How many sessions listen. Up to PostgreSQL 18 a notification wakes each
 *		session of its database that listens to anything, so the follower has
 *		to know what one costs.
 *
 * A session counts from its first LISTEN to its UNLISTEN *, DISCARD ALL, or end,
 * whatever becomes of the transaction: it is a number to plan with.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "tcop/utility.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_listeners);

static pg_atomic_uint32 *listens = NULL;	/* database that a backend listens in, or InvalidOid */
static int	nlistens = 0;
static ProcessUtility_hook_type prev_process_utility_hook = NULL;

Size
wed_listeners_size(void)
{
	return mul_size(wed_max_backends(), sizeof(pg_atomic_uint32));
}

void
wed_listeners_create(void)
{
	bool		found;

	nlistens = wed_max_backends();
	listens = ShmemInitStruct("wed_sql listeners", wed_listeners_size(), &found);
	if (found)
		return;
	for (int i = 0; i < nlistens; i++)
		pg_atomic_init_u32(&listens[i], InvalidOid);
}

static void
set_listens(Oid datid)
{
	if (listens != NULL && MyProc != NULL && wed_proc_number(MyProc) < nlistens)
		pg_atomic_write_u32(&listens[wed_proc_number(MyProc)], datid);
}

static void
stop_listening(int code, Datum arg)
{
	set_listens(InvalidOid);
}

static void
start_listening(void)
{
	static bool registered = false;

	if (!registered)
		before_shmem_exit(stop_listening, (Datum) 0);
	registered = true;
	set_listens(MyDatabaseId);
}

static void
notice_listening(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				 ProcessUtilityContext context, ParamListInfo params,
				 QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	ProcessUtility_hook_type next = prev_process_utility_hook ? prev_process_utility_hook : standard_ProcessUtility;
	Node	   *command = pstmt->utilityStmt;
	bool		listen = IsA(command, ListenStmt);
	bool		unlisten = (IsA(command, UnlistenStmt) && castNode(UnlistenStmt, command)->conditionname == NULL) ||
		(IsA(command, DiscardStmt) && castNode(DiscardStmt, command)->target == DISCARD_ALL);

	next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
	if (listen)
		start_listening();
	else if (unlisten)
		stop_listening(0, (Datum) 0);
}

/* wed_sql.listeners() -> integer: sessions of this database that listen. */
Datum
wed_listeners(PG_FUNCTION_ARGS)
{
	int			n = 0;

	for (int i = 0; i < nlistens; i++)
		n += pg_atomic_read_u32(&listens[i]) == MyDatabaseId;
	PG_RETURN_INT32(n);
}

void
wed_listeners_install(void)
{
	prev_process_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = notice_listening;
}
