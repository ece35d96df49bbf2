package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/link"
	"github.com/wed-sql/wed_sql/wal"
)

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
	// A follower that streamed for so long has recovered from whatever it had.
	goodRun = 10 * time.Second
	// A server that starts or stops is not worth a word for so long.
	patience = 30 * time.Second
)

// member is the follower of one database, or the lack of one.
type member struct {
	entry     entry
	server    server
	batchSize func() int
	link      *link.Link
	log       *slog.Logger

	// recheck makes it look again whether the extension is there.
	recheck chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}

	mu       sync.Mutex
	status   link.Status
	reported bool
	streamed time.Time // when it began to stream; zero if it does not
	before   uint64    // states applied by earlier runs
	lastErr  string
}

// errDropped says that the extension is not there any more, or another one is.
var errDropped = errors.New("the extension was dropped")

// run follows the database until the context ends, or there is nothing to follow.
func (m *member) run(ctx context.Context) {
	pause, begin := firstPause, time.Now()
	doubted := false // the last error may mean that the extension was dropped
	for ctx.Err() == nil {
		err := group.Call("follower", func() error { return m.once(ctx) })
		if ctx.Err() != nil {
			return
		}
		if err == nil || isMissing(err) {
			m.gone()
			return
		}
		if errors.Is(err, errDropped) || wal.Gone(err) && !doubted {
			doubted = true
			continue // look again; it may be another extension of that name
		}
		doubted = false
		if m.ended() {
			pause, begin = firstPause, time.Now()
		}
		if !isStarting(err) || time.Since(begin) > patience {
			m.failed(err)
		}
		// A little disorder, so that databases that failed together do not come back together.
		m.sleep(ctx, pause+rand.N(pause/2))
		pause = min(2*pause, lastPause)
	}
}

func isMissing(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == invalidCatalogName
}

func (m *member) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.recheck:
	case <-ctx.Done():
	}
}

// once follows the database until something fails. It returns nil if there is no
// extension.
func (m *member) once(ctx context.Context) error {
	oid, err := m.server.extension(ctx, m.entry.name)
	if err != nil {
		return err
	}
	if oid == 0 {
		if m.entry.slot || m.wasReported() {
			if err := m.server.clean(ctx, m.entry); err != nil {
				return fmt.Errorf("clean up after the extension: %w", err)
			}
			m.log.Info("the extension is gone: its slot was dropped")
		}
		return nil
	}
	if err := m.server.prepare(ctx, m.entry.name); err != nil {
		return err
	}
	m.phase(link.Waiting)
	conn, err := m.server.config.connConfig(m.entry.name)
	if err != nil {
		return err
	}
	look := make(chan struct{}, 1)
	g, _ := group.New(ctx)
	g.Go("watch", func(ctx context.Context) error { return m.watch(ctx, oid, look) })
	g.Go("follow", func(ctx context.Context) error {
		return wal.Follow(ctx, wal.Settings{
			Conn:      conn,
			Database:  m.entry.oid,
			BatchSize: m.batchSize,
			Log:       m.log,
			Observer:  observer{m},
			Phase:     m.streaming,
			Recheck:   look,
		})
	})
	return g.Wait()
}

// watch fails when the extension with the OID is not there any more. If it is, the
// follower looks again, too.
func (m *member) watch(ctx context.Context, oid uint32, look chan<- struct{}) error {
	for {
		select {
		case <-m.recheck:
		case <-ctx.Done():
			return ctx.Err()
		}
		now, err := m.server.extension(ctx, m.entry.name)
		if err != nil {
			if isMissing(err) {
				return err
			}
			continue // the stream will tell, if it is serious
		}
		if now != oid {
			return errDropped
		}
		select {
		case look <- struct{}{}:
		default: // it has not done it the last time yet
		}
	}
}

func (m *member) wasReported() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reported
}

// set changes the status and reports it.
func (m *member) set(change func(*link.Status)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Database, m.status.Name = m.entry.oid, m.entry.name
	m.status.Slot = wal.SlotName(m.entry.oid)
	change(&m.status)
	m.reported = m.status.Phase != link.Gone
	m.link.Status(m.status)
}

func (m *member) phase(p link.Phase) {
	m.set(func(s *link.Status) { s.Phase = p })
}

func (m *member) streaming(streaming bool) {
	if !streaming {
		m.phase(link.Healing)
		return
	}
	m.set(func(s *link.Status) {
		s.Phase, s.Err = link.Streaming, ""
		m.streamed = time.Now()
		m.before = s.States
		if m.lastErr != "" {
			m.log.Info("streaming again")
			m.lastErr = ""
		}
	})
}

// ended notes that the stream, if there was one, has ended, and tells whether it was
// a good one.
func (m *member) ended() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	good := !m.streamed.IsZero() && time.Since(m.streamed) > goodRun
	m.streamed = time.Time{}
	return good
}

// variable matches what may differ between two errors that are the same to a reader:
// positions of the log, and numbers.
var variable = regexp.MustCompile(`[0-9A-F]+/[0-9A-F]+|[0-9]+`)

// failed reports an error, and logs it unless it is the last one again.
func (m *member) failed(err error) {
	text := err.Error()
	m.set(func(s *link.Status) {
		s.Phase, s.Err = link.BackedOff, text
		if key := variable.ReplaceAllString(text, "#"); m.lastErr != key {
			m.lastErr = key
		} else {
			return
		}
		var attrs []any
		if errors.Is(err, wal.ErrNotLogical) {
			attrs = []any{"hint", `Set wal_level to "logical" and restart the server.`}
		}
		m.log.Warn("cannot follow the database, will try again", append(attrs, "err", err)...)
	})
}

// over tells whether run has returned.
func (m *member) over() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// gone tells that the database is not followed any more, if anybody was told that it is.
func (m *member) gone() {
	if m.wasReported() {
		m.phase(link.Gone)
	}
}

// observer passes the follower's progress on.
type observer struct{ m *member }

func (o observer) Applied(lsn wal.LSN, commit time.Time) {
	o.m.link.Applied(o.m.entry.oid, uint64(lsn), commit)
}

func (o observer) Progress(flushed wal.LSN, states uint64) {
	o.m.set(func(s *link.Status) {
		s.Flushed = max(s.Flushed, uint64(flushed))
		s.States = o.m.before + states
	})
}
