/*-------------------------------------------------------------------------
 *
 * lost.c
 *		Jobs that were locked by a transaction whose session has ended before
 *		it did: lost connections, and sessions that were ended.
 *
 * A session that ends notes them in shared memory, after its locks are free,
 * whatever it was that took the lock. The engine is told that there is
 * something, and counts a failed attempt for each.
 *
 *-------------------------------------------------------------------------
 */
#include "holder.h"
#include "shared.h"

#include "access/xact.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#include "compat.h"

#define MAX_LOST 1024			/* that the engine has not taken yet */
#define MAX_LOST_OF_DATABASE (MAX_LOST / 4) /* whoever fills that takes nothing from the others */
#define MAX_HELD 64				/* of one session */

PG_FUNCTION_INFO_V1(wed_take_lost_jobs);

typedef struct LostJob
{
	Oid			datid;
	int64		wid;
	int32		tgid;
	int			pid;			/* of the session that had locked it */
	Oid			role;
	TimestampTz xact_start;
	TimestampTz ended;
	bool		timed_out;		/* it was ended, because it took too long */
	int			taken_by;		/* session whose transaction counts it, or 0 */
} LostJob;

/* With wed_shared->lock. */
typedef struct LostJobs
{
	bool		overflow_told;
	int			count;
	LostJob		jobs[MAX_LOST];
} LostJobs;

static LostJobs *lost = NULL;
static bool watched = false;	/* this session's end is */
static LostJob held[MAX_HELD];	/* by this session, which ends */
static int	nheld = 0;
static bool taken = false;		/* by this transaction */

Size
wed_lost_size(void)
{
	return sizeof(LostJobs);
}

void
wed_lost_create(void)
{
	bool		found;

	lost = ShmemInitStruct("wed_sql lost jobs", wed_lost_size(), &found);
	if (!found)
		memset(lost, 0, wed_lost_size());
}

/*
 * The session that ends
 */

static bool
note_held(const PROCLOCK *proclock, void *arg)
{
	const LOCKTAG *tag = &proclock->tag.myLock->tag;
	LostJob    *job = &held[nheld];

	if (!(proclock->holdMask & LOCKBIT_ON(ExclusiveLock)) || tag->locktag_field1 != MyDatabaseId ||
		!wed_job_of_locktag(tag, &job->wid, &job->tgid))
		return false;
	job->datid = MyDatabaseId;
	job->pid = MyProcPid;
	job->role = GetAuthenticatedUserId();
	job->xact_start = GetCurrentTransactionStartTimestamp();
	job->timed_out = *(bool *) arg;
	job->taken_by = 0;
	return ++nheld == MAX_HELD;
}

/* Before its transaction is rolled back. */
static void
note_held_jobs(int code, Datum arg)
{
	bool		timed_out;
	bool		full = false;

	if (MyProc == NULL || !OidIsValid(MyDatabaseId) || !LocalTransactionIdIsValid(wed_lxid(MyProc)))
		return;
	LWLockReleaseAll();			/* as the rollback would, next */
	timed_out = wed_is_ended_for_timeout();
	for (int i = 0; i < NUM_LOCK_PARTITIONS && !full; i++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(i);

		/* nobody but ourselves puts an advisory lock there */
		if (wed_has_no_proclocks(MyProc, i))
			continue;
		LWLockAcquire(lock, LW_SHARED);
		full = wed_visit_proclocks(MyProc, i, note_held, &timed_out);
		LWLockRelease(lock);
	}
}

/* Those of databases that are not there any more. */
static void
make_room(void)
{
	int			kept = 0;

	for (int i = 0; i < lost->count; i++)
	{
		if (wed_find_database(lost->jobs[i].datid) != NULL)
			lost->jobs[kept++] = lost->jobs[i];
	}
	lost->count = kept;
}

static int
count_of_database(Oid datid)
{
	int			count = 0;

	for (int i = 0; i < lost->count; i++)
		count += lost->jobs[i].datid == datid;
	return count;
}

/* After its locks have been released. */
static void
publish_held_jobs(int code, Datum arg)
{
	WedDatabase *database;
	int			kept = 0;
	bool		overflow = false;

	if (nheld == 0)
		return;
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	database = wed_find_database(MyDatabaseId);
	if (database != NULL)
	{
		if (lost->count + nheld > MAX_LOST)
			make_room();
		kept = Min(MAX_LOST - lost->count, MAX_LOST_OF_DATABASE - count_of_database(MyDatabaseId));
		kept = Min(Max(kept, 0), nheld);
		for (int i = 0; i < kept; i++)
		{
			LostJob    *job = &lost->jobs[lost->count++];

			*job = held[i];
			job->ended = GetCurrentTimestamp();
		}
		overflow = kept < nheld && !lost->overflow_told;
		lost->overflow_told = lost->overflow_told || overflow;
		wed_request_count_lost(database);
	}
	LWLockRelease(wed_shared->lock);
	if (overflow)
		ereport(LOG,
				(errmsg("too many jobs were given up by sessions that have ended, and were not counted yet"),
				 errdetail("The jobs are pending again, but failed attempts are not counted.")));
}

/*
 * Has the end of this session noticed. Called when it commits its first
 * transaction, which is in its beginning, when that which rolls back has been
 * registered already: what is registered later is called earlier.
 */
void
wed_lost_watch(void)
{
	if (watched || lost == NULL || wed_shared == NULL || !IsUnderPostmaster)
		return;
	watched = true;
	before_shmem_exit(note_held_jobs, (Datum) 0);
	on_shmem_exit(publish_held_jobs, (Datum) 0);
}

/*
 * The engine's session that counts them
 */

/*
 * wed_sql.take_lost_jobs() -> setof (wid, tgid, pid, role, xact_start, ended,
 * timed_out): those of this database. When the transaction commits they are
 * forgotten; if it fails, they can be taken again.
 */
Datum
wed_take_lost_jobs(PG_FUNCTION_ARGS)
{
#define NLOST 7
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LostJob    *jobs = palloc(mul_size(MAX_LOST, sizeof(LostJob)));
	int			count = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (lost == NULL)
		return (Datum) 0;
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < lost->count; i++)
	{
		LostJob    *job = &lost->jobs[i];

		if (job->datid != MyDatabaseId || job->taken_by != 0)
			continue;
		job->taken_by = MyProcPid;
		taken = true;
		jobs[count++] = *job;
	}
	LWLockRelease(wed_shared->lock);
	for (int i = 0; i < count; i++)
	{
		const LostJob *job = &jobs[i];
		bool		nulls[NLOST] = {false};
		Datum		values[NLOST] = {
			Int64GetDatum(job->wid), Int32GetDatum(job->tgid), Int32GetDatum(job->pid), ObjectIdGetDatum(job->role),
			TimestampTzGetDatum(job->xact_start), TimestampTzGetDatum(job->ended), BoolGetDatum(job->timed_out)
		};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* At the end of each transaction. */
void
wed_lost_end_xact(bool committed)
{
	int			kept = 0;

	if (!taken)
		return;
	taken = false;
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < lost->count; i++)
	{
		LostJob    *job = &lost->jobs[i];

		if (job->taken_by == MyProcPid)
		{
			if (committed)
				continue;
			job->taken_by = 0;
		}
		lost->jobs[kept++] = *job;
	}
	lost->count = kept;
	/* the next one is another story */
	if (committed && count_of_database(MyDatabaseId) == 0)
		lost->overflow_told = false;
	LWLockRelease(wed_shared->lock);
}
