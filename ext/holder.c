/*-------------------------------------------------------------------------
 *
 * holder.c
 *		Who holds the locks of jobs, and the end of one who holds them for too
 *		long.
 *
 * Whom to end is decided from afar, and a moment later the session may be in
 * its next transaction, or another one may have its pid. So the decision is
 * made again where a session cannot go away: it cannot give up its lock while
 * somebody else has the partition of the lock manager that the lock is in. What
 * its transaction can do meanwhile is to end: it may commit, and if the lock is
 * the session's (pg_advisory_lock()), which cannot be told from here, also be
 * rolled back, and the next one begin. Therefore each backend has a word in
 * shared memory, in which either its transaction says that it commits, or
 * somebody else that it must not: who comes first is right. Who has marked a
 * transaction looks once more whether it is still the one that he meant, and
 * takes the mark back if not; a transaction that is rolled back leaves its number
 * first, looks at the word then, and if it was marked, no other follows it in
 * this session. So one of them sees the other.
 *
 *-------------------------------------------------------------------------
 */
#include "holder.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "postmaster/autovacuum.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/backend_status.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_lock_holders);
PG_FUNCTION_INFO_V1(wed_oldest_transaction);
PG_FUNCTION_INFO_V1(wed_end_holder);
PG_FUNCTION_INFO_V1(wed_log);

/*
 * A word names a transaction, by the pid and the local id of the transaction,
 * and what becomes of it. On a cache line of its own: each commit writes it.
 */
#define COMMITS ((uint64) 1 << 63)
#define ENDED ((uint64) 1 << 62)
#define TRANSACTION(pid, lxid) (((uint64) (uint32) (pid) & 0x3FFFFFFF) << 32 | (lxid))

typedef union Word
{
	pg_atomic_uint64 value;
	char		pad[PG_CACHE_LINE_SIZE];
} Word;

static Word *words = NULL;
static int	nwords = 0;
static emit_log_hook_type prev_emit_log_hook = NULL;

Size
wed_holders_size(void)
{
	return mul_size(wed_max_backends(), sizeof(Word));
}

void
wed_holders_create(void)
{
	bool		found;

	nwords = wed_max_backends();
	words = ShmemInitStruct("wed_sql holders", wed_holders_size(), &found);
	if (found)
		return;
	for (int i = 0; i < nwords; i++)
		pg_atomic_init_u64(&words[i].value, 0);
}

/* NULL for processes that have no transactions. */
static pg_atomic_uint64 *
word_of(const PGPROC *proc)
{
	int			number = wed_proc_number(proc);

	return number < nwords ? &words[number].value : NULL;
}

/* Whether this transaction was ended because it held a job for too long. */
bool
wed_is_ended_for_timeout(void)
{
	pg_atomic_uint64 *word;

	if (words == NULL || MyProc == NULL || (word = word_of(MyProc)) == NULL)
		return false;
	return pg_atomic_read_u64(word) == (ENDED | TRANSACTION(MyProcPid, wed_lxid(MyProc)));
}

#define ENDED_DETAIL "The transaction has held the lock of a pending job for longer than the job's timeout allows."

/* It has been rolled back; if it was to be ended, the signal for that is not the next one's. */
static void
end_with_transaction(void)
{
	pg_atomic_uint64 *word;
	uint64		value;

	if (proc_exit_inprogress || words == NULL || MyProc == NULL || (word = word_of(MyProc)) == NULL)
		return;
	pg_memory_barrier();		/* the transaction's number is gone before we look */
	value = pg_atomic_read_u64(word);
	if ((value & ENDED) && (value & ~(uint64) PG_UINT32_MAX) == (ENDED | TRANSACTION(MyProcPid, 0)))
	{
		ProcDiePending = true;
		InterruptPending = true;
	}
}

/*
 * From here on the transaction commits, or has been ended. Its locks are
 * released after that. (The callback inherited from the postmaster runs in
 * every process; there is no word where there is no shared memory.)
 */
static void
transaction_ends(XactEvent event, void *arg)
{
	pg_atomic_uint64 *word;
	uint64		transaction;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			wed_lost_watch();
			if (words == NULL || MyProc == NULL || (word = word_of(MyProc)) == NULL)
				return;
			transaction = TRANSACTION(MyProcPid, wed_lxid(MyProc));
			if (pg_atomic_exchange_u64(word, COMMITS | transaction) != (ENDED | transaction))
				return;
			/* for those who ask why */
			pg_atomic_write_u64(word, ENDED | transaction);
			ereport(FATAL,
					(errcode(ERRCODE_ADMIN_SHUTDOWN),
					 errmsg("terminating connection due to administrator command"),
					 errdetail(ENDED_DETAIL)));
			break;
		case XACT_EVENT_COMMIT:
			wed_lost_end_xact(true);
			break;
		case XACT_EVENT_ABORT:
			wed_lost_end_xact(false);
			end_with_transaction();
			break;
		case XACT_EVENT_PREPARE:
			wed_lost_end_xact(false);
			break;
		default:
			break;
	}
}

/* A session that is ended learns why. */
static void
explain_end(ErrorData *edata)
{
	if (edata->elevel == FATAL && edata->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN && edata->detail == NULL &&
		wed_is_ended_for_timeout())
		edata->detail = pstrdup(_(ENDED_DETAIL));
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

void
wed_holders_install(void)
{
	RegisterXactCallback(transaction_ends, NULL);
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = explain_end;
}

/*
 * Looking
 */

typedef struct Session
{
	int			pid;			/* key */
	TimestampTz xact_start;
	Oid			role;
	const char *application_name;
} Session;

/*
 * The sessions of this database that are in a transaction. From the server's
 * own table as it is now: the view keeps what it has seen once in a transaction.
 */
static HTAB *
read_sessions(void)
{
	HASHCTL		control = {.keysize = sizeof(int), .entrysize = sizeof(Session), .hcxt = CurrentMemoryContext};
	HTAB	   *sessions = hash_create("wed_sql sessions", 128, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	int			count;

	pgstat_clear_backend_activity_snapshot();
	count = pgstat_fetch_stat_numbackends();
	for (int i = 1; i <= count; i++)
	{
		const PgBackendStatus *status = &wed_local_beentry(i)->backendStatus;
		Session    *session;

		if (status->st_procpid == 0 || status->st_databaseid != MyDatabaseId || status->st_xact_start_timestamp == 0)
			continue;
		session = hash_search(sessions, &status->st_procpid, HASH_ENTER, NULL);
		session->xact_start = status->st_xact_start_timestamp;
		session->role = status->st_userid;
		session->application_name = status->st_appname;
	}
	return sessions;
}

/*
 * wed_sql.lock_holders() -> setof (wid, tgid, pid, lxid, xact_start, role,
 * application_name): who holds a lock in this database that may be a job's.
 *
 * Locks first, with the transactions that they belong to, then since when these
 * are open: if the transaction is still the same later on, it was the same
 * all the time.
 */
Datum
wed_lock_holders(PG_FUNCTION_ARGS)
{
#define NHOLDER 7
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LockData   *locks;
	HTAB	   *sessions;

	InitMaterializedSRF(fcinfo, 0);
	locks = GetLockStatusData();
	sessions = read_sessions();
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];
		int64		wid;
		int32		tgid;
		const Session *session;
		Datum		values[NHOLDER];
		bool		nulls[NHOLDER] = {false};

		if (lock->locktag.locktag_field1 != MyDatabaseId || !(lock->holdMask & LOCKBIT_ON(ExclusiveLock)) ||
			!wed_job_of_locktag(&lock->locktag, &wid, &tgid))
			continue;
		/* without a transaction, or prepared for a commit in two phases: not a session's to end */
		if (lock->pid == 0 || lock->pid == MyProcPid || !LocalTransactionIdIsValid(wed_lock_lxid(lock)))
			continue;
		session = hash_search(sessions, &lock->pid, HASH_FIND, NULL);
		if (session == NULL)
			continue;
		values[0] = Int64GetDatum(wid);
		values[1] = Int32GetDatum(tgid);
		values[2] = Int32GetDatum(lock->pid);
		values[3] = Int64GetDatum(wed_lock_lxid(lock));
		values[4] = TimestampTzGetDatum(session->xact_start);
		values[5] = ObjectIdGetDatum(session->role);
		values[6] = CStringGetTextDatum(session->application_name);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * wed_sql.oldest_transaction() -> timestamptz: since when a transaction of another
 * session of this database is open that may take the lock of a job; NULL if none
 * is. As of the last call of wed_sql.lock_holders() in this transaction.
 */
Datum
wed_oldest_transaction(PG_FUNCTION_ARGS)
{
	TimestampTz oldest = 0;
	int			count = pgstat_fetch_stat_numbackends();

	for (int i = 1; i <= count; i++)
	{
		const PgBackendStatus *status = &wed_local_beentry(i)->backendStatus;

		if (status->st_procpid == 0 || status->st_procpid == MyProcPid || status->st_databaseid != MyDatabaseId ||
			(status->st_backendType != B_BACKEND && status->st_backendType != B_BG_WORKER) ||
			status->st_xact_start_timestamp == 0)
			continue;
		if (oldest == 0 || status->st_xact_start_timestamp < oldest)
			oldest = status->st_xact_start_timestamp;
	}
	if (oldest == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(oldest);
}

/*
 * Ending
 */

/*
 * With the partition's lock: calls visit for each lock that a process holds in a
 * partition of the lock manager, until that returns true.
 */
bool
wed_visit_proclocks(PGPROC *proc, int partition, WedProcLockVisitor visit, void *arg)
{
#if PG_VERSION_NUM >= 160000
	dlist_iter	iter;

	dlist_foreach(iter, &proc->myProcLocks[partition])
	{
		if (visit(dlist_container(PROCLOCK, procLink, iter.cur), arg))
			return true;
	}
#else
	SHM_QUEUE  *list = &proc->myProcLocks[partition];
	PROCLOCK   *proclock = (PROCLOCK *) SHMQueueNext(list, list, offsetof(PROCLOCK, procLink));

	for (; proclock != NULL; proclock = (PROCLOCK *) SHMQueueNext(list, &proclock->procLink, offsetof(PROCLOCK, procLink)))
	{
		if (visit(proclock, arg))
			return true;
	}
#endif
	return false;
}

static bool
is_lock(const PROCLOCK *proclock, void *arg)
{
	return (proclock->holdMask & LOCKBIT_ON(ExclusiveLock)) &&
		memcmp(&proclock->tag.myLock->tag, arg, sizeof(LOCKTAG)) == 0;
}

/* Unless it commits: from now on it does not. False also if it was ended before. */
static bool
keep_from_committing(const PGPROC *proc, LocalTransactionId lxid)
{
	pg_atomic_uint64 *word = word_of(proc);
	uint64		transaction = TRANSACTION(proc->pid, lxid);
	uint64		before;
	uint64		ended;

	if (word == NULL)
		return false;
	before = pg_atomic_read_u64(word);
	do
	{
		if (before == (COMMITS | transaction) || before == (ENDED | transaction))
			return false;
	} while (!pg_atomic_compare_exchange_u64(word, &before, ENDED | transaction));
	if (wed_lxid(proc) == lxid)
		return true;
	/* it has ended a moment before; unless the next one has written there by now */
	ended = ENDED | transaction;
	(void) pg_atomic_compare_exchange_u64(word, &ended, before);
	return false;
}

/*
 * wed_sql.end_holder(wid, tgid, pid, lxid, deadline) -> boolean: ends the
 * session pid, if it is still in the transaction lxid, still holds the lock
 * of the job, is not committing, and the deadline has passed.
 */
Datum
wed_end_holder(PG_FUNCTION_ARGS)
{
	int64		wid = PG_GETARG_INT64(0);
	int32		tgid = PG_GETARG_INT32(1);
	int			pid = PG_GETARG_INT32(2);
	int64		lxid = PG_GETARG_INT64(3);
	TimestampTz deadline = PG_GETARG_TIMESTAMPTZ(4);
	LOCKTAG		tag;
	uint32		hash;
	LWLock	   *lock;
	PGPROC	   *proc;
	bool		ended = false;

	if (words == NULL || !wed_is_lockable(wid) || pid <= 0 || pid == MyProcPid ||
		lxid <= 0 || lxid > PG_UINT32_MAX)
		PG_RETURN_BOOL(false);
	proc = BackendPidGetProc(pid);
	if (proc == NULL)
		PG_RETURN_BOOL(false);

	wed_set_job_locktag(&tag, wid, tgid);
	hash = LockTagHashCode(&tag);
	lock = LockHashPartitionLock(hash);
	LWLockAcquire(lock, LW_SHARED);
	if (wed_visit_proclocks(proc, LockHashPartition(hash), is_lock, &tag) &&
		proc->pid == pid && wed_lxid(proc) == (LocalTransactionId) lxid &&
		deadline <= GetCurrentTimestamp() && keep_from_committing(proc, (LocalTransactionId) lxid))
	{
		/* with its children, as pg_terminate_backend() does */
		ended = kill(-pid, SIGTERM) == 0 || kill(pid, SIGTERM) == 0;
	}
	LWLockRelease(lock);
	PG_RETURN_BOOL(ended);
}

/*
 * wed_sql.log(message text, detail text) -> void: a line in the server's log.
 */
Datum
wed_log(PG_FUNCTION_ARGS)
{
	ereport(LOG,
			(errmsg_internal("%s", text_to_cstring(PG_GETARG_TEXT_PP(0))),
			 errdetail_internal("%s", text_to_cstring(PG_GETARG_TEXT_PP(1))),
			 errhidestmt(true), errhidecontext(true)));
	PG_RETURN_VOID();
}
