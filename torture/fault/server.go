package fault

import (
	"context"
	"fmt"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

func serverFaults() []Fault {
	return []Fault{
		{Name: "postmaster killed", Weight: 3, Down: true, Inject: func(ctx context.Context, w World) error {
			if err := w.Cluster().Kill(ctx); err != nil {
				return fmt.Errorf("kill the postmaster: %w", err)
			}
			return healed(ctx, w)
		}},
		{Name: "immediate shutdown", Weight: 3, Down: true, Inject: restart(cluster.Immediate)},
		{Name: "fast restart", Weight: 3, Down: true, Inject: restart(cluster.Fast)},
		{Name: "switch to a standby", Weight: 1, Loses: true, Down: true, Inject: failover(false)},
		{Name: "failover to a standby", Weight: 1, Loses: true, Forgets: true, Down: true, Inject: failover(true)},
	}
}

func restart(mode cluster.Mode) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		if err := w.Cluster().Restart(ctx, mode); err != nil {
			return fmt.Errorf("restart the server: %w", err)
		}
		return healed(ctx, w)
	}
}

// failover lets the standby take over: after an orderly stop, or after SIGKILL while commits wait for the standby, so that
// nothing is lost that a client was told is committed.
func failover(kill bool) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		c := w.Cluster()
		if err := c.AddStandby(ctx); err != nil {
			return err
		}
		if err := c.Synchronous(ctx, kill); err != nil {
			return err
		}
		if err := c.Failover(ctx, kill); err != nil {
			return err
		}
		return healed(ctx, w)
	}
}
