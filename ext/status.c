/*-------------------------------------------------------------------------
 *
 * status.c
 *		wed_sql.engine_status(): what is known of the engine, per database.
 *
 * A database has a row if the engine has reported it, if a slot of ours keeps
 * WAL for it, or if it is the one that asks.
 *
 *-------------------------------------------------------------------------
 */
#include "shared.h"

#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_engine_status);

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
		case WED_DB_LEFT_ALONE:
			return "left alone";
		default:
			return "unknown";
	}
}

/* What is to be shown, copied out of shared memory. */
typedef struct EngineView
{
	int			ndatabases;
	WedDatabase *databases;
	WedDatabase everywhere;		/* what hinders the engine everywhere */
	pid_t		engine_pid;
	TimestampTz engine_started;
} EngineView;

/* A row for a database that the engine has not reported. */
static void
add_if_missing(EngineView *snapshot, Oid datid)
{
	WedDatabase *database = &snapshot->databases[snapshot->ndatabases];

	for (int i = 0; i < snapshot->ndatabases; i++)
	{
		if (snapshot->databases[i].datid == datid)
			return;
	}
	*database = snapshot->everywhere;
	database->datid = datid;
	snapshot->ndatabases++;
}

static void
take_snapshot(EngineView *snapshot)
{
	WedSlot    *slots;
	int			nslots = wed_own_slots(&slots);
	bool		this_known;

	/* not under the lock: writing a tuplestore can take its time, or fail */
	memset(snapshot, 0, sizeof(EngineView));
	snapshot->databases = palloc(mul_size(wed_max_databases + nslots + 1, sizeof(WedDatabase)));
	snapshot->everywhere.state = WED_DB_STARTING;
	LWLockAcquire(wed_shared->lock, LW_SHARED);
	for (int i = 0; i < wed_shared->ndatabases; i++)
	{
		if (wed_shared->databases[i].datid == WED_ANY_DATABASE)
			snapshot->everywhere = wed_shared->databases[i];
		else
			snapshot->databases[snapshot->ndatabases++] = wed_shared->databases[i];
	}
	this_known = wed_find_database(MyDatabaseId) != NULL;
	snapshot->engine_pid = wed_shared->engine_pid;
	snapshot->engine_started = wed_shared->engine_started;
	LWLockRelease(wed_shared->lock);

	for (int i = 0; i < nslots; i++)
		add_if_missing(snapshot, slots[i].datid);
	add_if_missing(snapshot, MyDatabaseId);
	/* whatever may have hidden this database from the engine, it looks again */
	if (!this_known)
		wed_request_look(MyDatabaseId);
}

static const char *
describe_state(const EngineView *snapshot, const WedDatabase *database)
{
	if (RecoveryInProgress())
		return "standby";
	if (!wed_enabled)
		return "off";
	if (snapshot->engine_pid == 0)
		return "not running";
	return state_name(database->state);
}

/*
 * wed_sql.engine_status() -> setof record, one per database; see sql/status.sql
 */
Datum
wed_engine_status(PG_FUNCTION_ARGS)
{
#define NCOLUMNS 13
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	EngineView	snapshot;

	wed_require_shared();
	InitMaterializedSRF(fcinfo, 0);
	take_snapshot(&snapshot);

	for (int i = 0; i < snapshot.ndatabases; i++)
	{
		WedDatabase *database = &snapshot.databases[i];
		char	   *datname = get_database_name(database->datid);
		Datum		values[NCOLUMNS] = {0};
		bool		nulls[NCOLUMNS] = {false};

		if (datname == NULL)	/* dropped, and the engine does not know it yet */
			continue;

		values[0] = ObjectIdGetDatum(database->datid);
		namestrcpy(&database->datname, datname);
		values[1] = NameGetDatum(&database->datname);
		values[2] = CStringGetTextDatum(describe_state(&snapshot, database));
		values[3] = TimestampTzGetDatum(database->state_since);
		nulls[3] = database->state_since == 0;
		values[4] = LSNGetDatum(database->applied_lsn);
		nulls[4] = database->applied_lsn == InvalidXLogRecPtr;
		values[5] = LSNGetDatum(database->flushed_lsn);
		nulls[5] = database->flushed_lsn == InvalidXLogRecPtr;
		values[6] = TimestampTzGetDatum(database->commit_time);
		nulls[6] = database->commit_time == 0;
		values[7] = Int64GetDatum(database->states_total);
		values[8] = CStringGetTextDatum(database->error);
		nulls[8] = database->error[0] == '\0';
		values[9] = TimestampTzGetDatum(database->error_at);
		nulls[9] = nulls[8];
		values[10] = CStringGetTextDatum(database->warning);
		nulls[10] = database->warning[0] == '\0';
		values[11] = Int32GetDatum((int32) snapshot.engine_pid);
		nulls[11] = snapshot.engine_pid == 0;
		values[12] = TimestampTzGetDatum(snapshot.engine_started);
		nulls[12] = snapshot.engine_started == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
