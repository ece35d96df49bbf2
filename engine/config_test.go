package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheConfigurationHasTheDefaultsOfItsSettings(t *testing.T) {
	t.Parallel()
	got, err := parseConfig([]byte(`{"host":"/run","port":5433,"batch_size":0,"new_setting":1}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Host: "/run", Port: 5433, BatchSize: 1, MemoryLimitMB: 64, DiscoveryInterval: 60, Enabled: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := parseConfig([]byte(`{`)); err == nil {
		t.Error("half an object was accepted")
	}
}

// The process has no environment and no home.
func TestConnectionsNeedNoEnvironment(t *testing.T) {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		t.Setenv(name, "")
	}
	for name, tt := range map[string]struct {
		config Config
		host   string
		port   uint16
		user   string
	}{
		"a socket":         {Config{Host: `/tmp/it's a \dir`, Port: 5433, User: `o'neil \x`}, `/tmp/it's a \dir`, 5433, `o'neil \x`},
		"conninfo first":   {Config{Host: "/tmp", Port: 5432, User: "postgres", Conninfo: "host=db port=6000 user=engine"}, "db", 6000, "engine"},
		"a part of it":     {Config{Host: "/tmp", Port: 5432, User: "postgres", Conninfo: "user=engine"}, "/tmp", 5432, "engine"},
		"a URL":            {Config{Host: "/tmp", Port: 5432, User: "postgres", Conninfo: "postgres://engine@db:6000/"}, "db", 6000, "engine"},
		"no socket at all": {Config{Port: 5432, User: "postgres"}, "localhost", 5432, "postgres"},
	} {
		c, err := tt.config.connConfig("my db")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Host != tt.host || c.Port != tt.port || c.User != tt.user || c.Database != "my db" {
			t.Errorf("%s: %s:%d, user %s, database %s", name, c.Host, c.Port, c.User, c.Database)
		}
	}
	if c, err := (Config{Host: "/tmp", Port: 5432}).connConfig("x"); err != nil || c.User == "" {
		t.Errorf("the operating system's user: %v, %v", c, err)
	}
}

func TestWhatDiffersInNumbersIsTheSameError(t *testing.T) {
	t.Parallel()
	a := variable.ReplaceAllString(`apply up to 0/A9502C8: replication slot "s" is active for PID 17`, "#")
	b := variable.ReplaceAllString(`apply up to 1/B0: replication slot "s" is active for PID 4711`, "#")
	if a != b {
		t.Errorf("%q, %q", a, b)
	}
}
