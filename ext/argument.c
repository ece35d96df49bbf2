/*-------------------------------------------------------------------------
 *
 * argument.c
 *		Arguments of functions: those that must be there, and arrays.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "utils/array.h"
#include "utils/lsyscache.h"

void
wed_refuse_nulls(FunctionCallInfo fcinfo, const char *needed)
{
	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s are needed", needed)));
	}
}

/* Of an array, none of which is null. */
Datum *
wed_elements(ArrayType *array, Oid type, int *count)
{
	Datum	   *values;
	bool	   *nulls;
	int16		length;
	bool		by_value;
	char		alignment;

	get_typlenbyvalalign(type, &length, &by_value, &alignment);
	deconstruct_array(array, type, length, by_value, alignment, &values, &nulls, count);
	for (int i = 0; i < *count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("elements of the arrays cannot be null")));
	}
	return values;
}

void
wed_check_lengths(int a, int b)
{
	if (a != b)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("the arrays have different lengths: %d and %d", a, b)));
}

Datum
wed_bigint_array(Datum *values, int count)
{
	return PointerGetDatum(construct_array(values, count, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}
