package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/link"
	"github.com/wed-sql/wed_sql/metrics"
	"github.com/wed-sql/wed_sql/sweeper"
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
	shortages *shortages
	numbers   *metrics.Database

	// previous is closed when nobody else follows the database any more.
	previous <-chan struct{}
	// recheck makes it look again whether the extension is there.
	recheck chan struct{}
	cancel  context.CancelFunc
	done    chan struct{}
	found   bool // the extension was there; belongs to run

	mu       sync.Mutex
	status   link.Status
	retired  bool      // it has been told to end, and has no more to say
	streamed time.Time // when it began to stream; zero if it does not
	before   uint64    // states applied by earlier runs
	lastErr  string
	sweeper  *sweeper.Sweeper
	warnings [2]string
}

// Who gives warnings.
const (
	ofFollower = iota
	ofSweeper
)

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
			m.phase(link.Gone) // also if an earlier engine has reported it
			return
		}
		if errors.Is(err, errDropped) || wal.Gone(err) && !doubted {
			doubted = true
			continue // look again; it may be another extension of that name
		}
		doubted = false
		if isUndecodable(err) {
			if gone := m.server.clean(ctx, m.entry); gone == nil {
				m.log.Warn("the replication slot cannot be read, and is made anew", "err", err,
					"hint", "States that were not matched yet are made up for from the tables: what is due becomes jobs.")
				continue
			}
		}
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
		if m.entry.slot || m.found {
			if err := m.server.clean(ctx, m.entry); err != nil {
				return fmt.Errorf("clean up after the extension: %w", err)
			}
			m.log.Info("the extension is gone: its slot was dropped")
		}
		return nil
	}
	m.found = true
	if err := m.server.prepare(ctx, m.entry.name); err != nil {
		return err
	}
	m.set(func(s *link.Status) { s.Phase, s.Warning, m.warnings = link.Waiting, "", [2]string{} })
	conn, err := m.server.config.connConfig(m.entry.name)
	if err != nil {
		return err
	}
	look := make(chan struct{}, 1)
	sw := sweeper.New(sweeper.Settings{
		Open: func(ctx context.Context) (sweeper.Session, error) { return sweeper.Open(ctx, conn, admit) },
		Log:  m.log,
		Warn: func(text string) { m.warn(ofSweeper, text) },
	})
	m.mu.Lock()
	m.sweeper = sw
	m.mu.Unlock()
	g, _ := group.New(ctx)
	g.Go("sweeper", sw.Run)
	g.Go("watch", func(ctx context.Context) error { return m.watch(ctx, oid, look) })
	g.Go("follow", func(ctx context.Context) error {
		return wal.Follow(ctx, wal.Settings{
			Conn:      conn,
			Database:  m.entry.oid,
			BatchSize: m.batchSize,
			Log:       m.log,
			Observer:  observer{m},
			Meter:     m.numbers,
			Phase:     m.streaming,
			Recheck:   look,
			Admit:     admit,
			Warn:      func(text string) { m.warn(ofFollower, text) },
			Sweeper:   sw,
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

// set changes the status and reports it.
func (m *member) set(change func(*link.Status)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired {
		return
	}
	m.status.Database, m.status.Name = m.entry.oid, m.entry.name
	m.status.Slot = wal.SlotName(m.entry.oid)
	change(&m.status)
	m.report(m.status)
}

// warn reports what is wrong without stopping the follower.
func (m *member) warn(of int, text string) {
	m.set(func(s *link.Status) {
		m.warnings[of] = text
		s.Warning = strings.Trim(strings.Join(m.warnings[:], "\n"), "\n")
	})
}

// abandoned says that sessions have ended which had jobs locked.
func (m *member) abandoned() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sweeper != nil { // else it looks when it starts
		m.sweeper.Lost()
	}
}

func (m *member) phase(p link.Phase) {
	m.set(func(s *link.Status) { s.Phase = p })
}

func (m *member) streaming(streaming bool) {
	if !streaming {
		m.phase(link.Healing)
		return
	}
	m.shortages.over(m.entry.oid)
	m.set(func(s *link.Status) {
		s.Phase, s.Err = link.Streaming, ""
		m.streamed = time.Now()
		m.before = s.States
	})
}

// settled tells the log that an error is over, once the stream has lasted: a follower
// that fails with its first batch again and again must not be told of each time. It needs
// the lock.
func (m *member) settled() {
	if m.lastErr != "" && !m.streamed.IsZero() && time.Since(m.streamed) > goodRun {
		m.log.Info("streaming again")
		m.lastErr = ""
	}
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
	m.numbers.Failed()
	t := explain(err, m.server.config)
	if t.lacks != "" {
		t.text = m.shortages.note(t.lacks, m.entry.oid, t.text)
	} else {
		m.shortages.over(m.entry.oid)
	}
	m.set(func(s *link.Status) {
		s.Phase, s.Err, s.Warning = link.BackedOff, t.text, ""
		if t.hint != "" {
			s.Err += ". " + t.hint
		}
		key := variable.ReplaceAllString(t.text, "#")
		if m.lastErr == key {
			return
		}
		m.lastErr = key
		if t.lacks != "" {
			return // shortages tells, of all databases at once
		}
		attrs := []any{"err", err}
		if t.hint != "" {
			attrs = []any{"err", errors.New(t.text), "hint", t.hint}
		}
		m.log.Warn("cannot follow the database, will try again", attrs...)
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

// look makes it look again whether the extension is there.
func (m *member) look() {
	select {
	case m.recheck <- struct{}{}:
	default: // it has not done it the last time yet
	}
}

// retire makes it end soon, and say nothing from now on.
func (m *member) retire() {
	m.mu.Lock()
	m.retired = true
	m.mu.Unlock()
	m.cancel()
	m.shortages.over(m.entry.oid)
}

// observer passes the follower's progress on.
type observer struct{ m *member }

func (o observer) Applied(lsn wal.LSN, commit time.Time) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	if !o.m.retired {
		o.m.settled()
		o.m.link.Applied(o.m.entry.oid, uint64(lsn), commit)
		o.m.numbers.Applied(lsn)
	}
}

func (o observer) Progress(flushed wal.LSN, states uint64) {
	o.m.set(func(s *link.Status) {
		o.m.settled()
		s.Flushed = max(s.Flushed, uint64(flushed))
		s.States = o.m.before + states
	})
}
