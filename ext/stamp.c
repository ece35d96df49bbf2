/*-------------------------------------------------------------------------
 *
 * stamp.c
 *		wed_sql.stamp: what the guard found out about a state, as a value of
 *		the column _stamp, which travels with the state through the WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

enum StampField
{
	STAMP_VERSION,
	STAMP_RULES,
	STAMP_BY,
	STAMP_PENDING,
	STAMP_MATCHED,
	STAMP_FINAL,
	STAMP_ERROR,
	STAMP_TRW,
	STAMP_SINCE,
	STAMP_WITHDRAWN,
	STAMP_STATUS,
	STAMP_UNDO,
	STAMP_RUN,
	STAMP_FIRED_AT,
	STAMP_BEGAN_AT,
	STAMP_CLOCKS,
	STAMP_NFIELDS
};

static int32 *
read_tgids(Datum value, int *count)
{
	ArrayType  *array = DatumGetArrayTypeP(value);

	if (ARR_NDIM(array) > 1 || ARR_HASNULL(array) || ARR_ELEMTYPE(array) != INT4OID)
		elog(ERROR, "stamp of a WED-state has a malformed list of WED-triggers");
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int32 *) ARR_DATA_PTR(array);
}

static int64 *
read_versions(Datum value, int *count)
{
	ArrayType  *array = DatumGetArrayTypeP(value);

	if (ARR_NDIM(array) > 1 || ARR_HASNULL(array) || ARR_ELEMTYPE(array) != INT8OID)
		elog(ERROR, "stamp of a WED-state has a malformed list of WED-states");
	*count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
	return (int64 *) ARR_DATA_PTR(array);
}

static Datum
make_versions(const int64 *versions, int count)
{
	Datum	   *elements = palloc(sizeof(Datum) * (count + 1));

	for (int i = 0; i < count; i++)
		elements[i] = Int64GetDatum(versions[i]);
	return PointerGetDatum(construct_array(elements, count, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

static Datum
make_tgids(const int32 *tgids, int count)
{
	Datum	   *elements = palloc(sizeof(Datum) * (count + 1));

	for (int i = 0; i < count; i++)
		elements[i] = Int32GetDatum(tgids[i]);
	return PointerGetDatum(construct_array(elements, count, INT4OID,
										   sizeof(int32), true, TYPALIGN_INT));
}

Oid
wed_stamp_type(void)
{
	return GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum("stamp"),
						   ObjectIdGetDatum(get_namespace_oid(WED_SCHEMA, false)));
}

/* The arrays of *stamp point into the (detoasted) value. */
void
wed_stamp_read(Datum value, WedStamp *stamp)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(value);
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header),
											  HeapTupleHeaderGetTypMod(header));
	HeapTupleData tuple;
	Datum		values[STAMP_NFIELDS];
	bool		nulls[STAMP_NFIELDS];

	if (desc->natts != STAMP_NFIELDS)
		elog(ERROR, "stamp of a WED-state has %d fields instead of %d", desc->natts, STAMP_NFIELDS);
	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;
	heap_deform_tuple(&tuple, desc, values, nulls);
	ReleaseTupleDesc(desc);

	memset(stamp, 0, sizeof(WedStamp));
	stamp->version = DatumGetInt64(values[STAMP_VERSION]);
	stamp->rules = DatumGetInt64(values[STAMP_RULES]);
	stamp->by = nulls[STAMP_BY] ? 0 : DatumGetInt32(values[STAMP_BY]);
	if (!nulls[STAMP_PENDING])
		stamp->pending = read_tgids(values[STAMP_PENDING], &stamp->npending);
	if (!nulls[STAMP_MATCHED])
		stamp->matched = read_tgids(values[STAMP_MATCHED], &stamp->nmatched);
	stamp->final = !nulls[STAMP_FINAL] && DatumGetBool(values[STAMP_FINAL]);
	stamp->error = nulls[STAMP_ERROR] ? NULL : TextDatumGetCString(values[STAMP_ERROR]);
	stamp->trw = nulls[STAMP_TRW] ? NULL : TextDatumGetCString(values[STAMP_TRW]);
	if (!nulls[STAMP_SINCE])
		stamp->since = read_versions(values[STAMP_SINCE], &stamp->nkept);
	if (!nulls[STAMP_WITHDRAWN])
		stamp->withdrawn = read_tgids(values[STAMP_WITHDRAWN], &stamp->nwithdrawn);
	stamp->status = nulls[STAMP_STATUS] ? 0 : DatumGetChar(values[STAMP_STATUS]);
	if (!nulls[STAMP_UNDO])
		stamp->undo = read_tgids(values[STAMP_UNDO], &stamp->nundo);
	stamp->run = nulls[STAMP_RUN] ? 0 : DatumGetInt64(values[STAMP_RUN]);
	stamp->fired_at = nulls[STAMP_FIRED_AT] ? 0 : DatumGetTimestampTz(values[STAMP_FIRED_AT]);
	stamp->began_at = nulls[STAMP_BEGAN_AT] ? 0 : DatumGetTimestampTz(values[STAMP_BEGAN_AT]);
	if (!nulls[STAMP_CLOCKS])
		stamp->clocks = read_tgids(values[STAMP_CLOCKS], &stamp->nclocks);
}

Datum
wed_stamp_make(Oid stamp_type, const WedStamp *stamp)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(stamp_type, -1);
	Datum		values[STAMP_NFIELDS];
	bool		nulls[STAMP_NFIELDS] = {false};
	Datum		result;

	values[STAMP_VERSION] = Int64GetDatum(stamp->version);
	values[STAMP_RULES] = Int64GetDatum(stamp->rules);
	values[STAMP_BY] = Int32GetDatum(stamp->by);
	nulls[STAMP_BY] = stamp->by == 0;
	values[STAMP_PENDING] = make_tgids(stamp->pending, stamp->npending);
	values[STAMP_MATCHED] = make_tgids(stamp->matched, stamp->nmatched);
	values[STAMP_FINAL] = BoolGetDatum(stamp->final);
	values[STAMP_ERROR] = stamp->error ? CStringGetTextDatum(wed_tellable(stamp->error)) : (Datum) 0;
	nulls[STAMP_ERROR] = stamp->error == NULL;
	values[STAMP_TRW] = stamp->trw ? CStringGetTextDatum(stamp->trw) : (Datum) 0;
	nulls[STAMP_TRW] = stamp->trw == NULL;
	/* most states have none of these: they take no room then */
	values[STAMP_SINCE] = stamp->nkept > 0 ? make_versions(stamp->since, stamp->nkept) : (Datum) 0;
	nulls[STAMP_SINCE] = stamp->nkept == 0;
	values[STAMP_WITHDRAWN] = stamp->nwithdrawn > 0 ? make_tgids(stamp->withdrawn, stamp->nwithdrawn) : (Datum) 0;
	nulls[STAMP_WITHDRAWN] = stamp->nwithdrawn == 0;
	values[STAMP_STATUS] = CharGetDatum(stamp->status);
	nulls[STAMP_STATUS] = stamp->status == 0;
	values[STAMP_UNDO] = stamp->nundo > 0 ? make_tgids(stamp->undo, stamp->nundo) : (Datum) 0;
	nulls[STAMP_UNDO] = stamp->nundo == 0;
	values[STAMP_RUN] = Int64GetDatum(stamp->run);
	values[STAMP_FIRED_AT] = TimestampTzGetDatum(stamp->fired_at);
	nulls[STAMP_FIRED_AT] = stamp->fired_at == 0;
	values[STAMP_BEGAN_AT] = TimestampTzGetDatum(stamp->began_at);
	nulls[STAMP_BEGAN_AT] = stamp->began_at == 0;
	values[STAMP_CLOCKS] = stamp->nclocks > 0 ? make_tgids(stamp->clocks, stamp->nclocks) : (Datum) 0;
	nulls[STAMP_CLOCKS] = stamp->nclocks == 0;

	result = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	ReleaseTupleDesc(desc);
	return result;
}

/* Whether a WED-trigger is in a list. */
bool
wed_is_among(int32 tgid, const int32 *tgids, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (tgids[i] == tgid)
			return true;
	}
	return false;
}

/* Adds a rule to an ascending list, unless it is there. */
static void
add_pending(WedPending *pending, int32 tgid, int64 since, bool clock)
{
	int			at = pending->count;

	if (wed_is_among(tgid, pending->tgids, pending->count))
		return;
	while (at > 0 && pending->tgids[at - 1] > tgid)
	{
		pending->tgids[at] = pending->tgids[at - 1];
		pending->since[at] = pending->since[at - 1];
		pending->clocks[at] = pending->clocks[at - 1];
		at--;
	}
	pending->tgids[at] = tgid;
	pending->since[at] = since;
	pending->clocks[at] = clock;
	pending->count++;
}

/*
 * P_k of the stamped state s_k: (P_{k-1} \ {by_k} \ withdrawn_k) + M(s_k), the
 * exception job alone if that leaves nothing (or besides, if a condition
 * failed), and nothing once final, or while suspended.
 *
 * The engine's package fold computes the same, with everything that follows
 * from it; the guard needs only this much, to judge the next state.
 */
void
wed_stamp_pending_after(const WedStamp *stamp, int32 excpt_tgid, WedPending *pending)
{
	int			room = stamp->npending + stamp->nmatched + 1;
	int			kept = 0;

	pending->count = 0;
	pending->tgids = palloc(sizeof(int32) * room);
	pending->since = palloc(sizeof(int64) * room);
	pending->clocks = palloc(sizeof(bool) * room);
	if (stamp->final || stamp->status != 0)
		return;

	for (int i = 0; i < stamp->npending; i++)
	{
		int32		tgid = stamp->pending[i];

		if (tgid == stamp->by || wed_is_among(tgid, stamp->withdrawn, stamp->nwithdrawn))
			continue;
		if (kept == stamp->nkept)
			elog(ERROR, "stamp of a WED-state lacks the states that fired what is pending");
		add_pending(pending, tgid, stamp->since[kept++], wed_is_among(tgid, stamp->clocks, stamp->nclocks));
	}
	for (int i = 0; i < stamp->nmatched; i++)
		add_pending(pending, stamp->matched[i], stamp->version,
					wed_is_among(stamp->matched[i], stamp->clocks, stamp->nclocks));
	if (pending->count == 0 || stamp->error != NULL)
		add_pending(pending, excpt_tgid, stamp->version, false);
}

/* The state that fired a WED-trigger that pends; -1 if it does not. */
int64
wed_pending_since(const WedPending *pending, int32 tgid)
{
	for (int i = 0; i < pending->count; i++)
	{
		if (pending->tgids[i] == tgid)
			return pending->since[i];
	}
	return -1;
}
