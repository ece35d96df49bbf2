/*-------------------------------------------------------------------------
 *
 * plan.c
 *		Statements that a session plans once, for those who work off jobs: to
 *		parse and to plan one takes several times as long as to execute it.
 *
 * The plan is made for tables that may be empty now and large soon, so it is
 * one that finds its rows by an index whatever the table's size. It is made by
 * the settings that follow here, and is executed without them: what triggers
 * do is planned as their authors want it.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "executor/tstoreReceiver.h"
#include "funcapi.h"
#include "nodes/parsenodes.h"
#include "optimizer/cost.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_query_planned);
PG_FUNCTION_INFO_V1(wed_execute_planned_sql);

/* a worker has a few, the engine some ten for each busy flow; who has more begins anew */
#define MOST_PLANS 256

typedef struct PlanEntry
{
	uint64		hash;			/* of the text; key */
	char	   *text;
	SPIPlanPtr	plan;
	int			users;			/* executions that are under way */
} PlanEntry;

static HTAB *plans = NULL;

static void
create_plans(void)
{
	HASHCTL		control = {
		.keysize = sizeof(uint64),
		.entrysize = sizeof(PlanEntry),
		.hcxt = TopMemoryContext,
	};

	plans = hash_create("wed_sql plans", MOST_PLANS, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
remove_plan(PlanEntry *entry)
{
	SPIPlanPtr	plan = entry->plan;
	char	   *text = entry->text;

	(void) hash_search(plans, &entry->hash, HASH_REMOVE, NULL);
	if (plan != NULL)
		(void) SPI_freeplan(plan);
	if (text != NULL)
		pfree(text);
}

static void
remove_unused_plans(void)
{
	HASH_SEQ_STATUS scan;
	PlanEntry  *entry;

	hash_seq_init(&scan, plans);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->users == 0)
			remove_plan(entry);
	}
}

static SPIPlanPtr
prepare(const char *text, ParamListInfo params)
{
	Oid		   *types = palloc(sizeof(Oid) * (params->numParams + 1));
	SPIPlanPtr	plan;

	for (int i = 0; i < params->numParams; i++)
		types[i] = params->params[i].ptype;
	plan = SPI_prepare_cursor(text, params->numParams, types, CURSOR_OPT_GENERIC_PLAN);
	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	return plan;
}

/* The session's plan for a statement; NULL if its place is taken by that of another. */
static PlanEntry *
find_plan(const char *text, ParamListInfo params)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) text, strlen(text), 0);
	PlanEntry  *entry;
	SPIPlanPtr	plan;
	char	   *kept_text;

	if (plans == NULL)
		create_plans();
	entry = hash_search(plans, &hash, HASH_FIND, NULL);
	if (entry != NULL)
		return strcmp(entry->text, text) == 0 ? entry : NULL;
	if (hash_get_num_entries(plans) >= MOST_PLANS)
		remove_unused_plans();

	plan = prepare(text, params);
	kept_text = MemoryContextStrdup(TopMemoryContext, text);
	entry = hash_search(plans, &hash, HASH_ENTER, NULL);
	entry->text = kept_text;
	entry->plan = plan;
	entry->users = 0;
	(void) SPI_keepplan(plan);
	return entry;
}

/* Makes the plan, if there is none that is still valid. */
static void
plan_by_index(SPIPlanPtr plan)
{
	bool		seqscan = enable_seqscan;
	bool		hashjoin = enable_hashjoin;
	bool		mergejoin = enable_mergejoin;

	enable_seqscan = enable_hashjoin = enable_mergejoin = false;
	PG_TRY();
	{
		CachedPlan *cached = SPI_plan_get_cached_plan(plan);

		if (cached != NULL)
			ReleaseCachedPlan(cached, CurrentResourceOwner);
	}
	PG_FINALLY();
	{
		enable_seqscan = seqscan;
		enable_hashjoin = hashjoin;
		enable_mergejoin = mergejoin;
	}
	PG_END_TRY();
}

void
wed_set_parameter(ParamListInfo params, int number, Oid type, NullableDatum arg)
{
	ParamExternData *param = &params->params[number];

	param->value = arg.value;
	param->isnull = arg.isnull;
	param->pflags = PARAM_FLAG_CONST;
	param->ptype = type;
}

/*
 * Executes a statement, as the current user; SPI is connected. Returns SPI's
 * outcome. Rows go to dest, or to SPI_tuptable if that is NULL.
 */
int
wed_execute_planned_into(const char *text, ParamListInfo params, DestReceiver *dest)
{
	SPIExecuteOptions options = {.params = params, .dest = dest};
	PlanEntry  *volatile entry = find_plan(text, params);
	int			outcome;

	if (entry == NULL)
		return SPI_execute_extended(text, &options);
	entry->users++;
	PG_TRY();
	{
		plan_by_index(entry->plan);
		outcome = SPI_execute_plan_extended(entry->plan, &options);
	}
	PG_FINALLY();
	{
		entry->users--;
	}
	PG_END_TRY();
	return outcome;
}

/* The same with arguments of these types, none of which is null. */
int
wed_execute_planned(const char *text, int nargs, const Oid *types, const Datum *args)
{
	ParamListInfo params = makeParamList(nargs);

	for (int i = 0; i < nargs; i++)
		wed_set_parameter(params, i, types[i], (NullableDatum) {args[i], false});
	return wed_execute_planned_into(text, params, NULL);
}

/*
 * For functions in SQL, where EXECUTE plans its statement each time
 */

/* Executes the statement that is our first argument, and the others as its parameters. */
static void
execute_arguments(FunctionCallInfo fcinfo, DestReceiver *dest)
{
	int			count = PG_NARGS() - 1;
	ParamListInfo params = makeParamList(count);
	int			outcome;

	if (PG_ARGISNULL(0) || get_fn_expr_variadic(fcinfo->flinfo))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a statement is needed, and each of its arguments by itself")));
	for (int i = 0; i < count; i++)
	{
		Oid			type = get_fn_expr_argtype(fcinfo->flinfo, i + 1);

		if (!OidIsValid(type) || type == UNKNOWNOID)
			ereport(ERROR,
					(errcode(ERRCODE_INDETERMINATE_DATATYPE),
					 errmsg("argument %d of the statement has no type", i + 1)));
		wed_set_parameter(params, i, type, fcinfo->args[i + 1]);
	}
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	outcome = wed_execute_planned_into(text_to_cstring(PG_GETARG_TEXT_PP(0)), params, dest);
	if (outcome < 0)
		elog(ERROR, "could not execute a statement: %s", SPI_result_code_string(outcome));
	SPI_finish();
}

/* wed_sql.query_planned(statement text, variadic args "any") -> setof record */
Datum
wed_query_planned(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	DestReceiver *dest;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	dest = CreateTuplestoreDestReceiver();
	SetTuplestoreDestReceiverParams(dest, result->setResult, result->econtext->ecxt_per_query_memory,
									false, result->setDesc, "a planned statement returns other columns than are expected");
	execute_arguments(fcinfo, dest);
	dest->rDestroy(dest);
	return (Datum) 0;
}

/* wed_sql.execute_planned(statement text, variadic args "any") -> void */
Datum
wed_execute_planned_sql(PG_FUNCTION_ARGS)
{
	execute_arguments(fcinfo, NULL);
	PG_RETURN_VOID();
}
