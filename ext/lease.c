/*-------------------------------------------------------------------------
 *
 * lease.c
 *		Taking jobs for a time: wed_sql.lease_jobs(), lease_job(), and what
 *		lease() does with those that it has found.
 *
 * The caller may perform the transition: that is looked up here, as for a claim.
 * Who writes job_pool for him is the extension's owner, and that is all that is
 * done with these rights.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tstoreReceiver.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(wed_check_duration);
PG_FUNCTION_INFO_V1(wed_lease_jobs);
PG_FUNCTION_INFO_V1(wed_lease_job);
PG_FUNCTION_INFO_V1(wed_take_leases);

typedef struct Leasing
{
	FunctionCallInfo fcinfo;
	const WedFlow *flow;
	Oid			caller;
	const char *transition;
	Datum		wids;			/* bigint[] */
	Datum		tgids;			/* integer[] */
	Datum		duration;		/* interval */
} Leasing;

static bool
is_positive(Datum duration)
{
	Interval	none = {0};

	return DatumGetBool(DirectFunctionCall1(interval_finite, duration)) &&
		DatumGetBool(DirectFunctionCall2(interval_gt, duration, IntervalPGetDatum(&none)));
}

/* wed_sql.check_duration(duration interval) -> void */
Datum
wed_check_duration(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0) || !is_positive(PG_GETARG_DATUM(0)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("duration of a lease must be positive")));
	PG_RETURN_VOID();
}

static char *
qualified_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), get_rel_name(relid));
}

/*
 * One line of wed_event for each: work that takes long is to be found in the
 * history while it lasts. Under any search_path: operators have their schema.
 */
static char *
lease_statement(const WedFlow *flow)
{
	const char *job_pool = qualified_name(flow->job_pool);

	return psprintf("with free as materialized ("
					"select j.wid, j.tgid, j.version"
					" from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as c (wid, tgid)"
					" join only %1$s j on j.wid operator(pg_catalog.=) c.wid and j.tgid operator(pg_catalog.=) c.tgid"
					" where j.lckid is null"
					" and (j.available_at is null or j.available_at operator(pg_catalog.<=) pg_catalog.clock_timestamp())"
	/* an older one has been withdrawn */
					" and not exists (select from only %1$s n where n.wid operator(pg_catalog.=) j.wid"
					" and n.tgid operator(pg_catalog.=) j.tgid and n.version operator(pg_catalog.>) j.version)"
	/* what the engine does itself */
					" and not exists (select from wed_sql.rule r where r.tgid operator(pg_catalog.=) j.tgid"
					" and r.valid_until operator(pg_catalog.=) 9223372036854775807 and r.action is not null)"
					" for update of j skip locked), "
					"leased as ("
					"update only %1$s j set lckid = pg_catalog.gen_random_uuid()::pg_catalog.text,"
					" leased_until = pg_catalog.clock_timestamp() operator(pg_catalog.+) $3, leased_by = $4"
					" from free where j.wid operator(pg_catalog.=) free.wid and j.tgid operator(pg_catalog.=) free.tgid"
					" and j.version operator(pg_catalog.=) free.version returning j.*), "
					"timed as ("
					"insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)"
					" select $5, l.wid, l.tgid, 'l', l.version, l.leased_until from leased l"
					" on conflict on constraint timer_pkey do update set due_at = excluded.due_at), "
					"told as ("
					"insert into %2$s (wid, version, tgid, trname, event, role, pid)"
					" select l.wid, l.version, l.tgid, l.trname, 'leased', $4, pg_catalog.pg_backend_pid() from leased l) "
					"select l.wid, l.tgid, l.trname, l.lckid, case when $6 then l.payload end, l.fired_at, l.attempts,"
					" case when $6 then l.last_error end, l.leased_until"
					" from leased l order by l.priority desc, l.fired_at, l.wid, l.tgid",
					job_pool, qualified_name(flow->wed_event));
}

/* Leases jobs whose locks this transaction has, as the extension's owner, and returns them. */
static void
write_leases(void *arg)
{
	const Leasing *leasing = arg;
	FunctionCallInfo fcinfo = leasing->fcinfo;
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ParamListInfo params = makeParamList(6);
	DestReceiver *dest = CreateTuplestoreDestReceiver();
	NameData	caller;
	/* of those whom he may perform, but not see, he does not learn the state */
	bool		shown = wed_may_see_jobs(leasing->flow, leasing->caller, leasing->transition);

	namestrcpy(&caller, GetUserNameFromId(leasing->caller, false));
	wed_set_parameter(params, 0, INT8ARRAYOID, (NullableDatum) {leasing->wids, false});
	wed_set_parameter(params, 1, INT4ARRAYOID, (NullableDatum) {leasing->tgids, false});
	wed_set_parameter(params, 2, INTERVALOID, (NullableDatum) {leasing->duration, false});
	wed_set_parameter(params, 3, NAMEOID, (NullableDatum) {NameGetDatum(&caller), false});
	wed_set_parameter(params, 4, INT4OID, (NullableDatum) {Int32GetDatum(leasing->flow->flow_id), false});
	wed_set_parameter(params, 5, BOOLOID, (NullableDatum) {BoolGetDatum(shown), false});
	SetTuplestoreDestReceiverParams(dest, result->setResult, result->econtext->ecxt_per_query_memory,
									false, NULL, NULL);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wed_execute_planned_into(lease_statement(leasing->flow), params, dest) != SPI_OK_SELECT)
		elog(ERROR, "could not lease jobs: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
	dest->rDestroy(dest);
}

/*
 * Instances that the caller sees, as the flow's owner has it
 */

typedef struct Seen
{
	const Leasing *leasing;
	MemoryContext context;
	int			count;
	Datum	   *wids;
} Seen;

static void
read_seen(void *arg)
{
	static const Oid types[] = {INT4OID, INT8ARRAYOID, NAMEOID};
	Seen	   *seen = arg;
	NameData	caller;
	Datum		args[] = {Int32GetDatum(seen->leasing->flow->flow_id), seen->leasing->wids, NameGetDatum(&caller)};
	Datum		value;
	bool		isnull;
	MemoryContext old;

	namestrcpy(&caller, GetUserNameFromId(seen->leasing->caller, false));
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wed_execute_planned("select wed_sql.seen_by(f, $2, $3) from wed_sql.flow f where f.flow_id operator(pg_catalog.=) $1",
							lengthof(types), types, args) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not look who sees an instance: %s", SPI_result_code_string(SPI_result));
	value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	old = MemoryContextSwitchTo(seen->context);
	if (!isnull)
		seen->wids = wed_elements(DatumGetArrayTypePCopy(value), INT8OID, &seen->count);
	MemoryContextSwitchTo(old);
	SPI_finish();
}

static bool
is_seen(const Seen *seen, int64 wid)
{
	for (int i = 0; i < seen->count; i++)
	{
		if (DatumGetInt64(seen->wids[i]) == wid)
			return true;
	}
	return false;
}

/*
 * Leasing
 */

/* Takes the lock of a job that is to be had, and of no other. */
static bool
take_free_job(const WedFlow *flow, int64 wid, int32 tgid, const char *transition)
{
	WedJob		job;

	if (!wed_take_job_lock_of(flow, wid, tgid, transition))
		return false;
	if (wed_find_job(flow, wid, tgid, &job) && strcmp(job.trname, transition) == 0 &&
		job.lckid == NULL && job.available_at <= GetCurrentTimestamp())
		return true;
	wed_give_back_job_lock(wid, tgid);
	return false;
}

/* Leases the first of these jobs that are to be had, most of them at the most. */
static void
lease_first(Leasing *leasing, Relation wed_flow, Datum *wids, Datum *tgids, int count, int most)
{
	Seen		seen = {.leasing = leasing, .context = CurrentMemoryContext};
	bool		filtered = wed_is_filtered(wed_flow, leasing->caller);
	Oid			function = leasing->fcinfo->flinfo->fn_oid;
	int			taken = 0;

	if (!wed_may_perform(leasing->flow, leasing->caller, leasing->transition))
		wed_refuse_transition(leasing->flow, leasing->transition);
	if (filtered)
	{
		leasing->wids = wed_bigint_array(wids, count);
		wed_run_as_definer(function, read_seen, &seen);
	}
	for (int i = 0; i < count && taken < most; i++)
	{
		if (filtered && !is_seen(&seen, DatumGetInt64(wids[i])))
			continue;
		if (!take_free_job(leasing->flow, DatumGetInt64(wids[i]), DatumGetInt32(tgids[i]), leasing->transition))
			continue;
		wids[taken] = wids[i];
		tgids[taken++] = tgids[i];
	}
	if (taken == 0)
		return;
	leasing->wids = wed_bigint_array(wids, taken);
	leasing->tgids = PointerGetDatum(construct_array(tgids, taken, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	wed_run_as_definer(function, write_leases, leasing);
}

static void
begin_leasing(FunctionCallInfo fcinfo, Leasing *leasing, Relation *wed_flow)
{
	wed_refuse_if_confined("lease jobs");
	wed_refuse_if_restricted(fcinfo->flinfo->fn_oid);
	InitMaterializedSRF(fcinfo, 0);
	memset(leasing, 0, sizeof(Leasing));
	leasing->fcinfo = fcinfo;
	leasing->caller = GetUserId();
	leasing->flow = wed_flow_named(text_to_cstring(PG_GETARG_TEXT_PP(0)), wed_flow);
}

/*
 * wed_sql.lease_jobs(flow text, transition text, wids bigint[], tgids
 * integer[], duration interval, max_jobs integer) -> setof record
 */
Datum
wed_lease_jobs(PG_FUNCTION_ARGS)
{
	Leasing		leasing;
	Relation	wed_flow;
	Datum	   *wids;
	Datum	   *tgids;
	int			nwids;
	int			ntgids;

	wed_refuse_nulls(fcinfo, "a flow, a WED-transition, instances, tgids, a duration, and how many jobs at most");
	wids = wed_elements(PG_GETARG_ARRAYTYPE_P(2), INT8OID, &nwids);
	tgids = wed_elements(PG_GETARG_ARRAYTYPE_P(3), INT4OID, &ntgids);
	wed_check_lengths(nwids, ntgids);
	(void) DirectFunctionCall1(wed_check_duration, PG_GETARG_DATUM(4));
	begin_leasing(fcinfo, &leasing, &wed_flow);
	leasing.transition = text_to_cstring(PG_GETARG_TEXT_PP(1));
	leasing.duration = PG_GETARG_DATUM(4);
	lease_first(&leasing, wed_flow, wids, tgids, nwids, PG_GETARG_INT32(5));
	relation_close(wed_flow, NoLock);
	return (Datum) 0;
}

/* What is pending, or would be: whether there is a job, nobody learns by being refused it. */
static const char *
transition_of_job(const WedFlow *flow, int64 wid, int32 tgid)
{
	const char *trname;
	WedJob		job;
	WedRule		rule;

	if (wed_find_job(flow, wid, tgid, &job))
		return job.trname;
	trname = wed_transition_name(flow, tgid);
	if (trname != NULL)
		return trname;
	if (wed_flow_of_trigger(tgid) == flow->relid)
	{
		wed_read_former_rule(tgid, &rule);
		if (rule.trname != NULL)
			return rule.trname;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("WED-flow \"%s\" has no WED-trigger with tgid %d", flow->name, tgid),
			 errhint("Take wid and tgid from job_pool.")));
}

/* wed_sql.lease_job(flow text, wid bigint, tgid integer, duration interval) -> setof record */
Datum
wed_lease_job(PG_FUNCTION_ARGS)
{
	Leasing		leasing;
	Relation	wed_flow;
	Datum		wid;
	Datum		tgid;

	wed_refuse_nulls(fcinfo, "a flow, an instance, a tgid and a duration");
	wid = PG_GETARG_DATUM(1);
	tgid = PG_GETARG_DATUM(2);
	(void) DirectFunctionCall1(wed_check_duration, PG_GETARG_DATUM(3));
	begin_leasing(fcinfo, &leasing, &wed_flow);
	leasing.transition = transition_of_job(leasing.flow, DatumGetInt64(wid), DatumGetInt32(tgid));
	leasing.duration = PG_GETARG_DATUM(3);
	lease_first(&leasing, wed_flow, &wid, &tgid, 1, 1);
	relation_close(wed_flow, NoLock);
	return (Datum) 0;
}

/*
 * wed_sql.take_leases(wed_flow regclass, transition text, wids bigint[], tgids
 * integer[], duration interval, caller name) -> setof record: by the
 * extension's owner, under the jobs' locks.
 */
Datum
wed_take_leases(PG_FUNCTION_ARGS)
{
	Relation	wed_flow;
	Leasing		leasing;

	InitMaterializedSRF(fcinfo, 0);
	wed_flow = relation_open(PG_GETARG_OID(0), AccessShareLock);
	leasing = (Leasing) {
		.fcinfo = fcinfo,
		.flow = wed_flow_outline(wed_flow),
		.caller = get_role_oid(NameStr(*PG_GETARG_NAME(5)), false),
		.transition = text_to_cstring(PG_GETARG_TEXT_PP(1)),
		.wids = PG_GETARG_DATUM(2),
		.tgids = PG_GETARG_DATUM(3),
		.duration = PG_GETARG_DATUM(4),
	};
	write_leases(&leasing);
	relation_close(wed_flow, NoLock);
	return (Datum) 0;
}
