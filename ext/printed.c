/*-------------------------------------------------------------------------
 *
 * printed.c
 *		How large a state is, as it is stored and as text.
 *
 * The follower gets states as text, which PostgreSQL's output plugin prints in
 * a walsender. A state that cannot be printed there, or only by taking all the
 * memory, would stop it, and with it all flows of the database: a numeric of
 * twelve bytes can have 131072 digits, quotes are doubled at each level of a
 * composite value, and not every character has a place in UTF-8. So what can
 * be longer than it looks is printed here first, in its writer's session.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/detoast.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/* A walsender may have used up more of its stack when it prints than we have. */
#define STACK_MARGIN (64 * 1024)

/*
 * How many times longer than what is stored the text of a type can be at most;
 * 0 if that is not known.
 */
static int
longest_factor(Oid type)
{
	switch (type)
	{
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case JSONOID:
		case XMLOID:
		case BYTEAOID:			/* twice as long, and never longer in the trace than such a text */
			return 1;
		case TEXTARRAYOID:
		case INT4ARRAYOID:
		case INT8ARRAYOID:
		case FLOAT8ARRAYOID:
		case UUIDARRAYOID:
			return 48;			/* a null takes a bit */
		case NUMERICOID:
		case JSONBOID:
			return 16 * 1024;
		default:
			return 0;
	}
}

static bool
is_ascii(const char *text)
{
	for (; *text != '\0'; text++)
	{
		if (IS_HIGHBIT_SET(*text))
			return false;
	}
	return true;
}

/* Whether what is written in this database may be none that its followers could be told. */
static bool
has_other_characters(void)
{
	return GetDatabaseEncoding() != PG_UTF8 && GetDatabaseEncoding() != PG_SQL_ASCII;
}

static pg_noinline int64
print(Oid type, Datum value)
{
	volatile char margin[STACK_MARGIN];
	Oid			output;
	bool		varlena;
	char	   *text;

	margin[0] = margin[STACK_MARGIN - 1] = 0;
	check_stack_depth();
	getTypeOutputInfo(type, &output, &varlena);
	text = OidOutputFunctionCall(output, value);
	if (has_other_characters() && !is_ascii(text))
		(void) pg_do_encoding_conversion((unsigned char *) text, strlen(text), GetDatabaseEncoding(), PG_UTF8);
	return strlen(text) + margin[0];
}

typedef struct PrintedAttribute
{
	const char *flow;
	const char *name;
} PrintedAttribute;

static void
tell_attribute(void *arg)
{
	PrintedAttribute *printed = arg;

	errcontext("WED-attribute \"%s\" of an instance of WED-flow \"%s\", as text", printed->name, printed->flow);
}

static int64
printed_size(const WedFlow *flow, Form_pg_attribute att, Datum value)
{
	PrintedAttribute printed = {flow->name, NameStr(att->attname)};
	ErrorContextCallback callback = {error_context_stack, tell_attribute, &printed};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "wed_sql printed attribute", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	int64		size;

	error_context_stack = &callback;
	size = print(att->atttypid, value);
	error_context_stack = callback.previous;
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return size;
}

/* Of fixed length, and its text hardly longer: numbers, times, identifiers of PostgreSQL's own. */
static bool
is_short(Form_pg_attribute att)
{
	return att->attlen > 0 &&
		(!has_other_characters() || (att->atttypid < FirstGenbkiObjectId && att->attlen <= 16 && att->atttypid != CHAROID));
}

/*
 * Size of a state's attributes in bytes, whichever is larger of what is stored
 * and its text. An error if there is no such text.
 */
int64
wed_state_size(const WedFlow *flow, TupleTableSlot *state, int64 limit)
{
	TupleDesc	desc = state->tts_tupleDescriptor;
	Bitmapset  *long_ones = NULL;
	int64		size = 0;
	int64		most = 0;
	int			i;

	slot_getallattrs(state);
	for (i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Oid			type = att->atttypid;
		int64		stored;
		int			factor;

		if (state->tts_isnull[i] || att->attisdropped || i + 1 == flow->stamp_attno || is_short(att))
			continue;
		if (type >= FirstNormalObjectId)
			type = getBaseType(type);
		stored = att->attlen == -1 ? toast_raw_datum_size(state->tts_values[i]) : 0;
		factor = has_other_characters() && type != NUMERICOID && type != BYTEAOID ? 0 : longest_factor(type);
		size += stored;
		if (factor == 0)
			size += Max(printed_size(flow, att, state->tts_values[i]) - stored, 0);
		else if (factor > 1)
		{
			most += stored * (factor - 1);
			long_ones = bms_add_member(long_ones, i);
		}
	}

	/* what could be too long, and is not known to be */
	if (size <= limit && size + most > limit)
	{
		i = -1;
		while ((i = bms_next_member(long_ones, i)) >= 0)
		{
			int64		stored = toast_raw_datum_size(state->tts_values[i]);

			size += Max(printed_size(flow, TupleDescAttr(desc, i), state->tts_values[i]) - stored, 0);
		}
	}
	return size;
}
