package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// States of a job.
const (
	jobWaiting = "waiting" // for a worker
	jobRunning = "running" // a session holds its lock
	jobLeased  = "leased"
	jobDelayed = "delayed" // not to be tried before a time
)

var jobStates = []string{jobWaiting, jobRunning, jobLeased, jobDelayed}

// pendingJob is a pending transition, and who works at it.
type pendingJob struct {
	Flow        string     `json:"flow"`
	WID         int64      `json:"wid"`
	TGID        int32      `json:"tgid"`
	Transition  string     `json:"transition"`
	Version     int64      `json:"version"`
	State       string     `json:"state"`
	FiredAt     time.Time  `json:"fired_at"`
	Attempts    int        `json:"attempts"`
	LastError   *string    `json:"last_error"`
	AvailableAt *time.Time `json:"available_at"`
	LeasedBy    *string    `json:"leased_by"`
	LeasedUntil *time.Time `json:"leased_until"`
	PID         *int       `json:"pid"`
	Role        *string    `json:"role"`
	Application *string    `json:"application_name"`
	Since       *time.Time `json:"xact_start"`
	Entitled    *bool      `json:"entitled"`
}

// jobFilter says which jobs are wanted, the oldest first.
type jobFilter struct {
	wid        *int64
	transition string
	state      string
	olderThan  string // an interval, as SQL has it
	limit      int    // 0: all
}

// readJobs returns jobs of flows. Who holds their locks is only known to those who
// may ask.
func readJobs(ctx context.Context, conn *pgx.Conn, flows []string, filter jobFilter) (raw []json.RawMessage, jobs []pendingJob, holders bool, err error) {
	if len(flows) == 0 {
		return nil, nil, true, nil
	}
	if err := conn.QueryRow(ctx, `select has_table_privilege('wed_sql.job_lock', 'select')`).Scan(&holders); err != nil {
		return nil, nil, false, fmt.Errorf("read the jobs: %w", err)
	}
	locks := "wed_sql.job_lock"
	if !holders {
		locks = `(select null::name as flow, null::bigint as wid, null::integer as tgid, null::integer as pid, null::name as role,
			null::text as application_name, null::timestamptz as xact_start, null::boolean as entitled where false) nobody`
	}
	var args []any
	arg := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	conditions := []string{"true"}
	if filter.wid != nil {
		conditions = append(conditions, "j.wid = "+arg(*filter.wid))
	}
	if filter.transition != "" {
		conditions = append(conditions, "j.trname = "+arg(filter.transition))
	}
	if filter.olderThan != "" {
		conditions = append(conditions, "j.fired_at < clock_timestamp() - cast("+arg(filter.olderThan)+"::text as interval)")
	}
	limit, state := "", "true"
	if filter.state != "" {
		state = "q.state = " + arg(filter.state)
	}
	if filter.limit > 0 {
		limit = fmt.Sprintf("limit %d", filter.limit)
	}
	parts := make([]string, len(flows))
	for i, f := range flows {
		parts[i] = `(select q.* from (
			select ` + arg(f) + `::text as flow, j.wid, j.tgid, j.trname as transition, j.version,
				case when j.leased_until > clock_timestamp() then 'leased' when k.pid is not null then 'running'
					when j.available_at > clock_timestamp() then 'delayed' else 'waiting' end as state,
				j.fired_at, j.attempts, j.last_error, j.available_at, j.leased_by, j.leased_until,
				k.pid, k.role, k.application_name, k.xact_start, k.entitled
			from ` + pgx.Identifier{f, "job_pool"}.Sanitize() + ` j
			left join locks k on k.flow = ` + fmt.Sprintf("$%d", len(args)) + ` and k.wid = j.wid and k.tgid = j.tgid
			where ` + strings.Join(conditions, " and ") + `) q
			where ` + state + ` order by q.fired_at, q.wid, q.tgid ` + limit + `)`
	}
	raw, jobs, err = readRows[pendingJob](ctx, conn, "read the jobs", `
		with locks as materialized (select flow, wid, tgid, pid, role, application_name, xact_start, entitled from `+locks+`)
		select * from (`+strings.Join(parts, "\nunion all\n")+`) a order by a.fired_at, a.flow, a.wid, a.tgid `+limit, args...)
	return raw, jobs, holders, err
}

// holder says who has a job, or what it waits for.
func (j pendingJob) holder() string {
	var who []string
	if j.State == jobLeased {
		s := "a lease"
		if j.LeasedBy != nil {
			s = *j.LeasedBy
		}
		who = append(who, s+", ends "+in(*j.LeasedUntil))
	}
	if j.PID != nil {
		s := fmt.Sprintf("pid %d", *j.PID)
		if j.Role != nil {
			s = *j.Role + ", " + s
		}
		if j.Since != nil {
			s += ", since " + span(time.Since(*j.Since))
		}
		if j.Entitled != nil && !*j.Entitled {
			s += " (a stranger)"
		}
		who = append(who, s)
	}
	if j.State == jobDelayed {
		who = append(who, "next attempt "+in(*j.AvailableAt))
	}
	return orDash(strings.Join(who, "; "))
}

// failedAttempts says how often a job was tried, and why in vain.
func (j pendingJob) failedAttempts() string {
	switch {
	case j.LastError == nil && j.Attempts == 0:
		return "-"
	case j.LastError == nil:
		return fmt.Sprint(j.Attempts)
	}
	return fmt.Sprintf("%d: %s", j.Attempts, *j.LastError)
}

// jobState marks the state of a job by a colour.
func (con *console) jobState(state string) string {
	switch state {
	case jobRunning, jobLeased:
		return con.green(state)
	case jobDelayed:
		return con.yellow(state)
	}
	return state
}
