package fault

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
	"github.com/wed-sql/wed_sql/torture/cluster"
)

// pointFaults let the engine die, fail, or stand still while the server dies, at each of its named points.
func pointFaults() []Fault {
	var all []Fault
	for _, point := range faultpoint.Points() {
		loses := provokes(point) == slotIsDropped || provokes(point) == poolRefuses
		all = append(all,
			Fault{Name: "engine killed: " + point, Weight: 3, Loses: loses, Inject: atPoint(point, faultpoint.Kill)},
			Fault{Name: "engine panics: " + point, Weight: 1, Loses: loses, Inject: atPoint(point, faultpoint.Panic)},
			Fault{Name: "server killed: " + point, Weight: 1, Loses: loses, Down: true, Inject: atPoint(point, faultpoint.Stop)})
	}
	return all
}

// provocation is what makes the engine come to a point.
type provocation string

const (
	work           provocation = "work" // of whoever else uses the server
	engineIsKilled provocation = "engine is killed"
	slotIsDropped  provocation = "slot is dropped"
	poolRefuses    provocation = "job_pool refuses rows"
)

func provokes(point string) provocation {
	switch point {
	case faultpoint.TakenOver, faultpoint.StreamStarted:
		return engineIsKilled
	case faultpoint.SlotDropped, faultpoint.SlotCreated, faultpoint.PositionSaved, faultpoint.PageRead, faultpoint.ChunkHealed,
		faultpoint.HandingOver, faultpoint.FlowFollowed:
		return slotIsDropped
	case faultpoint.FlowUnfollowed:
		return poolRefuses
	default:
		return work
	}
}

// pointTime is how long a point may take to be passed, while there is work.
const pointTime = time.Minute

func atPoint(point, action string) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		if err := hasPoints(ctx, w.Cluster()); err != nil {
			return err
		}
		old, err := one(w, cluster.Engine)
		if err != nil {
			return err
		}
		times := 0
		if provokes(point) == work {
			times = w.Rand().Intn(4)
		}
		armed := filepath.Join(w.Cluster().Data(), faultpoint.File)
		if err := arm(armed, point, action, times); err != nil {
			return err
		}
		undo, err := provoke(ctx, w, point, old)
		if err != nil {
			return errors.Join(err, disarm(armed))
		}
		passed, err := until(ctx, pointTime, func() (bool, error) {
			_, err := os.Stat(armed)
			return errors.Is(err, os.ErrNotExist), nil
		})
		if err == nil && passed && action == faultpoint.Stop {
			err = killServerStopped(ctx, w)
		}
		if err := errors.Join(err, disarm(armed), undo()); err != nil {
			return err
		}
		if err := healed(ctx, w); err != nil {
			return err
		}
		if !passed {
			return skipped("the engine did not pass it")
		}
		return nil
	}
}

// killServerStopped kills the postmaster while the engine stands still.
func killServerStopped(ctx context.Context, w World) error {
	stopped, err := until(ctx, pointTime, func() (bool, error) {
		engines, err := w.Cluster().Find(cluster.Engine)
		return slices.ContainsFunc(engines, cluster.Process.Stopped), err
	})
	if err != nil {
		return err
	}
	if !stopped {
		return errors.New("the engine has not stopped")
	}
	return w.Cluster().Kill(ctx)
}

func arm(path, point, action string, times int) error {
	text := fmt.Sprintf("%s\n%s\n%d\n%d\n", point, action, times, time.Now().UnixNano())
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		return fmt.Errorf("arm a point: %w", err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		return fmt.Errorf("arm a point: %w", err)
	}
	return nil
}

func disarm(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disarm a point: %w", err)
	}
	return nil
}

func provoke(ctx context.Context, w World, point string, engine cluster.Process) (undo func() error, err error) {
	nothing := func() error { return nil }
	switch provokes(point) {
	case engineIsKilled:
		if err := signal(engine, syscall.SIGKILL); err != nil && !errors.Is(err, ErrSkipped) {
			return nil, err
		}
		return nothing, nil
	case slotIsDropped:
		database, err := anyDatabase(w)
		if err != nil {
			return nil, err
		}
		return nothing, dropSlot(ctx, w, database)
	case poolRefuses:
		return refuseJobs(ctx, w)
	default:
		return nothing, nil
	}
}

// refuseJobs has the job_pool of one flow take no jobs.
func refuseJobs(ctx context.Context, w World) (undo func() error, err error) {
	database, err := anyDatabase(w)
	if err != nil {
		return nil, err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		f, err := anyFlow(ctx, w, conn)
		if err != nil {
			return err
		}
		undo = func() error {
			return within(ctx, w, database, func(conn *pgx.Conn) error {
				if err := persist(ctx, conn, "drop trigger if exists wed_sql_fault on "+f.Pool); err != nil {
					return err
				}
				return persist(ctx, conn, "drop function public.wed_sql_fault_no_jobs()")
			})
		}
		return persist(ctx, conn, `create or replace function public.wed_sql_fault_no_jobs() returns trigger language plpgsql as
			$$ begin raise exception 'no jobs for now'; end $$;
			create trigger wed_sql_fault before insert on `+f.Pool+` for each row execute function public.wed_sql_fault_no_jobs()`)
	})
	if err != nil {
		return nil, fmt.Errorf("have job_pool refuse rows: %w", err)
	}
	return undo, nil
}

// hasPoints skips if the engine was built without.
func hasPoints(ctx context.Context, c *cluster.Cluster) error {
	dir, err := exec.CommandContext(ctx, filepath.Join(c.Bindir(), "pg_config"), "--pkglibdir").Output()
	if err != nil {
		return fmt.Errorf("look for the engine's library: %w", err)
	}
	info, err := buildinfo.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "wed_sql_engine.so"))
	if err != nil {
		return fmt.Errorf("look at the engine's library: %w", err)
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" && strings.Contains(s.Value, "faultpoint") {
			return nil
		}
	}
	return skipped("the engine has no such points: it was built without the tag faultpoint")
}
