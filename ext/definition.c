/*-------------------------------------------------------------------------
 *
 * definition.c
 *		Checking what a flow is defined with: WED-conditions and types.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "nodes/bitmapset.h"
#include "optimizer/optimizer.h"
#include "parser/parse_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_condition_attributes);
PG_FUNCTION_INFO_V1(wed_type_name);

typedef struct CheckArg
{
	Relation	wed_flow;
	const char *predicate;
	MemoryContext context;
	List	   *attnums;		/* that the condition uses, ascending */
} CheckArg;

static void
check_condition(void *arg)
{
	CheckArg   *check = arg;
	bool		has_sublinks;
	Node	   *expr = wed_analyze_condition(check->wed_flow, check->predicate, &has_sublinks);
	Bitmapset  *used = NULL;
	ListCell   *cell;
	MemoryContext old;
	int			attnum = -1;

	foreach(cell, pull_vars_of_level(expr, 0))
		used = bms_add_member(used, lfirst_node(Var, cell)->varattno);
	if (!has_sublinks)
		(void) expression_planner((Expr *) expr);	/* finds 1/0, too */

	old = MemoryContextSwitchTo(check->context);
	while ((attnum = bms_next_member(used, attnum)) >= 0)
		check->attnums = lappend_int(check->attnums, attnum);
	MemoryContextSwitchTo(old);
}

static char *
list_attributes(Relation wed_flow)
{
	TupleDesc	desc = RelationGetDescr(wed_flow);
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || strcmp(NameStr(att->attname), "_stamp") == 0)
			continue;
		appendStringInfo(&buf, "%s%s", buf.len > 0 ? ", " : "", quote_identifier(NameStr(att->attname)));
	}
	return buf.data;
}

/* Has an error point into the condition instead of the statement around it. */
static void
point_into_condition(void *arg)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(arg);
	}
}

static void
check_with_hint(CheckArg *check)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorContextCallback callback = {
		.callback = point_into_condition,
		.arg = unconstify(char *, check->predicate),
		.previous = error_context_stack,
	};

	error_context_stack = &callback;
	PG_TRY();
	{
		wed_run_as_owner(check->wed_flow->rd_rel->relowner, check_condition, check);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		if (edata->hint == NULL &&
			ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_SYNTAX_ERROR_OR_ACCESS_RULE_VIOLATION)
			edata->hint = psprintf("A WED-condition is what SQL accepts after WHERE, over %s. "
								   "Whatever is not in pg_catalog needs its schema's name before it.",
								   list_attributes(check->wed_flow));
		ReThrowError(edata);
	}
	PG_END_TRY();
	error_context_stack = callback.previous;
}

/*
 * wed_sql.condition_attributes(wed_flow regclass, cpred text) -> text[]: the
 * attributes that a condition uses; an error if it is not a valid one.
 */
Datum
wed_condition_attributes(PG_FUNCTION_ARGS)
{
	CheckArg	check = {0};
	Datum	   *names;
	ListCell   *cell;
	int			n = 0;

	check.wed_flow = table_open(PG_GETARG_OID(0), AccessShareLock);
	check.predicate = text_to_cstring(PG_GETARG_TEXT_PP(1));
	check.context = CurrentMemoryContext;

	check_with_hint(&check);

	names = palloc(sizeof(Datum) * (list_length(check.attnums) + 1));
	foreach(cell, check.attnums)
		names[n++] = CStringGetTextDatum(get_attname(RelationGetRelid(check.wed_flow),
													 lfirst_int(cell), false));
	table_close(check.wed_flow, NoLock);	/* until the definition is committed */
	PG_RETURN_ARRAYTYPE_P(construct_array(names, n, TEXTOID, -1, false, TYPALIGN_INT));
}

static Oid
get_type_namespace(Oid type)
{
	HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	Oid			namespace;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	namespace = ((Form_pg_type) GETSTRUCT(tuple))->typnamespace;
	ReleaseSysCache(tuple);
	return namespace;
}

/*
 * wed_sql.type_name(type text) -> text: the type in a form that says the same
 * under any search_path and can be pasted into SQL.
 */
Datum
wed_type_name(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Oid			type;
	int32		typmod;

	(void) parseTypeString(name, &type, &typmod, NULL);
	if (isAnyTempNamespace(get_type_namespace(type)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TABLE_DEFINITION),
				 errmsg("type \"%s\" is temporary", name),
				 errdetail("It would take the WED-attribute along at the end of the session.")));
	PG_RETURN_TEXT_P(cstring_to_text(format_type_extended(type, typmod,
														  FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY)));
}
