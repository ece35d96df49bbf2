/*-------------------------------------------------------------------------
 *
 * intervention.c
 *		What an intervention makes of the instance: see docs/reference.md, and
 *		sql/intervention.sql for who may do it.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "judgement.h"

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
	qsort(matched, n, sizeof(int32), wed_compare_tgids);
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
		if (tgids[i] != flow->excpt_tgid && !wed_last_rule(flow, tgids[i]).delayed)
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
		if (!wed_is_withdrawable(flow, tgids[i]))
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

void
wed_next_by_operation(WedFlow *flow, TupleTableSlot *state, int64 wid, const WedStamp *before,
					  const WedOperation *operation, WedStamp *stamp)
{
	bool		undoing = before->nundo > 0;
	WedPending	pending;
	int32	   *due = NULL;		/* jobs that were in the pool before: without a delay now */
	int			ndue = 0;

	if (operation->kind == WED_OP_REOPEN ? !before->final : before->final)
	{
		if (before->final)
			wed_refuse_final(flow, wid);
		refuse_operation(flow, wid, "is not final");
	}
	if (before->status == WED_SUSPENDED && operation->kind != WED_OP_RESUME && operation->kind != WED_OP_CANCEL)
		wed_refuse_suspended(flow, wid);

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
			wed_judge_state(flow, state, stamp);
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
			wed_judge_state(flow, state, stamp);
			restore(flow, due, ndue, stamp);
			break;
		case WED_OP_SKIP:
			withdraw_jobs(flow, wid, operation->tgids, operation->ntgids, stamp);
			if (undoing && wed_is_among(before->undo[0], operation->tgids, operation->ntgids))
				wed_judge_after_undoing(flow, state, before, stamp);
			else
			{
				wed_judge_state(flow, state, stamp);
				if (!operation->sets)
					match_not(stamp, operation->tgids, operation->ntgids);
			}
			break;
		case WED_OP_REPAIR:
			withdraw_job(flow, wid, flow->excpt_tgid, stamp);
			stamp->run = 0;
			wed_judge_state(flow, state, stamp);
			break;
		case WED_OP_REWIND:
			withdraw_all(stamp);
			stamp->run = 0;
			wed_judge_state(flow, state, stamp);
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
				wed_judge_state(flow, state, stamp);
			break;
		case WED_OP_REMATCH:
			if (undoing)
				refuse_operation(flow, wid, "is being compensated");
			stamp->run = before->run;
			wed_judge_state(flow, state, stamp);
			/* what was wrong with the state is not any more; if nothing is due, it is an exception again */
			if (stamp->error == NULL && wed_is_among(flow->excpt_tgid, stamp->pending, stamp->npending))
				withdraw_job(flow, wid, flow->excpt_tgid, stamp);
			break;
		case WED_OP_REOPEN:
			if (before->rules >= flow->rules_version)
				wed_refuse_final(flow, wid);
			stamp->run = 0;
			wed_judge_state(flow, state, stamp);
			break;
		case WED_OP_REMOVE:
			elog(ERROR, "an instance is removed by no state");
	}

	wed_withdraw(flow, wid, &pending, stamp);
	wed_start_clocks(flow, due, ndue, stamp);
	if (!stamp->final || stamp->status == WED_CANCELLED || !others_pend(stamp))
		return;
	if (operation->kind == WED_OP_REMATCH)
	{
		/* it stays as it is until these are done */
		stamp->final = false;
		return;
	}
	wed_check_nothing_else_pends(flow, wid, stamp);
}
