/*-------------------------------------------------------------------------
 *
 * signal.c
 *		Events from outside: wed_sql.signal() completes a pending transition in its
 *		caller's own transaction, for what no worker does. One that nobody waits
 *		for is refused or kept; a kept one is delivered by the engine as the role
 *		that has sent it.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_signal);
PG_FUNCTION_INFO_V1(wed_signal_matching);
PG_FUNCTION_INFO_V1(wed_deliver);
PG_FUNCTION_INFO_V1(wed_matching);

/* How long a signal waits for the follower, which may not have come to the job yet. */
#define PATIENCE_MS 30000

typedef struct Signal
{
	WedFlow    *flow;
	Relation	wed_flow;
	const char *transition;
	const char *condition;		/* NULL: for one instance */
	int64		wid;
	const char *set_clause;
	bool		keep;
	Datum		expires_at;
	bool		expires;
	bool		has_waited;
} Signal;

/*
 * Finding the job
 */

typedef struct JobList
{
	const char *transition;
	int			count;
	int			room;
	int32	   *tgids;
} JobList;

static bool
note_job(const WedFlow *flow, int32 tgid, const char *trname, void *arg)
{
	JobList    *jobs = arg;

	if (strcmp(trname, jobs->transition) != 0)
		return false;
	if (jobs->count == jobs->room)
	{
		jobs->room = Max(8, jobs->room * 2);
		jobs->tgids = jobs->tgids ? repalloc(jobs->tgids, jobs->room * sizeof(int32)) :
			palloc(jobs->room * sizeof(int32));
	}
	jobs->tgids[jobs->count++] = tgid;
	return false;
}

/* Locks a pending job of the transition; 0 if there is none. An error if all are in use. */
static int32
take_job(const Signal *signal, int64 wid)
{
	JobList		jobs = {.transition = signal->transition};
	WedJob		leased = {0};
	int32		locked = 0;

	(void) wed_any_job(signal->flow, wid, note_job, &jobs);
	for (int i = 0; i < jobs.count; i++)
	{
		WedJob		job;

		if (!wed_take_job_lock(wid, jobs.tgids[i]))
		{
			locked = jobs.tgids[i];
			continue;
		}
		if (wed_find_job(signal->flow, wid, jobs.tgids[i], &job))
		{
			if (!wed_job_is_leased(&job, GetCurrentTimestamp()))
				return job.tgid;
			leased = job;
		}
		wed_give_back_job_lock(wid, jobs.tgids[i]);
	}
	if (locked != 0)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another session has the lock of job \"%s\" (tgid %d) of instance " INT64_FORMAT " of WED-flow \"%s\"",
						signal->transition, locked, wid, signal->flow->name),
				 errhint("wed_sql.job_lock shows whose it is. Try again, or wait until it is done.")));
	if (leased.tgid != 0)
		wed_check_lease(signal->flow, wid, &leased, NULL);
	return 0;
}

/* Whether a job is on its way to job_pool: no clock has to run out first. */
static bool
is_due(const Signal *signal, const WedStamp *stamp)
{
	const WedFlow *flow = signal->flow;
	WedPending	pending;

	wed_stamp_pending_after(stamp, flow->excpt_tgid, &pending);
	for (int i = 0; i < pending.count; i++)
	{
		const char *trname = wed_transition_name(flow, pending.tgids[i]);

		if (trname != NULL && strcmp(trname, signal->transition) == 0 && !pending.clocks[i])
			return true;
	}
	return false;
}

/* Completes a pending job of the transition, if there is one; waits for the follower once. */
static bool
deliver_now(Signal *signal, int64 wid)
{
	int32		tgid = take_job(signal, wid);
	WedStatement statement = {.nargs = 1};

	if (tgid == 0 && !signal->has_waited)
	{
		WedStamp	stamp;

		if (!wed_read_stamp(signal->flow->relid, wid, &stamp) || !is_due(signal, &stamp))
			return false;
		signal->has_waited = true;
		wed_shared_sync(PATIENCE_MS);
		tgid = take_job(signal, wid);
	}
	if (tgid == 0)
		return false;

	statement.text = wed_update_statement(signal->wed_flow, signal->set_clause, "");
	statement.types[0] = INT8OID;
	statement.args[0] = Int64GetDatum(wid);
	if (!wed_complete_job(tgid, "", &statement))
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is hidden from role \"%s\"",
						wid, signal->flow->name, GetUserNameFromId(GetUserId(), false))));
	return true;
}

/*
 * Keeping a signal
 */

static void
check_kept(void *arg)
{
	Signal	   *signal = arg;
	char	   *statement = wed_update_statement(signal->wed_flow, signal->set_clause, "");
	Oid			type = INT8OID;
	bool		has_sublinks;

	wed_check_one_update(statement, true);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_prepare(statement, 1, &type) == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
	if (signal->condition != NULL)
		(void) wed_analyze_condition(signal->wed_flow, signal->condition, &has_sublinks);
}

typedef struct KeepArg
{
	const Signal *signal;
	Oid			role;
} KeepArg;

static void
keep(void *arg)
{
	KeepArg    *keep = arg;
	const Signal *signal = keep->signal;
	Oid			types[] = {INT4OID, TEXTOID, INT8OID, TEXTOID, TEXTOID, OIDOID, TIMESTAMPTZOID};
	Datum		args[7];
	char		nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', ' '};

	args[0] = Int32GetDatum(signal->flow->flow_id);
	args[1] = CStringGetTextDatum(signal->transition);
	args[2] = Int64GetDatum(signal->wid);
	nulls[2] = signal->condition ? 'n' : ' ';
	args[3] = signal->condition ? CStringGetTextDatum(signal->condition) : (Datum) 0;
	nulls[3] = signal->condition ? ' ' : 'n';
	args[4] = CStringGetTextDatum(signal->set_clause);
	args[5] = ObjectIdGetDatum(keep->role);
	args[6] = signal->expires_at;
	nulls[6] = signal->expires ? ' ' : 'n';
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args("select wed_sql.keep_signal($1, $2, $3, $4, $5, $6, $7)",
							  lengthof(types), types, args, nulls, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
}

static void
refuse_or_keep(const Signal *signal, Oid function)
{
	KeepArg		arg = {.signal = signal, .role = GetUserId()};

	if (signal->keep)
	{
		wed_run_as_definer(function, keep, &arg);
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_WED_SIGNAL_UNMATCHED),
			 signal->condition == NULL ?
			 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" does not wait for \"%s\"",
					signal->wid, signal->flow->name, signal->transition) :
			 errmsg("no instance of WED-flow \"%s\" that satisfies the condition waits for \"%s\"",
					signal->flow->name, signal->transition),
			 errhint("A signal is kept until one does if it is sent with keep => true.")));
}

/*
 * Sending
 */

/* No job waits for it, and none will: a job that was fired before its rule was disabled still does. */
static void
refuse_unknown(const WedFlow *flow, const char *transition)
{
	if (strcmp(transition, WED_EXCEPTION_TRANSITION) == 0)
		return;
	for (int i = 0; i < flow->nrules; i++)
	{
		if (flow->rules[i].trname != NULL && strcmp(flow->rules[i].trname, transition) == 0)
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("no WED-trigger of WED-flow \"%s\" that is enabled has WED-transition \"%s\"",
					flow->name, transition)));
}

static void
open_signal(FunctionCallInfo fcinfo, Signal *signal)
{
	char	   *name;

	for (int i = 0; i < 5; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("a flow, an instance or a condition, a WED-transition and a SET clause are needed")));
	}
	wed_refuse_if_confined("send signals");
	if (InSecurityRestrictedOperation())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot call wed_sql.signal() within a security-restricted operation")));

	memset(signal, 0, sizeof(Signal));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	signal->transition = text_to_cstring(PG_GETARG_TEXT_PP(2));
	signal->set_clause = text_to_cstring(PG_GETARG_TEXT_PP(3));
	signal->keep = PG_GETARG_BOOL(4);
	signal->expires = !PG_ARGISNULL(5);
	signal->expires_at = signal->expires ? PG_GETARG_DATUM(5) : (Datum) 0;

	signal->flow = wed_flow_named(name, &signal->wed_flow);
	if (!wed_may_perform(signal->flow, GetUserId(), signal->transition))
		wed_refuse_transition(signal->flow, signal->transition);
}

/* What is not valid is not kept, nor does it hang on what is there whether that is noticed. */
static void
check_signal(Signal *signal)
{
	bool		has_sublinks;

	if (signal->keep)
		wed_run_as_owner(GetUserId(), check_kept, signal);
	else if (signal->condition != NULL)
		(void) wed_analyze_condition(signal->wed_flow, signal->condition, &has_sublinks);
}

/*
 * wed_sql.signal(flow text, wid bigint, transition text, set_clause text, keep
 * boolean, expires_at timestamptz) -> bigint: the instance, or null if the
 * signal was kept.
 */
Datum
wed_signal(PG_FUNCTION_ARGS)
{
	Signal		signal;
	WedStamp	stamp;

	open_signal(fcinfo, &signal);
	signal.wid = PG_GETARG_INT64(1);
	if (!wed_is_lockable(signal.wid) || !wed_read_stamp(signal.flow->relid, signal.wid, &stamp))
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("WED-flow \"%s\" has no instance " INT64_FORMAT, signal.flow->name, signal.wid)));
	check_signal(&signal);
	if (deliver_now(&signal, signal.wid))
	{
		relation_close(signal.wed_flow, NoLock);
		PG_RETURN_INT64(signal.wid);
	}
	refuse_unknown(signal.flow, signal.transition);
	if (stamp.final)
		ereport(ERROR,
				(errcode(ERRCODE_WED_INSTANCE_IS_FINAL),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" has ended", signal.wid, signal.flow->name)));
	refuse_or_keep(&signal, fcinfo->flinfo->fn_oid);
	relation_close(signal.wed_flow, NoLock);
	PG_RETURN_NULL();
}

static void
begin_values(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext old;

	if (result == NULL || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));
	old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	result->returnMode = SFRM_Materialize;
	result->setResult = tuplestore_begin_heap(true, false, work_mem);
	result->setDesc = CreateTemplateTupleDesc(1);
	TupleDescInitEntry(result->setDesc, 1, "wid", INT8OID, -1, 0);
	MemoryContextSwitchTo(old);
}

/* The instances that satisfy a condition, as the current user sees them. */
static int64 *
find_instances(Relation wed_flow, const char *condition, const char *more, int nargs, Oid *types, Datum *args, int *count)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *query = psprintf("select wid from only %s where (%s\n)%s order by wid",
								 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(wed_flow)),
															RelationGetRelationName(wed_flow)),
								 condition, more);
	int64	   *wids;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args(query, nargs, types, args, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_with_args failed: %s", SPI_result_code_string(SPI_result));
	*count = SPI_processed;
	wids = MemoryContextAllocHuge(context, sizeof(int64) * (SPI_processed + 1));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;

		wids[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
	}
	SPI_finish();
	return wids;
}

/*
 * wed_sql.signal(flow text, condition text, transition text, set_clause text,
 * keep boolean, expires_at timestamptz) -> setof bigint: the instances; none if
 * the signal was kept.
 */
Datum
wed_signal_matching(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Signal		signal;
	int64	   *wids;
	int			count;
	bool		delivered = false;

	open_signal(fcinfo, &signal);
	signal.condition = text_to_cstring(PG_GETARG_TEXT_PP(1));
	check_signal(&signal);
	begin_values(fcinfo);
	wids = find_instances(signal.wed_flow, signal.condition, "", 0, NULL, NULL, &count);
	for (int i = 0; i < count; i++)
	{
		Datum		value = Int64GetDatum(wids[i]);
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		if (!deliver_now(&signal, wids[i]))
			continue;
		delivered = true;
		tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	if (!delivered)
	{
		refuse_unknown(signal.flow, signal.transition);
		refuse_or_keep(&signal, fcinfo->flinfo->fn_oid);
	}
	relation_close(signal.wed_flow, NoLock);
	return (Datum) 0;
}

/*
 * Delivering what was kept
 */

typedef struct Delivery
{
	Relation	wed_flow;
	const char *condition;		/* or NULL */
	const char *set_clause;
	int64		wid;
	int32		tgid;
	bool		done;			/* out: false if the condition does not hold */

	/* of wed_sql.matching() */
	Datum		candidates;
	int64	   *wids;			/* out, in context */
	int			nwids;
	MemoryContext context;
} Delivery;

static void
deliver(void *arg)
{
	Delivery   *delivery = arg;
	WedStatement statement = {.nargs = 1};

	/* in time for others, whatever the role has set for itself */
	(void) set_config_option("lock_timeout", "500ms", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	statement.text = wed_update_statement(delivery->wed_flow, delivery->set_clause,
										  delivery->condition ? psprintf(" and (%s\n)", delivery->condition) : "");
	statement.types[0] = INT8OID;
	statement.args[0] = Int64GetDatum(delivery->wid);
	delivery->done = wed_complete_job(delivery->tgid, "", &statement);
}

static bool
role_exists(Oid role)
{
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role));
}

/*
 * wed_sql.deliver(wed_flow regclass, wid bigint, tgid integer, condition text,
 * set_clause text, role oid) -> (outcome text, sqlstate text, error text):
 * completes a pending job as a role. The outcome is done, busy, unmatched (the
 * condition does not hold) or failed.
 */
Datum
wed_deliver(PG_FUNCTION_ARGS)
{
	Delivery	delivery = {0};
	Oid			role;
	WedFlow    *flow;
	TupleDesc	desc;
	char	   *error = NULL;
	int			sqlstate = 0;
	Datum		values[3];
	bool		nulls[3] = {false, true, true};

	for (int i = 0; i < 6; i++)
	{
		if (i != 3 && PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("only the condition of a signal can be null")));
	}
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	delivery.wed_flow = relation_open(PG_GETARG_OID(0), RowExclusiveLock);
	delivery.wid = PG_GETARG_INT64(1);
	delivery.tgid = PG_GETARG_INT32(2);
	delivery.condition = PG_ARGISNULL(3) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(3));
	delivery.set_clause = text_to_cstring(PG_GETARG_TEXT_PP(4));
	role = PG_GETARG_OID(5);
	flow = wed_flow_outline(delivery.wed_flow);

	if (!role_exists(role))
	{
		error = "the role that has sent the signal does not exist any more";
		sqlstate = ERRCODE_UNDEFINED_OBJECT;
	}
	else if (!wed_take_job_lock(delivery.wid, delivery.tgid))
		sqlstate = ERRCODE_LOCK_NOT_AVAILABLE;
	else
		error = wed_try_as_role(flow, role, deliver, &delivery, &sqlstate);

	values[0] = CStringGetTextDatum(sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ? "busy" :
									error != NULL ? "failed" : delivery.done ? "done" : "unmatched");
	if (error != NULL)
	{
		values[1] = CStringGetTextDatum(unpack_sql_state(sqlstate));
		values[2] = CStringGetTextDatum(error);
		nulls[1] = nulls[2] = false;
	}
	relation_close(delivery.wed_flow, NoLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

static void
match(void *arg)
{
	Delivery   *delivery = arg;
	Oid			type = INT8ARRAYOID;
	int64	   *wids;
	MemoryContext old;

	wids = find_instances(delivery->wed_flow, delivery->condition, " and wid operator(pg_catalog.=) any ($1)",
						  1, &type, &delivery->candidates, &delivery->nwids);
	old = MemoryContextSwitchTo(delivery->context);
	delivery->wids = palloc(sizeof(int64) * (delivery->nwids + 1));
	memcpy(delivery->wids, wids, sizeof(int64) * delivery->nwids);
	MemoryContextSwitchTo(old);
}

/*
 * wed_sql.matching(wed_flow regclass, wids bigint[], condition text, role oid)
 * -> bigint[]: those of them that satisfy a condition, as a role sees it; null if
 * it fails.
 */
Datum
wed_matching(PG_FUNCTION_ARGS)
{
	Delivery	delivery = {0};
	Oid			role = PG_GETARG_OID(3);
	char	   *error = NULL;
	int			sqlstate;
	Datum	   *values;

	delivery.wed_flow = relation_open(PG_GETARG_OID(0), AccessShareLock);
	delivery.candidates = PG_GETARG_DATUM(1);
	delivery.condition = text_to_cstring(PG_GETARG_TEXT_PP(2));
	delivery.context = CurrentMemoryContext;
	if (role_exists(role))
		error = wed_try_as_role(wed_flow_outline(delivery.wed_flow), role, match, &delivery, &sqlstate);
	relation_close(delivery.wed_flow, NoLock);
	if (error != NULL || !role_exists(role))
		PG_RETURN_NULL();
	values = palloc(sizeof(Datum) * (delivery.nwids + 1));
	for (int i = 0; i < delivery.nwids; i++)
		values[i] = Int64GetDatum(delivery.wids[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(values, delivery.nwids, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
