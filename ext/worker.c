/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker: keeps an engine running, and passes on what it
 *		says. It connects to no database and never leaves its latch loop for
 *		long, so it holds up nobody's shutdown, DROP DATABASE or anything else.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define PACKET_SIZE 8192
#define RESTART_SECONDS 1
#define SHORT_LIFE_MS 100		/* of an engine that may never come up */

typedef struct Engine
{
	pid_t		pid;			/* 0: not running */
	int			link;
	TimestampTz started;
	bool		died_young;
} Engine;

PGDLLEXPORT void wed_worker_main(Datum arg);

static Engine engine = {.link = -1};

void
wed_worker_register(void)
{
	BackgroundWorker worker = {
		.bgw_name = "wed_sql",
		.bgw_type = "wed_sql",
		.bgw_flags = BGWORKER_SHMEM_ACCESS,
		.bgw_start_time = BgWorkerStart_RecoveryFinished,
		.bgw_restart_time = RESTART_SECONDS,
		.bgw_library_name = "wed_sql",
		.bgw_function_name = "wed_worker_main",
	};

	RegisterBackgroundWorker(&worker);
}

static void
kill_engine(int code, Datum arg)
{
	if (engine.pid <= 0)
		return;
	kill(engine.pid, SIGKILL);	/* it keeps nothing that the WAL has not */
	while (waitpid(engine.pid, NULL, 0) < 0 && errno == EINTR)
		;
	engine.pid = 0;
}

static void
start_engine(void)
{
	engine.link = wed_engine_start(&engine.pid);
	engine.started = GetCurrentTimestamp();
	wed_shared_engine_started(engine.pid);
	ereport(LOG,
			(errmsg("wed_sql engine started with PID %d", (int) engine.pid)));
}

static void
close_engine(void)
{
	close(engine.link);
	engine.link = -1;
	engine.pid = 0;
	engine.died_young = !TimestampDifferenceExceeds(engine.started, GetCurrentTimestamp(), SHORT_LIFE_MS);
	wed_shared_engine_ended();
}

/* Its end of the link is closed: it has ended, or is no use any more. */
static void
bury_engine(void)
{
	pid_t		pid = engine.pid;
	int			status = 0;

	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	close_engine();
	if (WIFSIGNALED(status))
		ereport(LOG,
				(errmsg("wed_sql engine (PID %d) was terminated by signal %d: %s",
						(int) pid, WTERMSIG(status), pg_strsignal(WTERMSIG(status)))));
	else
		ereport(LOG,
				(errmsg("wed_sql engine (PID %d) exited with exit code %d",
						(int) pid, WEXITSTATUS(status))));
}

static void
read_link(void)
{
	char		packet[PACKET_SIZE + 1];

	while (engine.pid != 0)
	{
		ssize_t		len = recv(engine.link, packet, PACKET_SIZE, MSG_DONTWAIT);

		if (len > 0)
		{
			packet[len] = '\0';
			wed_engine_handle(packet, len);
		}
		else if (len < 0 && errno == EINTR)
			continue;
		else if (len < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		else
			bury_engine();
	}
}

static void
reload_settings(void)
{
	char	   *config;

	ProcessConfigFile(PGC_SIGHUP);
	if (engine.pid == 0)
		return;
	config = wed_engine_config();
	wed_engine_send(engine.link, 'C', config, strlen(config));
	pfree(config);
}

static void
pass_on_requests(void)
{
	Oid			datid;

	if (wed_shared_take_discovery_request())
		wed_engine_send(engine.link, 'R', "", 0);
	while (OidIsValid(datid = wed_shared_take_leave_request()))
	{
		uint32		number = pg_hton32(datid);

		wed_engine_send(engine.link, 'D', (char *) &number, sizeof(number));
	}
}

/* How long until another engine may be started, in milliseconds. */
static long
engine_pause(void)
{
	if (!engine.died_young)
		return 0;
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
										   TimestampTzPlusMilliseconds(engine.started, RESTART_SECONDS * 1000));
}

static void
wait_for_something(void)
{
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;
	long		timeout = -1;

	if (engine.pid != 0)
		events |= WL_SOCKET_READABLE;
	else
	{
		events |= WL_TIMEOUT;
		timeout = engine_pause();
	}
	(void) WaitLatchOrSocket(MyLatch, events, engine.pid != 0 ? engine.link : PGINVALID_SOCKET,
							 timeout, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

void
wed_worker_main(Datum arg)
{
	MemoryContext context;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(kill_engine, (Datum) 0);
	wed_shared_worker_started();

	context = AllocSetContextCreate(TopMemoryContext, "wed_sql worker", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);

	while (!ShutdownRequestPending)
	{
		MemoryContextReset(context);
		if (engine.pid == 0 && engine_pause() == 0)
			start_engine();

		wait_for_something();
		CHECK_FOR_INTERRUPTS();

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			reload_settings();
		}
		if (engine.pid != 0)
			pass_on_requests();
		read_link();
	}

	/* 1, not 0: an administrator who terminates the worker gets another one */
	proc_exit(1);
}
