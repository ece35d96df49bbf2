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

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"

#define PACKET_SIZE 8192
#define LOCK_FILE "postmaster.pid"	/* in the data directory, where we are */
#define RESTART_SECONDS 1
#define SHORT_LIFE_MS 100		/* of an engine that may never come up */
#define TICK_MS 2000			/* how often to look at what nobody tells us */
#define HURRY_MS 200			/* the same while a session waits for the engine */
#define ANSWER_TIMEOUT_MS 3000	/* an engine that takes longer is not one any more */
#define WAL_CHECK_SECONDS 60	/* or wed_sql.discovery_interval, if that is shorter */

typedef struct Engine
{
	pid_t		pid;			/* 0: not running */
	int			link;
	int64		started_ms;		/* by wed_monotonic_ms() */
	bool		died_young;
	int			silent_ticks;	/* since it has said anything */
	bool		asked;			/* whether it is there; it has not answered yet */
} Engine;

PGDLLEXPORT void wed_worker_main(Datum arg);

static Engine engine = {.link = -1};
static bool server_stops = false;
static int64 wal_checked_ms = 0;

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
	wed_shared_engine_starts_now();
	engine.link = wed_engine_start(&engine.pid);
	engine.started_ms = wed_monotonic_ms();
	engine.silent_ticks = 0;
	engine.asked = false;
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
	engine.died_young = wed_monotonic_ms() - engine.started_ms < SHORT_LIFE_MS;
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
			engine.silent_ticks = 0;
			engine.asked = false;
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

/*
 * Whether the postmaster has begun to shut the server down. A smart shutdown
 * waits for client sessions, among them the engine's, before it tells anybody
 * anything, but the lock file has it at once.
 */
static bool
server_is_stopping(void)
{
	char		file[BLCKSZ];
	char	   *line = file;
	ssize_t		len;
	int			fd = open(LOCK_FILE, O_RDONLY | PG_BINARY, 0);

	if (fd < 0)
		return false;
	len = read(fd, file, sizeof(file) - 1);
	close(fd);
	if (len <= 0)
		return false;
	file[len] = '\0';
	for (int i = 1; i < LOCK_FILE_LINE_PM_STATUS && line != NULL; i++)
	{
		line = strchr(line, '\n');
		if (line != NULL)
			line++;
	}
	return line != NULL && strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

/* The server must not wait for the sessions of the engine. */
static void
end_engine_with_server(void)
{
	if (server_stops || !server_is_stopping())
		return;
	server_stops = true;
	ereport(LOG,
			(errmsg("wed_sql engine ends, because the server shuts down")));
	if (engine.pid != 0)
	{
		kill_engine(0, (Datum) 0);
		close_engine();
	}
}

/*
 * An engine that hangs loses nothing by being ended: what it has not done yet
 * is in the WAL.
 */
static void
end_hanging_engine(void)
{
	ereport(LOG,
			(errmsg("wed_sql engine (PID %d) does not answer and is terminated", (int) engine.pid)));
	bury_engine();
}

/*
 * An engine at rest is silent, so it is asked whether it is there. Ticks are
 * counted, not time: while this process did not run, the engine did not either.
 */
static void
watch_engine(void)
{
	int			silent_ms;

	if (engine.pid == 0 || wed_engine_timeout == 0)
		return;
	silent_ms = ++engine.silent_ticks * TICK_MS;
	if (engine.asked && silent_ms > wed_engine_timeout * 1000)
		end_hanging_engine();
	else if (!engine.asked && silent_ms >= wed_engine_timeout * 1000 / 2)
	{
		/* if there is no room in the link, it owes answers already */
		(void) wed_engine_send(engine.link, 'P', NULL, 0);
		engine.asked = true;
	}
}

static void
check_wal(void)
{
	int64		now = wed_monotonic_ms();

	if (wal_checked_ms != 0 && now - wal_checked_ms < Min(wed_discovery_interval, WAL_CHECK_SECONDS) * 1000)
		return;
	wal_checked_ms = now;
	wed_warn_of_retained_wal();
}

/* How long until another engine may be started, in milliseconds. */
static long
engine_pause(void)
{
	if (!engine.died_young)
		return 0;
	return Max(engine.started_ms + RESTART_SECONDS * 1000 - wed_monotonic_ms(), 0);
}

static void
wait_for_something(void)
{
	int			events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
	long		timeout = TICK_MS;

	if (engine.pid != 0)
	{
		events |= WL_SOCKET_READABLE;
		if (wed_requests_unanswered())
			timeout = HURRY_MS;
	}
	else if (!server_stops)
		timeout = engine_pause();
	(void) WaitLatchOrSocket(MyLatch, events, engine.pid != 0 ? engine.link : PGINVALID_SOCKET,
							 timeout, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

void
wed_worker_main(Datum arg)
{
	MemoryContext context;
	int64		ticked_ms = 0;
	int64		now;

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
		if (engine.pid == 0 && engine_pause() == 0 && !server_stops)
			start_engine();

		wait_for_something();
		CHECK_FOR_INTERRUPTS();

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			reload_settings();
		}
		if (engine.pid != 0)
			wed_requests_pass_on(engine.link);
		read_link();

		now = wed_monotonic_ms();
		if (now - ticked_ms >= TICK_MS - HURRY_MS)
		{
			ticked_ms = now;
			end_engine_with_server();
			watch_engine();
			check_wal();
		}
		/* one that is waited for has less time */
		if (engine.pid != 0 && wed_requests_engine_hangs(ANSWER_TIMEOUT_MS))
			end_hanging_engine();
	}

	/* 1, not 0: an administrator who terminates the worker gets another one */
	proc_exit(1);
}
