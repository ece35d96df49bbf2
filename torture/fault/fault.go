// Package fault has what can happen to a server with wed_sql, and makes it happen.
//
// Two things need a server that was prepared for them: named points of the engine an engine that was built with the tag
// faultpoint (see internal/faultpoint; [cluster.Config].Bindir leads to its installation), a full disk and a wrong clock
// a library that is loaded before all others ([Equip]). Where they are not there, these faults are skipped.
package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

// World is what faults are injected into.
type World interface {
	Cluster() *cluster.Cluster
	Databases() []string      // those with wed_sql
	Processes() []*os.Process // workers that may be killed and stopped; others take their places
	Rand() *rand.Rand         // of the run; one fault at a time uses it
}

// Fault is something that happens to a server. Inject returns when it has been healed, by the fault itself or by the
// system: the databases are followed, and what was committed is matched. It returns [ErrSkipped] if this machine or server
// cannot have it, or nothing was there that it could happen to.
type Fault struct {
	Name   string
	Weight int  // how often it is drawn, beside others
	Loses  bool // the slot: histories may have gaps that are marked healed
	// Forgets says that commits are lost of which no client was told; workers may have been: the log is followed before the
	// standby has it.
	Forgets bool
	Down    bool // the whole server may go down: also who has nothing to do with wed_sql loses the connection
	Clock   bool // the server's clock was wrong: what is due by time may have come early or late
	Inject  func(ctx context.Context, w World) error
}

// ErrSkipped is why a fault was not injected.
var ErrSkipped = errors.New("skipped")

func skipped(why string) error { return fmt.Errorf("%w: %s", ErrSkipped, why) }

// All returns all faults.
func All() []Fault {
	var all []Fault
	for _, some := range [][]Fault{processFaults(), serverFaults(), slotFaults(), shortageFaults(), clientFaults(), pointFaults()} {
		all = append(all, some...)
	}
	return all
}

// healTime is how long the system may take to heal itself, on a machine that is busy: with 30,000 instances to be looked at,
// and 40 processes that run on two processors, minutes.
const healTime = 4 * time.Minute

// healed waits until all databases are followed, and all that is committed is matched.
func healed(ctx context.Context, w World) error {
	ctx, cancel := context.WithTimeout(ctx, healTime)
	defer cancel()
	c := w.Cluster()
	if err := c.Ready(ctx); err != nil {
		return fmt.Errorf("not healed: %w", err)
	}
	if err := c.Streaming(ctx, w.Databases()); err != nil {
		return fmt.Errorf("not healed: %w", err)
	}
	for _, database := range w.Databases() {
		if err := matched(ctx, w, database); err != nil {
			return fmt.Errorf("not healed: states of %s are not matched: %w", database, err)
		}
	}
	return nil
}

// matched waits until all that is committed in a database now is matched. What is said of the engine may be from before the
// fault, so the waiting may fail once more, with an engine that has just noticed.
func matched(ctx context.Context, w World, database string) error {
	for {
		err := within(ctx, w, database, func(conn *pgx.Conn) error {
			if _, err := conn.Exec(ctx, "select wed_sql.sync('4 minutes')"); err != nil {
				return err
			}
			// A flow that could not be read or written is looked at each minute, or when somebody asks for it.
			var unhealed int
			if err := conn.QueryRow(ctx, "select count(*) from wed_sql.unhealed()").Scan(&unhealed); err != nil || unhealed == 0 {
				return err
			}
			if _, err := conn.Exec(ctx, "select wed_sql.discover()"); err != nil {
				return err
			}
			return fmt.Errorf("%d flows are not followed", unhealed)
		})
		if err == nil || rest(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// within gives f a session of the superuser, to which no settings of roles or databases apply that would end it.
func within(ctx context.Context, w World, database string, f func(*pgx.Conn) error) error {
	conn, err := w.Cluster().Connect(ctx, database)
	if err != nil {
		return err
	}
	err = f(conn)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(bye) // it ends in any case
	return err
}

// execute executes commands, each in a transaction of its own.
func execute(ctx context.Context, w World, database string, commands ...string) error {
	return within(ctx, w, database, func(conn *pgx.Conn) error {
		for _, sql := range commands {
			if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
				return fmt.Errorf("%.80s: %w", sql, err)
			}
		}
		return nil
	})
}

// anyDatabase is one of them.
func anyDatabase(w World) (string, error) {
	all := w.Databases()
	if len(all) == 0 {
		return "", skipped("there is no database")
	}
	return all[w.Rand().Intn(len(all))], nil
}

// pick is one of some things.
func pick[T any](w World, some []T) (one T, ok bool) {
	if len(some) == 0 {
		return one, false
	}
	return some[w.Rand().Intn(len(some))], true
}

// between is a time between two.
func between(w World, least, most time.Duration) time.Duration {
	return least + time.Duration(w.Rand().Int63n(int64(most-least)))
}

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until waits until a condition holds, for so long at most.
func until(ctx context.Context, most time.Duration, condition func() (bool, error)) (held bool, err error) {
	for late := time.Now().Add(most); ; {
		if held, err = condition(); held || err != nil || time.Now().After(late) {
			return held, err
		}
		if err := rest(ctx, 5*time.Millisecond); err != nil {
			return false, err
		}
	}
}
