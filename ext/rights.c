/*-------------------------------------------------------------------------
 *
 * rights.c
 *		Who may perform a transition, and see its jobs.
 *
 * Who may UPDATE the whole of wed_flow (its owner, for one) may perform every
 * transition, and who may SELECT the whole of it sees every job: that is what
 * these privileges are in PostgreSQL. A worker role has them on the attributes
 * only, and rows of wed_sql.worker say which transitions are its own; the
 * guard holds it to that, and so do the row security policies of wed_flow and
 * job_pool, which ask here.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

PG_FUNCTION_INFO_V1(wed_may_perform_sql);
PG_FUNCTION_INFO_V1(wed_visible_transitions);
PG_FUNCTION_INFO_V1(wed_has_visible_job);

static bool
has_privilege(const WedFlow *flow, Oid user, AclMode mode)
{
	return pg_class_aclcheck(flow->relid, user, mode) == ACLCHECK_OK;
}

static bool
is_granted(const WedFlow *flow, Oid user, const char *trname)
{
	for (int i = 0; i < flow->nworkers; i++)
	{
		if (strcmp(flow->workers[i].trname, trname) == 0 &&
			has_privs_of_role(user, flow->workers[i].role))
			return true;
	}
	return false;
}

/* Of a pending job: whether it is that of *arg (a tgid). */
static bool
is_job(const WedFlow *flow, int32 tgid, const char *trname, void *arg)
{
	return tgid == *(int32 *) arg;
}

/* The same, and whether the current user may perform it; arg may be NULL. */
static bool
is_own_job(const WedFlow *flow, int32 tgid, const char *trname, void *arg)
{
	return (arg == NULL || is_job(flow, tgid, trname, arg)) && is_granted(flow, GetUserId(), trname);
}

bool
wed_may_perform(const WedFlow *flow, Oid user, const char *trname)
{
	return has_privilege(flow, user, ACL_UPDATE) || is_granted(flow, user, trname);
}

bool
wed_may_perform_all(const WedFlow *flow, Oid user)
{
	return has_privilege(flow, user, ACL_UPDATE);
}

/*
 * The flow whose instances are in a table. The lock is given back: who asks
 * may have no right to hold up anybody.
 */
static WedFlow *
flow_of(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	WedFlow    *flow;

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not the instance table of a WED-flow", RelationGetRelationName(rel))));
	flow = wed_flow_get(rel);
	relation_close(rel, AccessShareLock);
	return flow;
}

/*
 * wed_sql.may_perform(role oid, wed_flow regclass, trname text) -> boolean
 */
Datum
wed_may_perform_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(wed_may_perform(flow_of(PG_GETARG_OID(1)), PG_GETARG_OID(0),
								   text_to_cstring(PG_GETARG_TEXT_PP(2))));
}

/*
 * wed_sql.visible_transitions(wed_flow regclass) -> text[]: those whose jobs
 * the current user may see; null for all.
 */
Datum
wed_visible_transitions(PG_FUNCTION_ARGS)
{
	WedFlow    *flow = flow_of(PG_GETARG_OID(0));
	Datum	   *names;
	int			n = 0;

	if (has_privilege(flow, GetUserId(), ACL_SELECT))
		PG_RETURN_NULL();
	names = palloc(sizeof(Datum) * (flow->nworkers + 1));
	for (int i = 0; i < flow->nworkers; i++)
	{
		if (has_privs_of_role(GetUserId(), flow->workers[i].role))
			names[n++] = CStringGetTextDatum(flow->workers[i].trname);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(names, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/*
 * wed_sql.has_visible_job(wed_flow regclass, wid bigint, stamp wed_sql.stamp)
 * -> boolean: whether the current user may perform a transition that is due
 * for the instance. Its own new state it may see as well: the job is done
 * then, but its lock is still held.
 */
Datum
wed_has_visible_job(PG_FUNCTION_ARGS)
{
	WedFlow    *flow = flow_of(PG_GETARG_OID(0));
	int64		wid = PG_GETARG_INT64(1);
	WedStamp	stamp;

	if (flow->nworkers == 0)
		PG_RETURN_BOOL(false);
	wed_stamp_read(PG_GETARG_DATUM(2), &stamp);
	if (stamp.trw != NULL && wed_job_lock_held(wid, stamp.by) && is_granted(flow, GetUserId(), stamp.trw))
		PG_RETURN_BOOL(true);
	PG_RETURN_BOOL(wed_any_job(flow, wid, is_own_job, NULL));
}

/*
 * Whether the current user may take the lock of a job. A worker role may if
 * the job is pending, and of one of its transitions; false if it is not
 * pending (any more), an error if it is another's.
 */
bool
wed_may_lock_job(int64 wid, int32 tgid)
{
	Oid			relid = wed_flow_of_trigger(tgid);
	bool		missing = false;
	WedFlow    *flow;

	if (OidIsValid(relid) &&
		pg_class_aclcheck_ext(relid, GetUserId(), ACL_UPDATE, &missing) == ACLCHECK_OK && !missing)
		return true;
	if (!OidIsValid(relid) || missing)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no WED-trigger with tgid %d", tgid),
				 errhint("Take wid and tgid from job_pool.")));
	flow = flow_of(relid);
	if (wed_any_job(flow, wid, is_own_job, &tgid))
		return true;
	if (!wed_any_job(flow, wid, is_job, &tgid))
		return false;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for job tgid %d of instance " INT64_FORMAT " of WED-flow \"%s\"",
					tgid, wid, flow->name),
			 errhint("wed_sql.grant_worker() gives a role the right to perform a WED-transition.")));
	return false;				/* not reached */
}
