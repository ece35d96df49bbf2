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
	values[STAMP_ERROR] = stamp->error ? CStringGetTextDatum(stamp->error) : (Datum) 0;
	nulls[STAMP_ERROR] = stamp->error == NULL;
	values[STAMP_TRW] = stamp->trw ? CStringGetTextDatum(stamp->trw) : (Datum) 0;
	nulls[STAMP_TRW] = stamp->trw == NULL;

	result = HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
	ReleaseTupleDesc(desc);
	return result;
}

/*
 * P_k of the stamped state s_k: (P_{k-1} \ {by_k}) + M(s_k), the exception
 * job alone if that leaves nothing (or besides, if a condition failed), and
 * nothing once final. Returns their number; *pending is palloc'd, ascending.
 *
 * The engine's package fold computes the same, with everything that follows
 * from it; the guard needs only this much, to judge the next state.
 */
int
wed_stamp_pending_after(const WedStamp *stamp, int32 excpt_tgid, int32 **pending)
{
	int32	   *result = palloc(sizeof(int32) * (stamp->npending + stamp->nmatched + 1));
	int			n = 0;
	int			p = 0;
	int			m = 0;
	bool		exception_pends = false;

	*pending = result;
	if (stamp->final)
		return 0;

	/* a merge of two ascending lists */
	while (p < stamp->npending || m < stamp->nmatched)
	{
		int32		tgid;

		if (p < stamp->npending && stamp->pending[p] == stamp->by)
		{
			p++;
			continue;
		}
		if (m == stamp->nmatched ||
			(p < stamp->npending && stamp->pending[p] <= stamp->matched[m]))
		{
			tgid = stamp->pending[p++];
			if (m < stamp->nmatched && stamp->matched[m] == tgid)
				m++;
		}
		else
			tgid = stamp->matched[m++];
		if (tgid == excpt_tgid)
			exception_pends = true;
		result[n++] = tgid;
	}

	if ((n == 0 || stamp->error != NULL) && !exception_pends)
	{
		int			at = n++;

		while (at > 0 && result[at - 1] > excpt_tgid)
		{
			result[at] = result[at - 1];
			at--;
		}
		result[at] = excpt_tgid;
	}
	return n;
}
