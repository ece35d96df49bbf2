package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

// processFaults are signals to processes. A process with shared memory that dies by SIGKILL (the background worker, a
// walsender, any backend) takes all sessions with it: the postmaster ends them and recovers from the log, as after a crash.
func processFaults() []Fault {
	return []Fault{
		{Name: "engine killed", Weight: 40, Inject: endEngine(syscall.SIGKILL)},
		{Name: "engine: segmentation fault", Weight: 5, Inject: endEngine(syscall.SIGSEGV)},
		{Name: "engine aborted", Weight: 5, Inject: endEngine(syscall.SIGABRT)},
		{Name: "engine terminated", Weight: 5, Inject: endEngine(syscall.SIGTERM)},
		{Name: "engine stopped", Weight: 4, Inject: pauseOne(cluster.Engine)},
		{Name: "supervisor terminated", Weight: 4, Inject: signalOne(cluster.Supervisor, syscall.SIGTERM)},
		{Name: "supervisor killed", Weight: 2, Down: true, Inject: crash(cluster.Supervisor)},
		{Name: "supervisor stopped", Weight: 2, Inject: pauseOne(cluster.Supervisor)},
		{Name: "walsender terminated", Weight: 6, Inject: signalOne(cluster.Walsender, syscall.SIGTERM)},
		{Name: "walsender killed", Weight: 3, Down: true, Inject: crash(cluster.Walsender)},
		{Name: "walsender stopped", Weight: 4, Inject: pauseOne(cluster.Walsender)},
		{Name: "client's backend terminated", Weight: 20, Inject: endSession("application_name <> $1")},
		{Name: "engine's backend terminated", Weight: 10, Inject: endSession("application_name = $1")},
		{Name: "backend killed", Weight: 3, Down: true, Inject: crash(cluster.Backend)},
		{Name: "backend stopped", Weight: 4, Inject: pauseOne(cluster.Backend)},
		{Name: "postmaster stopped", Weight: 1, Inject: pauseOne(cluster.Postmaster)},
		{Name: "worker killed", Weight: 40, Inject: killWorker},
		{Name: "worker stopped", Weight: 10, Inject: pauseWorker},
	}
}

// one is a process of a kind.
func one(w World, kind cluster.Kind) (cluster.Process, error) {
	found, err := w.Cluster().Find(kind)
	if err != nil {
		return cluster.Process{}, err
	}
	p, ok := pick(w, found)
	if !ok {
		return p, skipped("there is no " + string(kind))
	}
	return p, nil
}

// signal sends a signal to a process that may have ended meanwhile.
func signal(p cluster.Process, s syscall.Signal) error {
	if err := p.Signal(s); errors.Is(err, os.ErrProcessDone) {
		return skipped("the process has ended by itself")
	} else if err != nil {
		return fmt.Errorf("signal %v: %w", p, err)
	}
	return nil
}

func endEngine(s syscall.Signal) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		p, err := one(w, cluster.Engine)
		if err != nil {
			return err
		}
		if err := signal(p, s); err != nil {
			return err
		}
		if err := gone(ctx, p); err != nil {
			return err
		}
		return healed(ctx, w)
	}
}

// gone waits until a process has ended.
func gone(ctx context.Context, p cluster.Process) error {
	ended, err := until(ctx, healTime, func() (bool, error) { return !p.Alive(), nil })
	if err == nil && !ended {
		err = fmt.Errorf("%v has not ended", p)
	}
	return err
}

// signalOne ends one in an orderly way.
func signalOne(kind cluster.Kind, s syscall.Signal) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		p, err := one(w, kind)
		if err != nil {
			return err
		}
		if err := signal(p, s); err != nil {
			return err
		}
		if err := gone(ctx, p); err != nil {
			return err
		}
		return healed(ctx, w)
	}
}

// crash kills one whose death the postmaster takes for that of the server.
func crash(kind cluster.Kind) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		p, err := one(w, kind)
		if err != nil {
			return err
		}
		all, err := w.Cluster().Processes()
		if err != nil {
			return err
		}
		if err := signal(p, syscall.SIGKILL); err != nil {
			return err
		}
		// Whatever of it is there afterwards, is new.
		for _, p := range all {
			if p.Kind == cluster.Engine || p.Kind == cluster.Walsender || p.Kind == cluster.Supervisor {
				if err := gone(ctx, p); err != nil {
					return err
				}
			}
		}
		return healed(ctx, w)
	}
}

func pauseOne(kind cluster.Kind) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		p, err := one(w, kind)
		if err != nil {
			return err
		}
		if err := signal(p, syscall.SIGSTOP); err != nil {
			return err
		}
		err = rest(ctx, between(w, 50*time.Millisecond, 4*time.Second))
		if cont := p.Signal(syscall.SIGCONT); cont != nil && !errors.Is(cont, os.ErrProcessDone) { // the supervisor may have ended it
			err = errors.Join(err, fmt.Errorf("continue %v: %w", p, cont))
		}
		if err != nil {
			return err
		}
		return healed(ctx, w)
	}
}

// endSession terminates one session that the condition selects.
func endSession(condition string) func(context.Context, World) error {
	return func(ctx context.Context, w World) error {
		ended := 0
		err := within(ctx, w, "postgres", func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity
				where `+condition+` and datname = any ($2) and backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 1) s`,
				cluster.EngineApplication, w.Databases()).Scan(&ended)
		})
		if err != nil {
			return fmt.Errorf("terminate a backend: %w", err)
		}
		if ended == 0 {
			return skipped("there is no such session")
		}
		return healed(ctx, w)
	}
}

func killWorker(ctx context.Context, w World) error {
	p, ok := pick(w, w.Processes())
	if !ok {
		return skipped("there is no worker")
	}
	if err := p.Kill(); err != nil {
		return skipped("the worker has ended by itself")
	}
	return healed(ctx, w)
}

func pauseWorker(ctx context.Context, w World) error {
	p, ok := pick(w, w.Processes())
	if !ok {
		return skipped("there is no worker")
	}
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return skipped("the worker has ended by itself")
	}
	err := rest(ctx, between(w, 50*time.Millisecond, 3*time.Second))
	if cont := p.Signal(syscall.SIGCONT); cont != nil && !errors.Is(cont, os.ErrProcessDone) {
		err = errors.Join(err, fmt.Errorf("continue a worker: %w", cont))
	}
	if err != nil {
		return err
	}
	return healed(ctx, w)
}
