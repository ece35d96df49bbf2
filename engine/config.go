package engine

import (
	"encoding/json"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config is what the worker knows from the server's settings. It arrives as JSON.
type Config struct {
	Host              string `json:"host"` // the directory of a socket, or an address; "": localhost
	Port              int    `json:"port"`
	Conninfo          string `json:"conninfo"` // goes before the two above and the user
	User              string `json:"user"`     // "": the operating system's
	BatchSize         int    `json:"batch_size"`
	MemoryLimitMB     int64  `json:"memory_limit_mb"`
	DiscoveryInterval int    `json:"discovery_interval_s"`
	Enabled           bool   `json:"enabled"`
	MetricsAddress    string `json:"metrics_address"`
	MetricsConfigFile string `json:"metrics_config_file"`
	Version           string `json:"version"` // of wed_sql
	Starts            int64  `json:"starts"`  // of engines, this one included
}

// parseConfig reads a configuration; what it does not say has the default of its setting.
func parseConfig(raw []byte) (Config, error) {
	c := Config{Port: 5432, BatchSize: 1000, MemoryLimitMB: 64, DiscoveryInterval: 60, Enabled: true}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	c.BatchSize = max(c.BatchSize, 1)
	c.DiscoveryInterval = max(c.DiscoveryInterval, 1)
	return c, nil
}

// sameServer tells whether both lead to the same server in the same way.
func (c Config) sameServer(d Config) bool {
	return c.Host == d.Host && c.Port == d.Port && c.Conninfo == d.Conninfo && c.User == d.User
}

func (c Config) discoveryInterval() time.Duration {
	return time.Duration(c.DiscoveryInterval) * time.Second
}

const connectTimeout = 10 * time.Second

// connConfig says how to connect to a database. It depends on the configuration
// alone: the process has no environment and may have no home.
func (c Config) connConfig(database string) (*pgx.ConnConfig, error) {
	dsn := c.Conninfo
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		name := c.User
		if name == "" {
			u, err := user.Current()
			if err != nil {
				return nil, fmt.Errorf("name of the operating system's user: %w", err)
			}
			name = u.Username
		}
		host := c.Host
		if host == "" {
			host = "localhost"
		}
		// Of a key that is there twice, the last one counts.
		dsn = "host=" + quote(host) + " port=" + strconv.Itoa(c.Port) + " user=" + quote(name) + " " + dsn
	}
	conn, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read wed_sql.conninfo: %w", err)
	}
	conn.Database = database
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	// Before the settings of a role or a database: nothing of theirs is looked up.
	conn.RuntimeParams = map[string]string{"application_name": "wed_sql engine", "search_path": "pg_catalog"}
	return conn, nil
}

// quote quotes a value of a connection string.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
