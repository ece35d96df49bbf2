/*-------------------------------------------------------------------------
 *
 * condition.c
 *		WED-conditions: prepared once per definition and backend, evaluated on
 *		a state. (How they are checked when they are defined: definition.c.)
 *
 * A condition is somebody else's code in the writer's session. Those that
 * consist of nothing but leakproof and immutable functions (comparisons of
 * the common types, IS NULL, AND, OR, NOT) can neither fail nor look or reach
 * anywhere, and are evaluated as they stand. All others run as the flow's
 * owner in a security-restricted operation, with settings of their own, under
 * a time limit, in a subtransaction: their failure is a fact about the state.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/sysattr.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "parser/parse_clause.h"
#include "parser/parse_collate.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "compat.h"

typedef struct WedCondition
{
	const char *label;
	Expr	   *expr;			/* NULL if it needs a plan, or is broken */
	ExprState  *harmless;		/* to be evaluated as it stands */
	SPIPlanPtr	plan;			/* for a condition with subqueries */
	char	   *broken;			/* why it could not be prepared, or NULL */
} WedCondition;


/*
 * From text to expression
 */

/*
 * The one expression of a text that the grammar of PL/pgSQL expressions
 * accepts: that keeps error positions as they are in the text, but lets a
 * whole query pass, from its target list on.
 */
static Node *
parse_expression(const char *predicate)
{
	List	   *raw = raw_parser(predicate, RAW_PARSE_PLPGSQL_EXPR);
	SelectStmt *select = castNode(SelectStmt, linitial_node(RawStmt, raw)->stmt);
	ResTarget  *target;

	if (select->targetList == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("WED-condition is empty")));
	target = linitial_node(ResTarget, select->targetList);
	if (list_length(select->targetList) != 1 || target->name != NULL ||
		select->distinctClause || select->intoClause || select->fromClause ||
		select->whereClause || select->groupClause || select->havingClause ||
		select->windowClause || select->valuesLists || select->sortClause ||
		select->limitOffset || select->limitCount || select->lockingClause ||
		select->withClause || select->op != SETOP_NONE ||
		(IsA(target->val, ColumnRef) &&
		 IsA(llast(castNode(ColumnRef, target->val)->fields), A_Star)))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("WED-condition is not a single expression")));
	return target->val;
}

/* An error if a text is more than a condition, or less. */
void
wed_check_expression(const char *predicate)
{
	(void) parse_expression(predicate);
}

/* A condition sees the attributes and wid, by value: not how they are stored. */
static void
check_columns(ParseState *pstate, Relation wed_flow, Node *expr)
{
	ListCell   *cell;

	foreach(cell, pull_vars_of_level(expr, 0))
	{
		Var		   *var = lfirst_node(Var, cell);

		if (var->varattno == InvalidAttrNumber)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a WED-condition cannot use the whole row"),
					 parser_errposition(pstate, var->location)));
		if (var->varattno > 0 &&
			TupleDescAttr(RelationGetDescr(wed_flow), var->varattno - 1)->attgenerated != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a WED-condition cannot use generated column \"%s\"",
							get_attname(RelationGetRelid(wed_flow), var->varattno, false)),
					 errdetail("It is computed after the state is judged."),
					 parser_errposition(pstate, var->location)));
		if (var->varattno < 0 ||
			strcmp(NameStr(TupleDescAttr(RelationGetDescr(wed_flow), var->varattno - 1)->attname),
				   "_stamp") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a WED-condition cannot use column \"%s\"",
							get_attname(RelationGetRelid(wed_flow), var->varattno, false)),
					 parser_errposition(pstate, var->location)));
	}
}

/*
 * The expression that a condition is over the columns of wed_flow; an error if
 * it is none.
 */
Node *
wed_analyze_condition(Relation wed_flow, const char *predicate, bool *has_sublinks)
{
	ParseState *pstate = make_parsestate(NULL);
	ParseNamespaceItem *nsitem;
	Node	   *expr;

	pstate->p_sourcetext = predicate;
	nsitem = addRangeTableEntryForRelation(pstate, wed_flow, AccessShareLock, NULL, false, true);
	addNSItemToQuery(pstate, nsitem, false, true, true);
	expr = transformWhereClause(pstate, parse_expression(predicate), EXPR_KIND_WHERE, "WHERE");
	assign_expr_collations(pstate, expr);
	check_columns(pstate, wed_flow, expr);
	*has_sublinks = pstate->p_hasSubLinks;
	free_parsestate(pstate);
	return expr;
}

/*
 * Preparing
 */

typedef struct PrepareArg
{
	const WedFlow *flow;
	Relation	wed_flow;
	const char *predicate;
	WedCondition *condition;
} PrepareArg;

static bool
is_not_harmless_function(Oid function, void *context)
{
	return !get_func_leakproof(function) || func_volatile(function) != PROVOLATILE_IMMUTABLE;
}

/* A comparison of two collations that fit together no better than the other fails. */
static bool
lacks_collation(Node *node)
{
	List	   *args;
	ListCell   *cell;

	switch (nodeTag(node))
	{
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			args = ((OpExpr *) node)->args;
			break;
		case T_ScalarArrayOpExpr:
			args = ((ScalarArrayOpExpr *) node)->args;
			break;
		case T_FuncExpr:
			args = ((FuncExpr *) node)->args;
			break;
		default:
			return false;
	}
	if (OidIsValid(exprInputCollation(node)))
		return false;
	foreach(cell, args)
	{
		if (OidIsValid(get_typcollation(exprType(lfirst(cell)))))
			return true;
	}
	return false;
}

/*
 * Whether anything in an expression could fail, or is code of others. Only
 * what is known to be neither passes; leakproof functions are superusers'.
 */
static bool
is_harmful(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_Var:
		case T_Const:
		case T_List:
		case T_RelabelType:
		case T_BoolExpr:
		case T_BooleanTest:
		case T_NullTest:
		case T_CaseExpr:
		case T_CaseWhen:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_CollateExpr:
		case T_OpExpr:
		case T_FuncExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
		case T_ScalarArrayOpExpr:
			break;
		default:
			return true;
	}
	return check_functions_in_node(node, is_not_harmless_function, context) ||
		lacks_collation(node) ||
		expression_tree_walker(node, is_harmful, context);
}

/* The attributes as parameters, so that the condition can be any query's part. */
static SPIPlanPtr
plan_condition(Relation wed_flow, const char *predicate)
{
	TupleDesc	desc = RelationGetDescr(wed_flow);
	Oid		   *types = palloc(sizeof(Oid) * desc->natts);
	StringInfoData query;
	SPIPlanPtr	plan;
	const char *separator = "";

	initStringInfo(&query);
	appendStringInfo(&query, "select (\n%s\n) from (select ", predicate);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		types[i] = att->attisdropped ? INT4OID : att->atttypid;
		if (att->attisdropped)
			continue;
		appendStringInfo(&query, "%s$%d as %s", separator, i + 1, quote_identifier(NameStr(att->attname)));
		separator = ", ";
	}
	appendStringInfo(&query, ") as %s", quote_identifier(RelationGetRelationName(wed_flow)));

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	plan = SPI_prepare(query.data, desc->natts, types);
	if (plan == NULL)
		elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
	SPI_keepplan(plan);
	SPI_finish();
	return plan;
}

static void
prepare_condition(void *arg)
{
	PrepareArg *prepare = arg;
	bool		has_sublinks;
	Node	   *expr = wed_analyze_condition(prepare->wed_flow, prepare->predicate, &has_sublinks);
	MemoryContext old;

	if (has_sublinks)
	{
		prepare->condition->plan = plan_condition(prepare->wed_flow, prepare->predicate);
		return;
	}
	expr = (Node *) expression_planner((Expr *) expr);

	old = MemoryContextSwitchTo(prepare->flow->context);
	prepare->condition->expr = copyObject((Expr *) expr);
	if (!is_harmful(expr, NULL))
		prepare->condition->harmless = ExecInitExpr(prepare->condition->expr, NULL);
	MemoryContextSwitchTo(old);
}

static void
free_plan(void *arg)
{
	WedCondition *condition = arg;

	if (condition->plan != NULL)
		SPI_freeplan(condition->plan);
}

bool
wed_condition_is_broken(const WedCondition *condition)
{
	return condition->broken != NULL;
}

/*
 * Called in the memory context of the flow. A condition that cannot be
 * prepared any more (something it needs was dropped) fails on every state.
 */
WedCondition *
wed_condition_prepare(const WedFlow *flow, Relation wed_flow, const char *predicate, const char *label)
{
	WedCondition *condition = palloc0(sizeof(WedCondition));
	PrepareArg	prepare = {flow, wed_flow, predicate, condition};
	MemoryContextCallback *callback;

	condition->label = label;
	condition->broken = wed_try_as_owner(flow, prepare_condition, &prepare);

	if (condition->plan != NULL)
	{
		callback = palloc(sizeof(MemoryContextCallback));
		callback->func = free_plan;
		callback->arg = condition;
		MemoryContextRegisterResetCallback(flow->context, callback);
	}
	return condition;
}

/*
 * Judging
 */

typedef struct JudgeArg
{
	WedFlow    *flow;
	TupleTableSlot *state;
	WedRule    *volatile rule;	/* in work, also when it fails */
	bool	   *holds;			/* per rule */
} JudgeArg;

static bool
holds_by_plan(WedCondition *condition, TupleTableSlot *state)
{
	int			natts = state->tts_tupleDescriptor->natts;
	char	   *nulls = palloc(natts);
	bool		isnull = true;
	Datum		value = (Datum) 0;

	slot_getallattrs(state);
	for (int i = 0; i < natts; i++)
		nulls[i] = state->tts_isnull[i] ? 'n' : ' ';
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_plan(condition->plan, state->tts_values, nulls, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "SPI_execute_plan failed: %s", SPI_result_code_string(SPI_result));
	if (SPI_processed == 1)
		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	isnull = isnull || !DatumGetBool(value);
	SPI_finish();
	return !isnull;
}

static bool
holds(ExprContext *econtext, WedCondition *condition, TupleTableSlot *state)
{
	ExprState  *expr = condition->harmless;
	bool		isnull;
	Datum		value;

	if (condition->plan != NULL)
		return holds_by_plan(condition, state);

	/*
	 * What may call functions of others is made ready anew each time: they
	 * may keep things that live no longer than a transaction.
	 */
	if (expr == NULL)
		expr = ExecInitExpr(condition->expr, NULL);
	econtext->ecxt_scantuple = state;
	value = ExecEvalExprSwitchContext(expr, econtext, &isnull);
	return !isnull && DatumGetBool(value);
}

static void
judge_others(void *arg)
{
	JudgeArg   *judge = arg;
	WedFlow    *flow = judge->flow;

	/* not the flow's: a condition may write, and so come here again */
	ExprContext *econtext = CreateStandaloneExprContext();

	for (int i = 0; i < flow->nrules; i++)
	{
		WedRule    *rule = &flow->rules[i];

		if (rule->condition->harmless != NULL)
			continue;
		judge->rule = rule;
		judge->holds[i] = holds(econtext, rule->condition, judge->state);
	}
	FreeExprContext(econtext, true);
}

/*
 * M(s) and final(s) of the state in the slot. A final state fires nothing,
 * and a state on which a condition fails cannot be judged at all.
 */
void
wed_judge(WedFlow *flow, TupleTableSlot *state, WedVerdict *verdict)
{
	bool	   *holding = palloc0(sizeof(bool) * (flow->nrules + 1));
	JudgeArg	judge = {flow, state, NULL, holding};
	bool		others = false;

	memset(verdict, 0, sizeof(WedVerdict));
	verdict->matched = palloc(sizeof(int32) * (flow->nrules + 1));

	for (int i = 0; i < flow->nrules; i++)
	{
		WedCondition *condition = flow->rules[i].condition;

		if (condition->harmless != NULL)
			holding[i] = holds(flow->econtext, condition, state);
		else if (condition->broken != NULL)
			verdict->error = psprintf("%s: %s", condition->label, condition->broken);
		else if (!others)
		{
			others = true;
			judge.rule = &flow->rules[i];
		}
	}
	if (others && verdict->error == NULL)
	{
		char	   *error = wed_try_as_owner(flow, judge_others, &judge);

		if (error != NULL)
			verdict->error = psprintf("%s: %s", judge.rule->condition->label, error);
	}
	ResetExprContext(flow->econtext);

	for (int i = 0; i < flow->nrules && verdict->error == NULL; i++)
	{
		if (!holding[i])
			continue;
		if (flow->rules[i].final)
			verdict->final = true;
		else
			verdict->matched[verdict->nmatched++] = flow->rules[i].tgid;
	}
	if (verdict->final)
		verdict->nmatched = 0;
}
