/*-------------------------------------------------------------------------
 *
 * catalog.c
 *		Reading the tables that wed_sql keeps about flows: wed_sql.flow,
 *		wed_sql.rule, wed_sql.worker.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* columns of these tables, in the order of sql/catalog.sql and sql/worker.sql */
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
	FLOW_WED_EVENT,
	FLOW_CONSISTENT,
	FLOW_MAX_STATES,
	FLOW_NATTS = FLOW_MAX_STATES
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
	RULE_DELAY,
	RULE_ACTION,
	RULE_WITHDRAWABLE,
	RULE_PRIORITY,
	RULE_MAX_ATTEMPTS,
	RULE_BACKOFF,
	RULE_MAX_BACKOFF,
	RULE_UNDO,
	RULE_NATTS = RULE_UNDO
};

enum
{
	WORKER_FLOW_ID = 1,
	WORKER_TRNAME,
	WORKER_ROLE,
	WORKER_NATTS = WORKER_ROLE
};

static Relation
open_catalog(const char *name, int natts)
{
	Relation	catalog;
	Oid			nsp = get_namespace_oid(WED_SCHEMA, false);
	Oid			relid = get_relname_relid(name, nsp);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("table \"%s.%s\" does not exist", WED_SCHEMA, name),
				 errhint("Is extension wed_sql complete in this database?")));
	catalog = table_open(relid, AccessShareLock);
	wed_check_catalog(catalog, natts);
	return catalog;
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

/* False if flow->relid is not the wed_flow of any flow. */
bool
wed_read_flow(WedFlow *flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("flow", FLOW_NATTS);
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
		flow->wed_event = DatumGetObjectId(values[FLOW_WED_EVENT - 1]);
		flow->excpt_tgid = DatumGetInt32(values[FLOW_EXCPT_TGID - 1]);
		flow->rules_version = DatumGetInt64(values[FLOW_RULES_VERSION - 1]);
		flow->max_states = nulls[FLOW_MAX_STATES - 1] ? -1 : DatumGetInt64(values[FLOW_MAX_STATES - 1]);
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

/* Reads those rules in force that are enabled. */
void
wed_read_rules(WedFlow *flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("rule", RULE_NATTS);
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
		rule->delayed = !nulls[RULE_DELAY - 1];
		rule->withdrawable = DatumGetBool(values[RULE_WITHDRAWABLE - 1]);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	qsort(flow->rules, flow->nrules, sizeof(WedRule), compare_rules);
}

/* Roles that may perform one transition or another, and no others. */
void
wed_read_workers(WedFlow *flow, Snapshot snapshot)
{
	Relation	catalog = open_catalog("worker", WORKER_NATTS);
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
	Relation	rules = open_catalog("rule", RULE_NATTS);
	Relation	flows = open_catalog("flow", FLOW_NATTS);
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
 * What a WED-trigger that is not in force any more was last: rule->delayed and
 * rule->withdrawable. Jobs of it may still be pending.
 */
void
wed_read_former_rule(int32 tgid, WedRule *rule)
{
	Relation	catalog = open_catalog("rule", RULE_NATTS);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int64		newest = -1;

	memset(rule, 0, sizeof(WedRule));
	rule->tgid = tgid;
	ScanKeyInit(&key, RULE_TGID, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(tgid));
	scan = systable_beginscan(catalog, index_in_schema_of(catalog, "rule_pkey"), true, snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[RULE_NATTS];
		bool		nulls[RULE_NATTS];

		heap_deform_tuple(tuple, RelationGetDescr(catalog), values, nulls);
		if (DatumGetInt64(values[RULE_VALID_FROM - 1]) <= newest)
			continue;
		newest = DatumGetInt64(values[RULE_VALID_FROM - 1]);
		rule->trname = text_or_null(values[RULE_TRNAME - 1], nulls[RULE_TRNAME - 1]);
		rule->delayed = !nulls[RULE_DELAY - 1];
		rule->withdrawable = DatumGetBool(values[RULE_WITHDRAWABLE - 1]);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(catalog, AccessShareLock);
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
