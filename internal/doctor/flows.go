package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// flowChecks are about the flows of the database, and what waits there.
func flowChecks() []check {
	return []check{
		{name: "guards", fine: "what guards the flows is in force", needs: installed, look: guards},
		{name: "owners", fine: "no flow is owned by a superuser", needs: installed, look: owners},
		{name: "table bloat", fine: "the tables of jobs and timers are kept clean", needs: installed, look: bloat},
		{name: "exceptions", fine: "no instance is an exception", needs: both(installed, primary), look: exceptions},
		{name: "jobs", fine: "no job has been waiting for long", needs: both(installed, primary), look: waitingJobs},
		{name: "signals", fine: "no signal is kept in vain", needs: both(installed, primary), look: signals},
		{name: "history", fine: "the history is of a moderate size", needs: installed, look: history},
	}
}

// flowTables selects the tables of the flows, for anybody: f.flow, f.oid.
const flowTables = `
	flows as (
		select n.oid as schema, n.nspname::text as flow, c.oid as wed_flow, c.relowner as owner
		from pg_attribute a
		join pg_type y on y.oid = a.atttypid and y.typname = 'stamp' and y.typnamespace = 'wed_sql'::regnamespace
		join pg_class c on c.oid = a.attrelid and c.relname = 'wed_flow' and c.relkind = 'r'
		join pg_namespace n on n.oid = c.relnamespace
		where a.attname = '_stamp' and not a.attisdropped)`

func guards(ctx context.Context, p *patient) ([]Finding, error) {
	type guard struct{ Flow, Name, Mend string }
	list, err := rows[guard](ctx, p, `with `+flowTables+`
		select f.flow, t.tgname::text as name, format('alter table %s enable always trigger %I;', t.tgrelid::regclass, t.tgname) as mend
		from flows f
		join pg_class c on c.relnamespace = f.schema
		join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal and t.tgenabled <> 'A'
		join pg_proc r on r.oid = t.tgfoid and r.pronamespace = 'wed_sql'::regnamespace
		where c.relname in ('wed_flow', 'wed_attr', 'wed_trig')
		and (t.tgname like '%guard%' or c.relname <> 'wed_flow')
		union all
		select '', e.evtname::text, format('alter event trigger %I enable always;', e.evtname)
		from pg_event_trigger e join pg_proc r on r.oid = e.evtfoid and r.pronamespace = 'wed_sql'::regnamespace
		where e.evtenabled <> 'A'
		order by 1, 2`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, g := range list {
		f := Finding{Severity: Error, What: fmt.Sprintf("trigger %q of flow %q is not always enabled", g.Name, g.Flow), Mend: g.Mend,
			Why: "states may be written that nothing has judged: their transitions do not fire"}
		if g.Flow == "" {
			f.What, f.Why = fmt.Sprintf("event trigger %q is not always enabled", g.Name), "nothing keeps DDL from breaking the tables of a flow"
		}
		found = append(found, f)
	}
	return found, nil
}

func owners(ctx context.Context, p *patient) ([]Finding, error) {
	type owned struct{ Flow, Role string }
	list, err := rows[owned](ctx, p, `with `+flowTables+`
		select f.flow, r.rolname::text as role from flows f join pg_roles r on r.oid = f.owner where r.rolsuper order by f.flow`)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	names := make([]string, len(list))
	for i, o := range list {
		names[i] = ident(o.Flow)
	}
	return []Finding{{
		Severity: Note, What: fmt.Sprintf("owned by a superuser: %s", some(names)),
		Why:  "whoever may write their rules has conditions and actions run as a superuser",
		Mend: fmt.Sprintf("alter table %s owner to ...;  -- a role without rights that it does not need", ident(list[0].Flow, "wed_flow")),
	}}, nil
}

// some lists names, but no more than a line takes.
func some(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Dead rows that are worth a word: so many, and so many times those that live.
const (
	manyDead   = 20_000
	deadToLive = 5
)

func bloat(ctx context.Context, p *patient) ([]Finding, error) {
	type table struct {
		Name       string
		Dead, Live int64
		Off        bool
	}
	list, err := rows[table](ctx, p, `with `+flowTables+`
		select s.relid::regclass::text as name, s.n_dead_tup as dead, s.n_live_tup as live,
			coalesce('autovacuum_enabled=false' = any (c.reloptions) or 'autovacuum_enabled=off' = any (c.reloptions), false) as off
		from pg_stat_user_tables s join pg_class c on c.oid = s.relid
		where (s.relname in ('job_pool', 'wed_flow') and s.schemaname in (select flow from flows)
			or s.schemaname = 'wed_sql' and s.relname = 'timer')
		order by s.n_dead_tup desc`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, t := range list {
		if t.Off {
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("autovacuum is switched off for %s", t.Name), Why: "its dead rows are never removed",
				Mend: fmt.Sprintf("alter table %s reset (autovacuum_enabled);", t.Name),
			})
		}
		if t.Dead > manyDead && t.Dead > deadToLive*t.Live {
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("%s has %d dead rows, and %d that live", t.Name, t.Dead, t.Live),
				Why:  "who looks for a job reads past them; a transaction that is open for long keeps them from being removed",
				Mend: fmt.Sprintf("vacuum (verbose) %s;", t.Name),
			})
		}
	}
	return found, nil
}

// longWait is how long a job may wait before that is worth a word.
const longWait = 5 * time.Minute

// waiting are the jobs of a transition that nobody has.
type waiting struct {
	Flow, Transition string
	Waiting, Taken   int64
	Seconds          float64
	Workers          int
}

// readWaiting also counts sessions that may be workers, by what wed_sql's own call
// themselves, and by what others have said last.
func readWaiting(ctx context.Context, p *patient) ([]waiting, error) {
	return rows[waiting](ctx, p, `
		select s.flow::text, s.trname as transition, s.waiting, s.running + s.leased as taken,
			coalesce(extract(epoch from clock_timestamp() - s.oldest), 0)::float8 as seconds,
			(select count(*) from pg_stat_activity a where a.datname = current_database()
				and (a.application_name in ('wed_sql gateway', 'wed_sql worker', left('wed_sql worker ' || s.flow, 63),
						left('wed_sql worker ' || s.flow || '.' || s.trname, 63))
					or a.query ilike 'listen%' and position(s.trname in a.query) > 0))::integer as workers
		from wed_sql.transition_statistics(10000) s
		where s.waiting > 0 order by s.oldest`)
}

func exceptions(ctx context.Context, p *patient) ([]Finding, error) {
	list, err := readWaiting(ctx, p)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, w := range list {
		if w.Transition != "_EXCPT" {
			continue
		}
		f := Finding{
			Severity: Note, What: fmt.Sprintf("exceptions of flow %q: %d, the oldest for %s", w.Flow, w.Waiting, duration(w.Seconds)),
			Why:  "they wait for a worker of _EXCPT, or for an operator",
			Mend: fmt.Sprintf("wedctl instance list -f %s --status exception  -- then wedctl instance retry, repair, ...", ident(w.Flow)),
		}
		if w.Seconds > longWait.Seconds() {
			f.Severity = Warning
		}
		found = append(found, f)
	}
	return found, nil
}

// performedByEngine lists transitions that are performed by actions, as far as the
// role may know.
func performedByEngine(ctx context.Context, p *patient) []string {
	type transition struct{ Name string }
	list, err := rows[transition](ctx, p, `with `+flowTables+`
		select f.flow || '.' || r.trname as name
		from wed_sql.rule r join wed_sql.flow w on w.flow_id = r.flow_id join flows f on f.wed_flow = w.wed_flow
		where r.action is not null and r.valid_until = 9223372036854775807`)
	if err != nil {
		return nil
	}
	names := make([]string, len(list))
	for i, t := range list {
		names[i] = t.Name
	}
	return names
}

func waitingJobs(ctx context.Context, p *patient) ([]Finding, error) {
	return waitingJobsSince(ctx, p, longWait)
}

func waitingJobsSince(ctx context.Context, p *patient, patience time.Duration) ([]Finding, error) {
	list, err := readWaiting(ctx, p)
	if err != nil {
		return nil, err
	}
	actions := performedByEngine(ctx, p)
	var found []Finding
	for _, w := range list {
		if w.Transition == "_EXCPT" || w.Seconds <= patience.Seconds() {
			continue
		}
		f := Finding{
			Severity: Warning,
			What:     fmt.Sprintf("jobs of transition %q of flow %q that wait: %d, the oldest for %s", w.Transition, w.Flow, w.Waiting, duration(w.Seconds)),
			Why:      "its workers are too few, or their attempts fail",
			Mend:     fmt.Sprintf("wedctl job list -f %s -t %s  -- says how often they have failed, and why", ident(w.Flow), ident(w.Transition)),
		}
		switch {
		case slices.Contains(actions, w.Flow+"."+w.Transition):
			f.Why = "the engine performs it, by the action of its rule: others come first, or the action fails"
		case w.Workers == 0 && w.Taken == 0:
			f.Why = "nobody works at it, and no session looks like a worker of it"
			f.Mend = fmt.Sprintf("start one: wedctl worker run -f %s -t %s -- COMMAND", ident(w.Flow), ident(w.Transition))
		}
		found = append(found, f)
	}
	return found, nil
}

func signals(ctx context.Context, p *patient) ([]Finding, error) {
	allowed, err := one[bool](ctx, p, `select has_table_privilege('wed_sql.signal', 'select')`)
	if err != nil || !allowed {
		return nil, err // they are for superusers
	}
	type kept struct {
		N       int64
		Failed  int64
		Problem string
	}
	list, err := rows[kept](ctx, p, `
		select count(*) filter (where expires_at is null and sent_at < clock_timestamp() - interval '1 day') as n,
			count(last_error) as failed, coalesce(max(last_error), '') as problem from wed_sql.signal`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if k := list[0]; k.Failed > 0 {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("%d kept signals could not be delivered: %s", k.Failed, k.Problem), Why: "what they tell of has not reached its instance",
			Mend: "select * from wed_sql.signal where last_error is not null;",
		})
	}
	if k := list[0]; k.N > 0 {
		found = append(found, Finding{
			Severity: Note, What: fmt.Sprintf("%d signals have been kept for more than a day, and do not expire", k.N), Why: "each new job of their transition is compared with them",
			Mend: "select * from wed_sql.signal where expires_at is null order by sent_at;  -- delete what nobody will wait for",
		})
	}
	return found, nil
}

// longHistory is a number of lines of wed_trace.
const longHistory = 50_000_000

func history(ctx context.Context, p *patient) ([]Finding, error) {
	type table struct {
		Flow        string
		Lines, Size int64
	}
	list, err := rows[table](ctx, p, `with `+flowTables+`
		select f.flow, c.reltuples::bigint as lines, pg_total_relation_size(c.oid) as size
		from flows f join pg_class c on c.relnamespace = f.schema and c.relname = 'wed_trace'
		where c.reltuples > $1 order by c.reltuples desc`, float64(longHistory))
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, t := range list {
		found = append(found, Finding{
			Severity: Note, What: fmt.Sprintf("the history of flow %q has %d lines, %s", t.Flow, t.Lines, size(t.Size)),
			Why:  "it grows for ever unless it is purged",
			Mend: fmt.Sprintf("call wed_sql.purge(%s, older_than => '90 days');", text(t.Flow)),
		})
	}
	return found, nil
}
