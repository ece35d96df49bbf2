/*-------------------------------------------------------------------------
 *
 * claim.c
 *		The protocol of a worker, for many jobs with one statement: taking the
 *		locks of those that are to be had, and writing the states that complete
 *		them.
 *
 * Nothing here needs a right that the paper's protocol would not: rows of
 * job_pool are read, and those of wed_flow written, as the current user.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_claim_jobs);
PG_FUNCTION_INFO_V1(wed_complete_jobs);

#define CLAIMED_COLUMNS 7

/*
 * Claiming
 */

/* As the current user sees it, under its lock: a job that is not leased, nor to be tried later. */
static char *
claim_statement(const WedFlow *flow)
{
	return psprintf("select j.wid, j.tgid, j.version, j.fired_at, j.payload, j.attempts, j.timeout from only %s j"
					" where j.wid operator(pg_catalog.=) $1 and j.tgid operator(pg_catalog.=) $2"
					" and j.trname operator(pg_catalog.=) $3"
					" and (j.lckid is null or j.leased_until operator(pg_catalog.<=) pg_catalog.clock_timestamp())"
					" and (j.available_at is null or j.available_at operator(pg_catalog.<=) pg_catalog.clock_timestamp())"
					/* an older one has been withdrawn */
					" order by j.version desc limit 1",
					quote_qualified_identifier(flow->name, "job_pool"));
}

/* A job's row, in values; false if it is not to be had. */
static bool
read_open_job(const char *statement, Datum *key, Datum *values, bool *nulls)
{
	static const Oid types[] = {INT8OID, INT4OID, TEXTOID};

	if (wed_execute_planned(statement, lengthof(types), types, key) != SPI_OK_SELECT)
		elog(ERROR, "could not read job_pool: %s", SPI_result_code_string(SPI_result));
	if (SPI_processed == 0)
		return false;
	for (int i = 0; i < CLAIMED_COLUMNS; i++)
		values[i] = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, i + 1, &nulls[i]);
	return true;
}

/*
 * wed_sql.claim_jobs(flow text, transition text, wids bigint[], tgids
 * integer[], max_jobs integer) -> setof record
 *
 * A job is read under its lock: so it is as it will be completed.
 */
Datum
wed_claim_jobs(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	wed_flow;
	WedFlow    *flow;
	char	   *transition;
	Datum	   *wids;
	Datum	   *tgids;
	int			nwids;
	int			ntgids;
	int			most;
	char	   *statement;

	wed_refuse_nulls(fcinfo, "a flow, a WED-transition, instances, tgids, and how many jobs at most");
	wed_refuse_if_confined("take or release advisory locks");
	InitMaterializedSRF(fcinfo, 0);
	transition = text_to_cstring(PG_GETARG_TEXT_PP(1));
	wids = wed_elements(PG_GETARG_ARRAYTYPE_P(2), INT8OID, &nwids);
	tgids = wed_elements(PG_GETARG_ARRAYTYPE_P(3), INT4OID, &ntgids);
	wed_check_lengths(nwids, ntgids);
	most = PG_GETARG_INT32(4);
	flow = wed_flow_named(text_to_cstring(PG_GETARG_TEXT_PP(0)), &wed_flow);
	if (!wed_may_perform(flow, GetUserId(), transition))
		wed_refuse_transition(flow, transition);
	statement = claim_statement(flow);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	for (int i = 0; i < nwids && most > 0; i++)
	{
		int64		wid = DatumGetInt64(wids[i]);
		int32		tgid = DatumGetInt32(tgids[i]);
		Datum		key[] = {wids[i], tgids[i], PG_GETARG_DATUM(1)};
		Datum		values[CLAIMED_COLUMNS];
		bool		nulls[CLAIMED_COLUMNS];

		if (!wed_take_job_lock_of(flow, wid, tgid, transition))
			continue;
		if (read_open_job(statement, key, values, nulls))
		{
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
			most--;
		}
		else
			wed_give_back_job_lock(wid, tgid);
		SPI_freetuptable(SPI_tuptable);
	}
	SPI_finish();
	relation_close(wed_flow, NoLock);
	return (Datum) 0;
}

/*
 * Completing
 */

typedef struct NextState
{
	int64		wid;
	Jsonb	   *values;
	char	   *keys;			/* of the values, each with a line's end */
} NextState;

static char *
keys_of(Jsonb *values)
{
	JsonbIterator *it;
	JsonbValue	key;
	JsonbIteratorToken token;
	StringInfoData keys;

	if (!JB_ROOT_IS_OBJECT(values))
		wed_refuse_no_object();
	initStringInfo(&keys);
	it = JsonbIteratorInit(&values->root);
	while ((token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		appendBinaryStringInfo(&keys, key.val.string.val, key.val.string.len);
		appendStringInfoChar(&keys, '\n');
	}
	return keys.data;
}

/* By the attributes that they set; and by wid, which is the order in which rows are locked. */
static int
compare_states(const void *a, const void *b)
{
	const NextState *x = a;
	const NextState *y = b;
	int			keys = strcmp(x->keys, y->keys);

	return keys != 0 ? keys : (x->wid > y->wid) - (x->wid < y->wid);
}

static int
compare_wids(const void *a, const void *b)
{
	int64		x = DatumGetInt64(*(const Datum *) a);
	int64		y = DatumGetInt64(*(const Datum *) b);

	return (x > y) - (x < y);
}

/*
 * Transactions that write the same instances, in whatever order, do not wait for
 * each other in a circle.
 */
static void
lock_rows(Relation wed_flow, NextState *states, int count)
{
	static const Oid types[] = {INT8ARRAYOID};
	Datum	   *wids = palloc(sizeof(Datum) * count);
	Datum		args[1];
	char	   *statement = psprintf("select from only %s f where f.wid operator(pg_catalog.=) any ($1)"
									 " order by f.wid for no key update",
									 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(wed_flow)),
																RelationGetRelationName(wed_flow)));

	for (int i = 0; i < count; i++)
		wids[i] = Int64GetDatum(states[i].wid);
	qsort(wids, count, sizeof(Datum), compare_wids);
	args[0] = wed_bigint_array(wids, count);
	if (wed_execute_planned(statement, lengthof(types), types, args) != SPI_OK_SELECT)
		elog(ERROR, "could not lock instances: %s", SPI_result_code_string(SPI_result));
}

static void
refuse_hidden(const WedFlow *flow, int64 count)
{
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg_plural("an instance of WED-flow \"%s\" is hidden from role \"%s\", or there is none",
						   "instances of WED-flow \"%s\" are hidden from role \"%s\", or there are none",
						   count, flow->name, GetUserNameFromId(GetUserId(), false)),
			 errdetail("These are " INT64_FORMAT " of those that were to be written.", count)));
}

/* Writes states that set the same attributes. */
static void
write_states(const WedFlow *flow, Relation wed_flow, NextState *states, int count)
{
	static const Oid one_types[] = {INT8OID, JSONBOID};
	static const Oid many_types[] = {INT8ARRAYOID, JSONBARRAYOID};
	Datum		args[2];
	int			outcome;

	if (count == 1)
	{
		args[0] = Int64GetDatum(states[0].wid);
		args[1] = JsonbPGetDatum(states[0].values);
		outcome = wed_execute_planned(wed_update_statement(wed_flow, wed_set_clause_of(wed_flow, states[0].values, NULL, "$2"), ""),
									  lengthof(one_types), one_types, args);
	}
	else
	{
		Datum	   *wids = palloc(sizeof(Datum) * count);
		Datum	   *values = palloc(sizeof(Datum) * count);

		for (int i = 0; i < count; i++)
		{
			wids[i] = Int64GetDatum(states[i].wid);
			values[i] = JsonbPGetDatum(states[i].values);
		}
		args[0] = wed_bigint_array(wids, count);
		args[1] = PointerGetDatum(construct_array(values, count, JSONBOID, -1, false, TYPALIGN_INT));
		outcome = wed_execute_planned(psprintf("update only %s f set %s"
											   " from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as c (wid, state)"
											   " where f.wid operator(pg_catalog.=) c.wid",
											   quote_qualified_identifier(flow->name, RelationGetRelationName(wed_flow)),
											   wed_set_clause_of(wed_flow, states[0].values, "f", "c.state")),
									  lengthof(many_types), many_types, args);
	}
	if (outcome != SPI_OK_UPDATE)
		elog(ERROR, "update of instances failed: %s", SPI_result_code_string(outcome));
	if (SPI_processed != count)
		refuse_hidden(flow, count - (int64) SPI_processed);
}

/* A job's lock says which job is completed; nothing says which state would be the last. */
static void
refuse_twice(const WedFlow *flow, const NextState *states, int count)
{
	for (int i = 1; i < count; i++)
	{
		if (states[i].wid == states[i - 1].wid)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("two states of instance " INT64_FORMAT " of WED-flow \"%s\" are given",
							states[i].wid, flow->name)));
	}
}

/*
 * wed_sql.complete_jobs(flow text, wids bigint[], states jsonb[]) -> void
 */
Datum
wed_complete_jobs(PG_FUNCTION_ARGS)
{
	Relation	wed_flow;
	WedFlow    *flow;
	Datum	   *wids;
	Datum	   *values;
	int			nwids;
	int			count;
	NextState  *states;
	int			first = 0;

	wed_refuse_nulls(fcinfo, "a flow, instances and their next states");
	wed_refuse_if_confined("complete jobs");
	wids = wed_elements(PG_GETARG_ARRAYTYPE_P(1), INT8OID, &nwids);
	values = wed_elements(PG_GETARG_ARRAYTYPE_P(2), JSONBOID, &count);
	wed_check_lengths(nwids, count);
	flow = wed_flow_named(text_to_cstring(PG_GETARG_TEXT_PP(0)), &wed_flow);

	states = palloc(sizeof(NextState) * (count + 1));
	for (int i = 0; i < count; i++)
	{
		states[i].wid = DatumGetInt64(wids[i]);
		states[i].values = DatumGetJsonbP(values[i]);
		states[i].keys = keys_of(states[i].values);
	}
	qsort(states, count, sizeof(NextState), compare_states);
	refuse_twice(flow, states, count);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (count > 1 && strcmp(states[0].keys, states[count - 1].keys) != 0)
		lock_rows(wed_flow, states, count);
	for (int i = 1; i <= count; i++)
	{
		if (i < count && strcmp(states[i].keys, states[first].keys) == 0)
			continue;
		write_states(flow, wed_flow, states + first, i - first);
		first = i;
	}
	SPI_finish();
	relation_close(wed_flow, NoLock);
	PG_RETURN_VOID();
}
