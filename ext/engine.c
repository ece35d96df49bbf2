/*-------------------------------------------------------------------------
 *
 * engine.c
 *		The engine process: a child of the background worker that leaves
 *		PostgreSQL behind and then becomes a Go program.
 *
 * Go is loaded after the fork and lives in a process without shared memory,
 * so that whatever happens to it happens to nobody else. Its one tie to the
 * server is a socket: packets of a type byte and a body, described at their
 * handlers below and in the Go package internal/link.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "postmaster/postmaster.h"
#include "storage/dsm.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/pg_shmem.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/ps_status.h"
#include "utils/varlena.h"

#include "compat.h"

#define ENGINE_LIBRARY "wed_sql_engine.so"
#define ENGINE_ENTRY "wed_sql_engine_run"
#define EXIT_NOT_LOADED 3

typedef int (*EngineEntry) (int link, const char *config, int config_len);

/* The Go library lies beside this module, wherever that is. */
static void
engine_library_path(char *path, size_t size)
{
	Dl_info		self;

	if (dladdr((void *) engine_library_path, &self) == 0 || self.dli_fname == NULL)
		elog(ERROR, "could not find out where wed_sql was loaded from");
	strlcpy(path, self.dli_fname, size);
	get_parent_directory(path);
	join_path_components(path, path, ENGINE_LIBRARY);
}

/*
 * The first directory that the server has a socket in, or else the first
 * address that it listens to, or "" if that is any.
 */
static char *
own_host(void)
{
	char	   *directories = pstrdup(GetConfigOption("unix_socket_directories", false, false));
	char	   *addresses = pstrdup(GetConfigOption("listen_addresses", false, false));
	List	   *list;
	ListCell   *cell;

	if (SplitDirectoriesString(directories, ',', &list))
	{
		foreach(cell, list)
		{
			if (is_absolute_path((char *) lfirst(cell)))	/* not an abstract one */
				return lfirst(cell);
		}
	}
	if (SplitGUCList(addresses, ',', &list) && list != NIL &&
		strcmp(linitial(list), "*") != 0 && strcmp(linitial(list), "0.0.0.0") != 0 &&
		strcmp(linitial(list), "::") != 0)
		return linitial(list);
	return pstrdup("");
}

static void
append_json_string(StringInfo buf, const char *name, const char *value)
{
	appendStringInfo(buf, "\"%s\": ", name);
	escape_json(buf, value);
	appendStringInfoString(buf, ", ");
}

/*
 * Everything the engine must know, as JSON: it has neither an environment nor
 * any other way to learn it. In the caller's memory context.
 */
char *
wed_engine_config(void)
{
	StringInfoData buf;
	struct passwd *user = getpwuid(geteuid());

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '{');
	append_json_string(&buf, "host", own_host());
	append_json_string(&buf, "user", user ? user->pw_name : "");
	append_json_string(&buf, "conninfo", wed_conninfo);
	append_json_string(&buf, "metrics_address", wed_metrics_address);
	append_json_string(&buf, "metrics_config_file", wed_metrics_config_file);
	append_json_string(&buf, "version", WED_SQL_VERSION);
	appendStringInfo(&buf, "\"starts\": " INT64_FORMAT ", ", wed_shared_engine_starts());
	appendStringInfo(&buf, "\"port\": %d, \"enabled\": %s, \"batch_size\": %d, "
					 "\"memory_limit_mb\": %d, \"discovery_interval_s\": %d}",
					 PostPortNumber, wed_enabled ? "true" : "false", wed_batch_size,
					 wed_memory_limit, wed_discovery_interval);
	return buf.data;
}

/*
 * The child
 */

static void
close_inherited_files(int keep)
{
	DIR		   *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (dir == NULL)
	{
		for (int fd = 3; fd < 1024; fd++)
		{
			if (fd != keep)
				close(fd);
		}
		return;
	}
	while ((entry = readdir(dir)) != NULL)
	{
		int			fd = atoi(entry->d_name);

		if (fd > 2 && fd != keep && fd != dirfd(dir))
			close(fd);
	}
	closedir(dir);
}

static void
reset_signals(void)
{
	sigset_t	none;

	for (int sig = 1; sig < NSIG; sig++)
	{
		if (sig != SIGKILL && sig != SIGSTOP)
			signal(sig, SIG_DFL);
	}
	/* terminals and reloads are the worker's business */
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/*
 * From here on nothing of PostgreSQL may be called but what is plain C, and
 * nothing at all once Go runs. Errors go to stderr, which is the server's log.
 */
pg_noreturn static void
become_engine(int link, pid_t worker, const char *library, const char *config)
{
	void	   *handle;
	EngineEntry run;

	on_exit_reset();
	dsm_detach_all();
	PGSharedMemoryDetach();
	close_inherited_files(link);
	reset_signals();
#ifdef __linux__
	prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
	if (getppid() != worker)	/* it died before prctl; elsewhere, its end of the link closes */
		_exit(0);

	handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	run = handle ? (EngineEntry) dlsym(handle, ENGINE_ENTRY) : NULL;
	if (run == NULL)
	{
		fprintf(stderr, "wed_sql: could not load the engine: %s\n", dlerror());
		_exit(EXIT_NOT_LOADED);
	}
	_exit(run(link, config, strlen(config)));
}

/*
 * Starts an engine. Returns the worker's end of the link.
 */
int
wed_engine_start(pid_t *pid)
{
	char		library[MAXPGPATH];
	char	   *config = wed_engine_config();
	pid_t		worker = getpid();
	int			ends[2];
	pid_t		child;
	sigset_t	all;
	sigset_t	before;

	engine_library_path(library, sizeof(library));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) < 0)
		ereport(ERROR,
				(errcode_for_socket_access(),
				 errmsg("could not create the link to the engine: %m")));

	/* no handler of ours may run in the child */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	fflush(stdout);
	fflush(stderr);
	child = fork();
	if (child == 0)
	{
		set_ps_display("engine");
		become_engine(ends[1], worker, library, config);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);

	close(ends[1]);
	if (child < 0)
	{
		close(ends[0]);
		ereport(ERROR,
				(errmsg("could not fork the engine: %m")));
	}
	*pid = child;				/* never anything that is not a child of ours */
	if (!pg_set_noblock(ends[0]))
		elog(ERROR, "could not set the link to the engine non-blocking: %m");
	pfree(config);
	return ends[0];
}

/* Sends a message; false if the engine does not take it now, or ever. */
bool
wed_engine_send(int link, char type, const void *body, int len)
{
	char	   *packet = palloc(len + 1);
	bool		sent;

	packet[0] = type;
	if (len > 0)
		memcpy(packet + 1, body, len);
	sent = send(link, packet, len + 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
	if (!sent && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != EPIPE && errno != ECONNRESET)
		ereport(LOG,
				(errmsg("could not send a message to the engine: %m")));
	pfree(packet);
	return sent;
}

/*
 * What the engine says
 */

typedef struct Packet
{
	const char *next;
	int			rest;
} Packet;

static const char *
take(Packet *packet, int len)
{
	const char *bytes = packet->next;

	if (packet->rest < len)
		elog(ERROR, "message of the engine is too short");
	packet->next += len;
	packet->rest -= len;
	return bytes;
}

static uint32
take_uint32(Packet *packet)
{
	uint32		n;

	memcpy(&n, take(packet, sizeof(n)), sizeof(n));
	return pg_ntoh32(n);
}

static uint64
take_uint64(Packet *packet)
{
	uint64		n;

	memcpy(&n, take(packet, sizeof(n)), sizeof(n));
	return pg_ntoh64(n);
}

/* A string ends with NUL or with the packet (which the reader terminated). */
static const char *
take_string(Packet *packet)
{
	const char *string = packet->next;
	int			len = strnlen(string, packet->rest);

	packet->next += Min(len + 1, packet->rest);
	packet->rest -= Min(len + 1, packet->rest);
	return len > 0 ? string : "";
}

/* 'L' level message NUL detail NUL hint NUL */
static void
handle_log(Packet *packet)
{
	char		level = *take(packet, 1);
	const char *message = take_string(packet);
	const char *detail = take_string(packet);
	const char *hint = take_string(packet);
	int			elevel = level == 'D' ? DEBUG1 : level == 'I' ? LOG : WARNING;

	ereport(elevel,
			(errmsg_internal("%s", message),
			 detail[0] ? errdetail_internal("%s", detail) : 0,
			 hint[0] ? errhint("%s", hint) : 0));
}

/* 'A' datid lsn [commit_time]: all that was committed up to lsn is matched */
static void
handle_applied(Packet *packet)
{
	Oid			datid = take_uint32(packet);
	XLogRecPtr	lsn = take_uint64(packet);

	wed_shared_applied(datid, lsn, packet->rest >= 8 ? (int64) take_uint64(packet) : 0);
}

/* 'S' datid state flushed_lsn states_total datname NUL slot NUL error NUL warning NUL */
static void
handle_status(Packet *packet)
{
	WedDatabaseReport report;

	report.datid = take_uint32(packet);
	report.state = *take(packet, 1);
	report.flushed_lsn = take_uint64(packet);
	report.states_total = take_uint64(packet);
	report.datname = take_string(packet);
	(void) take_string(packet);	/* the slot's name follows from datid */
	report.error = take_string(packet);
	report.warning = take_string(packet);
	wed_shared_report(&report);
}

/* 'D' datid ticket: the database has been left */
static void
handle_left(Packet *packet)
{
	Oid			datid = take_uint32(packet);

	wed_request_answered(datid, take_uint32(packet));
}

/* packet[len] is a NUL. 'P', that the engine is there, needs no answer. */
void
wed_engine_handle(const char *bytes, int len)
{
	Packet		packet = {bytes, len};
	char		type = *take(&packet, 1);

	switch (type)
	{
		case 'L':
			handle_log(&packet);
			break;
		case 'A':
			handle_applied(&packet);
			break;
		case 'S':
			handle_status(&packet);
			break;
		case 'D':
			handle_left(&packet);
			break;
		case 'P':
			break;
		default:
			ereport(LOG,
					(errmsg("engine sent a message of unknown type %d", type)));
	}
}
