package main

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/wed-sql/wed_sql/torture/fault"
)

// allFaults are those that can be injected.
func allFaults() []fault.Fault {
	return []fault.Fault{
		{Name: "worker killed", Weight: 4, Inject: func(ctx context.Context, w fault.World) error {
			p := w.Processes()
			if len(p) == 0 {
				return fault.ErrSkipped
			}
			if err := p[w.Rand().Intn(len(p))].Kill(); err != nil && err != os.ErrProcessDone {
				return err
			}
			return nil
		}},
		{Name: "engine killed", Weight: 2, Inject: func(ctx context.Context, w fault.World) error {
			pid, err := w.Cluster().EnginePID(ctx, w.Databases()[0])
			if err != nil {
				return err
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill the engine: %w", err)
			}
			return w.Cluster().Streaming(ctx, w.Databases(), pid)
		}},
	}
}
