/*-------------------------------------------------------------------------
 *
 * guard.c
 *		The trigger on wed_flow that every state passes, in its writer's
 *		transaction: which job does this write complete, is the state allowed,
 *		what do the conditions say of it. The answers go into the row's stamp.
 *
 * The row's lock orders the states of an instance, and each row carries what
 * pended before it and what it fired; so all that is asked here is known
 * here, and nobody waits for the engine. A job that pends in job_pool is to be
 * done only if the row says so, too: the pool follows the rows.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "judgement.h"

PG_FUNCTION_INFO_V1(wed_guard);

/*
 * What follows a state holds it in memory, several times over, and has others
 * to serve.
 */
static void
check_size(const WedFlow *flow, TupleTableSlot *state)
{
	int64		limit = (int64) wed_max_state_size * 1024;
	int64		size = wed_state_size(flow, state, limit);

	if (size > limit)
		ereport(ERROR,
				(errcode(ERRCODE_WED_STATE_TOO_LARGE),
				 errmsg("state of an instance of WED-flow \"%s\" is too large", flow->name),
				 errdetail("Its attributes have " INT64_FORMAT " kB, stored or as text; wed_sql.max_state_size is %d kB.",
						   size / 1024, wed_max_state_size),
				 errhint("Keep large values in a table of your own, and their keys in the state.")));
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
	WedPending	nothing = {0};
	int64		wid = wid_of(flow, trigger->tg_relation, trigger->tg_trigtuple);

	if (!wed_is_lockable(wid))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("wid " INT64_FORMAT " is out of range", wid),
				 errhint("Leave it out: it is generated.")));
	stamp.began_at = GetCurrentTransactionStartTimestamp();
	check_size(flow, trigger->tg_trigslot);
	wed_judge_state(flow, trigger->tg_trigslot, &stamp);
	if (!stamp.final && stamp.nmatched == 0 && stamp.error == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WED_INITIAL_STATE_MATCHES_NOTHING),
				 errmsg("new instance of WED-flow \"%s\" satisfies neither a WED-condition nor the final condition",
						flow->name),
				 errdetail("%d enabled WED-conditions were evaluated.", flow->nrules),
				 errhint("Insert a state on which a WED-trigger of %s fires, or define one that does.",
						 quote_qualified_identifier(flow->name, "wed_trig"))));
	wed_withdraw(flow, wid, &nothing, &stamp);
	wed_start_clocks(flow, NULL, 0, &stamp);
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

/*
 * Who has the lock of a job means to perform it, and does not know that the
 * instance has ended meanwhile: that is not to reopen it.
 */
static void
refuse_late_transition(const WedFlow *flow, int64 wid)
{
	WedPending	nothing = {0};

	if (wed_completes_tgid != 0)
		wed_refuse_job_not_pending(flow, wid, wed_completes_tgid);
	wed_refuse_locked_jobs(flow, wid, &nothing);
}

/* The state that a worker's transition writes, or one that reopens an instance. */
static void
next_by_transition(WedFlow *flow, TriggerData *trigger, int64 wid, const WedStamp *before, WedStamp *stamp)
{
	WedPending	pending = {0};

	if (before->status == WED_SUSPENDED)
		wed_refuse_suspended(flow, wid);
	if (!before->final)
	{
		wed_stamp_pending_after(before, flow->excpt_tgid, &pending);
		stamp->pending = pending.tgids;
		stamp->npending = pending.count;
		wed_complete_locked_job(flow, wid, &pending, stamp);
		stamp->run = stamp->by == flow->excpt_tgid ? 0 : before->run + 1;
	}
	else if (before->rules >= flow->rules_version)
		wed_refuse_final(flow, wid);
	else if (!wed_may_perform_all(flow, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reopen instance " INT64_FORMAT " of WED-flow \"%s\"", wid, flow->name),
				 errhint("It takes the privilege UPDATE on the whole table %s.",
						 quote_qualified_identifier(flow->name, "wed_flow"))));
	else
		refuse_late_transition(flow, wid);

	if (before->nundo > 0 && stamp->by == before->undo[0])
		wed_judge_after_undoing(flow, trigger->tg_newslot, before, stamp);
	else
		wed_judge_state(flow, trigger->tg_newslot, stamp);
	wed_withdraw(flow, wid, &pending, stamp);
	wed_start_clocks(flow, NULL, 0, stamp);
	if (stamp->final)
		wed_check_nothing_else_pends(flow, wid, stamp);
}

static HeapTuple
guard_next_state(WedFlow *flow, TriggerData *trigger)
{
	Relation	wed_flow = trigger->tg_relation;
	int64		wid = wid_of(flow, wed_flow, trigger->tg_trigtuple);
	const WedOperation *operation = wed_operation_on(RelationGetRelid(wed_flow), wid);
	WedStamp	before;
	WedStamp	stamp = {0};
	bool		isnull;
	Datum		stamp_before = heap_getattr(trigger->tg_trigtuple, flow->stamp_attno,
											RelationGetDescr(wed_flow), &isnull);

	if (operation == NULL || operation->sets)
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
	stamp.began_at = GetCurrentTransactionStartTimestamp();

	check_size(flow, trigger->tg_newslot);
	if (operation != NULL)
		wed_next_by_operation(flow, trigger->tg_newslot, wid, &before, operation, &stamp);
	else
		next_by_transition(flow, trigger, wid, &before, &stamp);
	return stamped(flow, wed_flow, trigger->tg_newtuple, &stamp);
}

/* Only wed_sql.purge() removes instances, and only such as have ended. */
static bool
may_remove(TriggerData *trigger)
{
	WedFlow    *flow;
	const WedOperation *operation;
	WedStamp	stamp;
	bool		isnull;
	Datum		value;
	int64		wid;

	if (!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		return false;
	flow = wed_flow_get(trigger->tg_relation);
	wid = wid_of(flow, trigger->tg_relation, trigger->tg_trigtuple);
	operation = wed_operation_on(flow->relid, wid);
	if (operation == NULL || operation->kind != WED_OP_REMOVE)
		return false;
	value = heap_getattr(trigger->tg_trigtuple, flow->stamp_attno, RelationGetDescr(trigger->tg_relation), &isnull);
	if (isnull)
		return false;
	wed_stamp_read(value, &stamp);
	return stamp.final;
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
			 TRIGGER_FIRED_BY_TRUNCATE(trigger->tg_event) ?
			 errhint("wed_sql.drop_flow() removes a whole flow.") :
			 errhint("wed_sql.purge() removes instances that have ended, and wed_sql.drop_flow() a whole flow.")));
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
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event) && may_remove(trigger))
		return PointerGetDatum(trigger->tg_trigtuple);
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
