/*-------------------------------------------------------------------------
 *
 * flow.c
 *		The definitions of flows, cached in each backend.
 *
 * A definition is read with the newest snapshot, whatever the transaction's
 * own is, as PostgreSQL reads its catalogs; every change of a definition
 * invalidates the relation cache entry of the flow's wed_flow, which brings
 * it here. A definition that went out of date may still be in use further up
 * the stack, so its memory is released at the end of the transaction only.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#define GUARD_TRIGGER "zz_guard"

typedef struct CacheEntry
{
	Oid			relid;			/* hash key */
	bool		current;		/* no invalidation since it was read */
	WedFlow    *flow;
} CacheEntry;

static HTAB *cache = NULL;
static List *outdated = NIL;	/* MemoryContexts, in TopMemoryContext */

PG_FUNCTION_INFO_V1(wed_definition_changed);

static void
invalidate_relation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	CacheEntry *entry;

	if (OidIsValid(relid))
	{
		entry = hash_search(cache, &relid, HASH_FIND, NULL);
		if (entry)
			entry->current = false;
		return;
	}
	hash_seq_init(&scan, cache);
	while ((entry = hash_seq_search(&scan)) != NULL)
		entry->current = false;
}

/* Conditions hold functions, operators and types by OID. */
static void
invalidate_all(Datum arg, int cacheid, uint32 hashvalue)
{
	invalidate_relation(arg, InvalidOid);
}

static void
release_outdated(XactEvent event, void *arg)
{
	ListCell   *cell;

	if (outdated == NIL ||
		(event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
	foreach(cell, outdated)
		MemoryContextDelete(lfirst(cell));
	list_free(outdated);
	outdated = NIL;
}

static void
create_cache(void)
{
	HASHCTL		control = {
		.keysize = sizeof(Oid),
		.entrysize = sizeof(CacheEntry),
		.hcxt = TopMemoryContext,
	};

	cache = hash_create("wed_sql flows", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(invalidate_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(OPEROID, invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, invalidate_all, (Datum) 0);
	CacheRegisterSyscacheCallback(CASTSOURCETARGET, invalidate_all, (Datum) 0);
	RegisterXactCallback(release_outdated, NULL);
}

static void
discard(CacheEntry *entry)
{
	MemoryContext old;

	if (entry->flow == NULL)
		return;
	old = MemoryContextSwitchTo(TopMemoryContext);
	outdated = lappend(outdated, entry->flow->context);
	MemoryContextSwitchTo(old);
	entry->flow = NULL;
}

static void
find_columns(WedFlow *flow, Relation wed_flow)
{
	TupleDesc	desc = RelationGetDescr(wed_flow);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			continue;
		/* by type, too: the owner of the table can alter it */
		if (strcmp(NameStr(att->attname), "wid") == 0 && att->atttypid == INT8OID &&
			att->attidentity == ATTRIBUTE_IDENTITY_ALWAYS)
			flow->wid_attno = att->attnum;
		else if (strcmp(NameStr(att->attname), "_stamp") == 0 && att->atttypid == flow->stamp_type)
			flow->stamp_attno = att->attnum;
	}
	if (flow->wid_attno == InvalidAttrNumber || flow->stamp_attno == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("table \"%s.%s\" lacks column \"wid\" or \"_stamp\", as wed_sql.create_flow() made them",
						flow->name, RelationGetRelationName(wed_flow))));
}

/* Rows of a child look like instances, but no guard sees them, and no follower. */
static void
check_no_children(const WedFlow *flow, Relation wed_flow)
{
	if (wed_flow->rd_rel->relhassubclass &&
		find_inheritance_children(RelationGetRelid(wed_flow), NoLock) != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("another table inherits from \"%s.%s\"",
						flow->name, RelationGetRelationName(wed_flow)),
				 errhint("Instances of a WED-flow are in one table: drop the other, or ALTER it to NO INHERIT.")));
}

/* What came after the guard could change the state that it has judged. */
static void
check_guard_is_last(const WedFlow *flow, Relation wed_flow)
{
	TriggerDesc *triggers = wed_flow->trigdesc;
	bool		after_guard = false;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (strcmp(trigger->tgname, GUARD_TRIGGER) == 0)
			after_guard = true;
		else if (after_guard && trigger->tgenabled != TRIGGER_DISABLED &&
				 TRIGGER_FOR_BEFORE(trigger->tgtype) && TRIGGER_FOR_ROW(trigger->tgtype) &&
				 (TRIGGER_FOR_INSERT(trigger->tgtype) || TRIGGER_FOR_UPDATE(trigger->tgtype)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("trigger \"%s\" on \"%s.%s\" would fire after the guard of the WED-flow",
							trigger->tgname, flow->name, RelationGetRelationName(wed_flow)),
					 errhint("Triggers fire in the order of their names: give it one that comes before \"%s\".",
							 GUARD_TRIGGER)));
	}
}

static void
prepare_conditions(WedFlow *flow, Relation wed_flow)
{
	for (int i = 0; i < flow->nrules; i++)
	{
		WedRule    *rule = &flow->rules[i];

		rule->condition = wed_condition_prepare(flow, wed_flow, rule->predicate, rule->label);
	}
}

/* What it takes to say who may do what: nothing of the owner's is run for that. */
static WedFlow *
read_outline(Relation wed_flow)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "wed_sql flow",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	WedFlow    *flow = palloc0(sizeof(WedFlow));
	Snapshot	snapshot;

	flow->context = context;
	flow->relid = RelationGetRelid(wed_flow);
	flow->name = get_namespace_name(RelationGetNamespace(wed_flow));
	flow->owner = wed_flow->rd_rel->relowner;

	snapshot = RegisterSnapshot(GetLatestSnapshot());
	if (!wed_read_flow(flow, snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s.%s\" is not the instance table of a WED-flow",
						flow->name, RelationGetRelationName(wed_flow)),
				 errhint("WED-flows are made by wed_sql.create_flow().")));
	wed_read_rules(flow, snapshot);
	wed_read_workers(flow, snapshot);
	UnregisterSnapshot(snapshot);

	/* found by name once per definition, not once per state */
	flow->job_pool_pkey = get_relname_relid("job_pool_pkey", get_rel_namespace(flow->job_pool));
	if (!OidIsValid(flow->job_pool_pkey))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("job_pool of WED-flow \"%s\" does not exist", flow->name)));
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, TopMemoryContext);	/* it can be kept now */
	return flow;
}

/* What it takes to judge a state, besides. */
static void
complete_flow(WedFlow *flow, Relation wed_flow)
{
	MemoryContext old = MemoryContextSwitchTo(flow->context);

	flow->stamp_type = wed_stamp_type();
	find_columns(flow, wed_flow);
	check_guard_is_last(flow, wed_flow);
	check_no_children(flow, wed_flow);
	flow->econtext = CreateStandaloneExprContext();
	prepare_conditions(flow, wed_flow);
	MemoryContextSwitchTo(old);
	flow->complete = true;
	flow->completed_at = GetCurrentTransactionStartTimestamp();
}

static bool
has_broken_condition(const WedFlow *flow)
{
	for (int i = 0; i < flow->nrules; i++)
	{
		if (wed_condition_is_broken(flow->rules[i].condition))
			return true;
	}
	return false;
}

/*
 * The definition in force of the flow whose instances are in wed_flow, but for
 * its conditions.
 */
WedFlow *
wed_flow_outline(Relation wed_flow)
{
	Oid			relid = RelationGetRelid(wed_flow);
	CacheEntry *entry;
	bool		found;

	if (cache == NULL)
		create_cache();
	entry = hash_search(cache, &relid, HASH_ENTER, &found);
	if (!found)
	{
		entry->current = false;
		entry->flow = NULL;
	}
	if (entry->current && entry->flow != NULL)
		return entry->flow;

	discard(entry);

	/*
	 * Current from before the reading on: what changes while it is read makes
	 * it outdated for the next caller. An error leaves flow NULL.
	 */
	entry->current = true;
	entry->flow = read_outline(wed_flow);
	return entry->flow;
}

/*
 * The same by the flow's name, with its wed_flow, which the caller closes.
 */
WedFlow *
wed_flow_named(const char *name, Relation *wed_flow)
{
	Oid			namespace = get_namespace_oid(name, true);
	Oid			relid = OidIsValid(namespace) ? get_relname_relid("wed_flow", namespace) : InvalidOid;

	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("WED-flow \"%s\" does not exist", name)));
	*wed_flow = relation_open(relid, AccessShareLock);
	return wed_flow_outline(*wed_flow);
}

/*
 * All of it.
 */
WedFlow *
wed_flow_get(Relation wed_flow)
{
	WedFlow    *flow = wed_flow_outline(wed_flow);

	/* nothing tells when what broke a condition is mended: each transaction looks */
	if (flow->complete && has_broken_condition(flow) &&
		flow->completed_at != GetCurrentTransactionStartTimestamp())
		return wed_flow_reread(wed_flow);

	/*
	 * A condition's code, run while it is prepared, may come here, too, and
	 * even make this one outdated: it lives until the end of the transaction.
	 */
	if (!flow->complete)
		complete_flow(flow, wed_flow);
	return flow;
}

/*
 * The same for who knows that there is a newer one than we have heard of:
 * others are told of a change just after it can be seen.
 */
WedFlow *
wed_flow_reread(Relation wed_flow)
{
	invalidate_relation((Datum) 0, RelationGetRelid(wed_flow));
	return wed_flow_get(wed_flow);
}

/* The transition of a rule in force, for messages; NULL if it has gone. */
const char *
wed_transition_name(const WedFlow *flow, int32 tgid)
{
	if (tgid == flow->excpt_tgid)
		return WED_EXCEPTION_TRANSITION;
	for (int i = 0; i < flow->nrules; i++)
	{
		if (flow->rules[i].tgid == tgid)
			return flow->rules[i].trname;
	}
	return NULL;
}

/*
 * wed_sql.definition_changed(wed_flow regclass) -> void: tells every backend.
 */
Datum
wed_definition_changed(PG_FUNCTION_ARGS)
{
	CacheInvalidateRelcacheByRelid(PG_GETARG_OID(0));
	PG_RETURN_VOID();
}
