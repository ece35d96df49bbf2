/*-------------------------------------------------------------------------
 *
 * joblock.c
 *		The lock of a job: the advisory lock (wid, tgid) of the paper.
 *
 *-------------------------------------------------------------------------
 */
#include "holder.h"

#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/array.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_try_lock);
PG_FUNCTION_INFO_V1(wed_take_job_lock_sql);
PG_FUNCTION_INFO_V1(wed_await_transactions);
PG_FUNCTION_INFO_V1(wed_any_running);

/* pg_advisory_xact_lock(int, int) marks its locks so */
#define TWO_KEYS 2

/* what fits into a lock's tag together with tgid */
#define MAX_WID (((int64) (PG_UINT16_MAX - TWO_KEYS) << 32) | PG_UINT32_MAX)

/*
 * For a wid of 31 bits this is the very lock of pg_try_advisory_xact_lock(wid,
 * tgid). The bits above 32 go where PostgreSQL tells its two kinds of advisory
 * locks apart, so that a large wid has a lock that nothing else can take.
 */
void
wed_set_job_locktag(LOCKTAG *tag, int64 wid, int32 tgid)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) wid, (uint32) tgid,
						 (uint16) (TWO_KEYS + (wid >> 32)));
}

/* Whether a lock of this database may be that of a job, and of which one. */
bool
wed_job_of_locktag(const LOCKTAG *tag, int64 *wid, int32 *tgid)
{
	if (tag->locktag_type != LOCKTAG_ADVISORY || tag->locktag_field4 < TWO_KEYS)
		return false;
	*wid = (int64) (tag->locktag_field4 - TWO_KEYS) << 32 | tag->locktag_field2;
	*tgid = (int32) tag->locktag_field3;
	return true;
}

bool
wed_is_lockable(int64 wid)
{
	return wid >= 0 && wid <= MAX_WID;
}

/*
 * A lookup in the backend's own lock table: no shared memory is touched.
 */
bool
wed_job_lock_held(int64 wid, int32 tgid)
{
	LOCKTAG		tag;

	if (!wed_is_lockable(wid))
		return false;
	wed_set_job_locktag(&tag, wid, tgid);
	return LockHeldByMe(&tag, ExclusiveLock, false);
}

typedef struct LocksOfInstance
{
	int64		wid;
	int32	   *tgids;
	int			count;
	int			most;
} LocksOfInstance;

static bool
note_tgid(const PROCLOCK *proclock, void *arg)
{
	const LOCKTAG *tag = &proclock->tag.myLock->tag;
	LocksOfInstance *locks = arg;
	int64		wid;
	int32		tgid;

	if ((proclock->holdMask & LOCKBIT_ON(ExclusiveLock)) && tag->locktag_field1 == MyDatabaseId &&
		wed_job_of_locktag(tag, &wid, &tgid) && wid == locks->wid)
		locks->tgids[locks->count++] = tgid;
	return locks->count == locks->most;
}

/*
 * Those of the locks that this session has for an instance, whatever they are
 * of; most of them at the most. Not for each commit: it goes through shared
 * memory.
 */
int
wed_locked_tgids(int64 wid, int32 *tgids, int most)
{
	LocksOfInstance locks = {.wid = wid, .tgids = tgids, .most = most};
	bool		full = false;

	for (int i = 0; i < NUM_LOCK_PARTITIONS && !full; i++)
	{
		LWLock	   *lock = LockHashPartitionLockByIndex(i);

		LWLockAcquire(lock, LW_SHARED);
		full = wed_visit_proclocks(MyProc, i, note_tgid, &locks);
		LWLockRelease(lock);
	}
	return locks.count;
}

/* For who has the right to it anyway; false if another session has the lock. */
bool
wed_take_job_lock(int64 wid, int32 tgid)
{
	LOCKTAG		tag;

	wed_set_job_locktag(&tag, wid, tgid);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Gives back what wed_take_job_lock() has just taken. */
void
wed_give_back_job_lock(int64 wid, int32 tgid)
{
	LOCKTAG		tag;

	wed_set_job_locktag(&tag, wid, tgid);
	(void) LockRelease(&tag, ExclusiveLock, false);
}

/*
 * wed_sql.take_job_lock(wid bigint, tgid integer) -> boolean
 */
Datum
wed_take_job_lock_sql(PG_FUNCTION_ARGS)
{
	int64		wid = PG_GETARG_INT64(0);

	PG_RETURN_BOOL(wed_is_lockable(wid) && wed_take_job_lock(wid, PG_GETARG_INT32(1)));
}

/*
 * wed_sql.try_lock(wid bigint, tgid integer) -> boolean
 *
 * The job is looked at under its lock: so a lease that was committed before is
 * seen, and one that comes later finds the lock taken.
 */
Datum
wed_try_lock(PG_FUNCTION_ARGS)
{
	int64		wid = PG_GETARG_INT64(0);
	int32		tgid = PG_GETARG_INT32(1);
	WedFlow    *flow;
	bool		pending_only;

	if (!wed_is_lockable(wid))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("wid " INT64_FORMAT " is out of range", wid)));
	wed_refuse_if_confined("take or release advisory locks");
	flow = wed_flow_to_lock(tgid, &pending_only);
	if (!wed_take_job_lock(wid, tgid))
		PG_RETURN_BOOL(false);
	if (!wed_job_is_open(flow, wid, tgid, pending_only))
	{
		wed_give_back_job_lock(wid, tgid);
		PG_RETURN_BOOL(false);
	}
	PG_RETURN_BOOL(true);
}

/*
 * wed_sql.await_transactions(xids xid[]) -> void: returns when each of them
 * has ended, so that any new snapshot sees what it did. A commit can be read
 * from the WAL before that.
 */
Datum
wed_await_transactions(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	Datum	   *xids;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, XIDOID, sizeof(TransactionId), true, TYPALIGN_INT,
					  &xids, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		TransactionId xid = nulls[i] ? InvalidTransactionId : DatumGetTransactionId(xids[i]);

		if (TransactionIdIsNormal(xid) && !TransactionIdIsCurrentTransactionId(xid) &&
			TransactionIdIsInProgress(xid))
			XactLockTableWait(xid, NULL, NULL, XLTW_None);
	}
	PG_RETURN_VOID();
}

/*
 * wed_sql.any_running(xids xid[]) -> boolean: whether one of them has not ended
 * yet, for those who do not wait.
 */
Datum
wed_any_running(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	Datum	   *xids;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, XIDOID, sizeof(TransactionId), true, TYPALIGN_INT,
					  &xids, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		TransactionId xid = nulls[i] ? InvalidTransactionId : DatumGetTransactionId(xids[i]);

		if (TransactionIdIsNormal(xid) && TransactionIdIsInProgress(xid))
			PG_RETURN_BOOL(true);
	}
	PG_RETURN_BOOL(false);
}
