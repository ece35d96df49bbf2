/*-------------------------------------------------------------------------
 *
 * shared.c
 *		What the engine reports, in shared memory: for wed_sql.status, and for
 *		those who wait until the follower has come to a place in the WAL.
 *
 * Written by the background worker alone.
 *
 *-------------------------------------------------------------------------
 */
#include "holder.h"
#include "shared.h"

#include <limits.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/message.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/standby.h"
#include "utils/builtins.h"

#include "compat.h"

WedShared  *wed_shared = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

PG_FUNCTION_INFO_V1(wed_sync);
PG_FUNCTION_INFO_V1(wed_mark);
PG_FUNCTION_INFO_V1(wed_is_matched);
PG_FUNCTION_INFO_V1(wed_is_preloaded);
PG_FUNCTION_INFO_V1(wed_log_running_transactions);

static Size
shared_size(void)
{
	return add_size(offsetof(WedShared, databases),
					mul_size(wed_max_databases, sizeof(WedDatabase)));
}

static void
request_shared_memory(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestAddinShmemSpace(wed_holders_size());
	RequestAddinShmemSpace(wed_lost_size());
	RequestAddinShmemSpace(wed_listeners_size());
	RequestNamedLWLockTranche("wed_sql", 1);
}

static void
create_shared_memory(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	wed_shared = ShmemInitStruct("wed_sql", shared_size(), &found);
	if (!found)
	{
		memset(wed_shared, 0, shared_size());
		wed_shared->lock = &GetNamedLWLockTranche("wed_sql")->lock;
		ConditionVariableInit(&wed_shared->applied);
		ConditionVariableInit(&wed_shared->left);
	}
	wed_holders_create();
	wed_lost_create();
	wed_listeners_create();
	LWLockRelease(AddinShmemInitLock);
}

void
wed_shared_install(void)
{
	wed_request_shmem(request_shared_memory);
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = create_shared_memory;
}

void
wed_require_shared(void)
{
	if (wed_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("wed_sql must be loaded via shared_preload_libraries"),
				 errhint("Add wed_sql to shared_preload_libraries in postgresql.conf, and restart the server.")));
}

/*
 * The worker's side
 */

static void
worker_stopped(int code, Datum arg)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	wed_shared->worker_latch = NULL;
	wed_shared->engine_pid = 0;
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->applied);
	ConditionVariableBroadcast(&wed_shared->left);
}

void
wed_shared_worker_started(void)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	wed_shared->worker_latch = &MyProc->procLatch;
	LWLockRelease(wed_shared->lock);
	before_shmem_exit(worker_stopped, (Datum) 0);
}

/* One more is about to be started. */
void
wed_shared_engine_starts_now(void)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	wed_shared->engine_starts++;
	LWLockRelease(wed_shared->lock);
}

/* Engines that were started since the server was. */
int64
wed_shared_engine_starts(void)
{
	int64		starts;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	starts = wed_shared->engine_starts;
	LWLockRelease(wed_shared->lock);
	return starts;
}

void
wed_shared_engine_started(pid_t pid)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	wed_shared->engine_pid = pid;
	wed_shared->engine_started = GetCurrentTimestamp();
	wed_requests_engine_started();
	LWLockRelease(wed_shared->lock);
}

void
wed_shared_engine_ended(void)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	wed_shared->engine_pid = 0;
	for (int i = 0; i < wed_shared->ndatabases; i++)
		wed_shared->databases[i].state = WED_DB_STARTING;
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->left);
}

/* With the lock. */
WedDatabase *
wed_find_database(Oid datid)
{
	for (int i = 0; i < wed_shared->ndatabases; i++)
	{
		if (wed_shared->databases[i].datid == datid)
			return &wed_shared->databases[i];
	}
	return NULL;
}

static WedDatabase *
find_or_add_database(Oid datid)
{
	WedDatabase *database = wed_find_database(datid);

	if (database == NULL && wed_shared->ndatabases < wed_max_databases)
	{
		database = &wed_shared->databases[wed_shared->ndatabases++];
		memset(database, 0, sizeof(WedDatabase));
		database->datid = datid;
		database->state_since = GetCurrentTimestamp();
	}
	return database;
}

/* All that was committed up to lsn has been matched. */
void
wed_shared_applied(Oid datid, XLogRecPtr lsn, int64 commit_time)
{
	WedDatabase *database;

	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	database = wed_find_database(datid);	/* its first report comes before */
	if (database != NULL)
	{
		if (lsn > database->applied_lsn)
			database->applied_lsn = lsn;
		if (commit_time != 0)
			database->commit_time = commit_time;
	}
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->applied);
}

/* True once in the server's life, when there is no room for a database. */
static bool
first_overflow(void)
{
	bool		first = !wed_shared->overflow_told;

	wed_shared->overflow_told = true;
	return first;
}

void
wed_shared_report(const WedDatabaseReport *report)
{
	WedDatabase *database;
	TimestampTz now = GetCurrentTimestamp();
	bool		overflow = false;

	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	if (report->state == WED_DB_GONE)
	{
		database = wed_find_database(report->datid);
		if (database != NULL)
			*database = wed_shared->databases[--wed_shared->ndatabases];
	}
	else if ((database = find_or_add_database(report->datid)) == NULL)
		overflow = first_overflow();
	else
	{
		if (database->state != (char) report->state)
			database->state_since = now;
		database->state = report->state;
		database->flushed_lsn = report->flushed_lsn;
		database->states_total = report->states_total;
		namestrcpy(&database->datname, report->datname);
		if (report->error[0] != '\0' && strncmp(database->error, report->error, WED_TEXT_SIZE - 1) != 0)
			database->error_at = now;
		if (report->error[0] != '\0')
			strlcpy(database->error, report->error, WED_TEXT_SIZE);
		strlcpy(database->warning, report->warning, WED_TEXT_SIZE);
	}
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->applied);
	if (overflow)
		ereport(WARNING,
				(errmsg("more than %d databases have WED-flows", wed_max_databases),
				 errdetail("Database \"%s\" and those found after it are followed, but wed_sql.status does not know how they are, and wed_sql.sync() fails in them.",
						   report->datname),
				 errhint("Increase wed_sql.max_databases, and restart the server.")));
}

/*
 * The sessions' side
 */

static bool
is_applied(XLogRecPtr lsn)
{
	WedDatabase *database;
	bool		applied;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	database = wed_find_database(MyDatabaseId);
	applied = database != NULL && database->applied_lsn >= lsn;
	LWLockRelease(wed_shared->lock);
	return applied;
}

static bool
is_known(void)
{
	bool		known;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	known = wed_find_database(MyDatabaseId) != NULL;
	LWLockRelease(wed_shared->lock);
	return known;
}

static char *
describe_trouble(void)
{
	WedDatabase *database;
	char	   *trouble;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	database = wed_find_database(MyDatabaseId);
	if (database == NULL)
		database = wed_find_database(WED_ANY_DATABASE);
	if (wed_shared->engine_pid == 0)
		trouble = pstrdup(wed_enabled ? "The engine is not running." : "The engine is off: wed_sql.enabled.");
	else if (database == NULL && wed_shared->ndatabases >= wed_max_databases)
		trouble = pstrdup("More databases have WED-flows than wed_sql.max_databases says.");
	else if (database == NULL)
		trouble = pstrdup("The engine has not found this database yet.");
	else if (database->state == WED_DB_BACKING_OFF)
		trouble = psprintf("The engine cannot do its work: %s", database->error);
	else
		trouble = psprintf("The engine is behind, at %X/%X.", LSN_FORMAT_ARGS(database->applied_lsn));
	LWLockRelease(wed_shared->lock);
	return trouble;
}

/*
 * Waits until everything up to lsn has been matched in this database. False
 * if that took longer than timeout_ms; *trouble then says what is known.
 */
bool
wed_shared_wait_applied(XLogRecPtr lsn, int64 timeout_ms, char **trouble)
{
	int64		deadline = wed_monotonic_ms() + timeout_ms;
	bool		applied;

	/* whatever may have hidden this database from the engine, it looks again */
	if (!is_known())
		wed_request_look(MyDatabaseId);
	ConditionVariablePrepareToSleep(&wed_shared->applied);
	while (!(applied = is_applied(lsn)))
	{
		int64		rest = deadline - wed_monotonic_ms();

		if (rest <= 0)
			break;
		(void) ConditionVariableTimedSleep(&wed_shared->applied, rest, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	if (!applied)
		*trouble = describe_trouble();
	return applied;
}

/*
 * Waits until all that is committed now has been matched; an error if that takes
 * longer.
 *
 * A message of our own marks the place in the WAL to wait for: commits that
 * did not wait for their flush lie before it, and are flushed with it.
 */
void
wed_shared_sync(int64 timeout_ms)
{
	XLogRecPtr	lsn;
	char	   *trouble;

	wed_require_shared();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("WED-flows run on the primary server only.")));
	if (!XLogLogicalInfoActive())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("wal_level must be \"logical\" for WED-flows to run"),
				 errhint("Set wal_level = logical in postgresql.conf, and restart the server.")));

	lsn = LogLogicalMessage("wed_sql", "", 0, false, true);
	if (!wed_shared_wait_applied(lsn, timeout_ms, &trouble))
		ereport(ERROR,
				(errcode(ERRCODE_WED_SYNC_TIMED_OUT),
				 errmsg("the states committed up to %X/%X were not matched in time", LSN_FORMAT_ARGS(lsn)),
				 errdetail_internal("%s", trouble),
				 errhint("See wed_sql.status and the server's log.")));
}

/* wed_sql.sync(timeout interval) -> void */
Datum
wed_sync(PG_FUNCTION_ARGS)
{
	Interval   *timeout = PG_GETARG_INTERVAL_P(0);
	int64		timeout_ms;

	timeout_ms = Min(timeout->time / 1000, (int64) INT_MAX) +
		(timeout->day + (int64) timeout->month * DAYS_PER_MONTH) * SECS_PER_DAY * 1000;
	wed_shared_sync(Min(timeout_ms, INT_MAX));	/* also of 'infinity' */
	PG_RETURN_VOID();
}

/*
 * wed_sql.mark() -> bigint, wed_sql.is_matched(mark bigint) -> boolean: whether
 * all that was committed before the mark has been matched, for who cannot wait.
 */
Datum
wed_mark(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) LogLogicalMessage("wed_sql", "", 0, false, true));
}

Datum
wed_is_matched(PG_FUNCTION_ARGS)
{
	wed_require_shared();
	PG_RETURN_BOOL(is_applied((XLogRecPtr) PG_GETARG_INT64(0)));
}

/*
 * wed_sql.log_running_transactions() -> void: a place in the WAL where logical
 * decoding can begin, so that a restarted follower need not go back far.
 */
Datum
wed_log_running_transactions(PG_FUNCTION_ARGS)
{
	if (XLogLogicalInfoActive() && !RecoveryInProgress())
		(void) LogStandbySnapshot();
	PG_RETURN_VOID();
}

/* wed_sql.is_preloaded() -> boolean */
Datum
wed_is_preloaded(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(wed_shared != NULL);
}
