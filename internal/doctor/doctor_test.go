package doctor

import (
	"strings"
	"testing"
)

// sound are the settings of a server that has nothing wrong.
func sound() map[string]string {
	return map[string]string{
		"wed_sql.max_databases": "1000", "wed_sql.enabled": "on", "wed_sql.wal_warning": "1024", "wed_sql.metrics_address": "",
		"wed_sql.metrics_config_file": "", "shared_preload_libraries": "wed_sql", "wal_level": "logical", "fsync": "on",
		"full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on", "track_activities": "on",
		"max_slot_wal_keep_size": "1024", "default_transaction_read_only": "off", "session_replication_role": "origin",
		"event_triggers": "on", "synchronous_standby_names": "", "sync_replication_slots": "on",
	}
}

func patientWith(settings map[string]string) *patient {
	p := &patient{version: 170000, settings: make(map[string]setting)}
	for name, value := range settings {
		value, pending := strings.CutSuffix(value, " (pending)")
		p.settings[name] = setting{Name: name, Value: value, Pending: pending}
	}
	return p
}

func settingsFindings(p *patient) []Finding {
	var all []Finding
	for _, judge := range []func(*patient) []Finding{
		preload, walLevel, pendingRestart, durability, autovacuum, walBound, sessionDefaults, synchronousStandbys, metrics, standby,
	} {
		all = append(all, judge(p)...)
	}
	return all
}

func TestSoundSettingsGiveNoFinding(t *testing.T) {
	if found := settingsFindings(patientWith(sound())); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestEachUnsoundSettingIsFoundAndCanBeMended(t *testing.T) {
	for _, c := range []struct {
		name, value string
		severity    Severity
		mend        string
	}{
		{"wal_level", "replica", Error, "alter system set wal_level = 'logical';  -- and restart the server"},
		{"wal_level", "replica (pending)", Error, "restart the server"},
		{"fsync", "off", Error, "alter system set fsync = on; select pg_reload_conf();"},
		{"full_page_writes", "off", Warning, "set full_page_writes = on"},
		{"synchronous_commit", "off", Note, "set synchronous_commit = on"},
		{"autovacuum", "off", Error, "set autovacuum = on"},
		{"track_counts", "off", Error, "set track_counts = on"},
		{"track_activities", "off", Error, "set track_activities = on"},
		{"max_slot_wal_keep_size", "-1", Note, "max_slot_wal_keep_size"},
		{"wed_sql.wal_warning", "0", Note, "wed_sql.wal_warning"},
		{"default_transaction_read_only", "on", Error, "default_transaction_read_only = off"},
		{"session_replication_role", "replica", Warning, "session_replication_role"},
		{"event_triggers", "off", Warning, "event_triggers = on"},
		{"synchronous_standby_names", "FIRST 1 (*)", Error, "synchronous_standby_names"},
		{"wed_sql.metrics_address", "0.0.0.0:9187", Warning, "metrics_config_file"},
		{"wed_sql.metrics_address", "db.example:9187", Warning, "metrics_config_file"},
		{"max_connections", "100 (pending)", Warning, "restart the server"},
	} {
		settings := sound()
		settings[c.name] = c.value
		found := settingsFindings(patientWith(settings))
		if c.name == "wal_level" && len(found) == 2 {
			found = found[:1] // it waits for a restart, too
		}
		if len(found) != 1 || found[0].Severity != c.severity || !strings.Contains(found[0].Mend, c.mend) {
			t.Errorf("%s = %s: %+v", c.name, c.value, found)
		}
	}
	for _, address := range []string{":9187", "localhost:9187", "127.0.0.1:9187", "[::1]:9187"} {
		settings := sound()
		settings["wed_sql.metrics_address"] = address
		if found := settingsFindings(patientWith(settings)); len(found) > 0 {
			t.Errorf("metrics at %s: %+v", address, found)
		}
	}
	settings := sound()
	settings["wed_sql.metrics_address"], settings["wed_sql.metrics_config_file"] = "0.0.0.0:9187", "web.yml"
	if found := settingsFindings(patientWith(settings)); len(found) > 0 {
		t.Errorf("metrics with a password: %+v", found)
	}
}

func TestModuleThatIsNotLoadedIsAddedToThoseThatAre(t *testing.T) {
	for libraries, mend := range map[string]string{
		"":                             "shared_preload_libraries = 'wed_sql'  # in postgresql.conf; then restart the server",
		"pg_stat_statements":           "shared_preload_libraries = 'pg_stat_statements, wed_sql'  # in",
		"pg_stat_statements (pending)": "restart the server",
		"wed_sql":                      "log",
	} {
		settings := sound()
		delete(settings, "wed_sql.max_databases")
		settings["shared_preload_libraries"] = libraries
		found := preload(patientWith(settings))
		if len(found) != 1 || found[0].Severity != Error || !strings.Contains(found[0].Mend, mend) {
			t.Errorf("%q: %+v", libraries, found)
		}
	}
}

func TestStandbyIsToldToBeOne(t *testing.T) {
	p := patientWith(sound())
	p.standby = true
	p.settings["sync_replication_slots"] = setting{Value: "off"}
	if found := standby(p); len(found) != 2 || found[0].Severity != Note {
		t.Errorf("%+v", found)
	}
}

func TestSeveritiesAreOrdered(t *testing.T) {
	for i := 1; i < len(severities); i++ {
		if !severities[i].Worse(severities[i-1]) || severities[i-1].Worse(severities[i]) {
			t.Errorf("%s and %s", severities[i-1], severities[i])
		}
	}
}

func TestWordsOfPeople(t *testing.T) {
	for got, want := range map[string]string{
		size(12): "12 bytes", size(3 << 20): "3.0 MB", duration(61): "61 seconds", duration(600): "10 minutes", duration(1e6): "12 days",
		ident("travel", "wed_flow"): "travel.wed_flow", ident("My flow"): `"My flow"`, text(`it's`): `'it''s'`,
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
