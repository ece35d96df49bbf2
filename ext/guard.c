/*-------------------------------------------------------------------------
 *
 * guard.c
 *		The trigger on wed_flow that every state passes, in its writer's
 *		transaction: which job does this write complete, is the state allowed,
 *		what do the conditions say of it. The answers go into the row's stamp.
 *
 * The row's lock orders the states of an instance, and each row carries what
 * pended before it and what it fired; so all that is asked here is known
 * here, and nobody waits for the engine.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

/* columns of job_pool, in the order of sql/flow.sql */
enum
{
	JOB_WID = 1,
	JOB_TGID,
	JOB_TRNAME
};

/* The pending jobs of an instance that this transaction has locked. */
typedef struct LockedJobs
{
	int			count;
	int32		tgid;			/* the one to complete, 0 if none */
	char	   *trname;
	ItemPointerData tid;
} LockedJobs;

PG_FUNCTION_INFO_V1(wed_guard);

static void
append_transition(StringInfo buf, const char *trname, int32 tgid)
{
	if (buf->len > 0)
		appendStringInfoString(buf, ", ");
	if (trname != NULL)
		appendStringInfo(buf, "%s (tgid %d)", trname, tgid);
	else
		appendStringInfo(buf, "tgid %d", tgid);
}

static SysScanDesc
begin_job_scan(const WedFlow *flow, Relation job_pool, int64 wid, Snapshot snapshot)
{
	ScanKeyData key;

	ScanKeyInit(&key, JOB_WID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wid));
	return systable_beginscan(job_pool, flow->job_pool_pkey, true, snapshot, 1, &key);
}

/* For messages: the pending jobs of wid, or only those that are locked here. */
static char *
list_jobs(const WedFlow *flow, Relation job_pool, int64 wid, bool locked)
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

		if (!locked || wed_job_lock_held(wid, tgid))
			append_transition(&list, TextDatumGetCString(heap_getattr(tuple, JOB_TRNAME, desc, &isnull)),
							  tgid);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return list.data;
}

static void
refuse_job_not_pending(const WedFlow *flow, Relation job_pool, int64 wid, int32 tgid)
{
	const char *trname = wed_transition_name(flow, tgid);
	char	   *pending = list_jobs(flow, job_pool, wid, false);

	ereport(ERROR,
			(errcode(ERRCODE_WED_JOB_NOT_PENDING),
			 errmsg("job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\" is not pending",
					trname ? trname : "?", tgid, wid, flow->name),
			 pending[0] != '\0' ?
			 errdetail("Pending: %s.", pending) :
			 errdetail("No job of this instance is pending."),
			 errhint("Another worker may just have completed it: roll back, and take another job.")));
}

static void
refuse_without_lock(const WedFlow *flow, Relation job_pool, int64 wid, int32 tgid)
{
	char	   *pending = list_jobs(flow, job_pool, wid, false);

	ereport(ERROR,
			(errcode(ERRCODE_WED_NO_JOB_LOCK),
			 tgid == 0 ?
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" cannot be changed without the lock of one of its pending jobs",
					wid, flow->name) :
			 errmsg("the lock of job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\", which wed_sql.completes_tgid names, is not held",
					tgid, wid, flow->name),
			 pending[0] != '\0' ?
			 errdetail("Pending: %s.", pending) :
			 errdetail("No job of this instance is pending yet."),
			 errhint("Take the lock of a job in %s first: SELECT wed_sql.try_lock(wid, tgid).",
					 quote_qualified_identifier(flow->name, "job_pool"))));
}

/*
 * No pending job is locked: says whether there is a lock of one that was
 * pending, or may be once.
 */
static void
refuse_without_job(const WedFlow *flow, Relation job_pool, int64 wid)
{
	if (wed_completes_tgid != 0)
	{
		if (wed_job_lock_held(wid, wed_completes_tgid))
			refuse_job_not_pending(flow, job_pool, wid, wed_completes_tgid);
		refuse_without_lock(flow, job_pool, wid, wed_completes_tgid);
	}
	for (int i = 0; i < flow->nrules; i++)
	{
		if (wed_job_lock_held(wid, flow->rules[i].tgid))
			refuse_job_not_pending(flow, job_pool, wid, flow->rules[i].tgid);
	}
	if (wed_job_lock_held(wid, flow->excpt_tgid))
		refuse_job_not_pending(flow, job_pool, wid, flow->excpt_tgid);
	refuse_without_lock(flow, job_pool, wid, 0);
}

static void
find_locked_jobs(const WedFlow *flow, Relation job_pool, int64 wid, Snapshot snapshot, LockedJobs *jobs)
{
	TupleDesc	desc = RelationGetDescr(job_pool);
	SysScanDesc scan = begin_job_scan(flow, job_pool, wid, snapshot);
	HeapTuple	tuple;

	jobs->count = 0;
	jobs->tgid = 0;
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		int32		tgid = DatumGetInt32(heap_getattr(tuple, JOB_TGID, desc, &isnull));

		if (!wed_job_lock_held(wid, tgid))
			continue;
		jobs->count++;
		if (wed_completes_tgid == 0 || wed_completes_tgid == tgid)
		{
			jobs->tgid = tgid;
			jobs->trname = TextDatumGetCString(heap_getattr(tuple, JOB_TRNAME, desc, &isnull));
			jobs->tid = tuple->t_self;
		}
	}
	systable_endscan(scan);
}

/*
 * Completes the job that this transaction has locked: the state is by its
 * transition. Looks at the newest committed jobs: an older snapshot may show
 * some that are done.
 */
static void
complete_job(const WedFlow *flow, int64 wid, WedStamp *stamp)
{
	Relation	job_pool = table_open(flow->job_pool, RowExclusiveLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	LockedJobs	jobs;
	TM_FailureData failure;

	find_locked_jobs(flow, job_pool, wid, snapshot, &jobs);
	if (jobs.tgid == 0)
		refuse_without_job(flow, job_pool, wid);
	if (!wed_may_perform(flow, GetUserId(), jobs.trname))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for WED-transition \"%s\" of WED-flow \"%s\"", jobs.trname, flow->name),
				 errhint("wed_sql.grant_worker() gives a role the right to perform it.")));
	if (jobs.count > 1 && wed_completes_tgid == 0)
		ereport(ERROR,
				(errcode(ERRCODE_WED_AMBIGUOUS_JOB),
				 errmsg("locks of several pending jobs of instance " INT64_FORMAT " of WED-flow \"%s\" are held",
						wid, flow->name),
				 errdetail("Locked: %s.", list_jobs(flow, job_pool, wid, true)),
				 errhint("Say which one the update completes: SET LOCAL wed_sql.completes_tgid = tgid.")));

	/* only a lock that was given up too early lets somebody else be faster */
	if (table_tuple_delete(job_pool, &jobs.tid, GetCurrentCommandId(true), snapshot,
						   InvalidSnapshot, true, &failure, false) != TM_Ok)
		refuse_job_not_pending(flow, job_pool, wid, jobs.tgid);

	UnregisterSnapshot(snapshot);
	table_close(job_pool, RowExclusiveLock);
	stamp->by = jobs.tgid;
	stamp->trw = jobs.trname;
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

static bool
is_pending(const WedStamp *stamp, int32 tgid)
{
	for (int i = 0; i < stamp->npending; i++)
	{
		if (stamp->pending[i] == tgid)
			return true;
	}
	return false;
}

/* C3: nothing but the job that wrote it may pend at a final state. */
static void
check_nothing_else_pends(const WedFlow *flow, int64 wid, const WedStamp *stamp)
{
	StringInfoData others;

	initStringInfo(&others);
	for (int i = 0; i < stamp->npending; i++)
	{
		if (stamp->pending[i] != stamp->by)
			append_transition(&others, wed_transition_name(flow, stamp->pending[i]), stamp->pending[i]);
	}
	if (others.len > 0)
		ereport(ERROR,
				(errcode(ERRCODE_WED_FINAL_WITH_PENDING_JOBS),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" cannot become final while other jobs are pending",
						wid, flow->name),
				 errdetail("Pending: %s.", others.data),
				 errhint("Do the transition again when they are completed.")));
}

/*
 * What follows a state holds it in memory, several times over, and has others
 * to serve.
 */
static void
check_size(const WedFlow *flow, TupleTableSlot *state)
{
	TupleDesc	desc = state->tts_tupleDescriptor;
	int64		size = 0;

	slot_getallattrs(state);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!state->tts_isnull[i] && !att->attisdropped && att->attlen == -1)
			size += toast_raw_datum_size(state->tts_values[i]);
	}
	if (size > (int64) wed_max_state_size * 1024)
		ereport(ERROR,
				(errcode(ERRCODE_WED_STATE_TOO_LARGE),
				 errmsg("state of an instance of WED-flow \"%s\" is too large", flow->name),
				 errdetail("Its attributes have " INT64_FORMAT " kB; wed_sql.max_state_size is %d kB.",
						   size / 1024, wed_max_state_size),
				 errhint("Keep large values in a table of your own, and their keys in the state.")));
}

static void
judge_into(WedFlow *flow, TupleTableSlot *state, WedStamp *stamp)
{
	WedVerdict	verdict;

	check_size(flow, state);
	wed_judge(flow, state, &verdict);
	stamp->rules = flow->rules_version;
	stamp->final = verdict.final;
	stamp->matched = verdict.matched;
	stamp->nmatched = verdict.nmatched;
	stamp->error = verdict.error;
}

static HeapTuple
stamped(const WedFlow *flow, Relation wed_flow, HeapTuple tuple, const WedStamp *stamp)
{
	int			column = flow->stamp_attno;
	Datum		value = wed_stamp_make(flow->stamp_type, stamp);
	bool		isnull = false;

	return heap_modify_tuple_by_cols(tuple, RelationGetDescr(wed_flow), 1, &column, &value, &isnull);
}

static int64
wid_of(const WedFlow *flow, Relation wed_flow, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetInt64(heap_getattr(tuple, flow->wid_attno, RelationGetDescr(wed_flow), &isnull));
}

static HeapTuple
guard_initial_state(WedFlow *flow, TriggerData *trigger)
{
	WedStamp	stamp = {0};
	int64		wid = wid_of(flow, trigger->tg_relation, trigger->tg_trigtuple);

	if (!wed_is_lockable(wid))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("wid " INT64_FORMAT " is out of range", wid),
				 errhint("Leave it out: it is generated.")));
	judge_into(flow, trigger->tg_trigslot, &stamp);
	if (!stamp.final && stamp.nmatched == 0 && stamp.error == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WED_INITIAL_STATE_MATCHES_NOTHING),
				 errmsg("new instance of WED-flow \"%s\" satisfies neither a WED-condition nor the final condition",
						flow->name),
				 errdetail("%d enabled WED-conditions were evaluated.", flow->nrules),
				 errhint("Insert a state on which a WED-trigger of %s fires, or define one that does.",
						 quote_qualified_identifier(flow->name, "wed_trig"))));
	return stamped(flow, trigger->tg_relation, trigger->tg_trigtuple, &stamp);
}

static void
check_protected_columns(const WedFlow *flow, TriggerData *trigger, int64 wid)
{
	bool		wid_written = bms_is_member(flow->wid_attno - FirstLowInvalidHeapAttributeNumber,
											trigger->tg_updatedcols);

	if (!wid_written &&
		!bms_is_member(flow->stamp_attno - FirstLowInvalidHeapAttributeNumber, trigger->tg_updatedcols))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_WED_PROTECTED_COLUMN),
			 errmsg("column \"%s\" of instance " INT64_FORMAT " of WED-flow \"%s\" cannot be changed",
					wid_written ? "wid" : "_stamp", wid, flow->name),
			 errhint("Update the WED-attributes only.")));
}

static HeapTuple
guard_next_state(WedFlow *flow, TriggerData *trigger)
{
	Relation	wed_flow = trigger->tg_relation;
	int64		wid = wid_of(flow, wed_flow, trigger->tg_trigtuple);
	WedStamp	before;
	WedStamp	stamp = {0};
	bool		isnull;
	Datum		stamp_before = heap_getattr(trigger->tg_trigtuple, flow->stamp_attno,
											RelationGetDescr(wed_flow), &isnull);

	check_protected_columns(flow, trigger, wid);
	if (wid_of(flow, wed_flow, trigger->tg_newtuple) != wid)
		elog(ERROR, "wid " INT64_FORMAT " was changed by another trigger", wid);

	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" was written without its guard",
						wid, flow->name)));
	wed_stamp_read(stamp_before, &before);
	if (before.rules > flow->rules_version)
		flow = wed_flow_reread(wed_flow);
	stamp.version = before.version + 1;

	if (!before.final)
	{
		stamp.npending = wed_stamp_pending_after(&before, flow->excpt_tgid, &stamp.pending);
		complete_job(flow, wid, &stamp);
		if (!is_pending(&stamp, stamp.by))
			elog(ERROR, "job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\" is not due in version " INT64_FORMAT,
				 stamp.by, wid, flow->name, before.version);
	}
	else if (before.rules >= flow->rules_version)
		ereport(ERROR,
				(errcode(ERRCODE_WED_INSTANCE_IS_FINAL),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is final and cannot be changed",
						wid, flow->name),
				 errhint("It can be reopened after WED-attributes or WED-triggers were added or changed.")));
	else if (!wed_may_perform_all(flow, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reopen instance " INT64_FORMAT " of WED-flow \"%s\"", wid, flow->name),
				 errhint("It takes the privilege UPDATE on the whole table %s.",
						 quote_qualified_identifier(flow->name, "wed_flow"))));

	judge_into(flow, trigger->tg_newslot, &stamp);
	if (stamp.final)
		check_nothing_else_pends(flow, wid, &stamp);
	return stamped(flow, wed_flow, trigger->tg_newtuple, &stamp);
}

static void
refuse_removal(TriggerData *trigger)
{
	char	   *flow = get_namespace_name(RelationGetNamespace(trigger->tg_relation));

	ereport(ERROR,
			(errcode(ERRCODE_WED_INSTANCE_NOT_REMOVABLE),
			 errmsg("%s on \"%s\" of WED-flow \"%s\" is not allowed",
					TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event) ? "TRUNCATE" : "DELETE",
					RelationGetRelationName(trigger->tg_relation), flow),
			 errhint("wed_sql.drop_flow() removes a whole flow.")));
}

/*
 * wed_sql.guard() -> trigger: before each row of wed_flow is inserted, updated
 * or deleted, and before TRUNCATE (also of job_pool and wed_trace).
 */
Datum
wed_guard(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	WedFlow    *flow;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_BEFORE(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a BEFORE trigger", "wed_sql.guard")));
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event))
		refuse_removal(trigger);
	if (!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired for each row", "wed_sql.guard")));

	/* whoever waited for the row may have missed a change of the definition */
	AcceptInvalidationMessages();
	flow = wed_flow_get(trigger->tg_relation);
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		return PointerGetDatum(guard_initial_state(flow, trigger));
	return PointerGetDatum(guard_next_state(flow, trigger));
}
