/*-------------------------------------------------------------------------
 *
 * restricted.c
 *		Other people's code: run as the flow's owner, in a security-restricted
 *		operation, with settings of its own, under a time limit.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "access/relation.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "compat.h"

#define MESSAGE_SIZE 1000

static TimeoutId time_limit_id = MAX_TIMEOUTS;
static volatile sig_atomic_t time_limit_struck = false;

/* how often the limit may strike one state */
static int	max_strikes = 0;
static volatile sig_atomic_t strikes = 0;
static char limited_flow[NAMEDATALEN];

/* table on which execute_as_owner() is running, if it is */
static Oid	in_own_ddl = InvalidOid;

PG_FUNCTION_INFO_V1(wed_execute_as_owner);
PG_FUNCTION_INFO_V1(wed_in_own_ddl);

/* What a condition means must not hang on the session that writes the state. */
static const char *const pinned_settings[][2] = {
	{"search_path", "pg_catalog, pg_temp"},
	{"standard_conforming_strings", "on"},
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
	{"transform_null_equals", "off"},
	{"array_nulls", "on"},
	{"row_security", "on"},
	{"xmloption", "content"},
	{"backslash_quote", "safe_encoding"},
	{"default_text_search_config", "pg_catalog.simple"},
	{"lock_timeout", "0"},
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},
	{"timezone_abbreviations", "Default"},
	{"gin_fuzzy_search_limit", "0"},
	{"plpgsql.extra_errors", "none"},
	{"plpgsql.extra_warnings", "none"},
};

static void
run_restricted(Oid owner, void (*body) (void *), void *arg)
{
	Oid			save_userid;
	int			save_sec_context;
	int			nest_level;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(owner, save_sec_context | SECURITY_RESTRICTED_OPERATION);
	nest_level = NewGUCNestLevel();
	for (int i = 0; i < lengthof(pinned_settings); i++)
	{
		/* most sessions have most of them, and asking is cheaper than setting */
		const char *value = GetConfigOption(pinned_settings[i][0], true, false);

		if (value != NULL && strcmp(value, pinned_settings[i][1]) != 0)
			(void) set_config_option(pinned_settings[i][0], pinned_settings[i][1],
									 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}

	wed_confined++;
	body(arg);
	wed_confined--;

	AtEOXact_GUC(false, nest_level);
	SetUserIdAndSecContext(save_userid, save_sec_context);
}

/*
 * Runs body as owner, restricted; its errors go up. (The abort of the
 * surrounding transaction restores user and settings.)
 */
void
wed_run_as_owner(Oid owner, void (*body) (void *), void *arg)
{
	int			confined = wed_confined;

	PG_TRY();
	{
		run_restricted(owner, body, arg);
	}
	PG_FINALLY();
	{
		wed_confined = confined;
	}
	PG_END_TRY();
}

static bool
is_callers_error(const ErrorData *edata)
{
	int			category = ERRCODE_TO_CATEGORY(edata->sqlerrcode);

	/* RAISE can give itself any SQLSTATE */
	if (edata->funcname != NULL && strcmp(edata->funcname, "exec_stmt_raise") == 0)
		return false;

	/* cancelled, terminated, to be serialized: not the condition's doing */
	return category == ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION) ||
		category == ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK);
}

/*
 * A function can catch the cancellation, and go on. It is cancelled again; but
 * what does not end then ends with the session, which its user could not
 * cancel either.
 */
static void
strike_time_limit(void)
{
	time_limit_struck = true;
	InterruptPending = true;
	if (++strikes < max_strikes)
		QueryCancelPending = true;
	else
		ProcDiePending = true;
	SetLatch(MyLatch);
}

static void
tell_of_runaway(int code, Datum arg)
{
	if (max_strikes > 0 && strikes >= max_strikes)
		ereport(LOG,
				(errmsg("the session was terminated because a condition or an action of WED-flow \"%s\" does not end",
						limited_flow),
				 errdetail("It was cancelled %d times, and went on.", max_strikes - 1)));
}

/* what ends has the time to do so, however short the limit */
#define LEAST_STRIKE_INTERVAL_MS 200

/* False if there is none, or one is running already (a condition that writes). */
static bool
begin_time_limit(const char *flow, int limit_ms, int most_strikes)
{
	if (time_limit_id == MAX_TIMEOUTS)
	{
		time_limit_id = RegisterTimeout(USER_TIMEOUT, strike_time_limit);
		before_shmem_exit(tell_of_runaway, (Datum) 0);
	}
	if (limit_ms == 0 || get_timeout_active(time_limit_id))
		return false;
	time_limit_struck = false;
	strikes = 0;
	max_strikes = most_strikes;
	strlcpy(limited_flow, flow, sizeof(limited_flow));
	enable_timeout_every(time_limit_id,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(), limit_ms),
						 Max(limit_ms, LEAST_STRIKE_INTERVAL_MS));
	return true;
}

static void
end_time_limit(void)
{
	disable_timeout(time_limit_id, false);

	/* it may have struck too late to be noticed */
	if (time_limit_struck)
	{
		time_limit_struck = false;
		QueryCancelPending = false;
	}
}

/* Messages of others go into the row and the WAL: not whole books. */
static char *
clip(const char *message)
{
	return wed_tellable(pnstrdup(message, pg_mbcliplen(message, strlen(message), MESSAGE_SIZE)));
}

/* Others wait for an action that does not end, though it is cancelled. */
#define ACTION_STRIKES 3

typedef struct TimeLimit
{
	const char *setting;
	int			ms;				/* 0: none */
	int			strikes;		/* then the session ends */
	bool		exceeded;		/* out */
} TimeLimit;

/*
 * Runs body as a role, restricted, under a time limit, in a subtransaction.
 * Returns NULL, or its error (palloc'd).
 */
static ErrorData *
try_restricted(const WedFlow *flow, Oid role, void (*body) (void *), void *arg, TimeLimit *limit)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner resources = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool limited = false;
	int			confined = wed_confined;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		limited = begin_time_limit(flow->name, limit->ms, limit->strikes);
		run_restricted(role, body, arg);
		if (limited)
			end_time_limit();
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = resources;
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		bool		timed_out = limited && time_limit_struck;

		wed_confined = confined;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (limited)
			end_time_limit();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = resources;

		if (timed_out && edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
		{
			limit->exceeded = true;
			edata->message = psprintf("took longer than %s (%d ms)", limit->setting, limit->ms);
		}
		else if (is_callers_error(edata))
			ReThrowError(edata);
		error = edata;
	}
	PG_END_TRY();
	return error;
}

static char *
describe_error(const ErrorData *error, const TimeLimit *limit)
{
	if (limit->exceeded)
		return error->message;
	return psprintf("%s (SQLSTATE %s)", clip(error->message), unpack_sql_state(error->sqlerrcode));
}

/*
 * For an intervention, under wed_sql.action_timeout: errors go up, as they are.
 */
void
wed_run_limited(const WedFlow *flow, void (*body) (void *), void *arg)
{
	TimeLimit	limit = {"wed_sql.action_timeout", wed_action_timeout, ACTION_STRIKES};
	ErrorData  *error = try_restricted(flow, flow->owner, body, arg, &limit);

	if (error == NULL)
		return;
	/* those that EXCEPTION WHEN OTHERS leaves out would end more than the intervention */
	if (limit.exceeded)
		error->sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
	else if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ASSERT_FAILURE)
		error->sqlerrcode = ERRCODE_EXTERNAL_ROUTINE_EXCEPTION;
	ThrowErrorData(error);
}

/* A condition, under wed_sql.condition_timeout: NULL, or the message of its error. */
char *
wed_try_as_owner(const WedFlow *flow, void (*body) (void *), void *arg)
{
	TimeLimit	limit = {"wed_sql.condition_timeout", wed_condition_timeout, 10};
	ErrorData  *error = try_restricted(flow, flow->owner, body, arg, &limit);

	return error ? describe_error(error, &limit) : NULL;
}

/* What a role has left to be done, under wed_sql.action_timeout: the same, and the SQLSTATE of the error. */
char *
wed_try_as_role(const WedFlow *flow, Oid role, void (*body) (void *), void *arg, int *sqlstate)
{
	TimeLimit	limit = {"wed_sql.action_timeout", wed_action_timeout, ACTION_STRIKES};
	ErrorData  *error = try_restricted(flow, role, body, arg, &limit);

	*sqlstate = error ? error->sqlerrcode : 0;
	return error ? describe_error(error, &limit) : NULL;
}

/*
 * An action of a WED-trigger with a time limit of its own: the same, and the
 * SQLSTATE of the error.
 */
char *
wed_try_action(const WedFlow *flow, void (*body) (void *), void *arg, int timeout_ms, int *sqlstate)
{
	bool		own = timeout_ms < wed_action_timeout;
	TimeLimit	limit = {
		own ? "the timeout of the WED-trigger" : "wed_sql.action_timeout",
		own ? timeout_ms : wed_action_timeout,
		ACTION_STRIKES
	};
	ErrorData  *error = try_restricted(flow, flow->owner, body, arg, &limit);

	*sqlstate = error ? error->sqlerrcode : 0;
	return error ? describe_error(error, &limit) : NULL;
}

/*
 * wed_sql.execute_as_owner(rel regclass, command text) -> void: one utility
 * command, as the table's owner and with no more rights than a REFRESH
 * MATERIALIZED VIEW would give his code.
 */
static void
execute_command(void *arg)
{
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute(arg, false, 0) < 0)
		elog(ERROR, "SPI_execute failed: %s", SPI_result_code_string(SPI_result));
	SPI_finish();
}

Datum
wed_execute_as_owner(PG_FUNCTION_ARGS)
{
	Relation	rel = relation_open(PG_GETARG_OID(0), AccessShareLock);
	Oid			owner = rel->rd_rel->relowner;
	Oid			before;

	relation_close(rel, AccessShareLock);	/* the command takes what it needs */
	before = in_own_ddl;
	in_own_ddl = PG_GETARG_OID(0);
	PG_TRY();
	{
		wed_run_as_owner(owner, execute_command, text_to_cstring(PG_GETARG_TEXT_PP(1)));
	}
	PG_FINALLY();
	{
		in_own_ddl = before;
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}

/* wed_sql.in_own_ddl(wed_flow regclass) -> boolean: for the event triggers of sql/protection.sql */
Datum
wed_in_own_ddl(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(in_own_ddl == PG_GETARG_OID(0));
}
