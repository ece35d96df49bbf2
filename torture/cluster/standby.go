package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const standbyName = "standby"

// AddStandby gives the server a standby that streams from it, unless it has one, and returns when that takes connections.
func (c *Cluster) AddStandby(ctx context.Context) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if c.hasStandby() {
		return nil
	}
	s, err := c.newServer()
	if err != nil {
		return fmt.Errorf("make a standby: %w", err)
	}
	if err := s.follow(ctx, c.now()); err != nil {
		return errors.Join(fmt.Errorf("make a standby: %w", err), s.end(), os.RemoveAll(filepath.Dir(s.data)))
	}
	c.known.Lock()
	c.standby = s
	c.known.Unlock()
	return nil
}

func (c *Cluster) hasStandby() bool {
	c.known.Lock()
	defer c.known.Unlock()
	return c.standby != nil
}

// follow makes it a standby of another server, and starts it.
func (s *server) follow(ctx context.Context, primary *server) error {
	conninfo := primary.connString() + " application_name=" + standbyName
	if err := s.run(ctx, "pg_basebackup", "--pgdata="+s.data, "--dbname="+conninfo, "--write-recovery-conf", "--checkpoint=fast",
		"--no-sync", "--wal-method=stream"); err != nil {
		return err
	}
	if err := s.configure("synchronous_standby_names = ''", "hot_standby = on"); err != nil {
		return err
	}
	return s.start(ctx)
}

// Synchronous has commits wait for the standby, so that none is lost by [Cluster.Failover] with a kill; or no longer wait.
func (c *Cluster) Synchronous(ctx context.Context, wanted bool) error {
	primary := c.now()
	names := ""
	if wanted {
		names = standbyName
	}
	if err := errors.Join(primary.configure("synchronous_standby_names = '"+names+"'"), primary.reload()); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	for {
		state, err := query[string](ctx, primary,
			"select coalesce(max(sync_state), '') from pg_stat_replication where application_name = $1", standbyName)
		if err == nil && (state == "sync") == wanted {
			return nil
		}
		if wait(ctx) != nil {
			return errors.Join(fmt.Errorf("the standby is %q: %w", state, ctx.Err()), err)
		}
	}
}

// Failover ends the server and promotes its standby, which is the server from then on; there is no standby then. An orderly
// stop hands everything over; with kill the primary dies by SIGKILL.
func (c *Cluster) Failover(ctx context.Context, kill bool) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.known.Lock()
	primary, standby := c.primary, c.standby
	c.known.Unlock()
	if standby == nil {
		return errors.New("fail over: there is no standby")
	}
	end := func() error { return primary.stop(ctx, Fast) }
	if kill {
		end = func() error { return primary.kill(ctx) }
	}
	if err := end(); err != nil {
		return fmt.Errorf("fail over: %w", err)
	}
	if err := standby.promote(ctx); err != nil {
		return fmt.Errorf("fail over: %w", err)
	}
	if err := c.lead(standby); err != nil {
		return fmt.Errorf("fail over: %w", err)
	}
	c.known.Lock()
	c.standby = nil
	c.known.Unlock()
	// Its log stays.
	return errors.Join(primary.removeSharedMemory(), os.RemoveAll(primary.data))
}

func (s *server) promote(ctx context.Context) error {
	promoted, err := query[bool](ctx, s, "select pg_promote(true, 60)")
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !promoted {
		return errors.New("promote: it has not become a primary within a minute")
	}
	return s.ready(ctx)
}
