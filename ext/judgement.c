/*-------------------------------------------------------------------------
 *
 * judgement.c
 *		What follows from a state, whoever writes it: which rules it fires and
 *		which delays begin, what of what pended pends on, and what keeps it from
 *		being written.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "judgement.h"

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
WedRule
wed_last_rule(const WedFlow *flow, int32 tgid)
{
	const WedRule *rule = find_rule(flow, tgid);
	WedRule		former;

	if (rule != NULL)
		return *rule;
	wed_read_former_rule(tgid, &former);
	return former;
}

/* Whether what pends of a WED-trigger goes when its condition does not hold. */
bool
wed_is_withdrawable(const WedFlow *flow, int32 tgid)
{
	return tgid != flow->excpt_tgid && wed_last_rule(flow, tgid).withdrawable;
}

int
wed_compare_tgids(const void *a, const void *b)
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
void
wed_withdraw(const WedFlow *flow, int64 wid, const WedPending *before, WedStamp *stamp)
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
		if (goes || (stops && (clock || wed_is_withdrawable(flow, tgid))))
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
void
wed_start_clocks(const WedFlow *flow, const int32 *due, int ndue, WedStamp *stamp)
{
	for (int i = 0; i < stamp->nmatched; i++)
	{
		int32		tgid = stamp->matched[i];
		bool		kept = tgid != stamp->by && wed_is_among(tgid, stamp->pending, stamp->npending) &&
			!wed_is_among(tgid, stamp->withdrawn, stamp->nwithdrawn);

		if (!kept && tgid != flow->excpt_tgid && !wed_is_among(tgid, due, ndue) && wed_last_rule(flow, tgid).delayed)
			stamp->clocks[stamp->nclocks++] = tgid;
	}
	qsort(stamp->clocks, stamp->nclocks, sizeof(int32), wed_compare_tgids);
}

/* C3: nothing but the job that wrote it may pend at a final state. */
void
wed_check_nothing_else_pends(const WedFlow *flow, int64 wid, const WedStamp *stamp)
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

void
wed_judge_state(WedFlow *flow, TupleTableSlot *state, WedStamp *stamp)
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

/* The state that follows a compensating transition: the next one is due, or it is judged as any other. */
void
wed_judge_after_undoing(WedFlow *flow, TupleTableSlot *state, const WedStamp *before, WedStamp *stamp)
{
	if (before->nundo <= 1)
	{
		wed_judge_state(flow, state, stamp);
		return;
	}
	stamp->rules = flow->rules_version;
	stamp->undo = before->undo + 1;
	stamp->nundo = before->nundo - 1;
	stamp->matched = stamp->undo;
	stamp->nmatched = 1;
}

void
wed_refuse_final(const WedFlow *flow, int64 wid)
{
	ereport(ERROR,
			(errcode(ERRCODE_WED_INSTANCE_IS_FINAL),
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is final and cannot be changed",
					wid, flow->name),
			 errhint("It can be reopened after WED-attributes or WED-triggers were added or changed.")));
}

void
wed_refuse_suspended(const WedFlow *flow, int64 wid)
{
	ereport(ERROR,
			(errcode(ERRCODE_WED_INSTANCE_IS_SUSPENDED),
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is suspended", wid, flow->name),
			 errhint("wed_sql.resume() has it go on.")));
}
