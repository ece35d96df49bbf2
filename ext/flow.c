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

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* columns of wed_sql.flow and wed_sql.rule, in the order of sql/catalog.sql */
enum
{
	FLOW_FLOW_ID = 1,
	FLOW_WED_FLOW,
	FLOW_WED_ATTR,
	FLOW_WED_TRIG,
	FLOW_JOB_POOL,
	FLOW_WED_TRACE,
	FLOW_EXCPT_TGID,
	FLOW_RULES_VERSION,
	FLOW_NATTS = FLOW_RULES_VERSION
};

enum
{
	RULE_FLOW_ID = 1,
	RULE_TGID,
	RULE_VALID_FROM,
	RULE_VALID_UNTIL,
	RULE_TGNAME,
	RULE_TRNAME,
	RULE_CNAME,
	RULE_CPRED,
	RULE_CFINAL,
	RULE_ENABLED,
	RULE_TIMEOUT,
	RULE_NATTS = RULE_TIMEOUT
};

enum
{
	WORKER_FLOW_ID = 1,
	WORKER_TRNAME,
	WORKER_ROLE,
	WORKER_NATTS = WORKER_ROLE
};

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

static Relation
open_catalog(const char *name)
{
	Oid			nsp = get_namespace_oid(WED_SCHEMA, false);
	Oid			relid = get_relname_relid(name, nsp);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.%s\" does not exist", WED_SCHEMA, name),
				 errhint("Is extension wed_sql complete in this database?")));
	return table_open(relid, AccessShareLock);
}

static Oid
index_in_schema_of(Relation rel, const char *name)
{
	Oid			relid = get_relname_relid(name, RelationGetNamespace(rel));

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("index \"%s\" of table \"%s\" does not exist",
						name, RelationGetRelationName(rel))));
	return relid;
}

static bool
read_flow_row(WedFlow *flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("flow");
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Datum		values[FLOW_NATTS];
	bool		nulls[FLOW_NATTS];

	ScanKeyInit(&key, FLOW_WED_FLOW, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(flow->relid));
	scan = systable_beginscan(catalog, index_in_schema_of(catalog, "flow_wed_flow_key"), true,
							  snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		heap_deform_tuple(tuple, RelationGetDescr(catalog), values, nulls);
		flow->flow_id = DatumGetInt32(values[FLOW_FLOW_ID - 1]);
		flow->job_pool = DatumGetObjectId(values[FLOW_JOB_POOL - 1]);
		flow->excpt_tgid = DatumGetInt32(values[FLOW_EXCPT_TGID - 1]);
		flow->rules_version = DatumGetInt64(values[FLOW_RULES_VERSION - 1]);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

static char *
text_or_null(Datum value, bool isnull)
{
	return isnull ? NULL : TextDatumGetCString(value);
}

static int
compare_rules(const void *a, const void *b)
{
	int32		x = ((const WedRule *) a)->tgid;
	int32		y = ((const WedRule *) b)->tgid;

	return (x > y) - (x < y);
}

/* Reads the rules in force, and prepares the conditions of the enabled ones. */
static void
read_rules(WedFlow *flow, Relation wed_flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("rule");
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	int			room = 8;

	flow->rules = palloc(sizeof(WedRule) * room);
	ScanKeyInit(&keys[0], RULE_FLOW_ID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(flow->flow_id));
	ScanKeyInit(&keys[1], RULE_VALID_UNTIL, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(PG_INT64_MAX));
	scan = systable_beginscan(catalog, index_in_schema_of(catalog, "rule_in_force"), true,
							  snapshot, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[RULE_NATTS];
		bool		nulls[RULE_NATTS];
		WedRule    *rule;
		char	   *tgname;

		heap_deform_tuple(tuple, RelationGetDescr(catalog), values, nulls);
		if (!DatumGetBool(values[RULE_ENABLED - 1]))
			continue;
		if (flow->nrules == room)
			flow->rules = repalloc(flow->rules, sizeof(WedRule) * (room *= 2));
		rule = &flow->rules[flow->nrules++];
		rule->tgid = DatumGetInt32(values[RULE_TGID - 1]);
		rule->final = DatumGetBool(values[RULE_CFINAL - 1]);
		rule->trname = text_or_null(values[RULE_TRNAME - 1], nulls[RULE_TRNAME - 1]);
		tgname = text_or_null(values[RULE_TGNAME - 1], nulls[RULE_TGNAME - 1]);
		if (rule->final)
			rule->label = psprintf("final condition of WED-flow \"%s\"", flow->name);
		else
			rule->label = psprintf("condition of WED-trigger %d (\"%s\") of WED-flow \"%s\"",
								   rule->tgid, tgname ? tgname : rule->trname, flow->name);
		rule->predicate = TextDatumGetCString(values[RULE_CPRED - 1]);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	qsort(flow->rules, flow->nrules, sizeof(WedRule), compare_rules);
	for (int i = 0; i < flow->nrules; i++)
	{
		WedRule    *rule = &flow->rules[i];

		rule->condition = wed_condition_prepare(flow, wed_flow, rule->predicate, rule->label);
		if (rule->final)
			flow->final_rule = rule;
	}
}

/* Roles that may perform one transition or another, and no others. */
static void
read_workers(WedFlow *flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("worker");
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			room = 8;

	flow->workers = palloc(sizeof(WedWorker) * room);
	ScanKeyInit(&key, WORKER_FLOW_ID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(flow->flow_id));
	scan = systable_beginscan(catalog, index_in_schema_of(catalog, "worker_pkey"), true,
							  snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[WORKER_NATTS];
		bool		nulls[WORKER_NATTS];
		WedWorker  *worker;

		heap_deform_tuple(tuple, RelationGetDescr(catalog), values, nulls);
		if (flow->nworkers == room)
			flow->workers = repalloc(flow->workers, sizeof(WedWorker) * (room *= 2));
		worker = &flow->workers[flow->nworkers++];
		worker->trname = TextDatumGetCString(values[WORKER_TRNAME - 1]);
		worker->role = DatumGetObjectId(values[WORKER_ROLE - 1]);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

static Oid
stamp_type(void)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("stamp"),
						   ObjectIdGetDatum(get_namespace_oid(WED_SCHEMA, false)));
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
		if (strcmp(NameStr(att->attname), "wid") == 0 && att->atttypid == INT8OID)
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

static WedFlow *
read_flow(Relation wed_flow)
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
	if (!read_flow_row(flow, snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s.%s\" is not the instance table of a WED-flow",
						flow->name, RelationGetRelationName(wed_flow)),
				 errhint("WED-flows are made by wed_sql.create_flow().")));
	flow->stamp_type = stamp_type();
	find_columns(flow, wed_flow);
	check_guard_is_last(flow, wed_flow);
	check_no_children(flow, wed_flow);
	flow->econtext = CreateStandaloneExprContext();
	read_rules(flow, wed_flow, snapshot);
	read_workers(flow, snapshot);
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
 * The definition in force of the flow whose instances are in wed_flow.
 */
WedFlow *
wed_flow_get(Relation wed_flow)
{
	Oid			relid = RelationGetRelid(wed_flow);
	CacheEntry *entry;
	WedFlow    *flow;
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
	flow = read_flow(wed_flow);

	/* a condition's code, run while it was prepared, may have come here, too */
	discard(entry);
	entry->flow = flow;

	/* nothing tells when what broke a condition is mended */
	if (has_broken_condition(flow))
		entry->current = false;
	return flow;
}

static Oid
flow_with(Relation flows, const char *index, AttrNumber column, int32 number, Snapshot snapshot)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			wed_flow = InvalidOid;
	bool		isnull;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(number));
	scan = systable_beginscan(flows, index_in_schema_of(flows, index), true, snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		wed_flow = DatumGetObjectId(heap_getattr(tuple, FLOW_WED_FLOW, RelationGetDescr(flows), &isnull));
	systable_endscan(scan);
	return wed_flow;
}

static Oid
find_flow_of_trigger(int32 tgid)
{
	Relation	rules = open_catalog("rule");
	Relation	flows = open_catalog("flow");
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			wed_flow;

	ScanKeyInit(&key, RULE_TGID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(tgid));
	scan = systable_beginscan(rules, index_in_schema_of(rules, "rule_pkey"), true, snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		int32		flow_id = DatumGetInt32(heap_getattr(tuple, RULE_FLOW_ID, RelationGetDescr(rules), &isnull));

		wed_flow = flow_with(flows, "flow_pkey", FLOW_FLOW_ID, flow_id, snapshot);
	}
	else
		wed_flow = flow_with(flows, "flow_excpt_tgid_key", FLOW_EXCPT_TGID, tgid, snapshot);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(flows, AccessShareLock);
	table_close(rules, AccessShareLock);
	return wed_flow;
}

/*
 * The wed_flow of the flow that a WED-trigger belongs to, or once belonged to;
 * InvalidOid if there is none. It may have been dropped since.
 */
Oid
wed_flow_of_trigger(int32 tgid)
{
	static HTAB *flows = NULL;
	struct
	{
		int32		tgid;		/* hash key; a tgid is never used again */
		Oid			wed_flow;
	}		   *entry;
	Oid			wed_flow;

	if (flows == NULL)
	{
		HASHCTL		control = {
			.keysize = sizeof(int32),
			.entrysize = sizeof(*entry),
			.hcxt = TopMemoryContext,
		};

		flows = hash_create("wed_sql WED-triggers", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(flows, &tgid, HASH_FIND, NULL);
	if (entry != NULL && SearchSysCacheExists1(RELOID, ObjectIdGetDatum(entry->wed_flow)))
		return entry->wed_flow;
	wed_flow = find_flow_of_trigger(tgid);
	if (OidIsValid(wed_flow))
	{
		entry = hash_search(flows, &tgid, HASH_ENTER, NULL);
		entry->wed_flow = wed_flow;
	}
	return wed_flow;
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
