/*-------------------------------------------------------------------------
 *
 * job.c
 *		Rows of job_pool, for who writes the state that completes one: which
 *		one has this transaction locked, may it be completed so, and if not,
 *		why.
 *
 * The pool follows the rows of wed_flow: a job that is in it is to be done only
 * if the row's stamp says so, too.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* columns of job_pool, in the order of sql/flow.sql */
enum
{
	JOB_WID = 1,
	JOB_TGID,
	JOB_TRNAME,
	JOB_LCKID,
	JOB_TIMEOUT,
	JOB_PAYLOAD,
	JOB_FIRED_AT,
	JOB_VERSION,
	JOB_PRIORITY,
	JOB_ATTEMPTS,
	JOB_LAST_ERROR,
	JOB_AVAILABLE_AT,
	JOB_LEASED_UNTIL
};

/* The pending jobs of an instance that this transaction has locked. */
typedef struct LockedJobs
{
	int			count;
	WedJob		job;			/* the one to complete; its tgid is 0 if there is none */
	WedJob		left_over;		/* one that does not pend any more; its tgid is 0 if there is none */
} LockedJobs;

static SysScanDesc
begin_job_scan(const WedFlow *flow, Relation job_pool, int64 wid, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, JOB_WID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wid));
	return systable_beginscan(job_pool, flow->job_pool_pkey, true, snapshot, 1, &key);
}

static void
read_job(HeapTuple tuple, TupleDesc desc, WedJob *job)
{
	bool		isnull;
	Datum		value;

	job->tgid = DatumGetInt32(heap_getattr(tuple, JOB_TGID, desc, &isnull));
	job->trname = TextDatumGetCString(heap_getattr(tuple, JOB_TRNAME, desc, &isnull));
	job->tid = tuple->t_self;
	job->fired_at = DatumGetTimestampTz(heap_getattr(tuple, JOB_FIRED_AT, desc, &isnull));
	job->version = DatumGetInt64(heap_getattr(tuple, JOB_VERSION, desc, &isnull));
	value = heap_getattr(tuple, JOB_AVAILABLE_AT, desc, &isnull);
	job->available_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
	value = heap_getattr(tuple, JOB_LCKID, desc, &isnull);
	job->lckid = isnull ? NULL : TextDatumGetCString(value);
	value = heap_getattr(tuple, JOB_LEASED_UNTIL, desc, &isnull);
	job->leased_until = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
}

/* A job as it is now, the newest of that WED-trigger; false if there is none. */
bool
wed_find_job(const WedFlow *flow, int64 wid, int32 tgid, WedJob *job)
{
	Relation	job_pool = table_open(flow->job_pool, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&keys[0], JOB_WID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wid));
	ScanKeyInit(&keys[1], JOB_TGID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(tgid));
	scan = systable_beginscan(job_pool, flow->job_pool_pkey, true, snapshot, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		WedJob		other = {0};

		read_job(tuple, RelationGetDescr(job_pool), &other);
		if (!found || other.version > job->version)
			*job = other;
		found = true;
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(job_pool, AccessShareLock);
	return found;
}

/*
 * Whether a job is of this transition. One that was fired before the rule was
 * changed or removed is of the transition that it was fired for.
 */
static bool
is_of(const WedFlow *flow, int64 wid, int32 tgid, const char *trname)
{
	const char *now = wed_transition_name(flow, tgid);
	WedJob		job;

	if (now != NULL && strcmp(now, trname) == 0)
		return true;
	return wed_find_job(flow, wid, tgid, &job) && strcmp(job.trname, trname) == 0;
}

/* For who may perform this transition: the lock of another one's job is not his to take. */
bool
wed_take_job_lock_of(const WedFlow *flow, int64 wid, int32 tgid, const char *trname)
{
	return wed_is_lockable(wid) && is_of(flow, wid, tgid, trname) && wed_take_job_lock(wid, tgid);
}

/* Whether the delay of a WED-trigger is over, and its job in the pool. */
bool
wed_has_fired(const WedFlow *flow, int64 wid, int32 tgid, int64 since)
{
	WedJob		job;

	return wed_find_job(flow, wid, tgid, &job) && job.version == since;
}

void
wed_append_transition(StringInfo buf, const char *trname, int32 tgid)
{
	if (buf->len > 0)
		appendStringInfoString(buf, ", ");
	if (trname != NULL)
		appendStringInfo(buf, "%s (tgid %d)", trname, tgid);
	else
		appendStringInfo(buf, "tgid %d", tgid);
}

/*
 * For messages: what pends, but clocks that run. It may be on its way to
 * job_pool. If the job that is refused pends, it is another one, of another state.
 */
static char *
list_pending(const WedFlow *flow, int64 wid, const WedPending *pending, int32 refused)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < pending->count; i++)
	{
		int32		tgid = pending->tgids[i];

		if (pending->clocks[i] && !wed_has_fired(flow, wid, tgid, pending->since[i]))
			continue;
		wed_append_transition(&list, wed_transition_name(flow, tgid), tgid);
		if (tgid == refused)
			appendStringInfo(&list, " since state " INT64_FORMAT, pending->since[i]);
	}
	return list.data;
}

/* For messages: the pending jobs of wid in job_pool, or only those that are locked here. */
static char *
list_jobs(const WedFlow *flow, Relation job_pool, int64 wid, const WedPending *pending, bool locked)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleDesc	desc = RelationGetDescr(job_pool);
	SysScanDesc scan = begin_job_scan(flow, job_pool, wid, snapshot);
	HeapTuple	tuple;
	StringInfoData list;

	initStringInfo(&list);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int32		tgid = DatumGetInt32(heap_getattr(tuple, JOB_TGID, desc, &isnull));
		int64		version = DatumGetInt64(heap_getattr(tuple, JOB_VERSION, desc, &isnull));

		if (wed_pending_since(pending, tgid) == version && (!locked || wed_job_lock_held(wid, tgid)))
			wed_append_transition(&list, TextDatumGetCString(heap_getattr(tuple, JOB_TRNAME, desc, &isnull)),
							  tgid);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return list.data;
}

static void
refuse_named_job_not_pending(const WedFlow *flow, int64 wid, const WedPending *pending, int32 tgid, const char *trname)
{
	char	   *others = list_pending(flow, wid, pending, tgid);

	ereport(ERROR,
			(errcode(ERRCODE_WED_JOB_NOT_PENDING),
			 trname != NULL ?
			 errmsg("job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\" is not pending",
					trname, tgid, wid, flow->name) :
			 errmsg("job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\" is not pending",
					tgid, wid, flow->name),
			 others[0] != '\0' ?
			 errdetail("Pending: %s.", others) :
			 errdetail("No job of this instance is pending."),
			 errhint("Another worker may just have completed it, or it was withdrawn: roll back, and take another job.")));
}

static void
refuse_job_not_pending(const WedFlow *flow, int64 wid, const WedPending *pending, int32 tgid)
{
	refuse_named_job_not_pending(flow, wid, pending, tgid, wed_transition_name(flow, tgid));
}

static void
refuse_without_lock(const WedFlow *flow, Relation job_pool, int64 wid, const WedPending *pending, int32 tgid)
{
	char	   *jobs = list_jobs(flow, job_pool, wid, pending, false);

	ereport(ERROR,
			(errcode(ERRCODE_WED_NO_JOB_LOCK),
			 tgid == 0 ?
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" cannot be changed without the lock of one of its pending jobs",
					wid, flow->name) :
			 errmsg("the lock of job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\", which wed_sql.completes_tgid names, is not held",
					tgid, wid, flow->name),
			 jobs[0] != '\0' ?
			 errdetail("Pending: %s.", jobs) :
			 errdetail("No job of this instance is pending yet."),
			 errhint("Take the lock of a job in %s first: SELECT wed_sql.try_lock(wid, tgid).",
					 quote_qualified_identifier(flow->name, "job_pool"))));
}

/* An error if this transaction has the lock of a job that is not pending, though it was, or may be once. */
void
wed_refuse_locked_jobs(const WedFlow *flow, int64 wid, const WedPending *pending)
{
	int32		tgids[32];
	int			count = wed_locked_tgids(wid, tgids, lengthof(tgids));
	int32		first = 0;

	for (int i = 0; i < count; i++)
	{
		if (first != 0 && first < tgids[i])
			continue;
		/* of a rule that was removed, too; else it is a lock of somebody's own */
		if (tgids[i] == flow->excpt_tgid || wed_flow_of_trigger(tgids[i]) == flow->relid)
			first = tgids[i];
	}
	if (first != 0)
		refuse_job_not_pending(flow, wid, pending, first);
}

/* No pending job is locked: says whether another one is. */
static void
refuse_without_job(const WedFlow *flow, Relation job_pool, int64 wid, const WedPending *pending, const WedJob *left_over)
{
	if (wed_completes_tgid != 0)
	{
		if (wed_job_lock_held(wid, wed_completes_tgid))
			refuse_job_not_pending(flow, wid, pending, wed_completes_tgid);
		refuse_without_lock(flow, job_pool, wid, pending, wed_completes_tgid);
	}
	/* of a rule that was removed since, only the job is left to tell */
	if (left_over->tgid != 0)
		refuse_named_job_not_pending(flow, wid, pending, left_over->tgid, left_over->trname);
	wed_refuse_locked_jobs(flow, wid, pending);
	refuse_without_lock(flow, job_pool, wid, pending, 0);
}

static void
find_locked_jobs(const WedFlow *flow, Relation job_pool, int64 wid, const WedPending *pending,
				 Snapshot snapshot, LockedJobs *jobs)
{
	TupleDesc	desc = RelationGetDescr(job_pool);
	SysScanDesc scan = begin_job_scan(flow, job_pool, wid, snapshot);
	HeapTuple	tuple;

	memset(jobs, 0, sizeof(LockedJobs));
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int32		tgid = DatumGetInt32(heap_getattr(tuple, JOB_TGID, desc, &isnull));

		if (!wed_job_lock_held(wid, tgid))
			continue;
		/* one that was withdrawn may still be there, beside the one that is due since */
		if (wed_pending_since(pending, tgid) !=
			DatumGetInt64(heap_getattr(tuple, JOB_VERSION, desc, &isnull)))
		{
			read_job(tuple, desc, &jobs->left_over);
			continue;
		}
		jobs->count++;
		if (wed_completes_tgid == 0 || wed_completes_tgid == tgid)
			read_job(tuple, desc, &jobs->job);
	}
	systable_endscan(scan);
}

bool
wed_job_is_leased(const WedJob *job, TimestampTz now)
{
	return job->lckid != NULL && job->leased_until > now;
}

/* Who has leased a job completes it, as long as the lease lasts, and nobody else. */
void
wed_check_lease(const WedFlow *flow, int64 wid, const WedJob *job, const char *lckid)
{
	bool		leased = wed_job_is_leased(job, GetCurrentTimestamp());
	bool		claims = lckid != NULL && lckid[0] != '\0';

	if (claims ? leased && strcmp(job->lckid, lckid) == 0 : !leased)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_WED_NOT_THE_LEASE),
			 claims && !leased ?
			 errmsg("job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\" is not leased",
					job->trname, job->tgid, wid, flow->name) :
			 claims ?
			 errmsg("the lease of job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\" has ended",
					job->trname, job->tgid, wid, flow->name) :
			 errmsg("job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\" is leased",
					job->trname, job->tgid, wid, flow->name),
			 leased ? errdetail("It is leased to another until %s.", timestamptz_to_str(job->leased_until)) :
			 claims && !leased ? errdetail("It never was, or the lease has ended.") : 0,
			 claims ?
			 errhint("Lease another job; extend a lease before it runs out.") :
			 errhint("Take another job: wed_sql.try_lock() gives no lock of a leased one.")));
}

/*
 * The job that this transaction has locked, which the state completes, if it may
 * be completed so.
 */
static void
choose_job(const WedFlow *flow, Relation job_pool, int64 wid, const WedPending *pending,
		   Snapshot snapshot, WedJob *job)
{
	LockedJobs	jobs;

	find_locked_jobs(flow, job_pool, wid, pending, snapshot, &jobs);
	*job = jobs.job;
	if (job->tgid == 0)
		refuse_without_job(flow, job_pool, wid, pending, &jobs.left_over);
	if (!wed_may_perform(flow, GetUserId(), job->trname))
		wed_refuse_transition(flow, job->trname);
	if (jobs.count > 1 && wed_completes_tgid == 0)
		ereport(ERROR,
				(errcode(ERRCODE_WED_AMBIGUOUS_JOB),
				 errmsg("locks of several pending jobs of instance " INT64_FORMAT " of WED-flow \"%s\" are held",
						wid, flow->name),
				 errdetail("Locked: %s.", list_jobs(flow, job_pool, wid, pending, true)),
				 errhint("Say which one the update completes: SET LOCAL wed_sql.completes_tgid = tgid.")));
	wed_check_lease(flow, wid, job, wed_lckid);
}

/*
 * Completes the job that this transaction has locked: the state is by its
 * transition. Looks at the newest committed jobs: an older snapshot may show
 * some that are done. Between the look and the deletion, others may write the
 * job, though not complete it: that an attempt has failed, that a lease has
 * ended; then it is looked at again.
 */
void
wed_complete_locked_job(const WedFlow *flow, int64 wid, const WedPending *pending, WedStamp *stamp)
{
	Relation	job_pool = table_open(flow->job_pool, RowExclusiveLock);
	WedJob		job;
	TM_Result	result;

	do
	{
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		TM_FailureData failure;

		CHECK_FOR_INTERRUPTS();
		choose_job(flow, job_pool, wid, pending, snapshot, &job);
		result = table_tuple_delete(job_pool, &job.tid, GetCurrentCommandId(true), snapshot,
									InvalidSnapshot, true, &failure, false);
		UnregisterSnapshot(snapshot);
	} while (result == TM_Updated);
	/* only a lock that was given up too early lets somebody else be faster */
	if (result != TM_Ok)
		refuse_job_not_pending(flow, wid, pending, job.tgid);

	table_close(job_pool, RowExclusiveLock);
	stamp->by = job.tgid;
	stamp->trw = job.trname;
	stamp->fired_at = job.fired_at;
	wed_note_written(flow, wid);
}

/* Whether a job of the instance is pending that passes a test. */
bool
wed_any_job(const WedFlow *flow, int64 wid, WedJobTest test, void *arg)
{
	Relation	job_pool = table_open(flow->job_pool, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(job_pool);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = begin_job_scan(flow, job_pool, wid, snapshot);
	HeapTuple	tuple;
	bool		found = false;

	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int32		tgid = DatumGetInt32(heap_getattr(tuple, JOB_TGID, desc, &isnull));

		found = test(flow, tgid, TextDatumGetCString(heap_getattr(tuple, JOB_TRNAME, desc, &isnull)), arg);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(job_pool, AccessShareLock);
	return found;
}

/* For who knows without an update that its job is not to be had. */
void
wed_refuse_job_not_pending(const WedFlow *flow, int64 wid, int32 tgid)
{
	WedStamp	stamp;
	WedPending	pending = {0};

	if (wed_read_stamp(flow->relid, wid, &stamp))
		wed_stamp_pending_after(&stamp, flow->excpt_tgid, &pending);
	refuse_job_not_pending(flow, wid, &pending, tgid);
	pg_unreachable();
}
