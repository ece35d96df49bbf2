package worker

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// What is missing when a worker cannot start, or when its flow was dropped
// while it ran. Run's errors wrap them.
var (
	ErrNoExtension  = errors.New("the extension wed_sql is not installed in this database")
	ErrNoFlow       = errors.New("there is no such flow")
	ErrNoTransition = errors.New("no rule of the flow fires this transition")
	ErrNotGranted   = errors.New("the role may not perform this transition: see wed_sql.grant_worker")
)

// ErrFailed is wrapped by Run's error when Config.Once is set and some jobs
// were rolled back.
var ErrFailed = errors.New("some jobs were rolled back")

// errAborted is the cause of a handler's context that was ended by Abort.
var errAborted = errors.New("the worker was aborted")

// ErrLeaseLost is the cause of the context of a leased job's handler when the
// lease could not be kept: others may perform the job.
var ErrLeaseLost = errors.New("the job's lease is lost")

// errTimeout is the cause of a handler's context that ended in time.
var errTimeout = errors.New("the job's timeout has passed")

// errNothing is what a handler's nil state becomes.
var errNothing = errors.New("the handler returned no state")

// errSwallowed means that the server has rolled back what was to be committed.
var errSwallowed = errors.New("a statement has failed before the commit, and its error was ignored")

// SQLSTATEs that decide what happens to a job.
const (
	stateNotPending  = "WED03" // the job was completed by somebody else
	stateNotYetFinal = "WED07" // final while other jobs pend: when they are done it may pass
	stateFinal       = "WED08" // the instance has ended
	stateLeased      = "WED16" // somebody else has leased the job
	stateSuspended   = "WED17" // an operator has stopped the instance: the job comes back

	stateSerialization = "40001"
	stateDeadlock      = "40P01"
	stateLockTimeout   = "55P03"

	stateUndefinedTable  = "42P01"
	stateUndefinedSchema = "3F000"
)

// sqlState returns the SQLSTATE that err carries, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// judge says what becomes of a job whose transition could not be committed.
func judge(err error) outcome {
	switch sqlState(err) {
	case stateNotPending, stateFinal, stateLeased, stateSuspended:
		return gone
	case stateNotYetFinal, stateSerialization, stateDeadlock, stateLockTimeout:
		return soon
	}
	return failed
}
