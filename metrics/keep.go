package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/wal"
)

const (
	flushInterval = time.Second      // between two writes of the counters
	lastPause     = 30 * time.Second // after writes that fail
	restTime      = 30 * time.Second // until a session without work is given back
	workTime      = 5 * time.Second  // for a write or a look
)

// Connect opens a session in the database.
type Connect func(ctx context.Context) (*pgx.Conn, error)

// Keep writes what is counted into the tables, and looks up what a scrape wants to know,
// until the context ends. It has a session only while there is something to do.
func (d *Database) Keep(ctx context.Context, connect Connect, log *slog.Logger) {
	k := &keeper{database: d, connect: connect, log: log, rest: time.NewTimer(time.Hour), flush: time.NewTimer(time.Hour)}
	k.rest.Stop()
	k.flush.Stop()
	defer k.close()
	k.run(ctx)
}

// keeper is what Keep works with.
type keeper struct {
	database *Database
	connect  Connect
	log      *slog.Logger
	conn     *pgx.Conn // nil: none is open
	rest     *time.Timer
	flush    *time.Timer
	armed    bool      // flush will tick
	flushed  time.Time // the last time
	pause    time.Duration
	lastErr  string
}

func (k *keeper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			if k.conn != nil && k.database.changed() { // in the last second
				k.write(ctx)
			}
			return
		case <-k.database.counted:
			k.arm(flushInterval - time.Since(k.flushed))
		case <-k.flush.C:
			k.armed = false
			k.write(ctx)
		case <-k.database.asked:
			k.look(ctx)
		case <-k.rest.C:
			k.close()
		}
	}
}

// changed tells whether there is something to write.
func (d *Database) changed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.deltas.empty()
}

func (k *keeper) arm(wait time.Duration) {
	if !k.armed {
		k.armed = true
		k.flush.Reset(max(wait, 0))
	}
}

// work gives f a session. What f asks is short, so its context does not end with ours:
// a query that is cancelled is an error in the server's log.
func (k *keeper) work(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if k.conn == nil {
		conn, err := k.connect(ctx)
		if err != nil {
			return err
		}
		k.conn = conn
	}
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), workTime)
	defer cancel()
	err := f(short, k.conn)
	if err != nil {
		k.close()
		return err
	}
	k.rest.Reset(restTime)
	return nil
}

func (k *keeper) close() {
	if k.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = k.conn.Close(ctx) // whatever it reports, it is closed
	k.conn = nil
	k.rest.Stop()
}

// write adds what was counted to the tables; what it cannot write it keeps for the next time.
func (k *keeper) write(ctx context.Context) {
	d := k.database
	d.mu.Lock()
	taken := d.deltas
	d.deltas = deltas{}
	d.mu.Unlock()
	err := k.work(ctx, func(ctx context.Context, conn *pgx.Conn) error { return d.write(ctx, conn, &taken) })
	k.flushed = time.Now()
	if err == nil {
		if k.lastErr != "" {
			k.log.Info("statistics are kept again")
		}
		k.pause, k.lastErr = 0, ""
		return
	}
	d.mu.Lock()
	d.deltas.add(taken)
	d.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	k.pause = min(max(2*k.pause, flushInterval), lastPause)
	k.arm(k.pause)
	// The follower tells of what ails the server or the whole extension; this can only
	// be worth a word when it lasts.
	if k.pause == lastPause && k.lastErr == "" && !wal.Gone(err) {
		k.lastErr = err.Error()
		k.log.Warn("statistics cannot be kept, will try again", "err", err)
	}
}

// write adds to the tables, and takes what others have counted.
func (d *Database) write(ctx context.Context, conn *pgx.Conn, what *deltas) error {
	flows, transitions, err := what.json()
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, "select flow, trname, event, n from wed_sql.add_counts($1::text::jsonb, $2::text::jsonb)", flows, transitions)
	if err != nil {
		return fmt.Errorf("add to the counters: %w", err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
	if err != nil {
		return fmt.Errorf("add to the counters: %w", err)
	}
	d.happened(events)
	return nil
}

func (k *keeper) look(ctx context.Context) {
	d := k.database
	reached := false
	err := k.work(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		reached = true
		var events bool
		if err := conn.QueryRow(ctx, "select wed_sql.has_counted_events()").Scan(&events); err != nil {
			return fmt.Errorf("look for events: %w", err)
		}
		if events {
			if err := d.write(ctx, conn, new(deltas)); err != nil {
				return err
			}
		}
		return d.lookUp(ctx, conn)
	})
	if err != nil {
		if !reached {
			d.blind()
		}
		k.log.Debug("cannot look up statistics", "err", err)
	}
	d.mu.Lock()
	d.look.over(time.Now())
	d.mu.Unlock()
}
