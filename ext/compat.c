/*-------------------------------------------------------------------------
 *
 * compat.c
 *		The part of compat.h that takes a function.
 *
 *-------------------------------------------------------------------------
 */
#include "compat.h"

#include "miscadmin.h"
#if PG_VERSION_NUM < 150000
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "replication/walsender.h"
#endif
#include "storage/ipc.h"
#include "utils/tuplestore.h"

#if PG_VERSION_NUM >= 150000

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static void (*shmem_request) (void) = NULL;

static void
request_in_hook(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	shmem_request();
}

/*
 * Has request called when shared memory may be asked for: at once, in
 * _PG_init, before PostgreSQL 15; from a hook since.
 */
void
wed_request_shmem(void (*request) (void))
{
	shmem_request = request;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_in_hook;
}

/* When shared memory is requested, and later. */
int
wed_max_backends(void)
{
	return MaxBackends;
}

#else

void
wed_request_shmem(void (*request) (void))
{
	request();
}

/* MaxBackends is computed from these, but not yet when shared memory is requested. */
int
wed_max_backends(void)
{
	return MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders;
}

void
wed_init_materialized_srf(FunctionCallInfo fcinfo, int flags)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	desc;
	MemoryContext old;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) || !(rsinfo->allowedModes & SFRM_Materialize) ||
		((flags & MAT_SRF_USE_EXPECTED_DESC) && rsinfo->expectedDesc == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));
	if (flags & MAT_SRF_USE_EXPECTED_DESC)
		desc = rsinfo->expectedDesc;
	else if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	old = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = tuplestore_begin_heap(true, false, work_mem);
	rsinfo->setDesc = CreateTupleDescCopy(desc);
	MemoryContextSwitchTo(old);
}

#endif
