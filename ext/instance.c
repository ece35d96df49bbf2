/*-------------------------------------------------------------------------
 *
 * instance.c
 *		Reading the instances of a flow, for the engine.
 *
 * A query on somebody's table can run his functions: those of an index are
 * evaluated by the planner. So nothing is planned here: the rows are fetched
 * by the primary key, and become text by their types' output functions, which
 * are PostgreSQL's own or a superuser's.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_instances_after);
PG_FUNCTION_INFO_V1(wed_hold_pending);
PG_FUNCTION_INFO_V1(wed_instance_texts);

/* wed_flow, and where its columns are */
typedef struct Instances
{
	Relation	table;
	Oid			primary_key;
	AttrNumber	wid;
	AttrNumber	stamp;
} Instances;

static void
open_instances(Oid relid, Instances *instances)
{
	Relation	table = table_open(relid, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(table);
	Oid			stamp_type = wed_stamp_type();

	memset(instances, 0, sizeof(Instances));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			continue;
		if (strcmp(NameStr(att->attname), "wid") == 0 && att->atttypid == INT8OID)
			instances->wid = att->attnum;
		else if (strcmp(NameStr(att->attname), "_stamp") == 0 && att->atttypid == stamp_type)
			instances->stamp = att->attnum;
	}
	instances->table = table;
	instances->primary_key = RelationGetPrimaryKeyIndex(table, false);
	if (instances->wid == InvalidAttrNumber || instances->stamp == InvalidAttrNumber ||
		!OidIsValid(instances->primary_key))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" is not the instance table of a WED-flow", RelationGetRelationName(table))));
}

static int64
version_of(const Instances *instances, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, instances->stamp, RelationGetDescr(instances->table), &isnull);
	WedStamp	stamp = {0};

	if (isnull)
		return -1;
	wed_stamp_read(value, &stamp);
	return stamp.version;
}

/* The newest stamp of an instance; false if there is none. */
bool
wed_read_stamp(Oid relid, int64 wid, WedStamp *stamp)
{
	Instances	instances;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		found = false;

	open_instances(relid, &instances);
	ScanKeyInit(&key, instances.wid, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wid));
	scan = systable_beginscan(instances.table, instances.primary_key, true, snapshot, 1, &key);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, instances.stamp, RelationGetDescr(instances.table), &isnull);

		found = !isnull;
		/* its arrays point into the value */
		if (found)
			wed_stamp_read(PointerGetDatum(DatumGetHeapTupleHeaderCopy(value)), stamp);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(instances.table, AccessShareLock);
	return found;
}

static char *
text_of(const Instances *instances, HeapTuple tuple, AttrNumber attnum)
{
	TupleDesc	desc = RelationGetDescr(instances->table);
	Oid			output;
	bool		varlena;
	bool		isnull;
	Datum		value = heap_getattr(tuple, attnum, desc, &isnull);

	if (isnull)
		return NULL;
	getTypeOutputInfo(TupleDescAttr(desc, attnum - 1)->atttypid, &output, &varlena);
	return OidOutputFunctionCall(output, value);
}

/* The attributes, in the order of the columns; *bytes is increased by their size. */
static Datum
texts_of(const Instances *instances, HeapTuple tuple, int64 *bytes)
{
	TupleDesc	desc = RelationGetDescr(instances->table);
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);
	int			n = 0;
	int			lower = 1;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		char	   *text;

		if (att->attisdropped || att->attgenerated != '\0' ||
			att->attnum == instances->wid || att->attnum == instances->stamp)
			continue;
		text = text_of(instances, tuple, att->attnum);
		nulls[n] = text == NULL;
		values[n++] = text ? CStringGetTextDatum(text) : (Datum) 0;
		*bytes += text ? strlen(text) : 0;
	}
	return PointerGetDatum(construct_md_array(values, nulls, n > 0 ? 1 : 0, &n, &lower,
											  TEXTOID, -1, false, TYPALIGN_INT));
}

/*
 * wed_sql.instances_after(wed_flow regclass, after bigint, most integer) ->
 * setof (wid bigint, version bigint): of so many instances with a larger wid.
 */
Datum
wed_instances_after(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int			most = PG_GETARG_INT32(2);
	Instances	instances;
	Relation	index;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	InitMaterializedSRF(fcinfo, 0);
	open_instances(PG_GETARG_OID(0), &instances);
	index = index_open(instances.primary_key, AccessShareLock);
	ScanKeyInit(&key, instances.wid, BTGreaterStrategyNumber, F_INT8GT, PG_GETARG_DATUM(1));
	scan = systable_beginscan_ordered(instances.table, index, GetActiveSnapshot(), 1, &key);
	while (most-- > 0 &&
		   HeapTupleIsValid(tuple = systable_getnext_ordered(scan, ForwardScanDirection)))
	{
		bool		isnull;
		bool		nulls[2] = {false};
		Datum		values[2];

		CHECK_FOR_INTERRUPTS();
		values[0] = heap_getattr(tuple, instances.wid, RelationGetDescr(instances.table), &isnull);
		values[1] = Int64GetDatum(version_of(&instances, tuple));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(instances.table, AccessShareLock);
	return (Datum) 0;
}

/*
 * wed_sql.instance_texts(wed_flow regclass, wids bigint[], most_bytes bigint)
 * -> setof (wid bigint, version bigint, stamp text, vals text[]): no more of
 * them once they exceed most_bytes.
 */
Datum
wed_instance_texts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		most_bytes = PG_GETARG_INT64(2);
	int64		bytes = 0;
	Instances	instances;
	Datum	   *wids;
	bool	   *no_wid;
	int			nwids;
	MemoryContext row;

	InitMaterializedSRF(fcinfo, 0);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE,
					  &wids, &no_wid, &nwids);
	open_instances(PG_GETARG_OID(0), &instances);
	row = AllocSetContextCreate(CurrentMemoryContext, "wed_sql instance", ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < nwids && bytes < most_bytes; i++)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;
		MemoryContext old = MemoryContextSwitchTo(row);

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(row);
		ScanKeyInit(&key, instances.wid, BTEqualStrategyNumber, F_INT8EQ, wids[i]);
		scan = systable_beginscan(instances.table, instances.primary_key, true, GetActiveSnapshot(), 1, &key);
		tuple = no_wid[i] ? NULL : systable_getnext(scan);
		if (HeapTupleIsValid(tuple))
		{
			char	   *stamp = text_of(&instances, tuple, instances.stamp);
			bool		nulls[4] = {false};
			Datum		values[4];

			values[0] = wids[i];
			values[1] = Int64GetDatum(version_of(&instances, tuple));
			values[2] = stamp ? CStringGetTextDatum(stamp) : (Datum) 0;
			nulls[2] = stamp == NULL;
			values[3] = texts_of(&instances, tuple, &bytes);
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		}
		systable_endscan(scan);
		MemoryContextSwitchTo(old);
	}
	MemoryContextDelete(row);
	table_close(instances.table, AccessShareLock);
	return (Datum) 0;
}

/* Locks the newest row of an instance, and stores it in the slot. TM_Invisible: there is none. */
static TM_Result
hold_row(const Instances *instances, int64 wid, TupleTableSlot *slot)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	TM_FailureData failure;
	TM_Result	result = TM_Invisible;

	ScanKeyInit(&key, instances->wid, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(wid));
	scan = systable_beginscan(instances->table, instances->primary_key, true, snapshot, 1, &key);
	if (HeapTupleIsValid(tuple = systable_getnext(scan)))
		result = table_tuple_lock(instances->table, &tuple->t_self, snapshot, slot, GetCurrentCommandId(true),
								  LockTupleNoKeyExclusive, LockWaitSkip, 0, &failure);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	return result;
}

/*
 * wed_sql.hold_pending(wed_flow regclass, wid bigint, tgid integer, version
 * bigint) -> boolean: whether what a state has fired pends, as the row says,
 * which nobody changes until the end of the transaction; null if somebody else
 * is about to.
 *
 * The guard decides whether a delay is over while it holds the row: who puts
 * the job into job_pool meanwhile would fire what is withdrawn.
 */
Datum
wed_hold_pending(PG_FUNCTION_ARGS)
{
	Instances	instances;
	TupleTableSlot *slot;
	TM_Result	result;
	bool		pends = false;

	LockRelationOid(PG_GETARG_OID(0), RowShareLock);
	open_instances(PG_GETARG_OID(0), &instances);
	slot = table_slot_create(instances.table, NULL);
	while ((result = hold_row(&instances, PG_GETARG_INT64(1), slot)) == TM_Updated)
		CHECK_FOR_INTERRUPTS();
	if (result == TM_Ok)
	{
		bool		isnull;
		Datum		value = slot_getattr(slot, instances.stamp, &isnull);
		WedStamp	stamp = {0};
		WedPending	pending = {0};

		if (!isnull)
		{
			wed_stamp_read(value, &stamp);
			wed_stamp_pending_after(&stamp, wed_flow_outline(instances.table)->excpt_tgid, &pending);
			pends = wed_pending_since(&pending, PG_GETARG_INT32(2)) == PG_GETARG_INT64(3);
		}
	}
	ExecDropSingleTupleTableSlot(slot);
	table_close(instances.table, AccessShareLock);
	if (result == TM_WouldBlock || result == TM_SelfModified)
		PG_RETURN_NULL();
	PG_RETURN_BOOL(pends);
}
