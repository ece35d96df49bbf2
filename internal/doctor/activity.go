package doctor

import (
	"context"
	"fmt"
	"time"
)

// activityChecks are about sessions and what they hold.
func activityChecks() []check {
	return []check{
		{name: "transactions", fine: "no transaction has been open for long", look: longTransactions},
		{name: "prepared transactions", fine: "no prepared transaction is forgotten", look: preparedTransactions},
		{name: "notifications", fine: "the queue of notifications is short", look: notificationQueue},
	}
}

// Ages beyond which something is worth a word.
const (
	longTransaction = 10 * time.Minute
	longIdle        = 5 * time.Minute
	longPrepared    = 5 * time.Minute
)

func longTransactions(ctx context.Context, p *patient) ([]Finding, error) {
	return longTransactionsSince(ctx, p, longTransaction, longIdle)
}

func longTransactionsSince(ctx context.Context, p *patient, open, idle time.Duration) ([]Finding, error) {
	type session struct {
		PID                   int
		Role, Database, State string
		Application           string
		Seconds               float64
		Query                 string
	}
	sessions, err := rows[session](ctx, p, `
		select pid, coalesce(usename, '') as role, coalesce(datname, '') as database, coalesce(state, '') as state,
			coalesce(application_name, '') as application, extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
			left(regexp_replace(coalesce(query, ''), '\s+', ' ', 'g'), 60) as query
		from pg_stat_activity
		where xact_start is not null and pid <> pg_backend_pid() and coalesce(backend_type, '') not in ('walsender', 'autovacuum worker')
		and application_name <> 'wed_sql engine'
		and (xact_start < clock_timestamp() - $1::interval
			or state = 'idle in transaction' and state_change < clock_timestamp() - $2::interval)
		order by xact_start limit 10`, open, idle)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, s := range sessions {
		found = append(found, Finding{
			Severity: Warning,
			What: fmt.Sprintf("session %d of role %q in database %q (%s) has had a transaction open for %s, and is %s: %s",
				s.PID, s.Role, s.Database, s.Application, duration(s.Seconds), s.State, s.Query),
			Why:  "it keeps WAL for every slot, keeps dead rows of job_pool from being removed, and may hold jobs",
			Mend: fmt.Sprintf("select pg_terminate_backend(%d);", s.PID),
		})
	}
	if len(found) == 0 && !p.monitor {
		hidden, err := one[int](ctx, p, `select count(*)::integer from pg_stat_activity where state is null and datid is not null`)
		if err == nil && hidden > 0 {
			found = append(found, Finding{
				Severity: Note, What: fmt.Sprintf("the transactions of %d sessions of others could not be looked at", hidden),
				Mend: "grant pg_monitor to the role, or ask as a superuser",
			})
		}
	}
	return found, nil
}

func preparedTransactions(ctx context.Context, p *patient) ([]Finding, error) {
	type prepared struct {
		GID, Owner, Database string
		Seconds              float64
	}
	list, err := rows[prepared](ctx, p, `
		select gid, owner::text as owner, database::text as database, extract(epoch from clock_timestamp() - prepared)::float8 as seconds
		from pg_prepared_xacts where prepared < clock_timestamp() - $1::interval order by prepared limit 10`, longPrepared)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, x := range list {
		found = append(found, Finding{
			Severity: Warning,
			What:     fmt.Sprintf("transaction %q of role %q in database %q was prepared %s ago", x.GID, x.Owner, x.Database, duration(x.Seconds)),
			Why:      "it keeps WAL for every slot, and its locks, also those of jobs, until somebody ends it",
			Mend:     fmt.Sprintf("commit prepared %s;  -- or rollback prepared, in that database", text(x.GID)),
		})
	}
	return found, nil
}

func notificationQueue(ctx context.Context, p *patient) ([]Finding, error) {
	if p.standby {
		return nil, nil
	}
	usage, err := one[float64](ctx, p, `select pg_notification_queue_usage()`)
	if err != nil || usage < 0.1 {
		return nil, err
	}
	f := Finding{
		Severity: Warning, What: fmt.Sprintf("the queue of notifications is %.0f %% full", 100*usage),
		Why:  "when it is full, whoever notifies fails at commit; a session that listens and has a transaction open keeps it from being emptied",
		Mend: "select pid, usename, xact_start, query from pg_stat_activity where state like 'idle in transaction%' order by xact_start;  -- pg_terminate_backend() the oldest",
	}
	if usage > 0.5 {
		f.Severity = Error
	}
	return []Finding{f}, nil
}

// duration writes a number of seconds in the unit that fits.
func duration(seconds float64) string {
	switch {
	case seconds < 120:
		return fmt.Sprintf("%.0f seconds", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%.0f minutes", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.0f hours", seconds/3600)
	}
	return fmt.Sprintf("%.0f days", seconds/86400)
}
