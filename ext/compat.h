/*-------------------------------------------------------------------------
 *
 * compat.h
 *		What differs between PostgreSQL 14 and 18, in one place: the code is
 *		written for the newest, and older ones are brought up to it here.
 *
 * Include it after PostgreSQL's own headers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WED_SQL_COMPAT_H
#define WED_SQL_COMPAT_H

#include "postgres.h"

#include "catalog/pg_database.h"
#include "fmgr.h"
#include "funcapi.h"
#include "parser/parse_type.h"
#include "replication/message.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/guc.h"

#if PG_VERSION_NUM < 140000
#error "wed_sql needs PostgreSQL 14 or newer"
#endif

/* compat.c */
extern void wed_request_shmem(void (*request) (void));
extern int	wed_max_backends(void);

/* names of a transaction in its process and in its locks have moved in 17 */
#if PG_VERSION_NUM >= 170000
#define wed_lxid(proc) ((proc)->vxid.lxid)
#define wed_lock_lxid(lock) ((lock)->vxid.localTransactionId)
#else
#define wed_lxid(proc) ((proc)->lxid)
#define wed_lock_lxid(lock) ((lock)->lxid)
#endif

#define wed_proc_number(proc) ((int) ((proc) - &ProcGlobal->allProcs[0]))

/* lists have become double ones in 16, and what finds a session's status by its place has another name */
#if PG_VERSION_NUM >= 160000
#define wed_has_no_proclocks(proc, partition) dlist_is_empty(&(proc)->myProcLocks[partition])
#define wed_local_beentry(place) pgstat_get_local_beentry_by_index(place)
#else
#define wed_has_no_proclocks(proc, partition) SHMQueueEmpty(&(proc)->myProcLocks[partition])
#define wed_local_beentry(place) pgstat_fetch_stat_local_beentry(place)
#endif

#if PG_VERSION_NUM < 180000

/* a module can say its name and version since 18 */
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC

/* 18 can be asked for deferrable ones, too */
#define RelationGetPrimaryKeyIndex(rel, deferrable_ok) \
	(AssertMacro(!(deferrable_ok)), RelationGetPrimaryKeyIndex(rel))

/* until 17 it may stand anywhere before the name, since 18 it must come first */
#define pg_noreturn pg_attribute_noreturn()

#endif

#if PG_VERSION_NUM < 170000

#include "access/xlog.h"

/* 17 asks whether a stronger lock will do: only ever "no" here */
#define LockHeldByMe(locktag, lockmode, orstronger) \
	(AssertMacro(!(orstronger)), LockHeldByMe(locktag, lockmode))

static inline XLogRecPtr
wed_log_logical_message(const char *prefix, const char *message, size_t size,
						bool transactional, bool flush)
{
	XLogRecPtr	lsn = LogLogicalMessage(prefix, message, size, transactional);

	if (flush)
		XLogFlush(lsn);
	return lsn;
}
#define LogLogicalMessage wed_log_logical_message

#endif

#if PG_VERSION_NUM < 160000

/* one function for all kinds of objects since 16, of which we need one */
static inline bool
object_ownercheck(Oid class_id, Oid object_id, Oid role_id)
{
	Assert(class_id == DatabaseRelationId);
	return pg_database_ownercheck(object_id, role_id);
}

/* 16 can return errors of the type's syntax; without a place for them, both raise them */
#define parseTypeString(str, type, typmod, escontext) \
	(AssertMacro((escontext) == NULL), parseTypeString(str, type, typmod, false))

#endif

#if PG_VERSION_NUM < 150000

#define MarkGUCPrefixReserved(prefix) EmitWarningsOnPlaceholders(prefix)

/* compat.c; of its flags, the one that we use */
#define MAT_SRF_USE_EXPECTED_DESC 0x01
#define InitMaterializedSRF(fcinfo, flags) wed_init_materialized_srf(fcinfo, flags)
extern void wed_init_materialized_srf(FunctionCallInfo fcinfo, int flags);

/* before 15 a timeout strikes once */
#define enable_timeout_every(id, fin_time, delay_in_ms) enable_timeout_at(id, fin_time)

#endif

#endif							/* WED_SQL_COMPAT_H */
