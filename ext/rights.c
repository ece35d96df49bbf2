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
#include "rewrite/rowsecurity.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"

PG_FUNCTION_INFO_V1(wed_may_perform_sql);
PG_FUNCTION_INFO_V1(wed_is_filtered_sql);
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

/* Of a pending job: whether the current user may perform it. */
static bool
is_own_job(const WedFlow *flow, int32 tgid, const char *trname, void *arg)
{
	return is_granted(flow, GetUserId(), trname);
}

bool
wed_may_perform_all(const WedFlow *flow, Oid user)
{
	return has_privilege(flow, user, ACL_UPDATE);
}

bool
wed_may_perform(const WedFlow *flow, Oid user, const char *trname)
{
	return wed_may_perform_all(flow, user) || is_granted(flow, user, trname);
}

/* As wed_sql.visible_transitions() says to the current user. */
bool
wed_may_see_jobs(const WedFlow *flow, Oid user, const char *trname)
{
	return has_privilege(flow, user, ACL_SELECT) || is_granted(flow, user, trname);
}

/*
 * Whether policies of the flow's owner say which instances a role sees. That of
 * worker roles hides none from those who may perform one of its jobs.
 */
bool
wed_is_filtered(Relation wed_flow, Oid user)
{
	List	   *policies;

	if (check_enable_rls(RelationGetRelid(wed_flow), user, true) != RLS_ENABLED)
		return false;
	policies = wed_flow->rd_rsdesc->policies;
	return list_length(policies) != 1 ||
		strcmp(((RowSecurityPolicy *) linitial(policies))->policy_name, "wed_sql_worker") != 0;
}

void
wed_refuse_transition(const WedFlow *flow, const char *trname)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for WED-transition \"%s\" of WED-flow \"%s\"", trname, flow->name),
			 errhint("wed_sql.grant_worker() gives a role the right to perform it.")));
}

/*
 * The flow whose instances are in a table. The lock is given back: who asks
 * may have no right to hold up anybody.
 */
static WedFlow *
flow_of(Oid relid)
{
	Relation	rel = try_relation_open(relid, AccessShareLock);
	WedFlow    *flow;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("there is no table with OID %u", relid)));
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not the instance table of a WED-flow", RelationGetRelationName(rel))));
	flow = wed_flow_outline(rel);
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
 * wed_sql.is_filtered(wed_flow regclass, role oid) -> boolean
 */
Datum
wed_is_filtered_sql(PG_FUNCTION_ARGS)
{
	Relation	wed_flow = relation_open(PG_GETARG_OID(0), AccessShareLock);
	bool		filtered = wed_is_filtered(wed_flow, PG_GETARG_OID(1));

	relation_close(wed_flow, AccessShareLock);
	PG_RETURN_BOOL(filtered);
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
 * What this transaction has written, so that it may see it: the job is done
 * then, and with it the reason to see the instance.
 */
typedef struct WrittenInstance
{
	Oid			wed_flow;
	int64		wid;
} WrittenInstance;

static HTAB *written = NULL;	/* in TopTransactionContext */

static void
forget_written(void *arg)
{
	written = NULL;
}

void
wed_note_written(const WedFlow *flow, int64 wid)
{
	WrittenInstance key;

	if (flow->nworkers == 0 || has_privilege(flow, GetUserId(), ACL_SELECT))
		return;
	if (written == NULL)
	{
		HASHCTL		control = {
			.keysize = sizeof(WrittenInstance),
			.entrysize = sizeof(WrittenInstance),
			.hcxt = TopTransactionContext,
		};
		MemoryContextCallback *callback = MemoryContextAlloc(TopTransactionContext, sizeof(MemoryContextCallback));

		callback->func = forget_written;
		callback->arg = NULL;
		MemoryContextRegisterResetCallback(TopTransactionContext, callback);
		written = hash_create("wed_sql written instances", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	memset(&key, 0, sizeof(key));
	key.wed_flow = flow->relid;
	key.wid = wid;
	(void) hash_search(written, &key, HASH_ENTER, NULL);
}

static bool
has_written(const WedFlow *flow, int64 wid)
{
	WrittenInstance key;

	if (written == NULL)
		return false;
	memset(&key, 0, sizeof(key));
	key.wed_flow = flow->relid;
	key.wid = wid;
	return hash_search(written, &key, HASH_FIND, NULL) != NULL;
}

/*
 * wed_sql.has_visible_job(wed_flow regclass, wid bigint) -> boolean: whether
 * the current user may perform a transition that is due for the instance, or
 * has just done so.
 */
Datum
wed_has_visible_job(PG_FUNCTION_ARGS)
{
	WedFlow    *flow = flow_of(PG_GETARG_OID(0));
	int64		wid = PG_GETARG_INT64(1);

	if (flow->nworkers == 0)
		PG_RETURN_BOOL(false);
	PG_RETURN_BOOL(has_written(flow, wid) || wed_any_job(flow, wid, is_own_job, NULL));
}

static bool
is_worker(const WedFlow *flow, Oid user)
{
	for (int i = 0; i < flow->nworkers; i++)
	{
		if (has_privs_of_role(user, flow->workers[i].role))
			return true;
	}
	return false;
}

/*
 * The flow of a WED-trigger, if the current user may take the locks of its
 * jobs: a worker role may if the job is pending, and of one of its transitions
 * (pending_only). An error if it is another's: by the transition alone, so that
 * nobody learns what is pending.
 */
WedFlow *
wed_flow_to_lock(int32 tgid, bool *pending_only)
{
	Oid			relid = wed_flow_of_trigger(tgid);
	bool		missing = false;
	bool		all;
	WedFlow    *flow;
	const char *trname;

	all = OidIsValid(relid) &&
		pg_class_aclcheck_ext(relid, GetUserId(), ACL_UPDATE, &missing) == ACLCHECK_OK;
	if (!OidIsValid(relid) || missing)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no WED-trigger with tgid %d", tgid),
				 errhint("Take wid and tgid from job_pool.")));
	flow = flow_of(relid);
	*pending_only = !all;
	if (all)
		return flow;
	trname = wed_transition_name(flow, tgid);
	/* of a rule that was removed, the job alone knows the transition */
	if (trname ? !is_granted(flow, GetUserId(), trname) : !is_worker(flow, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for jobs of tgid %d", tgid),
				 errhint("wed_sql.grant_worker() gives a role the right to perform a WED-transition.")));
	return flow;
}

/*
 * Whether there is a job to be had by its lock: one that is leased, or is not to
 * be tried yet, is not. Who may perform every transition may also take a lock
 * that no job stands behind (pending_only is false).
 */
bool
wed_job_is_open(const WedFlow *flow, int64 wid, int32 tgid, bool pending_only)
{
	WedJob		job;
	TimestampTz now;

	if (!wed_find_job(flow, wid, tgid, &job))
		return !pending_only;
	if (pending_only && !is_granted(flow, GetUserId(), job.trname))
		return false;
	if (job.lckid == NULL && job.available_at == DT_NOBEGIN)
		return true;
	now = GetCurrentTimestamp();
	return !wed_job_is_leased(&job, now) && job.available_at <= now;
}
