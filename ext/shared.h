/*-------------------------------------------------------------------------
 *
 * shared.h
 *		The shared memory of wed_sql, for the files that read and write it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WED_SQL_SHARED_H
#define WED_SQL_SHARED_H

#include "wed_sql.h"

#include "storage/condition_variable.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"

#define WED_TEXT_SIZE 512

/* the engine's report on databases that it has not been able to look at */
#define WED_ANY_DATABASE InvalidOid

/* What the engine has reported; written by the worker alone. */
typedef struct WedDatabase
{
	Oid			datid;			/* or WED_ANY_DATABASE */
	char		state;
	bool		lost;			/* sessions have left jobs behind: the engine is to be told */
	XLogRecPtr	applied_lsn;
	XLogRecPtr	flushed_lsn;
	int64		commit_time;	/* of the newest state applied, 0 if unknown */
	int64		states_total;
	TimestampTz state_since;
	TimestampTz error_at;
	NameData	datname;
	char		error[WED_TEXT_SIZE];
	char		warning[WED_TEXT_SIZE];
} WedDatabase;

/* A database that a session needs for itself, so that the engine leaves it. */
typedef struct WedLeave
{
	Oid			datid;			/* InvalidOid: this place is free */
	uint32		ticket;
	int			pid;			/* of the session */
	bool		sent;			/* the engine has been asked */
	bool		answered;		/* and has left */
	bool		over;			/* the session has done; the engine is to be told */
	int64		asked_ms;		/* by wed_monotonic_ms() */
} WedLeave;

#define WED_MAX_LEAVES 64
#define WED_MAX_LOOKS 64

typedef struct WedShared
{
	LWLock	   *lock;			/* of everything below but the conditions */
	ConditionVariable applied;	/* some applied_lsn or state has changed */
	ConditionVariable left;		/* some of leaves has changed */
	Latch	   *worker_latch;	/* NULL while there is no worker */
	pid_t		engine_pid;		/* 0 while there is none */
	TimestampTz engine_started;
	int64		engine_starts;

	/* what the engine is to look at; InvalidOid: the list of databases only */
	bool		look_everywhere;
	int			nlooks;
	Oid			looks[WED_MAX_LOOKS];

	uint32		last_ticket;
	WedLeave	leaves[WED_MAX_LEAVES];

	bool		overflow_told;
	int			ndatabases;
	WedDatabase databases[FLEXIBLE_ARRAY_MEMBER];
} WedShared;

extern WedShared *wed_shared;	/* NULL if the module was not preloaded */

extern void wed_require_shared(void);
extern WedDatabase *wed_find_database(Oid datid);
extern void wed_requests_engine_started(void);
extern void wed_request_count_lost(WedDatabase *database);

#endif							/* WED_SQL_SHARED_H */
