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

PG_FUNCTION_INFO_V1(wed_guard);

static const WedRule *
find_rule(const WedFlow *flow, int32 tgid)
{
	for (int i = 0; i < flow->nrules; i++)
	{
		if (flow->rules[i].tgid == tgid)
			return &flow->rules[i];
	}
	return NULL;
}

/* A WED-trigger as it is in force or, if it is not, as it was last. */
static WedRule
last_rule(const WedFlow *flow, int32 tgid)
{
	const WedRule *rule = find_rule(flow, tgid);
	WedRule		former;

	if (rule != NULL)
		return *rule;
	wed_read_former_rule(tgid, &former);
	return former;
}

/* Whether what pends of a WED-trigger goes when its condition does not hold. */
static bool
is_withdrawable(const WedFlow *flow, int32 tgid)
{
	return tgid != flow->excpt_tgid && last_rule(flow, tgid).withdrawable;
}

static int
compare_tgids(const void *a, const void *b)
{
	int32		x = *(const int32 *) a;
	int32		y = *(const int32 *) b;

	return (x > y) - (x < y);
}

/*
 * Decides which of those that pended before the state pend on: fills in
 * stamp->since and, of these, stamp->clocks, and adds to stamp->withdrawn. Where
 * no condition was evaluated, none has stopped to hold.
 *
 * Whether it is a clock that pends says the state that fired it: the rule may
 * have got or lost its delay since.
 */
static void
withdraw(const WedFlow *flow, int64 wid, const WedPending *before, WedStamp *stamp)
{
	int32	   *withdrawn = palloc(sizeof(int32) * (before->count + 1));
	int			nwithdrawn = 0;
	bool		judged = stamp->error == NULL && stamp->nundo == 0;

	stamp->clocks = palloc(sizeof(int32) * (before->count + stamp->nmatched + 1));
	stamp->nclocks = 0;
	stamp->since = palloc(sizeof(int64) * (before->count + 1));
	stamp->nkept = 0;
	for (int i = 0; i < before->count; i++)
	{
		int32		tgid = before->tgids[i];
		bool		clock = before->clocks[i];
		bool		goes = wed_is_among(tgid, stamp->withdrawn, stamp->nwithdrawn);
		bool		stops = judged && !wed_is_among(tgid, stamp->matched, stamp->nmatched);

		if (tgid == stamp->by)
			continue;
		if (clock && (stops || stamp->status == WED_SUSPENDED))
			clock = !wed_has_fired(flow, wid, tgid, before->since[i]);
		/* a clock that still runs stops */
		if (goes || (stops && (clock || is_withdrawable(flow, tgid))))
		{
			withdrawn[nwithdrawn++] = tgid;
			clock = clock && stamp->status == WED_SUSPENDED;
		}
		else
			stamp->since[stamp->nkept++] = before->since[i];
		if (clock)
			stamp->clocks[stamp->nclocks++] = tgid;
	}
	stamp->withdrawn = withdrawn;
	stamp->nwithdrawn = nwithdrawn;
}

/* Of the rules that the state fires, those whose delay begins: but for some that are due at once. */
static void
start_clocks(const WedFlow *flow, const int32 *due, int ndue, WedStamp *stamp)
{
	for (int i = 0; i < stamp->nmatched; i++)
	{
		int32		tgid = stamp->matched[i];
		bool		kept = tgid != stamp->by && wed_is_among(tgid, stamp->pending, stamp->npending) &&
			!wed_is_among(tgid, stamp->withdrawn, stamp->nwithdrawn);

		if (!kept && tgid != flow->excpt_tgid && !wed_is_among(tgid, due, ndue) && last_rule(flow, tgid).delayed)
			stamp->clocks[stamp->nclocks++] = tgid;
	}
	qsort(stamp->clocks, stamp->nclocks, sizeof(int32), compare_tgids);
}

/* C3: nothing but the job that wrote it may pend at a final state. */
static void
check_nothing_else_pends(const WedFlow *flow, int64 wid, const WedStamp *stamp)
{
	StringInfoData others;

	initStringInfo(&others);
	for (int i = 0; i < stamp->npending; i++)
	{
		if (stamp->pending[i] != stamp->by &&
			!wed_is_among(stamp->pending[i], stamp->withdrawn, stamp->nwithdrawn))
			wed_append_transition(&others, wed_transition_name(flow, stamp->pending[i]), stamp->pending[i]);
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

/* A flow whose rules fire for ever must not burn the server. */
static void
check_run(const WedFlow *flow, WedStamp *stamp)
{
	int64		most = flow->max_states >= 0 ? flow->max_states : wed_max_states;

	if (most == 0 || stamp->run < most || stamp->final || stamp->error != NULL)
		return;
	stamp->nmatched = 0;
	stamp->error = psprintf("the instance has gone through " INT64_FORMAT " states without an intervention (see wed_sql.max_states)",
							stamp->run);
}

static void
judge_into(WedFlow *flow, TupleTableSlot *state, WedStamp *stamp)
{
	WedVerdict	verdict;

	wed_judge(flow, state, &verdict);
	stamp->rules = flow->rules_version;
	stamp->final = verdict.final;
	stamp->matched = verdict.matched;
	stamp->nmatched = verdict.nmatched;
	stamp->error = verdict.error;
	check_run(flow, stamp);
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
	judge_into(flow, trigger->tg_trigslot, &stamp);
	if (!stamp.final && stamp.nmatched == 0 && stamp.error == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WED_INITIAL_STATE_MATCHES_NOTHING),
				 errmsg("new instance of WED-flow \"%s\" satisfies neither a WED-condition nor the final condition",
						flow->name),
				 errdetail("%d enabled WED-conditions were evaluated.", flow->nrules),
				 errhint("Insert a state on which a WED-trigger of %s fires, or define one that does.",
						 quote_qualified_identifier(flow->name, "wed_trig"))));
	withdraw(flow, wid, &nothing, &stamp);
	start_clocks(flow, NULL, 0, &stamp);
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

static void
refuse_final(const WedFlow *flow, int64 wid)
{
	ereport(ERROR,
			(errcode(ERRCODE_WED_INSTANCE_IS_FINAL),
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is final and cannot be changed",
					wid, flow->name),
			 errhint("It can be reopened after WED-attributes or WED-triggers were added or changed.")));
}

static void
refuse_suspended(const WedFlow *flow, int64 wid)
{
	ereport(ERROR,
			(errcode(ERRCODE_WED_INSTANCE_IS_SUSPENDED),
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is suspended", wid, flow->name),
			 errhint("wed_sql.resume() has it go on.")));
}

/* The state that follows a compensating transition: the next one is due, or it is judged as any other. */
static void
judge_after_undoing(WedFlow *flow, TupleTableSlot *state, const WedStamp *before, WedStamp *stamp)
{
	if (before->nundo <= 1)
	{
		judge_into(flow, state, stamp);
		return;
	}
	stamp->rules = flow->rules_version;
	stamp->undo = before->undo + 1;
	stamp->nundo = before->nundo - 1;
	stamp->matched = stamp->undo;
	stamp->nmatched = 1;
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
		refuse_suspended(flow, wid);
	if (!before->final)
	{
		wed_stamp_pending_after(before, flow->excpt_tgid, &pending);
		stamp->pending = pending.tgids;
		stamp->npending = pending.count;
		wed_complete_locked_job(flow, wid, &pending, stamp);
		stamp->run = stamp->by == flow->excpt_tgid ? 0 : before->run + 1;
	}
	else if (before->rules >= flow->rules_version)
		refuse_final(flow, wid);
	else if (!wed_may_perform_all(flow, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to reopen instance " INT64_FORMAT " of WED-flow \"%s\"", wid, flow->name),
				 errhint("It takes the privilege UPDATE on the whole table %s.",
						 quote_qualified_identifier(flow->name, "wed_flow"))));
	else
		refuse_late_transition(flow, wid);

	if (before->nundo > 0 && stamp->by == before->undo[0])
		judge_after_undoing(flow, trigger->tg_newslot, before, stamp);
	else
		judge_into(flow, trigger->tg_newslot, stamp);
	withdraw(flow, wid, &pending, stamp);
	start_clocks(flow, NULL, 0, stamp);
	if (stamp->final)
		check_nothing_else_pends(flow, wid, stamp);
}

/*
 * What an intervention makes of the instance: see docs/reference.md, and
 * sql/intervention.sql for who may do it.
 */

static void
refuse_operation(const WedFlow *flow, int64 wid, const char *why)
{
	ereport(ERROR,
			(errcode(ERRCODE_WED_OPERATION_NOT_POSSIBLE),
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" %s", wid, flow->name, why)));
}

/* The jobs that an intervention is about must be pending. */
static void
withdraw_jobs(const WedFlow *flow, int64 wid, const int32 *tgids, int count, WedStamp *stamp)
{
	stamp->withdrawn = palloc(sizeof(int32) * (count + 1));
	stamp->nwithdrawn = count;
	for (int i = 0; i < count; i++)
	{
		if (!wed_is_among(tgids[i], stamp->pending, stamp->npending))
			refuse_operation(flow, wid, tgids[i] == flow->excpt_tgid ?
							 "is not an exception" :
							 psprintf("has no pending job of tgid %d", tgids[i]));
		stamp->withdrawn[i] = tgids[i];
	}
}

static void
withdraw_job(const WedFlow *flow, int64 wid, int32 tgid, WedStamp *stamp)
{
	withdraw_jobs(flow, wid, &tgid, 1, stamp);
}

static void
withdraw_all(WedStamp *stamp)
{
	stamp->withdrawn = stamp->pending;
	stamp->nwithdrawn = stamp->npending;
}

/* Rules are due that the conditions do not say. */
static void
match_also(WedStamp *stamp, const int32 *tgids, int count)
{
	int32	   *matched = palloc(sizeof(int32) * (stamp->nmatched + count + 1));
	int			n = stamp->nmatched;

	if (n > 0)
		memcpy(matched, stamp->matched, sizeof(int32) * n);
	for (int i = 0; i < count; i++)
	{
		if (!wed_is_among(tgids[i], matched, n))
			matched[n++] = tgids[i];
	}
	qsort(matched, n, sizeof(int32), compare_tgids);
	stamp->matched = matched;
	stamp->nmatched = n;
}

static void
match_not(WedStamp *stamp, const int32 *tgids, int count)
{
	int			n = 0;

	for (int i = 0; i < stamp->nmatched; i++)
	{
		if (!wed_is_among(stamp->matched[i], tgids, count))
			stamp->matched[n++] = stamp->matched[i];
	}
	stamp->nmatched = n;
}

/* Those of a list that are not in another one, nor the exception job. */
static int32 *
without(const WedFlow *flow, const int32 *tgids, int count, const int32 *others, int nothers, int *n)
{
	int32	   *rest = palloc(sizeof(int32) * (count + 1));

	*n = 0;
	for (int i = 0; i < count; i++)
	{
		if (tgids[i] != flow->excpt_tgid && !wed_is_among(tgids[i], others, nothers))
			rest[(*n)++] = tgids[i];
	}
	return rest;
}

/* Of a list of WED-triggers, those that have no delay. */
static int32 *
without_delay(const WedFlow *flow, const int32 *tgids, int count, int *n)
{
	int32	   *rest = palloc(sizeof(int32) * (count + 1));

	*n = 0;
	for (int i = 0; i < count; i++)
	{
		if (tgids[i] != flow->excpt_tgid && !last_rule(flow, tgids[i]).delayed)
			rest[(*n)++] = tgids[i];
	}
	return rest;
}

/*
 * Jobs that were pending before are due again, whatever their conditions say:
 * but for those that would have been withdrawn.
 */
static void
restore(const WedFlow *flow, const int32 *tgids, int count, WedStamp *stamp)
{
	int32	   *due = palloc(sizeof(int32) * (count + 1));
	int			n = 0;

	for (int i = 0; i < count; i++)
	{
		if (!is_withdrawable(flow, tgids[i]))
			due[n++] = tgids[i];
	}
	if (n > 0)
		stamp->final = false;
	match_also(stamp, due, n);
}

/* A compensation goes on where it was. */
static void
go_on_undoing(const WedFlow *flow, const int32 *undo, int nundo, WedStamp *stamp)
{
	stamp->rules = flow->rules_version;
	stamp->undo = unconstify(int32 *, undo);
	stamp->nundo = nundo;
	match_also(stamp, undo, 1);
}

/* Whether what the state keeps pending stands in the way of its being final. */
static bool
others_pend(const WedStamp *stamp)
{
	return stamp->npending > stamp->nwithdrawn;
}

static void
next_by_operation(WedFlow *flow, TriggerData *trigger, int64 wid, const WedStamp *before,
				  const WedOperation *operation, WedStamp *stamp)
{
	TupleTableSlot *state = trigger->tg_newslot;
	bool		undoing = before->nundo > 0;
	WedPending	pending;
	int32	   *due = NULL;		/* jobs that were in the pool before: without a delay now */
	int			ndue = 0;

	if (operation->kind == WED_OP_REOPEN ? !before->final : before->final)
	{
		if (before->final)
			refuse_final(flow, wid);
		refuse_operation(flow, wid, "is not final");
	}
	if (before->status == WED_SUSPENDED && operation->kind != WED_OP_RESUME && operation->kind != WED_OP_CANCEL)
		refuse_suspended(flow, wid);

	wed_stamp_pending_after(before, flow->excpt_tgid, &pending);
	stamp->pending = pending.tgids;
	stamp->npending = pending.count;
	stamp->trw = pstrdup(operation->trw);
	stamp->rules = flow->rules_version;
	stamp->run = before->run + 1;

	switch (operation->kind)
	{
		case WED_OP_FAIL:
			/* the job that failed may have been withdrawn, and be due again: as another job */
			if (operation->version >= 0 && wed_pending_since(&pending, operation->tgid) != operation->version)
				refuse_operation(flow, wid,
								 psprintf("has no pending job of tgid %d of version " INT64_FORMAT,
										  operation->tgid, operation->version));
			withdraw_job(flow, wid, operation->tgid, stamp);
			stamp->error = operation->reason;
			stamp->undo = before->undo;
			stamp->nundo = before->nundo;
			break;
		case WED_OP_CANCEL:
			withdraw_all(stamp);
			stamp->status = WED_CANCELLED;
			stamp->final = true;
			break;
		case WED_OP_SUSPEND:
			withdraw_all(stamp);
			stamp->status = WED_SUSPENDED;
			stamp->run = before->run;
			if (wed_is_among(flow->excpt_tgid, stamp->pending, stamp->npending))
				stamp->error = before->error;
			stamp->undo = before->undo;
			stamp->nundo = before->nundo;
			break;
		case WED_OP_RESUME:
			if (before->status != WED_SUSPENDED)
				refuse_operation(flow, wid, "is not suspended");
			due = without(flow, before->withdrawn, before->nwithdrawn, before->clocks, before->nclocks, &ndue);
			if (undoing)
			{
				go_on_undoing(flow, before->undo, before->nundo, stamp);
				break;
			}
			stamp->run = before->run;
			judge_into(flow, state, stamp);
			if (before->error != NULL)
			{
				int			npending;
				int32	   *all = without(flow, before->withdrawn, before->nwithdrawn, NULL, 0, &npending);

				/* what was wrong has not been put right, and no condition counts */
				stamp->error = before->error;
				stamp->final = false;
				stamp->nmatched = 0;
				match_also(stamp, all, npending);
			}
			else
				restore(flow, due, ndue, stamp);
			if (stamp->nmatched > 0 && wed_is_among(flow->excpt_tgid, before->withdrawn, before->nwithdrawn) &&
				before->nwithdrawn > 1)
				match_also(stamp, &flow->excpt_tgid, 1);
			break;
		case WED_OP_RETRY:
			withdraw_job(flow, wid, flow->excpt_tgid, stamp);
			stamp->run = 0;
			due = without(flow, operation->tgids, operation->ntgids, NULL, 0, &ndue);
			if (undoing)
			{
				go_on_undoing(flow, before->undo, before->nundo, stamp);
				break;
			}
			judge_into(flow, state, stamp);
			restore(flow, due, ndue, stamp);
			break;
		case WED_OP_SKIP:
			withdraw_jobs(flow, wid, operation->tgids, operation->ntgids, stamp);
			if (undoing && wed_is_among(before->undo[0], operation->tgids, operation->ntgids))
				judge_after_undoing(flow, state, before, stamp);
			else
			{
				judge_into(flow, state, stamp);
				if (!operation->sets)
					match_not(stamp, operation->tgids, operation->ntgids);
			}
			break;
		case WED_OP_REPAIR:
			withdraw_job(flow, wid, flow->excpt_tgid, stamp);
			stamp->run = 0;
			judge_into(flow, state, stamp);
			break;
		case WED_OP_REWIND:
			withdraw_all(stamp);
			stamp->run = 0;
			judge_into(flow, state, stamp);
			/* the history does not tell a clock from a job */
			due = without_delay(flow, operation->tgids, operation->ntgids, &ndue);
			restore(flow, due, ndue, stamp);
			break;
		case WED_OP_COMPENSATE:
			withdraw_all(stamp);
			stamp->run = 0;
			if (operation->ntgids > 0)
				go_on_undoing(flow, operation->tgids, operation->ntgids, stamp);
			else
				judge_into(flow, state, stamp);
			break;
		case WED_OP_REMATCH:
			if (undoing)
				refuse_operation(flow, wid, "is being compensated");
			stamp->run = before->run;
			judge_into(flow, state, stamp);
			/* what was wrong with the state is not any more; if nothing is due, it is an exception again */
			if (stamp->error == NULL && wed_is_among(flow->excpt_tgid, stamp->pending, stamp->npending))
				withdraw_job(flow, wid, flow->excpt_tgid, stamp);
			break;
		case WED_OP_REOPEN:
			if (before->rules >= flow->rules_version)
				refuse_final(flow, wid);
			stamp->run = 0;
			judge_into(flow, state, stamp);
			break;
		case WED_OP_REMOVE:
			elog(ERROR, "an instance is removed by no state");
	}

	withdraw(flow, wid, &pending, stamp);
	start_clocks(flow, due, ndue, stamp);
	if (!stamp->final || stamp->status == WED_CANCELLED || !others_pend(stamp))
		return;
	if (operation->kind == WED_OP_REMATCH)
	{
		/* it stays as it is until these are done */
		stamp->final = false;
		return;
	}
	check_nothing_else_pends(flow, wid, stamp);
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
		next_by_operation(flow, trigger, wid, &before, operation, &stamp);
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
