package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that have a status of their own.
const (
	stateNotPending  = "WED03"
	stateNotYetFinal = "WED07"
	stateFinal       = "WED08"
	stateTooLarge    = "WED09"
	stateLeased      = "WED16"
	stateSuspended   = "WED17"

	stateSerialization = "40001"
	stateDeadlock      = "40P01"
	stateLockTimeout   = "55P03"

	stateNoPrivilege     = "42501"
	stateUndefinedObject = "42704"
	stateUndefinedSchema = "3F000"
	stateUndefinedTable  = "42P01"
	stateReadOnly        = "25006"
)

// problem is an error as a client gets it (RFC 9457).
type problem struct {
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail,omitempty"`
	SQLState string `json:"sqlstate,omitempty"`
	Message  string `json:"message,omitempty"` // PostgreSQL's, with its detail above
	Hint     string `json:"hint,omitempty"`

	retryAfter int // seconds; 0: none
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Title, p.Detail) }

func badRequest(format string, args ...any) *problem {
	return &problem{Status: http.StatusBadRequest, Title: "The request is not valid", Detail: fmt.Sprintf(format, args...)}
}

// tryAgain is a problem that passes.
func tryAgain(title, detail string) *problem {
	return &problem{Status: http.StatusServiceUnavailable, Title: title, Detail: detail, retryAfter: 1 + rand.N(3)}
}

// problemOf says what an error means to a client.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	switch {
	case errors.Is(err, errOverloaded):
		return tryAgain("The gateway is overloaded", "Too many requests wait for the database.")
	case errors.Is(err, errDraining):
		return tryAgain("The gateway is ending", "Another one, or the next, goes on.")
	case errors.Is(err, errAway):
		return tryAgain("The database is away", "It cannot be reached at present.")
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &problem{Status: http.StatusRequestEntityTooLarge, Title: "The request is too large",
			Detail: fmt.Sprintf("It may have %d bytes.", tooLarge.Limit)}
	}
	if role, ok := errors.AsType[*roleError](err); ok {
		p := &problem{Status: http.StatusForbidden, Title: "The gateway may not act as the role of this token",
			Hint: "GRANT the token's role to the gateway's, or change it in the file of tokens."}
		p.say(role.err)
		return p
	}
	state := sqlState(err)
	if isDatabaseAway(err) {
		p := tryAgain("The database is away",
			"Whether it has done what was asked is not known, if it had begun. Ask again: 409 then means that it had, or that the lease has ended.")
		p.SQLState = state
		return p
	}
	p := &problem{}
	p.say(err)
	p.Status, p.Title = judge(state)
	switch p.Status {
	case http.StatusLocked, http.StatusServiceUnavailable:
		p.retryAfter = 1
	}
	return p
}

// say takes over what PostgreSQL says.
func (p *problem) say(err error) {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return
	}
	p.SQLState, p.Message, p.Detail = e.Code, e.Message, e.Detail
	if e.Hint != "" {
		p.Hint = e.Hint
	}
}

// judge returns the status and the title of what PostgreSQL has refused.
func judge(state string) (int, string) {
	switch state {
	case stateNotPending, stateFinal, stateLeased, stateSuspended:
		return http.StatusConflict, "The job is not yours, or not to be done, any more"
	case stateNotYetFinal, stateLockTimeout:
		return http.StatusLocked, "Another transaction is in the way: try again"
	case stateSerialization, stateDeadlock:
		return http.StatusServiceUnavailable, "Other transactions were in the way: try again"
	case stateNoPrivilege:
		return http.StatusForbidden, "The role may not do this"
	case stateUndefinedObject, stateUndefinedSchema, stateUndefinedTable:
		return http.StatusNotFound, "There is no such flow, transition or job"
	case stateTooLarge:
		return http.StatusUnprocessableEntity, "The new state is refused"
	}
	switch class(state) {
	case "22", "23", "42", "44", "P0", "WE", "21", "27":
		return http.StatusUnprocessableEntity, "The new state is refused"
	}
	return http.StatusInternalServerError, "The database has failed"
}

func class(state string) string {
	if len(state) < 2 {
		return ""
	}
	return state[:2]
}

// isDatabaseAway reports whether an error is of a database that cannot do anything
// now, and not of what it was asked.
func isDatabaseAway(err error) bool {
	state := sqlState(err)
	switch class(state) {
	case "":
		return !errors.Is(err, errOverloaded)
	case "08", "53", "57":
		return true
	}
	return state == stateReadOnly
}

// sqlState returns the SQLSTATE that err carries, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// isExpected reports whether an error is one that the log has heard of by other ways,
// once and not for each request.
func isExpected(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && p.retryAfter > 0 || errors.Is(err, errDraining) || errors.Is(err, errAway) || errors.Is(err, errOverloaded)
}

// refuse answers with a problem.
func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError && !isExpected(err) {
		g.log.LogAttrs(context.WithoutCancel(r.Context()), levelOf(p), "a request failed", attrs(r, p.Status, err)...)
	}
	h := w.Header()
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="wed_sql"`)
	}
	if errors.Is(err, errDraining) {
		h.Set("Connection", "close")
	}
	text, _ := json.Marshal(p) // of strings and a number
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(text, '\n'))
}

// clean is a text that PostgreSQL takes.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}
