package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// engineChecks are about the engine: what it does, its slots, its role.
func engineChecks() []check {
	return []check{
		{name: "engine", fine: "the engine follows this database", needs: both(installed, primary), look: engine},
		{name: "slots", fine: "the engine's slots are sound", needs: primary, look: slots},
		{name: "engine's role", fine: "the engine has the rights that it needs", needs: both(installed, primary), look: engineRole},
		{name: "timers", fine: "what is due is done in time", needs: both(installed, primary), look: timers},
		{name: "warnings", fine: "wed_sql.warnings() has nothing to say", needs: both(installed, primary), look: warnings},
	}
}

// longLag is how far behind the engine may be.
const longLag = 10.0 // seconds

func engine(ctx context.Context, p *patient) ([]Finding, error) {
	type status struct {
		Database, State, LastError, Warning string
		Seconds                             float64
		Lag                                 *float64
	}
	list, err := rows[status](ctx, p, `
		select datname::text as database, state, coalesce(last_error, '') as last_error, coalesce(warning, '') as warning,
			coalesce(extract(epoch from clock_timestamp() - since), 0)::float8 as seconds, lag_seconds as lag
		from wed_sql.status order by datname`)
	if err != nil {
		return nil, err
	}
	behind, err := fallenBehind(ctx, p)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if !slices.ContainsFunc(list, func(s status) bool { return s.Database == p.database }) {
		found = append(found, Finding{
			Severity: Error, What: fmt.Sprintf("the engine does not serve database %q", p.database), Why: "no transition fires",
			Mend: "select wed_sql.discover();  -- as a superuser; then see the server's log",
		})
	}
	for _, s := range list {
		f := Finding{Severity: Error, What: fmt.Sprintf("the engine is %s in database %q", s.State, s.Database), Why: "no transition fires there"}
		switch s.State {
		case "streaming":
			if behind[s.Database] {
				f.Severity = Warning
				f.What = fmt.Sprintf("the engine is %s behind in database %q", duration(*s.Lag), s.Database)
				f.Why = "transitions fire that much too late"
				f.Mend = "select pid, pg_blocking_pids(pid), query from pg_stat_activity where application_name = 'wed_sql engine';  -- does somebody block it?"
				found = append(found, f)
			}
			if s.Warning != "" && s.Database != p.database {
				found = append(found, Finding{
					Severity: Warning, What: fmt.Sprintf("in database %q: %s", s.Database, s.Warning), Mend: "wedctl doctor there says more",
				})
			}
			continue
		case "starting", "healing":
			if s.Seconds < 60 {
				f.Severity = Note
			}
			f.Mend = "wait; healing waits for transactions that are older than the slot"
		case "off":
			f.Mend = reload("wed_sql.enabled", "on")
		case "backing off":
			f.Mend = "what the error says; it tries again by itself"
		case "left alone":
			f.Severity = Warning
			f.Mend = fmt.Sprintf("alter database %s allow_connections true is_template false;  -- or drop its slot", ident(s.Database))
		case "not running":
			f.Mend = fmt.Sprintf("see the server's log; max_worker_processes (%d) may be too low", p.number("max_worker_processes"))
		}
		if s.LastError != "" {
			f.What += ": " + s.LastError
		}
		if s.Database != p.database && f.Severity == Error {
			f.Severity = Warning
		}
		found = append(found, f)
	}
	return found, nil
}

// fallenBehind lists the databases in which the engine is behind. In one where
// nothing happens it seems to be, for a moment, whenever something happens in
// another: so it is looked at more than once.
func fallenBehind(ctx context.Context, p *patient) (map[string]bool, error) {
	const looks = 4
	times := make(map[string]int)
	for i := range looks {
		if i > 0 {
			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		type database struct{ Name string }
		list, err := rows[database](ctx, p, `
			select datname::text as name from wed_sql.status where state = 'streaming' and lag_seconds > $1`, longLag)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, nil
		}
		for _, d := range list {
			times[d.Name]++
		}
	}
	behind := make(map[string]bool)
	for name, n := range times {
		behind[name] = n == looks
	}
	return behind, nil
}

func slots(ctx context.Context, p *patient) ([]Finding, error) {
	type slot struct {
		Name, Database, Status string
		Active, Ours           bool
		Retained               int64
	}
	list, err := rows[slot](ctx, p, `
		select s.slot_name::text as name, coalesce(s.database::text, '') as database, coalesce(s.wal_status, '') as status,
			s.active, s.slot_name like 'wed\_sql\_%' as ours,
			coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0), 0)::bigint as retained
		from pg_replication_slots s where not s.temporary order by s.slot_name`)
	if err != nil {
		return nil, err
	}
	most := int64(p.number("wed_sql.wal_warning")) << 20
	if most == 0 {
		most = 1 << 30
	}
	var found []Finding
	here := false
	for _, s := range list {
		here = here || s.Name == slotName(p)
		why := "the server keeps that WAL until it is read, in pg_wal, on the disk"
		switch {
		case s.Ours && s.Status == "lost":
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("slot %s of database %q is lost: it was to keep more than max_slot_wal_keep_size", s.Name, s.Database),
				Why:  "the engine makes a new one and heals from the tables; the history may lack states",
				Mend: reload("max_slot_wal_keep_size", "'50GB'") + "  -- more than now, if the disk can spare it",
			})
		case s.Ours && s.Status == "unreserved":
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("slot %s of database %q is about to be lost", s.Name, s.Database), Why: "it keeps more WAL than max_slot_wal_keep_size",
				Mend: reload("max_slot_wal_keep_size", "'50GB'") + "  -- more than now, if the disk can spare it",
			})
		case s.Retained > most && s.Ours:
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("slot %s of database %q keeps %s of WAL", s.Name, s.Database, size(s.Retained)), Why: why,
				Mend: "let the engine go on (wedctl status there), and end transactions that have been open for long",
			})
		case s.Retained > most && !s.Active:
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("slot %s, which is not wed_sql's, is not in use and keeps %s of WAL", s.Name, size(s.Retained)), Why: why,
				Mend: fmt.Sprintf("select pg_drop_replication_slot(%s);  -- if nobody needs it", text(s.Name)),
			})
		}
		if s.Ours && !p.loaded() {
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("slot %s is there, but the module is not loaded", s.Name), Why: why,
				Mend: fmt.Sprintf("select pg_drop_replication_slot(%s);  -- if wed_sql is not to come back", text(s.Name)),
			})
		}
	}
	if installed(p) && !here {
		found = append(found, Finding{
			Severity: Error, What: fmt.Sprintf("there is no slot %s, which is that of database %q", slotName(p), p.database),
			Why: "the engine makes it when it comes to this database; no transition fires before", Mend: "see the finding on the engine, or its last_error in wed_sql.status",
		})
	}
	return found, nil
}

func engineRole(ctx context.Context, p *patient) ([]Finding, error) {
	type role struct {
		Name                        string
		Super, Login, Repl, Granted bool
	}
	// Who it is, its sessions tell; when it cannot connect, its settings do.
	list, err := rows[role](ctx, p, `
		select r.rolname::text as name, r.rolsuper as super, r.rolcanlogin as login, r.rolreplication as repl,
			exists (select from pg_proc f join pg_namespace n on n.oid = f.pronamespace, aclexplode(f.proacl) a
				where n.nspname = 'wed_sql' and f.proname = 'add_counts' and a.grantee = r.oid) as granted
		from pg_roles r where r.rolname in (
			select a.usename from pg_stat_activity a where a.application_name = 'wed_sql engine'
			union
			select (regexp_match(s.setting, '(?:^|\s)user\s*=\s*''?([^\s'']+)'))[1] from pg_settings s where s.name = 'wed_sql.conninfo')`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range list {
		if r.Super {
			continue
		}
		name := ident(r.Name)
		if !r.Login || !r.Repl {
			found = append(found, Finding{
				Severity: Error, What: fmt.Sprintf("role %q, as which the engine connects, lacks LOGIN or REPLICATION", r.Name),
				Why: "it cannot read the WAL", Mend: "alter role " + name + " login replication;",
			})
		}
		if !r.Granted {
			found = append(found, Finding{
				Severity: Error, What: fmt.Sprintf("role %q, as which the engine connects, has no rights in database %q", r.Name, p.database),
				Why: "it cannot write job_pool and wed_trace", Mend: "select wed_sql.grant_engine(" + text(r.Name) + ");",
			})
		}
	}
	return found, nil
}

// lateTimers is how late a timer may be.
const lateTimers = 30 * time.Second

func timers(ctx context.Context, p *patient) ([]Finding, error) {
	type due struct {
		Due  int64
		Late float64
	}
	list, err := rows[due](ctx, p, `select coalesce(due, 0) as due, coalesce(late, 0) as late from wed_sql.timer_statistics(10000)`)
	if err != nil {
		return nil, err
	}
	if d := list[0]; d.Late > lateTimers.Seconds() {
		return []Finding{{
			Severity: Warning, What: fmt.Sprintf("%d timers are due, the oldest for %s", d.Due, duration(d.Late)),
			Why:  "delays, retries, actions and ends of leases come that much too late",
			Mend: "select kind, count(*), min(due_at) from wed_sql.timer where due_at < now() group by kind;  -- then the server's log",
		}}, nil
	}
	return nil, nil
}

func warnings(ctx context.Context, p *patient) ([]Finding, error) {
	type warning struct{ Text string }
	list, err := rows[warning](ctx, p, `select w as text from wed_sql.warnings() w`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, w := range list {
		if strings.HasPrefix(w.Text, "track_activities") {
			continue // another check's
		}
		found = append(found, Finding{Severity: Warning, What: w.Text, Mend: mendOf(w.Text)})
	}
	return found, nil
}

// mendOf says what helps against a warning of the extension, as far as that says
// no more than itself.
func mendOf(warning string) string {
	switch {
	case strings.Contains(warning, "pg_terminate_backend"):
		i := strings.LastIndex(warning, "pg_terminate_backend")
		return "select " + strings.TrimSuffix(warning[i:], ")") + ";"
	case strings.Contains(warning, "is not followed"):
		return "what it says; the engine tries again by itself"
	}
	return ""
}

// text writes an SQL literal.
func text(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
