/*-------------------------------------------------------------------------
 *
 * listener.c
 *		Which sessions listen, and to what. Up to PostgreSQL 18 a notification
 *		wakes each session of its database that listens to anything, and each of
 *		them reads all that were sent: so the follower notifies nobody of what
 *		nobody listens to, and has to know what a notification costs.
 *
 * A session counts from its first LISTEN to its UNLISTEN *, DISCARD ALL, or end. One
 * that is forgotten would miss what it waits for; one that is counted though its
 * LISTEN was rolled back, or only some of its channels given up, is woken in vain.
 *
 * A transaction decides whom to notify right before it commits, and who begins to
 * listen in between would neither be notified nor see what was committed. So each of
 * both says what it is about before it looks at the other, and who begins to listen
 * waits for those that may have decided without him: the time of a commit.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/xact.h"
#include "commands/async.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(wed_notify_listeners);

/* A channel is a bit: two that share one are both notified if either is listened to. */
#define CHANNEL_BITS 256
#define BITS_PER_WORD 64
#define CHANNEL_WORDS (CHANNEL_BITS / BITS_PER_WORD)

/* what NOTIFY takes */
#define MAX_PAYLOAD (BLCKSZ - NAMEDATALEN - 128)

/* who decides does not wait for anything: if it takes longer, it has been stopped */
#define PATIENCE_MS 10000

typedef struct Listening
{
	pg_atomic_uint32 datid;		/* database that a backend listens in, or InvalidOid */
	pg_atomic_uint64 channels[CHANNEL_WORDS];
	pg_atomic_uint32 decision;	/* odd from when it decides whom to notify until it has committed */
} Listening;

typedef struct Notification
{
	char	   *channel;
	char	   *payload;
} Notification;

static Listening *listening = NULL;
static int	nlistening = 0;
static ProcessUtility_hook_type prev_process_utility_hook = NULL;

/* of this transaction: in TopTransactionContext */
static List *notifications = NIL;
static bool deciding = false;
static bool unlistens = false;

Size
wed_listeners_size(void)
{
	return mul_size(wed_max_backends(), sizeof(Listening));
}

void
wed_listeners_create(void)
{
	bool		found;

	nlistening = wed_max_backends();
	listening = ShmemInitStruct("wed_sql listeners", wed_listeners_size(), &found);
	if (found)
		return;
	for (int i = 0; i < nlistening; i++)
	{
		pg_atomic_init_u32(&listening[i].datid, InvalidOid);
		pg_atomic_init_u32(&listening[i].decision, 0);
		for (int j = 0; j < CHANNEL_WORDS; j++)
			pg_atomic_init_u64(&listening[i].channels[j], 0);
	}
}

/* NULL in a process that has no place. */
static Listening *
mine(void)
{
	if (listening == NULL || MyProc == NULL || wed_proc_number(MyProc) >= nlistening)
		return NULL;
	return &listening[wed_proc_number(MyProc)];
}

static uint32
channel_bit(const char *channel)
{
	return hash_bytes((const unsigned char *) channel, strlen(channel)) % CHANNEL_BITS;
}

/*
 * Listening
 */

static void
stop_listening(void)
{
	Listening  *me = mine();

	if (me == NULL)
		return;
	pg_atomic_write_u32(&me->datid, InvalidOid);
	for (int i = 0; i < CHANNEL_WORDS; i++)
		pg_atomic_write_u64(&me->channels[i], 0);
}

static void
give_up(int code, Datum arg)
{
	Listening  *me = mine();

	stop_listening();
	if (deciding && me != NULL)
		pg_atomic_fetch_add_u32(&me->decision, 1);
	deciding = false;
}

static void
give_up_at_exit(void)
{
	static bool registered = false;

	if (!registered)
		before_shmem_exit(give_up, (Datum) 0);
	registered = true;
}

/* Waits for those that may have decided before they could know of this session. */
static void
await_decisions(void)
{
	for (int i = 0; i < nlistening; i++)
	{
		uint32		decision = pg_atomic_read_u32(&listening[i].decision);

		for (int waited = 0; decision % 2 == 1 && waited < PATIENCE_MS; waited++)
		{
			if (pg_atomic_read_u32(&listening[i].decision) != decision)
				break;
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 1, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
			CHECK_FOR_INTERRUPTS();
		}
	}
}

static void
start_listening(const char *channel)
{
	Listening  *me = mine();
	uint32		bit = channel_bit(channel);

	if (me == NULL)
		return;
	give_up_at_exit();
	unlistens = false;
	pg_atomic_write_u32(&me->datid, MyDatabaseId);
	/* a full barrier */
	pg_atomic_fetch_or_u64(&me->channels[bit / BITS_PER_WORD], UINT64CONST(1) << (bit % BITS_PER_WORD));
	await_decisions();
}

static void
notice_listening(PlannedStmt *pstmt, const char *query, bool read_only_tree,
				 ProcessUtilityContext context, ParamListInfo params,
				 QueryEnvironment *environment, DestReceiver *dest, QueryCompletion *completion)
{
	ProcessUtility_hook_type next = prev_process_utility_hook ? prev_process_utility_hook : standard_ProcessUtility;
	Node	   *command = pstmt->utilityStmt;
	bool		unlisten = (IsA(command, UnlistenStmt) && castNode(UnlistenStmt, command)->conditionname == NULL) ||
		(IsA(command, DiscardStmt) && castNode(DiscardStmt, command)->target == DISCARD_ALL);

	if (IsA(command, ListenStmt))
		start_listening(castNode(ListenStmt, command)->conditionname);
	next(pstmt, query, read_only_tree, context, params, environment, dest, completion);
	/* a savepoint may take it back */
	if (unlisten && GetCurrentTransactionNestLevel() == 1)
		unlistens = true;
}

/*
 * Notifying
 */

/* To what the sessions of this database listen; returns how many there are. */
static int
read_listeners(uint64 *channels)
{
	int			n = 0;

	memset(channels, 0, sizeof(uint64) * CHANNEL_WORDS);
	for (int i = 0; i < nlistening; i++)
	{
		if (pg_atomic_read_u32(&listening[i].datid) != MyDatabaseId)
			continue;
		for (int j = 0; j < CHANNEL_WORDS; j++)
			channels[j] |= pg_atomic_read_u64(&listening[i].channels[j]);
		n++;
	}
	return n;
}

static bool
is_listened_to(const uint64 *channels, const char *channel)
{
	uint32		bit = channel_bit(channel);

	return (channels[bit / BITS_PER_WORD] >> (bit % BITS_PER_WORD)) & 1;
}

static void
notify_listeners(void)
{
	Listening  *me = mine();
	uint64		channels[CHANNEL_WORDS];
	ListCell   *cell;

	if (me != NULL)
	{
		give_up_at_exit();
		deciding = true;
		pg_atomic_fetch_add_u32(&me->decision, 1);	/* a full barrier */
	}
	(void) read_listeners(channels);
	foreach(cell, notifications)
	{
		Notification *notification = lfirst(cell);

		if (me == NULL || is_listened_to(channels, notification->channel))
			Async_Notify(notification->channel, notification->payload);
	}
}

static void
end_transaction(XactEvent event, void *arg)
{
	Listening  *me = mine();

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (notifications != NIL)
				notify_listeners();
			return;
		case XACT_EVENT_COMMIT:
			if (unlistens)
				stop_listening();
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			break;
		default:
			return;
	}
	unlistens = false;
	notifications = NIL;
	if (deciding)
		pg_atomic_fetch_add_u32(&me->decision, 1);
	deciding = false;
}

/* What NOTIFY would refuse at the end of the transaction is refused here. */
static void
check_notification(const Notification *notification)
{
	if (notification->channel[0] == '\0' || strlen(notification->channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name of a channel must have between 1 and %d bytes", NAMEDATALEN - 1)));
	if (strlen(notification->payload) >= MAX_PAYLOAD)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("payload of a notification has more than %d bytes", MAX_PAYLOAD - 1)));
}

/*
 * wed_sql.notify_listeners(channels text[], payloads text[]) -> integer: how many
 * sessions that would wake, if it were committed now.
 */
Datum
wed_notify_listeners(PG_FUNCTION_ARGS)
{
	Datum	   *channels;
	Datum	   *payloads;
	int			nchannels;
	int			npayloads;
	uint64		listened[CHANNEL_WORDS];
	int			listeners = read_listeners(listened);
	bool		wakes = false;

	wed_refuse_nulls(fcinfo, "channels and payloads");
	channels = wed_elements(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, &nchannels);
	payloads = wed_elements(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, &npayloads);
	wed_check_lengths(nchannels, npayloads);
	for (int i = 0; i < nchannels; i++)
	{
		MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
		Notification *notification = palloc(sizeof(Notification));

		notification->channel = TextDatumGetCString(channels[i]);
		notification->payload = TextDatumGetCString(payloads[i]);
		check_notification(notification);
		wakes = wakes || is_listened_to(listened, notification->channel);
		/* what a savepoint may take back is NOTIFY's to remember */
		if (GetCurrentTransactionNestLevel() > 1)
			Async_Notify(notification->channel, notification->payload);
		else
			notifications = lappend(notifications, notification);
		MemoryContextSwitchTo(old);
	}
	PG_RETURN_INT32(wakes ? listeners : 0);
}

void
wed_listeners_install(void)
{
	prev_process_utility_hook = ProcessUtility_hook;
	ProcessUtility_hook = notice_listening;
	RegisterXactCallback(end_transaction, NULL);
}
