package doctor

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// serverChecks are about settings and what they bound.
func serverChecks() []check {
	return []check{
		{name: "preload", fine: "the module is loaded by the server", look: pure(preload)},
		{name: "wal_level", fine: "wal_level is logical", look: pure(walLevel)},
		{name: "extension", fine: "the extension is installed here, in the version of the module", look: extension},
		{name: "slots and walsenders", fine: "there are replication slots and walsenders to spare", needs: primary, look: slotsLeft},
		{name: "connections", fine: "there are connections to spare", look: connections},
		{name: "pending restart", fine: "no setting waits for a restart", look: pure(pendingRestart)},
		{name: "configuration file", fine: "the configuration files are read without errors", look: configurationFile},
		{name: "durability", fine: "what is committed survives a crash", look: pure(durability)},
		{name: "autovacuum", fine: "autovacuum runs", look: pure(autovacuum)},
		{name: "WAL bound", fine: "the WAL that slots keep is bounded and watched", needs: primary, look: pure(walBound)},
		{name: "timeouts", fine: "no timeout of the server ends workers", look: timeouts},
		{name: "session defaults", fine: "sessions begin as wed_sql needs them", look: pure(sessionDefaults)},
		{name: "synchronous standbys", fine: "no commit waits for the engine", look: pure(synchronousStandbys)},
		{name: "settings of wed_sql", fine: "the settings of wed_sql make sense", needs: (*patient).loaded, look: ownSettings},
		{name: "metrics", fine: "metrics are not open to everybody", needs: (*patient).loaded, look: pure(metrics)},
		{name: "standby", fine: "the server is a primary", look: pure(standby)},
	}
}

// pure makes a check of what needs nothing but the settings.
func pure(judge func(*patient) []Finding) func(context.Context, *patient) ([]Finding, error) {
	return func(_ context.Context, p *patient) ([]Finding, error) { return judge(p), nil }
}

func preload(p *patient) []Finding {
	if p.loaded() {
		return nil
	}
	libraries, known := p.settings["shared_preload_libraries"]
	f := Finding{
		Severity: Error, What: "the server has not loaded the module wed_sql",
		Why: "without it no flow can be written, and no engine runs",
	}
	list := "wed_sql"
	if known && libraries.Value != "" {
		list = libraries.Value + ", wed_sql"
	}
	f.Mend = fmt.Sprintf("shared_preload_libraries = '%s'  # in postgresql.conf; then restart the server", list)
	switch {
	case libraries.Pending:
		f.Mend = "restart the server: shared_preload_libraries was changed since it was started"
	case !known:
		f.Mend = "shared_preload_libraries = '..., wed_sql'  # in postgresql.conf, besides what is there; then restart the server"
	case strings.Contains(libraries.Value, "wed_sql"):
		f.Mend = "see the server's log: shared_preload_libraries names it"
	}
	return []Finding{f}
}

func walLevel(p *patient) []Finding {
	s := p.settings["wal_level"]
	if s.Value == "logical" {
		return nil
	}
	f := Finding{
		Severity: Error, What: fmt.Sprintf("wal_level is %q", s.Value),
		Why:  "the engine cannot read the WAL: states are written, but no transition fires",
		Mend: conf("wal_level", "'logical'"),
	}
	if s.Pending {
		f.Mend = "restart the server: wal_level was changed since it was started"
	}
	return []Finding{f}
}

func extension(ctx context.Context, p *patient) ([]Finding, error) {
	if p.extension == "" {
		available, err := one[bool](ctx, p, `select exists (select from pg_available_extensions where name = 'wed_sql')`)
		if err != nil {
			return nil, err
		}
		f := Finding{Severity: Error, What: fmt.Sprintf("the extension is not installed in database %q", p.database), Mend: "create extension wed_sql;  -- as a superuser"}
		if !available {
			f.Mend = "install the package or the files of wed_sql on the server's machine; then create extension wed_sql;"
		}
		return []Finding{f}, nil
	}
	if !p.loaded() {
		return nil, nil // another check's
	}
	var found []Finding
	module, err := one[string](ctx, p, `select wed_sql.module_version()`)
	if err != nil {
		return nil, err
	}
	files, err := one[string](ctx, p, `select coalesce((select default_version from pg_available_extensions where name = 'wed_sql'), '')`)
	if err != nil {
		return nil, err
	}
	if module != p.extension {
		found = append(found, Finding{
			Severity: Error,
			What:     fmt.Sprintf("the extension in database %q is of version %s, the module that the server has loaded of %s", p.database, p.extension, module),
			Why:      "they are made for each other; others may not work together",
			Mend:     "alter extension wed_sql update;  -- or restart the server, if the module is the older one",
		})
	}
	if files != "" && files != module {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("the files on disk are of version %s, the module that the server has loaded of %s", files, module),
			Why: "new sessions may fail to load what the server has not", Mend: "restart the server, then in each database: alter extension wed_sql update;",
		})
	}
	return found, nil
}

func slotsLeft(ctx context.Context, p *patient) ([]Finding, error) {
	type use struct {
		Slots, Senders    int
		HasSlot, HasPilot bool
	}
	list, err := rows[use](ctx, p, `
		select (select count(*) from pg_replication_slots)::integer as slots,
			(select count(*) from pg_stat_get_wal_senders())::integer as senders,
			exists (select from pg_replication_slots where slot_name = $1) as has_slot,
			exists (select from pg_replication_slots where slot_name = $1 and active) as has_pilot`, slotName(p))
	if err != nil {
		return nil, err
	}
	u := list[0]
	judge := func(setting, what string, used int, ours bool) []Finding {
		most, err := strconv.Atoi(p.settings[setting].Value)
		if err != nil || used < most {
			return nil
		}
		f := Finding{
			Severity: Note, What: fmt.Sprintf("all %d %s are in use", most, what),
			Why:  "the next database with flows will find none",
			Mend: conf(setting, strconv.Itoa(max(2*most, 10))),
		}
		if !ours && p.extension != "" {
			f.Severity, f.Why = Error, "this database has none: no transition fires"
		}
		return []Finding{f}
	}
	return append(judge("max_replication_slots", "replication slots", u.Slots, u.HasSlot),
		judge("max_wal_senders", "walsenders", u.Senders, u.HasPilot)...), nil
}

func slotName(p *patient) string { return fmt.Sprintf("wed_sql_%d", p.oid) }

// crowded is the share of connections beyond which there are few left.
const crowded = 0.9

func connections(ctx context.Context, p *patient) ([]Finding, error) {
	used, err := one[int](ctx, p, `select coalesce(sum(numbackends), 0)::integer from pg_stat_database where datid <> 0`)
	if err != nil {
		return nil, err
	}
	most := p.number("max_connections")
	free := most - p.number("superuser_reserved_connections") - p.number("reserved_connections")
	if float64(used) < crowded*float64(free) {
		return nil, nil
	}
	f := Finding{
		Severity: Warning, What: fmt.Sprintf("%d of %d connections are in use", used, free),
		Why:  "the engine does not take the last ones, and workers are refused",
		Mend: "fewer workers with a connection each: wedctl gateway, or -c; or " + conf("max_connections", strconv.Itoa(2*most)),
	}
	if used >= free {
		f.Severity = Error
	}
	return []Finding{f}, nil
}

// number returns a setting that is one, 0 if it is not there.
func (p *patient) number(name string) int {
	n, _ := strconv.Atoi(p.settings[name].Value)
	return n
}

func pendingRestart(p *patient) []Finding {
	var found []Finding
	for _, name := range []string{"wal_level", "max_replication_slots", "max_wal_senders", "max_connections", "max_worker_processes", "shared_preload_libraries", "wed_sql.max_databases"} {
		if p.settings[name].Pending {
			found = append(found, Finding{
				Severity: Warning, What: fmt.Sprintf("%s was changed, but the server still runs with %q", name, p.settings[name].Value),
				Mend: "restart the server",
			})
		}
	}
	return found
}

func configurationFile(ctx context.Context, p *patient) ([]Finding, error) {
	if !p.superuser {
		return nil, nil // who is no superuser has no use for it
	}
	type line struct {
		File, Name, Error string
		Line              int
	}
	lines, err := rows[line](ctx, p, `
		select coalesce(sourcefile, '') as file, coalesce(sourceline, 0) as line, coalesce(name, '') as name, error
		from pg_file_settings f where error is not null
		and not exists (select from pg_settings s where s.name = f.name and s.pending_restart) -- is no error of the file
		order by seqno limit 5`)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, l := range lines {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("%s, line %d: %s: %s", l.File, l.Line, l.Name, l.Error),
			Why: "with an error in a configuration file, changes in it do not take effect", Mend: "correct the line; select pg_reload_conf();",
		})
	}
	return found, nil
}

func durability(p *patient) []Finding {
	var found []Finding
	if p.is("fsync", "off") {
		found = append(found, Finding{
			Severity: Error, What: "fsync is off", Why: "a crash of the machine destroys the whole server's data, not only flows",
			Mend: reload("fsync", "on"),
		})
	}
	if p.is("full_page_writes", "off") {
		found = append(found, Finding{
			Severity: Warning, What: "full_page_writes is off", Why: "a crash of the machine may leave torn pages",
			Mend: reload("full_page_writes", "on"),
		})
	}
	if p.is("synchronous_commit", "off") {
		found = append(found, Finding{
			Severity: Note, What: "synchronous_commit is off",
			Why:  "a crash takes back the last states that workers were told are committed: their work outside is not taken back",
			Mend: reload("synchronous_commit", "on"),
		})
	}
	return found
}

func autovacuum(p *patient) []Finding {
	var found []Finding
	for _, name := range []string{"autovacuum", "track_counts"} {
		if p.is(name, "off") {
			found = append(found, Finding{
				Severity: Error, What: name + " is off",
				Why:  "job_pool and wed_sql.timer have a row for each job that ever was: looking for the next job takes ever longer",
				Mend: reload(name, "on"),
			})
		}
	}
	return found
}

func walBound(p *patient) []Finding {
	var found []Finding
	if p.is("max_slot_wal_keep_size", "-1") {
		found = append(found, Finding{
			Severity: Note, What: "max_slot_wal_keep_size is not set: slots may keep WAL until the disk is full",
			Why:  "while the engine is off or cannot connect, its slots keep all WAL; beyond the bound it heals from the tables",
			Mend: reload("max_slot_wal_keep_size", "'50GB'") + "  -- what the disk can spare",
		})
	}
	if p.is("wed_sql.wal_warning", "0") {
		found = append(found, Finding{
			Severity: Note, What: "wed_sql.wal_warning is 0", Why: "the log does not warn of WAL that a slot keeps back",
			Mend: reload("wed_sql.wal_warning", "'1GB'"),
		})
	}
	return found
}

func timeouts(ctx context.Context, p *patient) ([]Finding, error) {
	why := map[string]string{
		"statement_timeout":                   "statements of workers that wait for a lock are cancelled, and count as failed attempts",
		"idle_in_transaction_session_timeout": "a worker that holds a job while it works outside is ended, though its rule's timeout has not passed",
		"idle_session_timeout":                "workers that listen are ended while there is nothing to do, and connect anew each time",
		"transaction_timeout":                 "a worker is ended though its rule's timeout has not passed",
		"lock_timeout":                        "workers that meet at an instance fail instead of waiting for each other",
	}
	type set struct{ Name, Value, Scope, Mend string }
	list, err := rows[set](ctx, p, `
		select s.name, s.setting || s.unit as value, 'the configuration' as scope,
			'alter system reset ' || s.name || '; select pg_reload_conf();' as mend
		from pg_settings s
		where s.name = any ($1) and s.setting <> '0' and s.source in ('configuration file', 'command line', 'environment variable')
		union all
		select split_part(c, '=', 1), split_part(c, '=', 2),
			coalesce('role ' || quote_ident(r.rolname), '') || case when r.oid is not null and d.oid is not null then ' in ' else '' end
				|| coalesce('database ' || quote_ident(d.datname), ''),
			'alter ' || case when r.oid is not null then 'role ' || quote_ident(r.rolname) || coalesce(' in database ' || quote_ident(d.datname), '')
				else 'database ' || quote_ident(d.datname) end || ' reset ' || split_part(c, '=', 1) || ';'
		from pg_db_role_setting x
		left join pg_roles r on r.oid = x.setrole
		left join pg_database d on d.oid = x.setdatabase
		cross join unnest(x.setconfig) c
		where split_part(c, '=', 1) = any ($1) and split_part(c, '=', 2) not in ('0', '')
		and (d.oid is null or d.datname = current_database())
		order by 1, 3`, []string{"statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout", "lock_timeout"})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, s := range list {
		f := Finding{
			Severity: Warning, What: fmt.Sprintf("%s is %s, set for %s", s.Name, s.Value, s.Scope), Why: why[s.Name], Mend: s.Mend,
		}
		if strings.HasPrefix(s.Scope, "role ") || s.Name == "idle_session_timeout" || s.Name == "statement_timeout" || s.Name == "lock_timeout" {
			f.Severity = Note
		}
		found = append(found, f)
	}
	return found, nil
}

func sessionDefaults(p *patient) []Finding {
	var found []Finding
	if p.is("default_transaction_read_only", "on") {
		found = append(found, Finding{
			Severity: Error, What: "default_transaction_read_only is on", Why: "workers and the engine cannot write",
			Mend: reload("default_transaction_read_only", "off"),
		})
	}
	if s, ok := p.settings["session_replication_role"]; ok && s.Value != "origin" {
		found = append(found, Finding{
			Severity: Warning, What: fmt.Sprintf("session_replication_role is %q", s.Value),
			Why: "triggers and foreign keys of yours do not fire (those of wed_sql do)", Mend: reload("session_replication_role", "'origin'"),
		})
	}
	if p.is("event_triggers", "off") {
		found = append(found, Finding{
			Severity: Warning, What: "event_triggers is off", Why: "nothing keeps DDL from breaking the tables of a flow",
			Mend: reload("event_triggers", "on"),
		})
	}
	if p.is("track_activities", "off") {
		found = append(found, Finding{
			Severity: Error, What: "track_activities is off", Why: "it is not known since when transactions are open: no timeout of a rule is enforced",
			Mend: reload("track_activities", "on"),
		})
	}
	return found
}

func synchronousStandbys(p *patient) []Finding {
	names := p.settings["synchronous_standby_names"].Value
	if !strings.Contains(names, "*") {
		return nil
	}
	return []Finding{{
		Severity: Error, What: fmt.Sprintf("synchronous_standby_names is %q", names),
		Why:  "the engine's own connection would count as a standby: it does not stream then",
		Mend: "synchronous_standby_names = '...'  # in postgresql.conf: the standbys by their names; then select pg_reload_conf();",
	}}
}

func ownSettings(ctx context.Context, p *patient) ([]Finding, error) {
	var found []Finding
	if p.is("wed_sql.enabled", "off") {
		found = append(found, Finding{
			Severity: Error, What: "wed_sql.enabled is off", Why: "the engine does not run: states are written, but no transition fires",
			Mend: reload("wed_sql.enabled", "on"),
		})
	}
	if p.is("wed_sql.condition_timeout", "0") {
		found = append(found, Finding{
			Severity: Note, What: "wed_sql.condition_timeout is 0", Why: "a condition that runs for ever keeps its writer for ever",
			Mend: reload("wed_sql.condition_timeout", "'1s'"),
		})
	}
	if p.is("wed_sql.max_states", "0") {
		found = append(found, Finding{
			Severity: Note, What: "wed_sql.max_states is 0", Why: "instances that go in circles do so for ever",
			Mend: reload("wed_sql.max_states", "100000"),
		})
	}
	databases, err := one[int](ctx, p, `select count(*)::integer from pg_database where datallowconn and not datistemplate`)
	if err != nil {
		return nil, err
	}
	if most := p.number("wed_sql.max_databases"); databases > most {
		found = append(found, Finding{
			Severity: Note, What: fmt.Sprintf("wed_sql.max_databases is %d, and there are %d databases", most, databases),
			Why:  "if more than that have flows, wed_sql.status cannot show them all, nor wed_sql.sync() wait in them",
			Mend: conf("wed_sql.max_databases", strconv.Itoa(2*databases)),
		})
	}
	return found, nil
}

func metrics(p *patient) []Finding {
	address := p.settings["wed_sql.metrics_address"].Value
	host, _, err := net.SplitHostPort(address)
	if address == "" || err != nil || host == "" || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() || p.settings["wed_sql.metrics_config_file"].Value != "" {
		return nil
	}
	return []Finding{{
		Severity: Warning, What: fmt.Sprintf("metrics are served at %s to whoever reaches it", address),
		Why:  "names of databases, flows and transitions, and their numbers, are for everybody there",
		Mend: "wed_sql.metrics_config_file = '...'  # in postgresql.conf: TLS and passwords; or wed_sql.metrics_address without a host; then select pg_reload_conf();",
	}}
}

func standby(p *patient) []Finding {
	if !p.standby {
		return nil
	}
	found := []Finding{{
		Severity: Note, What: "the server is a standby", Why: "flows run on the primary: examine that one, too",
	}}
	if p.version >= 170000 && p.is("sync_replication_slots", "off") {
		found = append(found, Finding{
			Severity: Note, What: "sync_replication_slots is off",
			Why:  "after a promotion the engine makes a new slot and heals from the tables: the history may lack states",
			Mend: reload("sync_replication_slots", "on"),
		})
	}
	return found
}
