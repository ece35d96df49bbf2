/*-------------------------------------------------------------------------
 *
 * owner_query.c
 *		Reading a flow's wed_flow as its owner, for the follower.
 *
 * Reading somebody's table can run his functions: those of an index are
 * evaluated by the planner, those of a type when a value becomes text. They
 * must not run as the engine's role, nor as the extension's owner.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_query_as_owner);

typedef struct OwnerQuery
{
	const char *query;
	int64		most_bytes;
	TupleDesc	expected;
	Tuplestorestate *rows;
} OwnerQuery;

static void
check_columns(TupleDesc expected, TupleDesc actual)
{
	bool		same = expected->natts == actual->natts;

	for (int i = 0; same && i < actual->natts; i++)
		same = TupleDescAttr(expected, i)->atttypid == TupleDescAttr(actual, i)->atttypid;
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("query does not return the columns that are expected of it")));
}

/* With the snapshot of the statement that it is called in. */
static void
run_query(void *arg)
{
	OwnerQuery *q = arg;
	int64		bytes = 0;
	Portal		portal;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	portal = SPI_cursor_open_with_args(NULL, q->query, 0, NULL, NULL, NULL, true, 0);
	if (portal == NULL)
		elog(ERROR, "SPI_cursor_open_with_args failed: %s", SPI_result_code_string(SPI_result));
	do
	{
		SPI_cursor_fetch(portal, true, 1);
		if (SPI_processed == 0)
			break;
		if (bytes == 0)
			check_columns(q->expected, SPI_tuptable->tupdesc);
		tuplestore_puttuple(q->rows, SPI_tuptable->vals[0]);
		bytes += SPI_tuptable->vals[0]->t_len;
		SPI_freetuptable(SPI_tuptable);
	} while (bytes < q->most_bytes);
	SPI_cursor_close(portal);
	SPI_finish();
}

/*
 * wed_sql.query_as_owner(rel regclass, query text, most_bytes bigint) ->
 * setof record: the rows of a query that is run as the table's owner, in a
 * security-restricted operation; no more once they exceed most_bytes.
 */
Datum
wed_query_as_owner(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OwnerQuery	query;
	Relation	rel;
	Oid			owner;
	MemoryContext old;

	if (result == NULL || !IsA(result, ReturnSetInfo) ||
		(result->allowedModes & SFRM_Materialize) == 0 || result->expectedDesc == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("query_as_owner must be called in FROM, with a list of columns")));

	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	owner = rel->rd_rel->relowner;
	relation_close(rel, NoLock);

	query.query = text_to_cstring(PG_GETARG_TEXT_PP(1));
	query.most_bytes = PG_GETARG_INT64(2);
	old = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	query.expected = CreateTupleDescCopy(result->expectedDesc);
	query.rows = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	MemoryContextSwitchTo(old);
	result->returnMode = SFRM_Materialize;
	result->setResult = query.rows;
	result->setDesc = query.expected;

	wed_run_as_owner(owner, run_query, &query);
	PG_RETURN_NULL();
}
