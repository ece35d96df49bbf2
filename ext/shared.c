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
#include "wed_sql.h"

#include <limits.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/message.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/standby.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "compat.h"

#define ERROR_SIZE 512

/* the engine's report on databases that it has not been able to look at */
#define ANY_DATABASE InvalidOid

typedef struct DatabaseStatus
{
	Oid			datid;			/* or ANY_DATABASE */
	char		state;
	bool		leave_requested;	/* somebody needs the database for himself */
	XLogRecPtr	applied_lsn;
	XLogRecPtr	flushed_lsn;
	int64		commit_time;	/* of the newest state applied, 0 if unknown */
	int64		states_total;
	TimestampTz state_since;
	TimestampTz error_at;
	NameData	datname;
	NameData	slot;
	char		error[ERROR_SIZE];
} DatabaseStatus;

typedef struct WedShared
{
	LWLock	   *lock;			/* of everything below but the condition */
	ConditionVariable applied;	/* some applied_lsn or state has changed */
	Latch	   *worker_latch;	/* NULL while there is no worker */
	bool		discovery_requested;
	pid_t		engine_pid;		/* 0 while there is none */
	TimestampTz engine_started;
	int64		engine_starts;
	int			ndatabases;
	DatabaseStatus databases[FLEXIBLE_ARRAY_MEMBER];
} WedShared;

static WedShared *shared = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

PG_FUNCTION_INFO_V1(wed_sync);
PG_FUNCTION_INFO_V1(wed_engine_status);
PG_FUNCTION_INFO_V1(wed_is_preloaded);
PG_FUNCTION_INFO_V1(wed_log_running_transactions);

static Size
shared_size(void)
{
	return add_size(offsetof(WedShared, databases),
					mul_size(wed_max_databases, sizeof(DatabaseStatus)));
}

static void
request_shared_memory(void)
{
	RequestAddinShmemSpace(shared_size());
	RequestNamedLWLockTranche("wed_sql", 1);
}

static void
create_shared_memory(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("wed_sql", shared_size(), &found);
	if (!found)
	{
		memset(shared, 0, shared_size());
		shared->lock = &GetNamedLWLockTranche("wed_sql")->lock;
		ConditionVariableInit(&shared->applied);
	}
	LWLockRelease(AddinShmemInitLock);
}

void
wed_shared_install(void)
{
	wed_request_shmem(request_shared_memory);
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = create_shared_memory;
}

static void
require_shared(void)
{
	if (shared == NULL)
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
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->worker_latch = NULL;
	shared->engine_pid = 0;
	LWLockRelease(shared->lock);
	ConditionVariableBroadcast(&shared->applied);
}

void
wed_shared_worker_started(void)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->worker_latch = &MyProc->procLatch;
	LWLockRelease(shared->lock);
	before_shmem_exit(worker_stopped, (Datum) 0);
}

void
wed_shared_engine_started(pid_t pid)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->engine_pid = pid;
	shared->engine_started = GetCurrentTimestamp();
	shared->engine_starts++;
	LWLockRelease(shared->lock);
}

void
wed_shared_engine_ended(void)
{
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->engine_pid = 0;
	for (int i = 0; i < shared->ndatabases; i++)
		shared->databases[i].state = WED_DB_STARTING;
	LWLockRelease(shared->lock);
}

/* Any backend may call this, also without shared memory. */
void
wed_shared_request_discovery(void)
{
	if (shared == NULL)
		return;
	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	shared->discovery_requested = true;
	if (shared->worker_latch != NULL)
		SetLatch(shared->worker_latch);
	LWLockRelease(shared->lock);
}

bool
wed_shared_take_discovery_request(void)
{
	bool		requested;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	requested = shared->discovery_requested;
	shared->discovery_requested = false;
	LWLockRelease(shared->lock);
	return requested;
}

static DatabaseStatus *
find_database(Oid datid)
{
	for (int i = 0; i < shared->ndatabases; i++)
	{
		if (shared->databases[i].datid == datid)
			return &shared->databases[i];
	}
	return NULL;
}

static DatabaseStatus *
find_or_add_database(Oid datid)
{
	DatabaseStatus *database = find_database(datid);

	if (database == NULL && shared->ndatabases < wed_max_databases)
	{
		database = &shared->databases[shared->ndatabases++];
		memset(database, 0, sizeof(DatabaseStatus));
		database->datid = datid;
		database->state_since = GetCurrentTimestamp();
	}
	return database;
}

/* All that was committed up to lsn has been matched. */
void
wed_shared_applied(Oid datid, XLogRecPtr lsn, int64 commit_time)
{
	DatabaseStatus *database;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	database = find_or_add_database(datid);
	if (database != NULL)
	{
		if (lsn > database->applied_lsn)
			database->applied_lsn = lsn;
		if (commit_time != 0)
			database->commit_time = commit_time;
	}
	LWLockRelease(shared->lock);
	ConditionVariableBroadcast(&shared->applied);
}

void
wed_shared_report(const WedDatabaseReport *report)
{
	DatabaseStatus *database;
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	database = find_or_add_database(report->datid);
	if (database != NULL && report->state == WED_DB_GONE)
		*database = shared->databases[--shared->ndatabases];
	else if (database != NULL)
	{
		if (database->state != (char) report->state)
			database->state_since = now;
		database->state = report->state;
		database->flushed_lsn = report->flushed_lsn;
		database->states_total = report->states_total;
		namestrcpy(&database->datname, report->datname);
		namestrcpy(&database->slot, report->slot);
		if (report->error[0] != '\0' && strncmp(database->error, report->error, ERROR_SIZE - 1) != 0)
			database->error_at = now;
		if (report->error[0] != '\0')
			strlcpy(database->error, report->error, ERROR_SIZE);
	}
	LWLockRelease(shared->lock);
	ConditionVariableBroadcast(&shared->applied);
}

/*
 * The sessions' side
 */

static bool
is_applied(XLogRecPtr lsn)
{
	DatabaseStatus *database;
	bool		applied;

	LWLockAcquire(shared->lock, LW_SHARED);
	database = find_database(MyDatabaseId);
	applied = database != NULL && database->applied_lsn >= lsn;
	LWLockRelease(shared->lock);
	return applied;
}

static char *
describe_trouble(void)
{
	DatabaseStatus *database;
	char	   *trouble;

	LWLockAcquire(shared->lock, LW_SHARED);
	database = find_database(MyDatabaseId);
	if (database == NULL)
		database = find_database(ANY_DATABASE);
	if (shared->engine_pid == 0)
		trouble = pstrdup(wed_enabled ? "The engine is not running." : "The engine is off: wed_sql.enabled.");
	else if (database == NULL)
		trouble = pstrdup("The engine has not found this database yet.");
	else if (database->state == WED_DB_BACKING_OFF)
		trouble = psprintf("The engine cannot do its work: %s", database->error);
	else
		trouble = psprintf("The engine is behind, at %X/%X.", LSN_FORMAT_ARGS(database->applied_lsn));
	LWLockRelease(shared->lock);
	return trouble;
}

/*
 * Waits until everything up to lsn has been matched in this database. False
 * if that took longer than timeout_ms; *trouble then says what is known.
 */
bool
wed_shared_wait_applied(XLogRecPtr lsn, int64 timeout_ms, char **trouble)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);
	bool		applied;

	ConditionVariablePrepareToSleep(&shared->applied);
	while (!(applied = is_applied(lsn)))
	{
		long		rest = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		if (rest <= 0)
			break;
		(void) ConditionVariableTimedSleep(&shared->applied, rest, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	if (!applied)
		*trouble = describe_trouble();
	return applied;
}

/* A database that the engine is to leave, or InvalidOid. */
Oid
wed_shared_take_leave_request(void)
{
	Oid			datid = InvalidOid;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < shared->ndatabases && !OidIsValid(datid); i++)
	{
		if (!shared->databases[i].leave_requested)
			continue;
		shared->databases[i].leave_requested = false;
		datid = shared->databases[i].datid;
	}
	LWLockRelease(shared->lock);
	return datid;
}

/* False if the engine is not there, and can be asked nothing. */
static bool
request_leave(Oid datid)
{
	DatabaseStatus *database;
	bool		requested = false;

	LWLockAcquire(shared->lock, LW_EXCLUSIVE);
	database = find_database(datid);
	if (database != NULL && shared->worker_latch != NULL)
	{
		database->leave_requested = requested = true;
		SetLatch(shared->worker_latch);
	}
	LWLockRelease(shared->lock);
	return requested;
}

static bool
is_followed(Oid datid)
{
	bool		followed;

	LWLockAcquire(shared->lock, LW_SHARED);
	followed = find_database(datid) != NULL && shared->worker_latch != NULL;
	LWLockRelease(shared->lock);
	return followed;
}

/*
 * Has the engine leave a database, and waits until it has, but no longer than
 * timeout_ms. Whoever asks must own it. It comes back when it is told to look
 * for databases again. False if it was not there.
 */
bool
wed_shared_leave_database(Oid datid, int64 timeout_ms)
{
	TimestampTz deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), timeout_ms);

	if (shared == NULL || !request_leave(datid))
		return false;
	ConditionVariablePrepareToSleep(&shared->applied);
	while (is_followed(datid))
	{
		long		rest = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

		if (rest <= 0)
			break;
		(void) ConditionVariableTimedSleep(&shared->applied, rest, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
	return true;
}

/*
 * wed_sql.sync(timeout interval) -> void
 *
 * A message of our own marks the place in the WAL to wait for: commits that
 * did not wait for their flush lie before it, and are flushed with it.
 */
Datum
wed_sync(PG_FUNCTION_ARGS)
{
	Interval   *timeout = PG_GETARG_INTERVAL_P(0);
	int64		timeout_ms;
	XLogRecPtr	lsn;
	char	   *trouble;

	require_shared();
	timeout_ms = Min(timeout->time / 1000, (int64) INT_MAX) +
		(timeout->day + (int64) timeout->month * DAYS_PER_MONTH) * SECS_PER_DAY * 1000;
	timeout_ms = Min(timeout_ms, INT_MAX);	/* also of 'infinity' */
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
	PG_RETURN_VOID();
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

static const char *
state_name(char state)
{
	switch (state)
	{
		case WED_DB_STARTING:
			return "starting";
		case WED_DB_HEALING:
			return "healing";
		case WED_DB_STREAMING:
			return "streaming";
		case WED_DB_BACKING_OFF:
			return "backing off";
		default:
			return "unknown";
	}
}

/*
 * wed_sql.engine_status() -> setof record, one per database; see sql/status.sql
 */
Datum
wed_engine_status(PG_FUNCTION_ARGS)
{
#define NCOLUMNS 13
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			ndatabases;
	DatabaseStatus *databases;
	pid_t		engine_pid;
	TimestampTz engine_started;
	int64		engine_starts;
	DatabaseStatus *this;

	require_shared();
	InitMaterializedSRF(fcinfo, 0);

	/* not under the lock: writing a tuplestore can take its time, or fail */
	databases = palloc(mul_size(wed_max_databases + 1, sizeof(DatabaseStatus)));
	LWLockAcquire(shared->lock, LW_SHARED);
	ndatabases = shared->ndatabases;
	memcpy(databases, shared->databases, ndatabases * sizeof(DatabaseStatus));
	this = find_database(MyDatabaseId);
	engine_pid = shared->engine_pid;
	engine_started = shared->engine_started;
	engine_starts = shared->engine_starts;
	LWLockRelease(shared->lock);

	/* who asks is told, also when the engine has not come here yet */
	if (this == NULL)
	{
		DatabaseStatus *database = &databases[ndatabases];

		memset(database, 0, sizeof(DatabaseStatus));
		database->state = WED_DB_STARTING;
		for (int i = 0; i < ndatabases; i++)
		{
			if (databases[i].datid == ANY_DATABASE)
				*database = databases[i];
		}
		ndatabases++;
		database->datid = MyDatabaseId;
		namestrcpy(&database->datname, get_database_name(MyDatabaseId));
	}

	for (int i = 0; i < ndatabases; i++)
	{
		DatabaseStatus *database = &databases[i];
		Datum		values[NCOLUMNS] = {0};
		bool		nulls[NCOLUMNS] = {false};

		if (database->datid == ANY_DATABASE)
			continue;

		values[0] = ObjectIdGetDatum(database->datid);
		values[1] = NameGetDatum(&database->datname);
		values[2] = CStringGetTextDatum(!wed_enabled ? "off" :
										engine_pid == 0 ? "not running" : state_name(database->state));
		values[3] = TimestampTzGetDatum(database->state_since);
		nulls[3] = database->state_since == 0;
		values[4] = NameGetDatum(&database->slot);
		nulls[4] = NameStr(database->slot)[0] == '\0';
		values[5] = LSNGetDatum(database->applied_lsn);
		nulls[5] = database->applied_lsn == InvalidXLogRecPtr;
		values[6] = LSNGetDatum(database->flushed_lsn);
		nulls[6] = database->flushed_lsn == InvalidXLogRecPtr;
		values[7] = TimestampTzGetDatum(database->commit_time);
		nulls[7] = database->commit_time == 0;
		values[8] = Int64GetDatum(database->states_total);
		values[9] = CStringGetTextDatum(database->error);
		nulls[9] = database->error[0] == '\0';
		values[10] = TimestampTzGetDatum(database->error_at);
		nulls[10] = nulls[9];
		values[11] = Int32GetDatum((int32) engine_pid);
		nulls[11] = engine_pid == 0;
		values[12] = TimestampTzGetDatum(engine_started);
		nulls[12] = engine_starts == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* wed_sql.is_preloaded() -> boolean */
Datum
wed_is_preloaded(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(shared != NULL);
}
