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

func slotFaults() []Fault {
	return []Fault{
		{Name: "slot dropped", Weight: 3, Loses: true, Inject: func(ctx context.Context, w World) error {
			database, err := anyDatabase(w)
			if err != nil {
				return err
			}
			if err := dropSlot(ctx, w, database); err != nil {
				return err
			}
			return healed(ctx, w)
		}},
		{Name: "slot invalidated", Weight: 2, Loses: true, Inject: invalidateSlots},
		{Name: "slot dropped while a transaction is open", Weight: 1, Loses: true, Inject: dropSlotInTransaction},
	}
}

// newSegment has the log go on in its next file.
const newSegment = "select pg_logical_emit_message(false, 'fault', 'not empty'), pg_switch_wal()"

// The slot of the database that asks.
const ownSlot = "(select 'wed_sql_' || oid from pg_database where datname = current_database())"

// dropSlot drops the slot of a database from under the engine.
func dropSlot(ctx context.Context, w World, database string) error {
	return within(ctx, w, database, func(conn *pgx.Conn) error {
		dropped, err := until(ctx, time.Minute, func() (bool, error) {
			of := " from pg_replication_slots where slot_name = " + ownSlot
			if _, err := conn.Exec(ctx, "select pg_terminate_backend(active_pid)"+of+" and active"); err != nil {
				return false, err
			}
			tag, err := conn.Exec(ctx, "select pg_drop_replication_slot(slot_name)"+of)
			if isCode(err, "55006", "42704") { // in use again, or gone meanwhile
				return false, nil
			}
			return err == nil && tag.RowsAffected() > 0, err
		})
		if err == nil && !dropped {
			err = errors.New("it is always in use")
		}
		if err != nil {
			return fmt.Errorf("drop the slot: %w", err)
		}
		return nil
	})
}

// dropSlotInTransaction makes the new slot wait for a transaction that is older.
func dropSlotInTransaction(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	err = within(ctx, w, database, func(conn *pgx.Conn) error {
		if _, err := conn.PgConn().Exec(ctx, "begin; select txid_current()").ReadAll(); err != nil {
			return err
		}
		if err := dropSlot(ctx, w, database); err != nil {
			return err
		}
		if err := rest(ctx, between(w, 100*time.Millisecond, 3*time.Second)); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "commit")
		return err
	})
	if err != nil {
		return err
	}
	return healed(ctx, w)
}

// invalidateSlots has the server give up the log that the slots need, while the engine does not read it.
func invalidateSlots(ctx context.Context, w World) error {
	p, err := one(w, cluster.Engine)
	if err != nil {
		return err
	}
	if err := execute(ctx, w, "postgres", "alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()"); err != nil {
		return err
	}
	err = signal(p, syscall.SIGSTOP)
	lost := false
	if err == nil {
		lost, err = loseSlot(ctx, w)
		if cont := p.Signal(syscall.SIGCONT); cont != nil && !errors.Is(cont, os.ErrProcessDone) {
			err = errors.Join(err, cont)
		}
	}
	err = errors.Join(err, execute(ctx, w, "postgres", "alter system reset max_slot_wal_keep_size", "select pg_reload_conf()"))
	if err != nil {
		return fmt.Errorf("invalidate the slots: %w", err)
	}
	if err := healed(ctx, w); err != nil {
		return err
	}
	if !lost {
		return skipped("no slot was invalidated: another engine has come, and gone on")
	}
	return nil
}

// loseSlot writes log until a slot is lost.
func loseSlot(ctx context.Context, w World) (lost bool, err error) {
	limited, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	err = within(limited, w, "postgres", func(conn *pgx.Conn) error {
		lost, err = until(limited, 20*time.Second, func() (lost bool, err error) {
			for _, sql := range []string{newSegment, "checkpoint"} {
				if _, err := conn.Exec(limited, sql); err != nil {
					return false, err
				}
			}
			err = conn.QueryRow(limited, `select exists (select from pg_replication_slots
				where slot_name like 'wed\_sql\_%' and wal_status = 'lost')`).Scan(&lost)
			return lost, err
		})
		return err
	})
	// The checkpoint may wait for a walsender, which waits, with its last words, for the engine that stands still.
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return true, nil // as soon as the engine goes on
	}
	return lost, err
}
