package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/worker"
)

// Exit statuses, for scripts.
const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitConnect  = 3
	exitNotFound = 4
	exitDiffers  = 5 // flow apply --dry-run --exit-code: the file and the flow differ
)

// failure is an error as a person should see it.
type failure struct {
	code    int
	message string
	hint    string
}

func (f *failure) Error() string { return f.message }

func usagef(format string, args ...any) error {
	return &failure{code: exitUsage, message: fmt.Sprintf(format, args...)}
}

func notFound(hint, format string, args ...any) error {
	return &failure{code: exitNotFound, message: fmt.Sprintf(format, args...), hint: hint}
}

const (
	hintConnect   = "set PGHOST, PGPORT, PGUSER and PGDATABASE, or give --dsn \"host=... dbname=...\""
	hintExtension = "run `create extension wed_sql` in this database as a superuser"
	hintFlow      = "`wedctl flow list` lists the flows of this database"
)

// Rights that a role must be granted.
const (
	rightsOfWorker  = "usage on the flow's schema, select on its job_pool and wed_trig, select and update on its wed_flow"
	rightsOfReader  = "usage on the flow's schema, select on its wed_trace and wed_trig"
	rightsOfPainter = "usage on the flow's schema, select on its wed_trace, wed_trig and wed_event"
	rightsOfOwner   = "execute on function wed_sql.create_flow(text) and wed_sql.drop_flow(text), create on the database"
	rightsOfStatus  = "membership in pg_monitor"
	rightsOfAuthor  = "the rights of the flow's owner; to make a flow, execute on function wed_sql.create_flow(text) and create and temporary on the database"
)

// explain turns any error into what to say, what to do, and how to exit.
func explain(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	f := &failure{code: exitFailure, message: oneLine(err)}
	switch {
	case errors.Is(err, worker.ErrNoExtension):
		f.code, f.hint = exitNotFound, hintExtension
	case errors.Is(err, worker.ErrNoFlow):
		f.code, f.hint = exitNotFound, hintFlow
	case errors.Is(err, worker.ErrNoTransition):
		f.code, f.hint = exitNotFound, "the transitions of a flow are in the column trname of its wed_trig"
	}
	if e, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return explainConnect(e)
	}
	if e, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		f.code, f.hint = exitUsage, hintConnect
		if strings.Contains(e.Error(), "service") {
			f.hint = "PGSERVICE names a section of ~/.pg_service.conf, or of the file that PGSERVICEFILE names"
		}
		return f
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.message = oneLine(err)
		if e.Detail != "" {
			f.message += ": " + e.Detail
		}
		f.hint = e.Hint
	}
	return f
}

// needs says which rights are missing when err is about rights.
func needs(err error, rights string) error {
	if sqlState(err) != "42501" {
		return err
	}
	f := explain(err)
	if f.hint == "" {
		f.hint = "it takes " + rights
	}
	return f
}

// sqlState returns the SQLSTATE that err carries, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// oneLine joins the lines of an error, for pgx's have several.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(distinct(lines), " ")
}
