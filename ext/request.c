/*-------------------------------------------------------------------------
 *
 * request.c
 *		What sessions ask of the engine, by way of the worker: to look at a
 *		database, and to leave one that a session needs for itself.
 *
 * Requests stay in shared memory until the engine has them, however often it
 * is started anew meanwhile. One that starts looks everywhere by itself.
 *
 *-------------------------------------------------------------------------
 */
#include "shared.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "storage/latch.h"

/* how long to wait until the engine has left a database, at the most */
#define LEAVE_TIMEOUT_MS 5000
/* the same for a database that it has probably never been in */
#define UNKNOWN_TIMEOUT_MS 250

static void
wake_worker(void)
{
	if (wed_shared->worker_latch != NULL)
		SetLatch(wed_shared->worker_latch);
}

/* With the lock. */
static void
add_look(Oid datid)
{
	for (int i = 0; i < wed_shared->nlooks; i++)
	{
		if (wed_shared->looks[i] == datid)
			return;
	}
	if (wed_shared->nlooks < WED_MAX_LOOKS)
		wed_shared->looks[wed_shared->nlooks++] = datid;
	else
		wed_shared->look_everywhere = true;
}

/*
 * Has the engine list the databases, and look whether the extension is in this
 * one, if it is one. Any backend may call this, also without shared memory.
 */
void
wed_request_look(Oid datid)
{
	if (wed_shared == NULL)
		return;
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	if (wed_shared->engine_pid != 0)	/* one that starts looks anyway */
		add_look(datid);
	wake_worker();
	LWLockRelease(wed_shared->lock);
}

/* With the lock: jobs of the database were left behind by sessions that have ended. */
void
wed_request_count_lost(WedDatabase *database)
{
	if (database->lost)
		return;
	database->lost = true;
	wake_worker();
}

/*
 * Leaving
 */

/* A place in wed_shared->leaves, or NULL if all are taken. */
static WedLeave *
add_leave(Oid datid)
{
	WedLeave   *leave = NULL;

	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < WED_MAX_LEAVES && leave == NULL; i++)
	{
		if (OidIsValid(wed_shared->leaves[i].datid))
			continue;
		leave = &wed_shared->leaves[i];
		memset(leave, 0, sizeof(WedLeave));
		leave->datid = datid;
		leave->ticket = ++wed_shared->last_ticket;
		leave->pid = MyProcPid;
		leave->asked_ms = wed_monotonic_ms();
		wake_worker();
	}
	LWLockRelease(wed_shared->lock);
	return leave;
}

/* Whether there is nothing to wait for, or no more. */
static bool
has_left(const WedLeave *leave)
{
	bool		has;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	has = leave->answered || wed_shared->worker_latch == NULL || wed_shared->engine_pid == 0;
	LWLockRelease(wed_shared->lock);
	return has;
}

static bool
is_followed(Oid datid)
{
	bool		followed;
	bool		active;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	followed = wed_find_database(datid) != NULL;
	LWLockRelease(wed_shared->lock);
	return followed || wed_own_slot_exists(datid, &active);
}

/*
 * Has the engine leave a database, and stay away until wed_end_leave or the
 * end of this session. Waits until it has left, but not for long if it does
 * not answer: without us, the command would not wait, either. Whoever asks must
 * own the database.
 */
void
wed_leave_database(Oid datid)
{
	int64		deadline;
	WedLeave   *leave = NULL;

	if (wed_shared == NULL)
		return;
	deadline = wed_monotonic_ms() + (is_followed(datid) ? LEAVE_TIMEOUT_MS : UNKNOWN_TIMEOUT_MS);
	ConditionVariablePrepareToSleep(&wed_shared->left);
	for (;;)
	{
		int64		rest;

		if (leave == NULL)
			leave = add_leave(datid);
		if (leave != NULL && has_left(leave))
			break;
		rest = deadline - wed_monotonic_ms();
		if (rest <= 0)
			break;
		(void) ConditionVariableTimedSleep(&wed_shared->left, rest, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

/*
 * The engine may come back to a database, or to all that this session has had
 * it leave (InvalidOid). Also for those who fail: it must not raise an error.
 */
void
wed_end_leave(Oid datid)
{
	if (wed_shared == NULL)
		return;
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < WED_MAX_LEAVES; i++)
	{
		WedLeave   *leave = &wed_shared->leaves[i];

		if (!OidIsValid(leave->datid) || leave->pid != MyProcPid || leave->over ||
			(OidIsValid(datid) && leave->datid != datid))
			continue;
		if (leave->sent)
			leave->over = true;
		else
		{
			leave->datid = InvalidOid;
			add_look(InvalidOid);
		}
		wake_worker();
	}
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->left);
}

/*
 * The worker's side
 */

/* With the lock: the new engine knows nothing of what the last one was told. */
void
wed_requests_engine_started(void)
{
	int64		now = wed_monotonic_ms();

	wed_shared->nlooks = 0;
	wed_shared->look_everywhere = false;
	for (int i = 0; i < WED_MAX_LEAVES; i++)
	{
		WedLeave   *leave = &wed_shared->leaves[i];

		if (leave->over)
			leave->datid = InvalidOid;
		leave->sent = leave->answered = leave->over = false;
		leave->asked_ms = now;
	}
}

static bool
send_leave(int link, char type, const WedLeave *leave)
{
	uint32		body[2] = {pg_hton32(leave->datid), pg_hton32(leave->ticket)};

	return wed_engine_send(link, type, body, sizeof(body));
}

/* What the socket does not take now, it takes the next time. */
static bool
pass_on_leaves(int link, bool *freed)
{
	for (int i = 0; i < WED_MAX_LEAVES; i++)
	{
		WedLeave   *leave = &wed_shared->leaves[i];

		if (!OidIsValid(leave->datid))
			continue;
		if (!leave->sent)
		{
			if (!send_leave(link, 'D', leave))
				return false;
			leave->sent = true;
		}
		if (leave->over)
		{
			if (!send_leave(link, 'E', leave))
				return false;
			leave->datid = InvalidOid;
			*freed = true;
		}
	}
	return true;
}

static void
pass_on_looks(int link)
{
	if (wed_shared->look_everywhere)
	{
		if (!wed_engine_send(link, 'R', NULL, 0))
			return;
		wed_shared->look_everywhere = false;
		wed_shared->nlooks = 0;
	}
	while (wed_shared->nlooks > 0)
	{
		uint32		datid = pg_hton32(wed_shared->looks[wed_shared->nlooks - 1]);

		if (!wed_engine_send(link, 'R', &datid, sizeof(datid)))
			return;
		wed_shared->nlooks--;
	}
}

static void
pass_on_lost(int link)
{
	for (int i = 0; i < wed_shared->ndatabases; i++)
	{
		WedDatabase *database = &wed_shared->databases[i];
		uint32		datid = pg_hton32(database->datid);

		if (!database->lost)
			continue;
		if (!wed_engine_send(link, 'A', &datid, sizeof(datid)))
			return;
		database->lost = false;
	}
}

/* Sending does not block, so it may be done with the lock. */
void
wed_requests_pass_on(int link)
{
	bool		freed = false;

	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	if (pass_on_leaves(link, &freed))
		pass_on_looks(link);
	pass_on_lost(link);
	LWLockRelease(wed_shared->lock);
	if (freed)
		ConditionVariableBroadcast(&wed_shared->left);
}

/* The engine has left a database. */
void
wed_request_answered(Oid datid, uint32 ticket)
{
	LWLockAcquire(wed_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < WED_MAX_LEAVES; i++)
	{
		WedLeave   *leave = &wed_shared->leaves[i];

		if (leave->datid == datid && leave->ticket == ticket)
			leave->answered = true;
	}
	LWLockRelease(wed_shared->lock);
	ConditionVariableBroadcast(&wed_shared->left);
}

static bool
any_unanswered_since(int64 since_ms)
{
	bool		any = false;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	for (int i = 0; i < WED_MAX_LEAVES; i++)
	{
		WedLeave   *leave = &wed_shared->leaves[i];

		if (OidIsValid(leave->datid) && !leave->answered && leave->asked_ms <= since_ms)
			any = true;
	}
	LWLockRelease(wed_shared->lock);
	return any;
}

bool
wed_requests_unanswered(void)
{
	return any_unanswered_since(wed_monotonic_ms());
}

/* Whether the engine has owed somebody an answer for so long. */
bool
wed_requests_engine_hangs(int64 patience_ms)
{
	return any_unanswered_since(wed_monotonic_ms() - patience_ms);
}
