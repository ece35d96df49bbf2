// Package wal follows the states that the flows of one database commit, by logical
// replication, and writes what they leave behind: the jobs that they fire and their
// lines in the trace.
//
// Data goes one way. The guard, in the transaction that writes a state, judges it and
// stamps the row; the row travels in the log; the reader decodes it into a queue; the
// applier folds whatever was decoded while it wrote the last batch, and writes it in
// one transaction with the position that it has reached. From there come exactly once
// and, on the way back, the acknowledgement: the server may drop the log below a
// position when the transaction that stored it is flushed.
//
//	walsender ─▶ stream ─▶ reader ─▶ queue ─▶ pump ─▶ applier ─▶ job_pool, wed_trace
//	    ▲                                      │
//	    └───────────── feedback ◀──── ledger ◀─┘
//
// A slot that is missing, or does not fit the tables, is made anew, and what it
// cannot bring is healed from the tables.
package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
	"github.com/wed-sql/wed_sql/internal/group"
)

// Settings of a follower.
type Settings struct {
	// Conn says how to connect to the database, which it names.
	Conn *pgx.ConnConfig
	// Database is the database's OID.
	Database uint32
	// BatchSize returns the largest number of states in a transaction of the
	// follower. It is called again and again.
	BatchSize func() int
	// Log takes what is worth telling.
	Log *slog.Logger
	// Observer is told of the progress.
	Observer Observer
	// Meter is told what was written, if it is there.
	Meter Meter
	// Phase is called when the follower begins to heal and to stream.
	Phase func(streaming bool)
	// Admit is asked, if it is there, right after a session that writes has connected:
	// on an error the follower gives the connection back and ends with it.
	Admit func(ctx context.Context, conn *pgx.Conn) error
	// Warn is called, if it is there, when something is wrong that does not stop the
	// follower, with what it is; and with "" when all is well again.
	Warn func(text string)
	// Sweeper, if it is there, is told of what has to be done at a time.
	Sweeper Sweeper
	// Recheck, if it is there, has the follower look at once for what it else looks for
	// each minute: flows to heal, and what is wrong.
	Recheck <-chan struct{}
}

// Sweeper does what is due because time has passed. Its methods must not block.
type Sweeper interface {
	// Jobs says that jobs were fired, and the shortest of their time limits.
	Jobs(shortest time.Duration)
	// Due says that a transaction has set timers, and when the first of them is due. The
	// transaction may not have ended for other sessions yet.
	Due(at time.Time, xid uint32)
}

// ErrNotLogical says that the server cannot do logical replication.
var ErrNotLogical = errors.New(`wal_level is not "logical"`)

// Gone tells whether an error of [Follow] may mean that the extension, or the whole
// database, has been dropped.
func Gone(err error) bool {
	return hasCode(err, undefinedTable, invalidSchemaName, undefinedFunction, undefinedObject,
		undefinedColumn, invalidCatalogName)
}

// Follow follows a database until the context ends or something fails. It never
// returns nil. It may be called again after any error: what is written is written
// exactly once. If another process follows the same database, the one that came last
// goes on.
func Follow(ctx context.Context, s Settings) (err error) {
	conn, err := Connect(ctx, s.Conn, s.Admit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeConn(conn.PgConn())) }()
	if err := checkSynchronous(ctx, conn, 0); err != nil {
		return err
	}
	f, err := takeOver(ctx, conn)
	if err != nil {
		return err
	}
	faultpoint.Hit(faultpoint.TakenOver)
	repl, err := pgconn.ConnectConfig(ctx, replicationConfig(s.Conn))
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	hijacked := false
	defer func() {
		if !hijacked {
			err = errors.Join(err, closeConn(repl))
		}
	}()

	a := newApplier(conn, s.Log, f.epoch)
	a.sweeper = s.Sweeper
	a.meter = s.Meter
	from, err := position(ctx, s, conn, repl, f)
	if err != nil {
		return err
	}
	st, err := start(ctx, repl, SlotName(s.Database), from)
	if err == nil {
		hijacked = true
		faultpoint.Hit(faultpoint.StreamStarted)
		err = run(ctx, s, a, st, from, repl)
	}
	if hasCode(err, undefinedFile) {
		// A copy of the data directory may have the slot, but not the log that it needs.
		s.Log.Warn("the replication slot needs log that is not there; it will be made anew", "slot", SlotName(s.Database), "err", err)
		if err := DropSlot(ctx, conn, s.Database); err != nil {
			return err
		}
	}
	return err
}

// run streams until something fails.
func run(ctx context.Context, s Settings, a *applier, st *stream, from LSN, sender *pgconn.PgConn) error {
	q := newQueue(queueBytes)
	f := &feedback{to: st}
	stray := newLimiter(time.Minute)
	r := &reader{
		from: st, queue: q, feedback: f, batchSize: s.BatchSize,
		decode: newDecoder(from, func(relation string, err error) {
			if stray.allow(time.Now()) {
				s.Log.Warn("a state without a valid stamp is ignored", "relation", relation, "err", err)
			}
		}),
	}
	r.decode.alarm = func(due alarm) {
		a.keepSignals(due.signals)
		if s.Sweeper != nil {
			s.Sweeper.Due(due.due, due.xid)
		}
	}
	held := &gate{Observer: s.Observer}
	p := &pump{queue: q, store: a, feedback: f, observer: held, batchSize: s.BatchSize, applied: from, stored: from,
		nudges: majorVersion(sender.ParameterStatus("server_version")) >= 16}
	p.ledger.acked = from // takeOver or healing has flushed it
	if err := f.acknowledge(from); err != nil {
		return errors.Join(err, st.close())
	}
	h := &healer{conn: s.Conn, log: s.Log, epoch: a.epoch, stream: a, recheck: s.Recheck, warn: s.Warn, admit: s.Admit, sender: sender.PID()}
	healing, err := a.needsHealing(ctx)
	if err != nil {
		return errors.Join(err, st.close())
	}
	if !healing {
		held.release()
	}
	s.Phase(!healing)

	g, gctx := group.New(ctx)
	stop := context.AfterFunc(gctx, func() { _ = st.close() }) // the reader waits in a system call
	g.Go("reader", r.run)
	g.Go("applier", p.run)
	g.Go("healer", func(ctx context.Context) error {
		return h.run(ctx, func() {
			if healing {
				held.release()
				s.Phase(true)
			}
		})
	})
	err = g.Wait()
	if stop() {
		err = errors.Join(err, st.close())
	}
	return err
}

// gate holds positions back until what is to be healed at the beginning has been: who
// waits for a position waits for that, too.
type gate struct {
	Observer
	mu     sync.Mutex
	open   bool
	lsn    LSN
	commit time.Time
}

func (g *gate) Applied(lsn LSN, commit time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		g.Observer.Applied(lsn, commit)
		return
	}
	if g.lsn = lsn; !commit.IsZero() {
		g.commit = commit
	}
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open = true; g.lsn != 0 {
		g.Observer.Applied(g.lsn, g.commit)
	}
}

// position returns where to begin to stream from. If the slot is of no use, it makes
// a new one; no flow is followed by that until it has been healed.
func position(ctx context.Context, s Settings, conn *pgx.Conn, repl *pgconn.PgConn, f follower) (LSN, error) {
	id, err := pglogrepl.IdentifySystem(ctx, repl)
	if err != nil {
		return 0, fmt.Errorf("identify the system: %w", err)
	}
	// The identifier is an unsigned number, the column is signed: the same bits.
	unsigned, err := strconv.ParseUint(id.SystemID, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("identify the system: %w", err)
	}
	system := int64(unsigned)
	name := SlotName(s.Database)
	old, err := readSlot(ctx, conn, name)
	if err != nil {
		return 0, err
	}
	why := unusable(old, name, f, system)
	if why == "" {
		return f.applied, nil
	}
	s.Phase(false)
	if old != nil {
		if err := DropSlot(ctx, conn, s.Database); err != nil {
			return 0, err
		}
	}
	faultpoint.Hit(faultpoint.SlotDropped)
	point, err := createSlot(ctx, s.Log, repl, name)
	if err != nil {
		return 0, err
	}
	faultpoint.Hit(faultpoint.SlotCreated)
	// The position is acknowledged at once, so it has to be flushed.
	tag, err := conn.Exec(ctx, `
with flushed as materialized (select set_config('synchronous_commit', 'local', true)),
     unfollowed as (update wed_sql.followed set since = null, error = null)
update wed_sql.follower set slot_name = $1, applied_lsn = $2::text::pg_lsn, system_identifier = $3 from flushed where epoch = $4`,
		name, point.String(), system, f.epoch)
	if err != nil {
		return 0, fmt.Errorf("store the new slot's position: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return 0, errFenced
	}
	faultpoint.Hit(faultpoint.PositionSaved)
	s.Log.Info("made a new replication slot", "slot", name, "lsn", point.String(), "reason", why)
	return point, nil
}

// Connect opens a session that writes for the engine. admit may be nil; see [Settings].
func Connect(ctx context.Context, config *pgx.ConnConfig, admit func(context.Context, *pgx.Conn) error) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, sessionConfig(config))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if admit != nil {
		err = admit(ctx, conn)
	}
	if err == nil {
		err = checkServer(ctx, conn)
	}
	if err != nil {
		return nil, errors.Join(err, closeConn(conn.PgConn()))
	}
	return conn, nil
}

func checkServer(ctx context.Context, conn *pgx.Conn) error {
	var level string
	if err := conn.QueryRow(ctx, "show wal_level").Scan(&level); err != nil {
		return fmt.Errorf("ask for wal_level: %w", err)
	}
	if level != "logical" {
		return fmt.Errorf("%w but %q", ErrNotLogical, level)
	}
	// PostgreSQL 17 has the first; older ones would refuse it among the startup parameters. Who notices a deadlock first
	// gives way: so that it is not the DROP EXTENSION of somebody else. Only superusers may set it.
	if _, err := conn.Exec(ctx, `select set_config(name, wanted.setting, false)
		from (values ('transaction_timeout', '0', true),
			('deadlock_timeout', '200ms', current_setting('is_superuser')::boolean)) wanted (name, setting, may)
		join pg_settings using (name) where may`); err != nil {
		return fmt.Errorf("set time limits: %w", err)
	}
	return nil
}

var errSynchronous = errors.New("synchronous_standby_names takes the engine for a standby")

// checkSynchronous refuses to be a synchronous standby: a commit that waits for us to
// apply it is one that we wait for. sender is the process of our stream, if there is one.
func checkSynchronous(ctx context.Context, conn *pgx.Conn, sender uint32) error {
	var names string
	err := conn.QueryRow(ctx, `
select current_setting('synchronous_standby_names')
 where exists (select from regexp_split_to_table(
                   regexp_replace(current_setting('synchronous_standby_names'), '^\s*((first|any)\s+)?[0-9]+\s*\(|\)\s*$', '', 'gi'),
                   '\s*,\s*') n
                where lower(btrim(n, ' "')) in ('*', lower(current_setting('application_name'))))
    or exists (select from pg_stat_replication where pid = $1 and sync_priority > 0)`, int32(sender)).Scan(&names)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask for synchronous_standby_names: %w", err)
	}
	return fmt.Errorf("%w: it is %q; name the standbys in it", errSynchronous, names)
}

func closeConn(conn *pgconn.PgConn) error {
	if conn.IsClosed() {
		// pgconn has its last statement cancelled before it lets go, which takes its time. A server that waits
		// for the rest of a batch meanwhile is in the way of a DROP DATABASE.
		_ = conn.Conn().Close()
		select {
		case <-conn.CleanupDone():
		case <-time.After(time.Second):
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // whatever it reports, it is closed
	return nil
}

// textParameters make the text of a value depend on nothing but the value. Those of
// the startup packet go before the settings of a role or a database.
func textParameters() map[string]string {
	return map[string]string{
		"application_name":                    "wed_sql engine",
		"client_encoding":                     "UTF8",
		"datestyle":                           "ISO",
		"intervalstyle":                       "postgres",
		"timezone":                            "UTC",
		"extra_float_digits":                  "1",
		"bytea_output":                        "hex",
		"search_path":                         "pg_catalog",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"idle_session_timeout":                "0",
	}
}

// sessionConfig is for the connection that writes.
func sessionConfig(base *pgx.ConnConfig) *pgx.ConnConfig {
	c := base.Copy()
	c.StatementCacheCapacity = 64
	c.DescriptionCacheCapacity = 0
	c.RuntimeParams = textParameters()
	maps.Copy(c.RuntimeParams, map[string]string{
		// The log has everything that is written here, or the slot brings it again.
		"synchronous_commit":             "off",
		"default_transaction_isolation":  "read committed",
		"default_transaction_read_only":  "off",
		"default_transaction_deferrable": "off",
		"client_min_messages":            "warning",
		"jit":                            "off",
		// A statement that was planned while its table was empty must not read the whole
		// table when it no longer is.
		"plan_cache_mode": "force_generic_plan",
		"enable_seqscan":  "off",
	})
	return c
}

// replicationConfig is for the connection that streams.
func replicationConfig(base *pgx.ConnConfig) *pgconn.Config {
	c := base.Config.Copy()
	c.RuntimeParams = textParameters()
	c.RuntimeParams["replication"] = "database"
	c.RuntimeParams["wal_sender_timeout"] = "60s"
	return c
}
