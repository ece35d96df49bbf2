/*-------------------------------------------------------------------------
 *
 * wed_sql.c
 *		The module's entry: its settings, and what it hooks into.
 *
 *-------------------------------------------------------------------------
 */
#include "holder.h"

#include <limits.h>

#include "catalog/dependency.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_publication.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "compat.h"

PG_MODULE_MAGIC_EXT(.name = "wed_sql", .version = WED_SQL_VERSION);

bool		wed_enabled = true;
char	   *wed_conninfo = NULL;
int			wed_batch_size = 1000;
int			wed_condition_timeout = 1000;
int			wed_memory_limit = 64;
int			wed_engine_timeout = 60;
int			wed_discovery_interval = 60;
int			wed_max_databases = 1000;
int			wed_action_timeout = 5000;
int			wed_max_states = 100000;
char	   *wed_lckid = "";
int			wed_completes_tgid = 0;
int			wed_max_state_size = 16384;
int			wed_wal_warning = 1024;
char	   *wed_metrics_address = NULL;
char	   *wed_metrics_config_file = NULL;

void		_PG_init(void);

PG_FUNCTION_INFO_V1(wed_adopt_publication);

static void
define_settings(void)
{
	DefineCustomBoolVariable("wed_sql.enabled",
							 "Runs the engine that follows the WED-flows of all databases.",
							 "When off, states are still judged and recorded in the rows, and followed when it is on again.",
							 &wed_enabled, true,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("wed_sql.conninfo",
							   "Connection string of the engine's own connections.",
							   "Empty: the server's first Unix-domain socket, as the operating system user that runs the server. The database name is added by the engine.",
							   &wed_conninfo, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.batch_size",
							"Most states that the follower writes in one transaction.",
							NULL,
							&wed_batch_size, 1000, 1, 100000,
							PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.condition_timeout",
							"Longest time that the WED-conditions of a flow may take on one state.",
							"When they take longer, the instance becomes an exception. Zero turns the limit off.",
							&wed_condition_timeout, 1000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.max_state_size",
							"Largest size of a WED-state.",
							"A state that is larger is refused.",
							&wed_max_state_size, 16384, 1, 200 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.memory_limit",
							"Memory that the engine tries to stay below.",
							NULL,
							&wed_memory_limit, 64, 32, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.engine_timeout",
							"Time after which an engine that says nothing, and does not answer, is terminated.",
							"Another is started, which goes on where it was. Zero turns this off.",
							&wed_engine_timeout, 60, 0, 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.discovery_interval",
							"Time between two looks at the list of databases.",
							"CREATE EXTENSION and commands on databases are noticed at once; this is for what changes the catalogs by hand.",
							&wed_discovery_interval, 60, 1, 86400,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.wal_warning",
							"WAL that a follower's replication slot may keep back before the log warns of it.",
							"Zero turns the warning off.",
							&wed_wal_warning, 1024, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MB, NULL, NULL, NULL);

	DefineCustomStringVariable("wed_sql.metrics_address",
							   "Address at which the engine serves metrics for Prometheus, as host:port.",
							   "Without a host, this machine alone can reach it. Empty: nowhere.",
							   &wed_metrics_address, "",
							   PGC_SIGHUP, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("wed_sql.metrics_config_file",
							   "File that says how metrics are protected: TLS, passwords.",
							   "In the format of Prometheus's exporter-toolkit. Empty: they are not.",
							   &wed_metrics_config_file, "",
							   PGC_SIGHUP, GUC_SUPERUSER_ONLY, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.completes_tgid",
							"WED-trigger (tgid) whose job the next update of an instance completes.",
							"Needed only by a transaction that holds the locks of several pending jobs of one instance. Zero: not said.",
							&wed_completes_tgid, 0, 0, INT_MAX,
							PGC_USERSET, 0, NULL, NULL, NULL);

	DefineCustomStringVariable("wed_sql.lckid",
							   "Token of the lease under which the next update of an instance completes a job.",
							   "Set by wed_sql.complete(); empty: it completes a job whose lock the transaction holds.",
							   &wed_lckid, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.action_timeout",
							"Longest time that the action of a WED-trigger may take.",
							"When it takes longer, the attempt has failed. It holds for the triggers of a wed_flow during an intervention, too.",
							&wed_action_timeout, 5000, 10, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	DefineCustomIntVariable("wed_sql.max_states",
							"Number of states that an instance may go through without an intervention.",
							"Then it becomes an exception. wed_sql.alter_flow() sets it for one flow. Zero: no limit.",
							&wed_max_states, 100000, 0, INT_MAX,
							PGC_SUSET, 0, NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("wed_sql.max_databases",
								"Most databases whose state wed_sql.status can show and wed_sql.sync() can wait for.",
								NULL,
								&wed_max_databases, 1000, 1, 10000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);

	MarkGUCPrefixReserved("wed_sql");
}

/*
 * wed_sql.adopt_publication(name text) -> void: makes a publication a member
 * of the extension, which SQL has no command for. It is dropped with the
 * extension, and pg_dump leaves it to CREATE EXTENSION. pg_upgrade does not, and
 * for want of a command makes it one that is nobody's: so the engine calls this,
 * too, when it comes to a database.
 */
Datum
wed_adopt_publication(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	ObjectAddress publication;
	ObjectAddress extension;

	/* nobody else's: it would be dropped with the extension */
	if (strcmp(name, "wed_sql") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("publication \"%s\" does not belong to extension \"wed_sql\"", name)));
	ObjectAddressSet(publication, PublicationRelationId, get_publication_oid(name, false));
	if (creating_extension)
		recordDependencyOnCurrentExtension(&publication, false);
	else if (!OidIsValid(getExtensionOfObject(PublicationRelationId, publication.objectId)))
	{
		ObjectAddressSet(extension, ExtensionRelationId, get_extension_oid("wed_sql", false));
		recordDependencyOn(&publication, &extension, DEPENDENCY_EXTENSION);
	}
	PG_RETURN_VOID();
}

void
_PG_init(void)
{
	define_settings();
	wed_confine_install();

	/*
	 * Loaded into a single session, the guard works, but there is neither an
	 * engine nor shared memory; CREATE EXTENSION says so.
	 */
	if (!process_shared_preload_libraries_in_progress)
		return;

	wed_shared_install();
	wed_holders_install();
	wed_database_install();
	wed_listeners_install();

	/* pg_upgrade runs the server for itself alone */
	if (!IsBinaryUpgrade)
		wed_worker_register();
}
