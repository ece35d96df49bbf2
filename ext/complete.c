/*-------------------------------------------------------------------------
 *
 * complete.c
 *		Writing the next state of an instance on behalf of a caller, with his own
 *		rights and under his own search_path: wed_sql.complete() for a leased job.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_complete);
PG_FUNCTION_INFO_V1(wed_complete_json);

/* try_lock() takes the lock of a leased job for a moment, to look at it */
#define LOCK_TRIES 20
#define LOCK_PAUSE_MS 10

static void
take_job_lock_patiently(const WedFlow *flow, int64 wid, int32 tgid)
{
	for (int i = 0; !wed_take_job_lock(wid, tgid); i++)
	{
		if (i == LOCK_TRIES)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("another session has the lock of job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\"",
							tgid, wid, flow->name),
					 errhint("wed_sql.job_lock shows whose it is. Try again.")));
		CHECK_FOR_INTERRUPTS();
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOCK_PAUSE_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

static void
set_for_update(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Writes a state that completes a job, whose lock is held: as the current user.
 * Returns whether there was a row to write. The settings are restored by the end
 * of the nest level, or of the (sub)transaction.
 */
bool
wed_complete_job(int32 tgid, const char *lckid, WedStatement *statement)
{
	int			nest_level = NewGUCNestLevel();
	int			outcome;
	bool		written;

	wed_check_one_update(statement->text, true);
	set_for_update("wed_sql.completes_tgid", psprintf("%d", tgid));
	set_for_update("wed_sql.lckid", lckid);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (statement->ours)
		outcome = wed_execute_planned(statement->text, statement->nargs, statement->types, statement->args);
	else
		outcome = SPI_execute_with_args(statement->text, statement->nargs, statement->types, statement->args,
										NULL, false, 0);
	if (outcome != SPI_OK_UPDATE)
		elog(ERROR, "update of an instance failed: %s", SPI_result_code_string(outcome));
	written = SPI_processed == 1;
	SPI_finish();
	AtEOXact_GUC(true, nest_level);
	return written;
}

/*
 * From values to a SET clause
 */

/* Any attribute, set to itself: an instance that stays as it is has a new state, too. */
static void
append_any_attribute(StringInfo buf, Relation wed_flow)
{
	TupleDesc	desc = RelationGetDescr(wed_flow);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = NameStr(att->attname);

		if (att->attisdropped || att->attgenerated != '\0' ||
			strcmp(name, "wid") == 0 || strcmp(name, "_stamp") == 0)
			continue;
		appendStringInfo(buf, "%s = %s", quote_identifier(name), quote_identifier(name));
		return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" has no WED-attribute", RelationGetRelationName(wed_flow))));
}

void
wed_refuse_no_object(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("a state is a JSON object: {\"attribute\": value, ...}")));
}

/*
 * Sets the keys of a JSON object, which the statement calls object, in the row
 * that it calls row (the table's name, if that is NULL). Each value is read as
 * its attribute's type wants it.
 */
char *
wed_set_clause_of(Relation wed_flow, Jsonb *state, const char *row, const char *object)
{
	JsonbIterator *it;
	JsonbValue	key;
	JsonbIteratorToken token;
	StringInfoData names;
	StringInfoData values;

	if (!JB_ROOT_IS_OBJECT(state))
		wed_refuse_no_object();
	initStringInfo(&names);
	initStringInfo(&values);
	it = JsonbIteratorInit(&state->root);
	while ((token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE)
	{
		const char *name;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(key.val.string.val, key.val.string.len);
		if (get_attnum(RelationGetRelid(wed_flow), name) <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("there is no WED-attribute \"%s\"", name)));
		name = quote_identifier(name);
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", name);
		appendStringInfo(&values, "%sx.%s", values.len > 0 ? ", " : "", name);
	}
	if (names.len == 0)
	{
		append_any_attribute(&names, wed_flow);
		return names.data;
	}
	return psprintf("(%s) = (select %s from pg_catalog.jsonb_populate_record(%s.*, %s) x)",
					names.data, values.data, row ? row : quote_identifier(RelationGetRelationName(wed_flow)), object);
}

/*
 * Completing a leased job
 */

typedef struct LeaseArgs
{
	const char *flow;
	int64		wid;
	int32		tgid;
	const char *lckid;
	const char *set_clause;		/* or, if NULL: */
	Jsonb	   *state;
} LeaseArgs;

typedef struct CompletedLease
{
	int32		flow_id;
	int64		wid;
	int32		tgid;
} CompletedLease;

/* But not one that the engine is dealing with: it would wait for us, and we for it. */
static void
remove_timer(void *arg)
{
	CompletedLease *lease = arg;
	static const Oid types[] = {INT4OID, INT8OID, INT4OID};
	Datum		args[] = {Int32GetDatum(lease->flow_id), Int64GetDatum(lease->wid), Int32GetDatum(lease->tgid)};

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (wed_execute_planned("with free as materialized ("
							"select x.version from wed_sql.timer x"
							" where x.flow_id operator(pg_catalog.=) $1 and x.wid operator(pg_catalog.=) $2"
							" and x.tgid operator(pg_catalog.=) $3 and x.kind operator(pg_catalog.=) 'l'"
							" for update skip locked) "
							"delete from wed_sql.timer x using free"
							" where x.flow_id operator(pg_catalog.=) $1 and x.wid operator(pg_catalog.=) $2"
							" and x.tgid operator(pg_catalog.=) $3 and x.kind operator(pg_catalog.=) 'l'"
							" and x.version operator(pg_catalog.=) free.version",
							lengthof(types), types, args) != SPI_OK_DELETE)
		elog(ERROR, "could not remove the timer of a lease: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
}

static void
complete_lease(const LeaseArgs *lease, Oid function)
{
	bool		pending_only;
	WedFlow    *flow;
	WedJob		job;
	Relation	wed_flow;
	WedStatement statement = {.nargs = 1};
	CompletedLease completed;

	wed_refuse_if_confined("complete jobs");
	flow = wed_flow_to_lock(lease->tgid, &pending_only);
	if (strcmp(flow->name, lease->flow) != 0 || !wed_is_lockable(lease->wid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("WED-flow \"%s\" has no job of tgid %d of instance " INT64_FORMAT,
						lease->flow, lease->tgid, lease->wid),
				 errhint("Take wid and tgid from what wed_sql.lease() has returned.")));
	completed = (CompletedLease) {flow->flow_id, lease->wid, lease->tgid};

	take_job_lock_patiently(flow, lease->wid, lease->tgid);
	/* before the caller's code is run: it may have worked for days */
	if (!wed_find_job(flow, lease->wid, lease->tgid, &job))
		wed_refuse_job_not_pending(flow, lease->wid, lease->tgid);
	if (!wed_may_perform(flow, GetUserId(), job.trname))
		wed_refuse_transition(flow, job.trname);
	wed_check_lease(flow, lease->wid, &job, lease->lckid);

	wed_flow = relation_open(flow->relid, AccessShareLock);
	statement.types[0] = INT8OID;
	statement.args[0] = Int64GetDatum(lease->wid);
	if (lease->set_clause == NULL)
	{
		statement.types[1] = JSONBOID;
		statement.args[1] = JsonbPGetDatum(lease->state);
		statement.nargs = 2;
		statement.ours = true;
	}
	statement.text = wed_update_statement(wed_flow, lease->set_clause ? lease->set_clause :
										  wed_set_clause_of(wed_flow, lease->state, NULL, "$2"), "");
	relation_close(wed_flow, NoLock);
	if (!wed_complete_job(lease->tgid, lease->lckid, &statement))
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("instance " INT64_FORMAT " of WED-flow \"%s\" is hidden from role \"%s\"",
						lease->wid, lease->flow, GetUserNameFromId(GetUserId(), false))));
	wed_run_as_definer(function, remove_timer, &completed);
}

static void
read_lease_args(FunctionCallInfo fcinfo, LeaseArgs *lease)
{
	wed_refuse_nulls(fcinfo, "a flow, an instance, a tgid, the token of the lease and the new state");
	memset(lease, 0, sizeof(LeaseArgs));
	lease->flow = text_to_cstring(PG_GETARG_TEXT_PP(0));
	lease->wid = PG_GETARG_INT64(1);
	lease->tgid = PG_GETARG_INT32(2);
	lease->lckid = text_to_cstring(PG_GETARG_TEXT_PP(3));
	if (lease->lckid[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the token of a lease cannot be empty")));
}

/* wed_sql.complete(flow text, wid bigint, tgid integer, lckid text, set_clause text) -> void */
Datum
wed_complete(PG_FUNCTION_ARGS)
{
	LeaseArgs	lease;

	read_lease_args(fcinfo, &lease);
	lease.set_clause = text_to_cstring(PG_GETARG_TEXT_PP(4));
	complete_lease(&lease, fcinfo->flinfo->fn_oid);
	PG_RETURN_VOID();
}

/* wed_sql.complete(flow text, wid bigint, tgid integer, lckid text, state jsonb) -> void */
Datum
wed_complete_json(PG_FUNCTION_ARGS)
{
	LeaseArgs	lease;

	read_lease_args(fcinfo, &lease);
	lease.state = PG_GETARG_JSONB_P(4);
	complete_lease(&lease, fcinfo->flinfo->fn_oid);
	PG_RETURN_VOID();
}
