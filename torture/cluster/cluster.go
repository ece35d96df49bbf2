// Package cluster runs private PostgreSQL servers with wed_sql whose parts can be found, killed, stopped and replaced.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Config says what to start. The server runs as whoever starts it, which must not be root.
type Config struct {
	Dir      string   // is made, and must stay short: a socket's path has to fit into 107 bytes
	Bindir   string   // of an installation with wed_sql in it; "": that of the postgres in PATH
	Settings []string // lines for postgresql.conf, after those that are needed anyway
	Env      []string // for the server, besides PATH and the locale
}

// Cluster is one server at a time, reached by the same [Cluster.ConnString] also after a failover to its standby. The
// methods that start and stop it are done one after the other; all others may be called at any time.
type Cluster struct {
	config Config

	changing sync.Mutex // held while a server is started, stopped or replaced
	known    sync.Mutex // guards what follows
	primary  *server
	standby  *server // nil: none
	made     int     // servers
}

// Start makes a new cluster and returns when it takes connections.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if os.Geteuid() == 0 {
		return nil, errors.New("start a cluster: PostgreSQL refuses to run as root")
	}
	if config.Bindir == "" {
		postgres, err := exec.LookPath("postgres")
		if err != nil {
			return nil, fmt.Errorf("start a cluster: %w", err)
		}
		config.Bindir = filepath.Dir(postgres)
	}
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	config.Dir = dir
	c := &Cluster{config: config}
	if err := c.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Close())
	}
	return c, nil
}

func (c *Cluster) create(ctx context.Context) error {
	if err := os.MkdirAll(c.config.Dir, 0o700); err != nil {
		return err
	}
	s, err := c.newServer()
	if err != nil {
		return err
	}
	err = s.run(ctx, "initdb", "--pgdata="+s.data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")
	if err != nil {
		return err
	}
	if err := s.configure(append(necessary(), c.config.Settings...)...); err != nil {
		return err
	}
	if err := c.lead(s); err != nil {
		return err
	}
	return s.start(ctx)
}

// necessary is what a server with wed_sql, and with a standby, cannot do without.
func necessary() []string {
	return []string{
		"listen_addresses = ''",
		"shared_preload_libraries = 'wed_sql'",
		"wal_level = logical",
		"wed_sql.conninfo = 'user=postgres'",
		"log_line_prefix = '%m [%p] %b %q%u@%d %a '",
		// Whatever is killed, nothing stays outside of the directory.
		"dynamic_shared_memory_type = mmap",
	}
}

// newServer returns a server without data, with directories of its own.
func (c *Cluster) newServer() (*server, error) {
	c.known.Lock()
	c.made++
	dir := filepath.Join(c.config.Dir, fmt.Sprint(c.made))
	c.known.Unlock()
	s := &server{
		bindir: c.config.Bindir,
		data:   filepath.Join(dir, "data"),
		socket: filepath.Join(dir, "s"),
		log:    filepath.Join(dir, "log"),
		env:    append([]string{"PATH=" + c.config.Bindir + ":/usr/local/bin:/usr/bin:/bin", "LC_ALL=C.UTF-8"}, c.config.Env...),
	}
	if err := os.MkdirAll(s.socket, 0o700); err != nil {
		return nil, err
	}
	return s, nil
}

// current is a link to the directory with the socket of the server that is to be used.
func (c *Cluster) current() string { return filepath.Join(c.config.Dir, "current") }

// lead makes s the server that clients reach from now on.
func (c *Cluster) lead(s *server) error {
	next := c.current() + ".next"
	if err := os.Symlink(s.socket, next); err != nil {
		return err
	}
	if err := os.Rename(next, c.current()); err != nil {
		return err
	}
	c.known.Lock()
	defer c.known.Unlock()
	c.primary = s
	return nil
}

func (c *Cluster) now() *server {
	c.known.Lock()
	defer c.known.Unlock()
	return c.primary
}

// ConnString is how the superuser reaches a database, whichever server is the one to use.
func (c *Cluster) ConnString(database string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database)
	return fmt.Sprintf("host=%s port=5432 user=postgres dbname='%s'", c.current(), quoted)
}

// Dir is the directory of the whole cluster.
func (c *Cluster) Dir() string { return c.config.Dir }

// Bindir is where the server's programs are.
func (c *Cluster) Bindir() string { return c.config.Bindir }

// Data is the directory with the data of the server that is in use now.
func (c *Cluster) Data() string { return c.now().data }

// LogFile is the log of the server that is in use now.
func (c *Cluster) LogFile() string { return c.now().log }

// Configure adds lines to postgresql.conf; see [Cluster.Reload] and [Cluster.Restart].
func (c *Cluster) Configure(lines ...string) error { return c.now().configure(lines...) }

// Reload has the server read its settings again.
func (c *Cluster) Reload() error { return c.now().reload() }

// Stop stops the server; [Cluster.Resume] starts it again.
func (c *Cluster) Stop(ctx context.Context, mode Mode) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.now().stop(ctx, mode)
}

// Resume starts a server that was stopped.
func (c *Cluster) Resume(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.now().start(ctx)
}

// Restart stops the server and starts it again.
func (c *Cluster) Restart(ctx context.Context, mode Mode) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	s := c.now()
	if err := s.stop(ctx, mode); err != nil {
		return err
	}
	return s.start(ctx)
}

// Kill kills the postmaster by SIGKILL, waits until all that it has started have noticed, and starts it again.
func (c *Cluster) Kill(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	s := c.now()
	if err := s.kill(ctx); err != nil {
		return err
	}
	return s.start(ctx)
}

// Ready waits until the server takes connections, as after a crash that it recovers from by itself.
func (c *Cluster) Ready(ctx context.Context) error { return c.now().ready(ctx) }

// Close ends all servers and removes their data. No process and no shared memory is left.
func (c *Cluster) Close() error {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.known.Lock()
	servers := []*server{c.standby, c.primary}
	c.known.Unlock()
	var errs []error
	for _, s := range servers {
		if s != nil {
			errs = append(errs, s.end())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.config.Dir))...)
}
