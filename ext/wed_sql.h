/*-------------------------------------------------------------------------
 *
 * wed_sql.h
 *		What the C files of wed_sql share with each other.
 *
 * Data goes one way: guard.c judges a new state in the writer's transaction
 * and stamps it into the row; the row travels through the WAL to the engine
 * process, which reports how far it has come; shared.c keeps that report for
 * those who wait for it or look at it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WED_SQL_H
#define WED_SQL_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "nodes/nodes.h"
#include "nodes/params.h"
#include "storage/itemptr.h"
#include "tcop/dest.h"
#include "utils/jsonb.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

/* Every refusal has an SQLSTATE of its own; docs/errors.md explains each. */
#define ERRCODE_WED_INITIAL_STATE_MATCHES_NOTHING	MAKE_SQLSTATE('W','E','D','0','1')
#define ERRCODE_WED_NO_JOB_LOCK						MAKE_SQLSTATE('W','E','D','0','2')
#define ERRCODE_WED_JOB_NOT_PENDING					MAKE_SQLSTATE('W','E','D','0','3')
#define ERRCODE_WED_AMBIGUOUS_JOB					MAKE_SQLSTATE('W','E','D','0','4')
#define ERRCODE_WED_PROTECTED_COLUMN				MAKE_SQLSTATE('W','E','D','0','5')
#define ERRCODE_WED_INSTANCE_NOT_REMOVABLE			MAKE_SQLSTATE('W','E','D','0','6')
#define ERRCODE_WED_FINAL_WITH_PENDING_JOBS			MAKE_SQLSTATE('W','E','D','0','7')
#define ERRCODE_WED_INSTANCE_IS_FINAL				MAKE_SQLSTATE('W','E','D','0','8')
#define ERRCODE_WED_STATE_TOO_LARGE					MAKE_SQLSTATE('W','E','D','0','9')
#define ERRCODE_WED_SYNC_TIMED_OUT					MAKE_SQLSTATE('W','E','D','1','4')
#define ERRCODE_WED_NOT_THE_LEASE					MAKE_SQLSTATE('W','E','D','1','6')
#define ERRCODE_WED_INSTANCE_IS_SUSPENDED			MAKE_SQLSTATE('W','E','D','1','7')
#define ERRCODE_WED_OPERATION_NOT_POSSIBLE			MAKE_SQLSTATE('W','E','D','1','8')
#define ERRCODE_WED_SIGNAL_UNMATCHED				MAKE_SQLSTATE('W','E','D','1','9')

#define WED_SCHEMA				"wed_sql"
#define WED_EXCEPTION_TRANSITION "_EXCPT"

/* The state's stamp, wed_sql.stamp: what the guard tells the follower. */
typedef struct WedStamp
{
	int64		version;		/* k of s_k */
	int64		rules;			/* version of the definition in force */
	int32		by;				/* rule whose transition wrote s_k, 0 if none */
	int			npending;
	int32	   *pending;		/* P_{k-1}, ascending */
	int			nkept;
	int64	   *since;			/* of those that pend on: states that fired them */
	int			nwithdrawn;
	int32	   *withdrawn;		/* of pending, ascending */
	int			nmatched;
	int32	   *matched;		/* M(s_k), ascending */
	bool		final;
	char	   *error;			/* of a condition that failed, or NULL */
	char	   *trw;			/* transition of by, as its job was called, or the operation */
	char		status;			/* WED_SUSPENDED, WED_CANCELLED, or 0 */
	int			nundo;
	int32	   *undo;			/* of a compensation: the current one, and those to come */
	int64		run;			/* states since the last intervention */
	TimestampTz fired_at;		/* when the job of by fired; 0 if none */
	TimestampTz began_at;		/* start of the writer's transaction */
	int			nclocks;
	int32	   *clocks;			/* of those that pend after s_k (once it is resumed, if it is
								 * suspended): whose delay has begun, and was not over when
								 * it was last looked at; ascending */
} WedStamp;

#define WED_SUSPENDED	'S'
#define WED_CANCELLED	'C'

/* Rules that pend after a state, ascending, and the states that fired them. */
typedef struct WedPending
{
	int			count;
	int32	   *tgids;
	int64	   *since;
	bool	   *clocks;			/* fired with a delay, which may be over by now */
} WedPending;

struct WedCondition;

typedef struct WedRule
{
	int32		tgid;
	char	   *trname;			/* NULL for the final condition */
	char	   *label;			/* how messages call it */
	bool		final;
	bool		delayed;		/* has a delay */
	bool		withdrawable;
	char	   *predicate;
	struct WedCondition *condition;
} WedRule;

/* A row of wed_sql.worker */
typedef struct WedWorker
{
	char	   *trname;
	Oid			role;
} WedWorker;

/* A flow's definition, as the guard needs it; cached per backend. */
typedef struct WedFlow
{
	Oid			relid;			/* its wed_flow */
	int32		flow_id;
	char	   *name;			/* its schema */
	Oid			owner;
	int64		rules_version;
	int32		excpt_tgid;
	int64		max_states;		/* -1: wed_sql.max_states */
	Oid			job_pool;
	Oid			job_pool_pkey;
	Oid			wed_event;
	int			nrules;			/* enabled ones only, by tgid */
	WedRule    *rules;
	int			nworkers;
	WedWorker  *workers;
	MemoryContext context;

	/* from here on only of a complete one: see wed_flow_get() */
	bool		complete;
	TimestampTz completed_at;	/* start of the transaction */
	AttrNumber	wid_attno;
	AttrNumber	stamp_attno;
	Oid			stamp_type;
	struct ExprContext *econtext;
} WedFlow;

/* What the conditions say of a state. */
typedef struct WedVerdict
{
	bool		final;
	int			nmatched;
	int32	   *matched;		/* ascending */
	char	   *error;			/* of the condition that failed, or NULL */
} WedVerdict;

/* wed_sql.c */
extern bool wed_enabled;
extern char *wed_conninfo;
extern int	wed_batch_size;
extern int	wed_condition_timeout;
extern int	wed_memory_limit;
extern int	wed_engine_timeout;
extern int	wed_discovery_interval;
extern int	wed_max_databases;
extern int	wed_completes_tgid;
extern char *wed_lckid;
extern int	wed_max_states;
extern int	wed_action_timeout;
extern int	wed_max_state_size;
extern int	wed_wal_warning;
extern char *wed_metrics_address;
extern char *wed_metrics_config_file;

/* catalog.c */
extern bool wed_read_flow(WedFlow *flow, Snapshot snapshot);
extern void wed_read_rules(WedFlow *flow, Snapshot snapshot);
extern void wed_read_workers(WedFlow *flow, Snapshot snapshot);
extern void wed_read_former_rule(int32 tgid, WedRule *rule);
extern Oid	wed_flow_of_trigger(int32 tgid);

/* version.c */
extern void wed_check_catalog(Relation catalog, int natts);

/* flow.c */
extern WedFlow *wed_flow_outline(Relation wed_flow);
extern WedFlow *wed_flow_named(const char *name, Relation *wed_flow);
extern WedFlow *wed_flow_get(Relation wed_flow);
extern WedFlow *wed_flow_reread(Relation wed_flow);
extern const char *wed_transition_name(const WedFlow *flow, int32 tgid);

/* condition.c */
extern void wed_check_expression(const char *predicate);
extern Node *wed_analyze_condition(Relation wed_flow, const char *predicate, bool *has_sublinks);
extern struct WedCondition *wed_condition_prepare(const WedFlow *flow, Relation wed_flow,
												  const char *predicate, const char *label);
extern bool wed_condition_is_broken(const struct WedCondition *condition);
extern void wed_judge(WedFlow *flow, TupleTableSlot *state, WedVerdict *verdict);

/* confine.c */
extern int	wed_confined;
extern void wed_confine_install(void);
extern void wed_refuse_if_confined(const char *what);

/* definer.c */
extern void wed_follow_owners(void);
extern void wed_refuse_if_restricted(Oid function);
extern void wed_run_as_definer(Oid function, void (*body) (void *), void *arg);

/* restricted.c */
extern void wed_run_as_owner(Oid owner, void (*body) (void *), void *arg);
extern char *wed_try_as_owner(const WedFlow *flow, void (*body) (void *), void *arg);
extern char *wed_try_as_role(const WedFlow *flow, Oid role, void (*body) (void *), void *arg, int *sqlstate);
extern void wed_run_limited(const WedFlow *flow, void (*body) (void *), void *arg);
extern char *wed_try_action(const WedFlow *flow, void (*body) (void *), void *arg, int timeout_ms, int *sqlstate);

/* stamp.c */
extern Oid	wed_stamp_type(void);
extern void wed_stamp_read(Datum value, WedStamp *stamp);
extern Datum wed_stamp_make(Oid stamp_type, const WedStamp *stamp);
extern bool wed_is_among(int32 tgid, const int32 *tgids, int count);
extern int64 wed_pending_since(const WedPending *pending, int32 tgid);
extern void wed_stamp_pending_after(const WedStamp *stamp, int32 excpt_tgid, WedPending *pending);

/* operation.c */
typedef enum WedOperationKind
{
	WED_OP_CANCEL,
	WED_OP_COMPENSATE,
	WED_OP_FAIL,
	WED_OP_REMATCH,
	WED_OP_REMOVE,
	WED_OP_REOPEN,
	WED_OP_REPAIR,
	WED_OP_RESUME,
	WED_OP_RETRY,
	WED_OP_REWIND,
	WED_OP_SKIP,
	WED_OP_SUSPEND
} WedOperationKind;

/* An operator's intervention: a state that is nobody's transition. */
typedef struct WedOperation
{
	WedOperationKind kind;
	const char *trw;			/* how the history calls it */
	Oid			wed_flow;
	int64		wid;
	int32		tgid;			/* job that it concerns, or 0 */
	int64		version;		/* of the state that fired this job; -1: whichever */
	bool		sets;			/* writes attributes */
	char	   *reason;
	int			ntgids;
	int32	   *tgids;			/* to be skipped, due again, or undone one by one */
} WedOperation;

extern const WedOperation *wed_operation_on(Oid wed_flow, int64 wid);
extern char *wed_update_statement(Relation wed_flow, const char *set_clause, const char *returning);
extern void wed_check_one_update(const char *statement, bool of_user);

/* job.c */
typedef bool (*WedJobTest) (const WedFlow *flow, int32 tgid, const char *trname, void *arg);
extern bool wed_any_job(const WedFlow *flow, int64 wid, WedJobTest test, void *arg);

/* A row of job_pool, as far as the module needs it. */
typedef struct WedJob
{
	int32		tgid;
	char	   *trname;
	ItemPointerData tid;
	TimestampTz fired_at;
	int64		version;		/* of the state that fired it */
	TimestampTz available_at;	/* DT_NOBEGIN: at any time */
	char	   *lckid;			/* of its lease, or NULL */
	TimestampTz leased_until;
} WedJob;

extern void wed_complete_locked_job(const WedFlow *flow, int64 wid, const WedPending *pending, WedStamp *stamp);
extern bool wed_find_job(const WedFlow *flow, int64 wid, int32 tgid, WedJob *job);
extern bool wed_take_job_lock_of(const WedFlow *flow, int64 wid, int32 tgid, const char *trname);
extern bool wed_has_fired(const WedFlow *flow, int64 wid, int32 tgid, int64 since);
extern bool wed_job_is_leased(const WedJob *job, TimestampTz now);
extern void wed_check_lease(const WedFlow *flow, int64 wid, const WedJob *job, const char *lckid);
extern void wed_append_transition(StringInfo buf, const char *trname, int32 tgid);
extern void wed_refuse_locked_jobs(const WedFlow *flow, int64 wid, const WedPending *pending);
extern void wed_refuse_job_not_pending(const WedFlow *flow, int64 wid, int32 tgid);

/* printed.c */
extern char *wed_tellable(const char *message);
extern int64 wed_state_size(const WedFlow *flow, TupleTableSlot *state, int64 limit);

/* rights.c */
extern bool wed_may_perform(const WedFlow *flow, Oid user, const char *trname);
extern bool wed_may_see_jobs(const WedFlow *flow, Oid user, const char *trname);
extern bool wed_is_filtered(Relation wed_flow, Oid user);
extern void wed_refuse_transition(const WedFlow *flow, const char *trname);
extern bool wed_may_perform_all(const WedFlow *flow, Oid user);
extern WedFlow *wed_flow_to_lock(int32 tgid, bool *pending_only);
extern bool wed_job_is_open(const WedFlow *flow, int64 wid, int32 tgid, bool pending_only);
extern void wed_note_written(const WedFlow *flow, int64 wid);

/* complete.c */
typedef struct WedStatement
{
	const char *text;
	int			nargs;
	Oid			types[2];
	Datum		args[2];
	bool		ours;			/* one of few; others are the caller's */
} WedStatement;

extern bool wed_complete_job(int32 tgid, const char *lckid, WedStatement *statement);
extern char *wed_set_clause_of(Relation wed_flow, Jsonb *state, const char *row, const char *object);
extern void wed_refuse_no_object(void);

/* plan.c */
extern void wed_set_parameter(ParamListInfo params, int number, Oid type, NullableDatum arg);
extern int	wed_execute_planned(const char *text, int nargs, const Oid *types, const Datum *args);
extern int	wed_execute_planned_into(const char *text, ParamListInfo params, DestReceiver *dest);

/* instance.c */
extern bool wed_read_stamp(Oid relid, int64 wid, WedStamp *stamp);

/* joblock.c */
extern bool wed_take_job_lock(int64 wid, int32 tgid);
extern void wed_give_back_job_lock(int64 wid, int32 tgid);
extern bool wed_job_lock_held(int64 wid, int32 tgid);
extern int	wed_locked_tgids(int64 wid, int32 *tgids, int most);
extern bool wed_is_lockable(int64 wid);

/* shared.c */
typedef enum WedDatabaseState
{
	WED_DB_UNUSED = 0,
	WED_DB_STARTING = 'w',
	WED_DB_HEALING = 'h',
	WED_DB_STREAMING = 's',
	WED_DB_BACKING_OFF = 'b',
	WED_DB_LEFT_ALONE = 'a',
	WED_DB_GONE = 'x'
} WedDatabaseState;

typedef struct WedDatabaseReport
{
	Oid			datid;
	WedDatabaseState state;
	XLogRecPtr	flushed_lsn;
	int64		states_total;
	const char *datname;
	const char *error;
	const char *warning;
} WedDatabaseReport;

extern void wed_shared_install(void);
extern void wed_shared_worker_started(void);
extern void wed_shared_engine_starts_now(void);
extern int64 wed_shared_engine_starts(void);
extern void wed_shared_engine_started(pid_t pid);
extern void wed_shared_engine_ended(void);
extern void wed_shared_applied(Oid datid, XLogRecPtr lsn, int64 commit_time);
extern void wed_shared_report(const WedDatabaseReport *report);
extern bool wed_shared_wait_applied(XLogRecPtr lsn, int64 timeout_ms, char **trouble);
extern void wed_shared_sync(int64 timeout_ms);

/* argument.c */
extern void wed_refuse_nulls(FunctionCallInfo fcinfo, const char *needed);
extern Datum *wed_elements(ArrayType *array, Oid type, int *count);
extern void wed_check_lengths(int a, int b);
extern Datum wed_bigint_array(Datum *values, int count);

/* clock.c */
extern int64 wed_monotonic_ms(void);

/* listener.c */
extern Size wed_listeners_size(void);
extern void wed_listeners_create(void);
extern void wed_listeners_install(void);

/* request.c */
extern void wed_request_look(Oid datid);
extern void wed_leave_database(Oid datid);
extern void wed_end_leave(Oid datid);
extern void wed_requests_pass_on(int link);
extern bool wed_requests_unanswered(void);
extern bool wed_requests_engine_hangs(int64 patience_ms);
extern void wed_request_answered(Oid datid, uint32 ticket);

/* slot.c */
typedef struct WedSlot
{
	Oid			datid;
	XLogRecPtr	restart_lsn;
} WedSlot;

extern int	wed_own_slots(WedSlot **slots);
extern bool wed_own_slot_exists(Oid datid, bool *active);
extern void wed_warn_of_retained_wal(void);

/* database.c */
extern void wed_database_install(void);

/* engine.c */
extern int	wed_engine_start(pid_t *pid);
extern bool wed_engine_send(int link, char type, const void *body, int len);
extern char *wed_engine_config(void);
extern void wed_engine_handle(const char *packet, int len);

/* worker.c */
extern void wed_worker_register(void);

#endif							/* WED_SQL_H */
