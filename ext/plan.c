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

#include "common/hashfn.h"
#include "executor/spi.h"
#include "nodes/parsenodes.h"
#include "optimizer/cost.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/plancache.h"
#include "utils/resowner.h"

/* a worker has a few; who has more begins anew */
#define MOST_PLANS 64

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
prepare(const char *text, int nargs, const Oid *types)
{
	SPIPlanPtr	plan = SPI_prepare_cursor(text, nargs, unconstify(Oid *, types), CURSOR_OPT_GENERIC_PLAN);

	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	return plan;
}

/* The session's plan for a statement; NULL if its place is taken by that of another. */
static PlanEntry *
find_plan(const char *text, int nargs, const Oid *types)
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

	plan = prepare(text, nargs, types);
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

/*
 * Executes a statement, as the current user; SPI is connected. Returns SPI's
 * outcome.
 */
int
wed_execute_planned(const char *text, int nargs, const Oid *types, Datum *args)
{
	PlanEntry  *volatile entry = find_plan(text, nargs, types);
	int			outcome;

	if (entry == NULL)
		return SPI_execute_with_args(text, nargs, unconstify(Oid *, types), args, NULL, false, 0);
	entry->users++;
	PG_TRY();
	{
		plan_by_index(entry->plan);
		outcome = SPI_execute_plan(entry->plan, args, NULL, false, 0);
	}
	PG_FINALLY();
	{
		entry->users--;
	}
	PG_END_TRY();
	return outcome;
}
