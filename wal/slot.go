package wal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SlotName returns the name of the replication slot of a database.
func SlotName(database uint32) string { return "wed_sql_" + strconv.FormatUint(uint64(database), 10) }

// Publication is the publication that holds the wed_flow of every flow of a database.
const Publication = "wed_sql"

const plugin = "pgoutput"

// slot is a row of pg_replication_slots. It is read as JSON, because the columns
// differ between the versions of PostgreSQL: what is missing is zero.
type slot struct {
	Plugin       string  `json:"plugin"`
	Active       bool    `json:"active"`
	ActivePID    int     `json:"active_pid"`
	Confirmed    *string `json:"confirmed_flush_lsn"`
	WALStatus    string  `json:"wal_status"`
	Conflicting  bool    `json:"conflicting"`
	Invalidation string  `json:"invalidation_reason"`
}

// readSlot returns nil if there is no such slot.
func readSlot(ctx context.Context, db querier, name string) (*slot, error) {
	rows, err := db.Query(ctx, `select to_jsonb(s)::text from pg_replication_slots s where slot_name = $1::text`, name)
	if err != nil {
		return nil, fmt.Errorf("read replication slot %s: %w", name, err)
	}
	text, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read replication slot %s: %w", name, err)
	}
	s := new(slot)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("read replication slot %s: %w", name, err)
	}
	return s, nil
}

// follower is the row of wed_sql.follower.
type follower struct {
	epoch   int64
	slot    string
	applied LSN   // 0: never
	system  int64 // identifier of the cluster that the positions belong to
}

// unusable says why the stream cannot go on where it was; "" if it can.
func unusable(s *slot, name string, f follower, system int64) string {
	switch {
	case f.applied == 0:
		return "this database was not followed before"
	case f.system != system:
		return "the database was copied from another cluster"
	case f.slot != name:
		return "the database was copied from another database"
	case s == nil:
		return "the replication slot is missing"
	case s.Plugin != plugin:
		return "the replication slot has the plugin " + s.Plugin
	case s.WALStatus == "lost":
		return "the replication slot lost the log that it needs"
	case s.Invalidation != "":
		return "the replication slot was invalidated: " + s.Invalidation
	case s.Conflicting:
		return "the replication slot was invalidated"
	}
	confirmed, err := parseLSN(*orZero(s.Confirmed))
	switch {
	case err != nil:
		return "the replication slot has no position"
	case confirmed > f.applied:
		return fmt.Sprintf("the replication slot is at %s, the tables are at %s", confirmed, f.applied)
	}
	return ""
}

func orZero(s *string) *string {
	if s == nil {
		s = new(string)
	}
	return s
}

// takeOver makes this engine the one that follows the database, and returns where
// the last one stopped. It waits for a last batch that is still being written, and
// for the flush of what was: the position can be acknowledged at once. An engine that
// dies again and again would else never get that far, and begin ever further back.
func takeOver(ctx context.Context, db querier) (follower, error) {
	rows, err := db.Query(ctx, `
with flushed as materialized (select set_config('synchronous_commit', 'local', true), set_config('lock_timeout', '0', true))
update wed_sql.follower set epoch = epoch + 1 from flushed
 returning epoch, coalesce(slot_name, ''), coalesce(applied_lsn::text, '0/0'), coalesce(system_identifier, 0)`)
	if err != nil {
		return follower{}, fmt.Errorf("take over wed_sql.follower: %w", err)
	}
	f, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (f follower, err error) {
		var applied string
		if err = row.Scan(&f.epoch, &f.slot, &applied, &f.system); err == nil {
			f.applied, err = parseLSN(applied)
		}
		return f, err
	})
	if err != nil {
		return follower{}, fmt.Errorf("take over wed_sql.follower: %w", err)
	}
	return f, nil
}

// retryInterval is how often a slot that is in use is tried again: the server takes
// a moment to notice that the process that used it is gone.
const (
	retryInterval = 50 * time.Millisecond
	retryTime     = 5 * time.Second
)

// whileInUse calls f until it does not fail for an active slot.
func whileInUse(ctx context.Context, f func() error) error {
	var timer *time.Timer
	for start := time.Now(); ; {
		err := f()
		if !hasCode(err, objectInUse) || time.Since(start) > retryTime {
			return err
		}
		if timer == nil {
			timer = time.NewTimer(retryInterval)
			defer timer.Stop()
		} else {
			timer.Reset(retryInterval)
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func hasCode(err error, codes ...string) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		for _, c := range codes {
			if server.Code == c {
				return true
			}
		}
	}
	return false
}

// execer is the part of a connection that dropping things takes.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// DropSlot drops the replication slot of a database, if it is there. It waits for a
// moment if somebody uses the slot.
func DropSlot(ctx context.Context, db execer, database uint32) error {
	name := SlotName(database)
	err := whileInUse(ctx, func() error {
		_, err := db.Exec(ctx, `select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1::text`, name)
		return err
	})
	if err != nil && !hasCode(err, undefinedObject) {
		return fmt.Errorf("drop replication slot %s: %w", name, err)
	}
	return nil
}

// createSlot makes a slot on the replication connection. Transactions that are open
// must end first, and that may take long.
func createSlot(ctx context.Context, log *slog.Logger, repl *pgconn.PgConn, name string) (LSN, error) {
	waiting := time.AfterFunc(retryTime, func() {
		log.Info("waiting for transactions to end that are older than the new replication slot", "slot", name,
			"hint", "States that are committed meanwhile are not lost. pg_stat_activity shows the transactions.")
	})
	defer waiting.Stop()
	results, err := repl.Exec(ctx, slotCommand(name, repl.ParameterStatus("server_version"))).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("create replication slot %s: %w", name, err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 2 {
		return 0, fmt.Errorf("create replication slot %s: the server's answer is not understood", name)
	}
	point, err := parseLSN(string(results[0].Rows[0][1]))
	if err != nil {
		return 0, fmt.Errorf("create replication slot %s: %w", name, err)
	}
	return point, nil
}

// slotCommand is what makes a slot: from PostgreSQL 17 on one that standbys keep a copy
// of, if they are set up to.
func slotCommand(name, version string) string {
	if majorVersion(version) >= 17 {
		return "CREATE_REPLICATION_SLOT " + name + " LOGICAL " + plugin + " (SNAPSHOT 'nothing', FAILOVER true)"
	}
	return "CREATE_REPLICATION_SLOT " + name + " LOGICAL " + plugin + " NOEXPORT_SNAPSHOT"
}

// majorVersion of a server_version: 17.2, 18beta1; 0 if it is none.
func majorVersion(version string) int {
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(version)
	}
	number, _ := strconv.Atoi(version[:digits]) // 0 with an error
	return number
}
