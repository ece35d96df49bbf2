// Package link is the engine's end of the socket pair between the engine process
// and the background worker that forked it.
//
// One packet is one message, at most [MaxPacket] bytes; integers are big endian.
// The engine sends
//
//	'L' level(1) message NUL detail NUL hint NUL
//	'A' database(4) lsn(8)
//	'S' database(4) phase(1) flushed(8) states(8) datname NUL slot NUL error NUL warning NUL
//	'D' database(4) ticket(4)
//	'P'
//
// and the worker sends
//
//	'C' settings as JSON
//	'R' [database(4)]
//	'D' database(4) ticket(4)
//	'E' database(4) ticket(4)
//	'A' database(4)
//	'P'
//
// The end of the file means that the worker is gone, and with it the reason for
// the engine to live.
//
// Nothing in the engine ever waits for the worker: what cannot be sent at once is
// kept here, the newest position and status per database, and a bounded number of
// log lines.
package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	// MaxPacket is the size of the longest message, in bytes.
	MaxPacket = 8192

	// A waiter for an LSN is happy with a position that is a millisecond old, and
	// a busy cluster moves the position thousands of times a second.
	appliedInterval = time.Millisecond
	// Counters are for people to look at.
	countersInterval = time.Second

	maxQueuedLines = 256
	maxText        = 2048 // of an error or a warning in a status; the worker keeps less
	drainTimeout   = time.Second
)

// Phase is what the follower of a database is doing.
type Phase byte

const (
	Waiting   Phase = 'w' // starting: connecting, or waiting for the server
	Healing   Phase = 'h' // making up for a missing slot from the tables
	Streaming Phase = 's'
	BackedOff Phase = 'b' // failed; it tries again by itself
	LeftAlone Phase = 'a' // there is a slot, but the database is not to be connected to
	Gone      Phase = 'x' // not followed any more: forget this database
)

// Status describes the follower of one database.
type Status struct {
	Database uint32 // its OID
	Name     string
	Phase    Phase
	Slot     string
	Flushed  uint64 // LSN acknowledged to the slot
	States   uint64 // states applied since the engine started
	Err      string // why it backs off, or ""
	Warning  string // what is wrong without stopping it, or ""
}

// Command is a message of the worker.
type Command struct {
	Kind     Kind
	Settings []byte // of Reload: JSON
	Database uint32 // an OID; of Discover: 0 for the list of databases alone
	Ticket   uint32 // of Leave, which its answer and its Return bear
}

// Kind says what the worker asks for.
type Kind byte

const (
	Reload     Kind = 'C' // take these settings
	Discover   Kind = 'R' // list the databases, and look whether this one has the extension
	Everywhere Kind = 'r' // the same of all databases; on the wire, Discover without a database
	Leave      Kind = 'D' // stop following a database until Return; its slot stays
	Return     Kind = 'E' // this Leave is over
	Abandoned  Kind = 'A' // sessions of the database have ended which had jobs locked
	Ping       Kind = 'P' // say that you are there
)

// Link is safe for concurrent use. Its methods, [Link.Run] apart, never block.
type Link struct {
	conn net.Conn
	wake chan struct{}

	mu       sync.Mutex
	lines    [][]byte
	lost     int                 // lines that found no room
	answers  [][]byte            // never lost: somebody waits for each
	applied  map[uint32]position // to send
	statuses map[uint32]*status  // newest status per database
}

type status struct {
	now, sent Status
	wasSent   bool
}

// New takes over the socket fd.
func New(fd int) (*Link, error) {
	f := os.NewFile(uintptr(fd), "link")
	if f == nil {
		return nil, fmt.Errorf("link: bad file descriptor %d", fd)
	}
	conn, err := net.FileConn(f) // a duplicate, known to Go's poller
	if err != nil {
		return nil, errors.Join(fmt.Errorf("link: take over file descriptor %d: %w", fd, err), f.Close())
	}
	if err := f.Close(); err != nil {
		return nil, errors.Join(fmt.Errorf("link: close the original of file descriptor %d: %w", fd, err), conn.Close())
	}
	return &Link{
		conn:     conn,
		wake:     make(chan struct{}, 1),
		applied:  make(map[uint32]position),
		statuses: make(map[uint32]*status),
	}, nil
}

// Receive calls handle with every command of the worker, one at a time, until the
// worker is gone (nil), the context ends, or the socket fails. It must not be
// called twice.
func (l *Link) Receive(ctx context.Context, handle func(Command)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, MaxPacket)
	for {
		n, err := l.conn.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // the latter if it had not read everything
			return nil
		case err != nil:
			return fmt.Errorf("link: read: %w", err)
		}
		c, known, err := parseCommand(buf[:n])
		if err != nil {
			return err
		}
		if known { // else a newer worker's word: nothing that this engine could do
			handle(c)
		}
	}
}

// parseCommand reads a message of the worker.
func parseCommand(packet []byte) (c Command, known bool, err error) {
	if len(packet) == 0 {
		return Command{}, false, errors.New("link: a message without a byte")
	}
	c.Kind = Kind(packet[0])
	body := packet[1:]
	size := len(body) // what it has to be
	switch c.Kind {
	case Reload:
		c.Settings = append([]byte(nil), body...)
	case Discover:
		if size == 0 {
			c.Kind = Everywhere
			break
		}
		size = 4
	case Leave, Return:
		size = 8
	case Abandoned:
		size = 4
	case Ping:
		size = 0
	default:
		return Command{}, false, nil
	}
	if len(body) != size {
		return Command{}, false, fmt.Errorf("link: message %q has %d bytes", c.Kind, len(packet))
	}
	if c.Kind != Reload && size >= 4 {
		c.Database = binary.BigEndian.Uint32(body)
	}
	if size == 8 && c.Kind != Reload {
		c.Ticket = binary.BigEndian.Uint32(body[4:])
	}
	return c, true, nil
}

// Send writes what the other methods leave to be sent, until the worker is gone (nil)
// or the context ends; then what is left, for a second at most.
func (l *Link) Send(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetWriteDeadline(time.Now().Add(drainTimeout)) })
	defer stop()

	var nextApplied, nextCounters time.Time
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		over := ctx.Err() != nil
		now := time.Now()
		packets, applied, counters := l.take(over || !now.Before(nextApplied), over || !now.Before(nextCounters))
		for _, p := range packets {
			if _, err := l.conn.Write(p); err != nil {
				switch {
				case ctx.Err() != nil:
					return ctx.Err()
				case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
					return nil // Receive knows
				}
				return fmt.Errorf("link: write: %w", err)
			}
		}
		if over {
			return ctx.Err()
		}
		// What take kept back gets a timer; at rest there is none.
		var due time.Time
		if applied == sentSome {
			nextApplied = now.Add(appliedInterval)
		}
		if counters == sentSome {
			nextCounters = now.Add(countersInterval)
		}
		if applied == keptSome {
			due = nextApplied
		}
		if counters == keptSome && (due.IsZero() || nextCounters.Before(due)) {
			due = nextCounters
		}
		if !due.IsZero() {
			timer.Reset(time.Until(due))
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// What take did with the messages that have a rate limit.
type taken int

const (
	hadNone taken = iota
	sentSome
	keptSome
)

func (l *Link) take(positions, counters bool) (packets [][]byte, didPositions, didCounters taken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	packets, l.lines = l.lines, nil
	if l.lost > 0 {
		packets = append(packets, line('W', fmt.Sprintf("%d log messages of the engine were lost", l.lost), "", ""))
		l.lost = 0
	}
	for db, s := range l.statuses {
		changed := !s.wasSent || s.now.Phase != s.sent.Phase || s.now.Err != s.sent.Err ||
			s.now.Slot != s.sent.Slot || s.now.Name != s.sent.Name || s.now.Warning != s.sent.Warning
		switch {
		case s.now == s.sent:
			continue
		case changed:
		case counters:
			didCounters = sentSome
		default:
			didCounters = keptSome
			continue
		}
		packets = append(packets, s.now.packet())
		s.sent, s.wasSent = s.now, true
		if s.now.Phase == Gone {
			delete(l.statuses, db)
			delete(l.applied, db)
		}
	}
	packets, l.answers = append(packets, l.answers...), nil
	if len(l.applied) > 0 {
		if !positions {
			return packets, keptSome, didCounters
		}
		didPositions = sentSome
		for db, at := range l.applied {
			packets = append(packets, at.packet(db))
		}
		clear(l.applied)
	}
	return packets, didPositions, didCounters
}

// Applied tells the worker that everything that the database committed up to lsn
// has been matched, the last state of it committed at the given time, if that is not
// zero. Of several positions in short order the last one is sent.
func (l *Link) Applied(database uint32, lsn uint64, commit time.Time) {
	l.mu.Lock()
	at := l.applied[database]
	at.lsn = lsn
	if !commit.IsZero() {
		at.commit = commit
	}
	l.applied[database] = at
	l.mu.Unlock()
	l.signal()
}

// position is how far a database is matched.
type position struct {
	lsn    uint64
	commit time.Time // of the last state; zero: none since the last position that was sent
}

func (at position) packet(database uint32) []byte {
	p := binary.BigEndian.AppendUint32([]byte{'A'}, database)
	p = binary.BigEndian.AppendUint64(p, at.lsn)
	if at.commit.IsZero() {
		return p
	}
	const postgresEpoch = 946_684_800_000_000 // microseconds from 1970 to 2000
	return binary.BigEndian.AppendUint64(p, uint64(at.commit.UnixMicro()-postgresEpoch))
}

// Status tells the worker how a database's follower is: at once when it changed
// what it does, within a second when only its counters moved.
func (l *Link) Status(now Status) {
	l.mu.Lock()
	s := l.statuses[now.Database]
	if s == nil {
		s = new(status)
		l.statuses[now.Database] = s
	}
	s.now = now
	l.mu.Unlock()
	l.signal()
}

// Left answers a [Leave].
func (l *Link) Left(database, ticket uint32) {
	p := binary.BigEndian.AppendUint32([]byte{'D'}, database)
	p = binary.BigEndian.AppendUint32(p, ticket)
	l.answer(p)
}

// Here answers a [Ping].
func (l *Link) Here() { l.answer([]byte{'P'}) }

func (l *Link) answer(packet []byte) {
	l.mu.Lock()
	l.answers = append(l.answers, packet)
	l.mu.Unlock()
	l.signal()
}

// Log hands the worker a line for the server's log. The level is one of 'D'
// (debug), 'I' (information), 'W' (warning) and 'E' (error).
func (l *Link) Log(level byte, message, detail, hint string) {
	l.mu.Lock()
	if len(l.lines) < maxQueuedLines {
		l.lines = append(l.lines, line(level, message, detail, hint))
	} else {
		l.lost++
	}
	l.mu.Unlock()
	l.signal()
}

func (l *Link) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // Send has not seen the last one yet
	}
}

// Close closes the socket; Receive and Send fail from then on.
func (l *Link) Close() error { return l.conn.Close() }

func line(level byte, message, detail, hint string) []byte {
	room := MaxPacket - 2 - 3
	hint = Truncate(hint, room/8)
	detail = Truncate(detail, room/2)
	message = Truncate(message, room-len(hint)-len(detail))
	p := make([]byte, 0, 2+len(message)+len(detail)+len(hint)+3)
	return appendTexts(append(p, 'L', level), message, detail, hint)
}

func (s Status) packet() []byte {
	p := binary.BigEndian.AppendUint32([]byte{'S'}, s.Database)
	p = append(p, byte(s.Phase))
	p = binary.BigEndian.AppendUint64(p, s.Flushed)
	p = binary.BigEndian.AppendUint64(p, s.States)
	return appendTexts(p, Truncate(s.Name, 256), Truncate(s.Slot, 256), Truncate(s.Err, maxText), Truncate(s.Warning, maxText))
}

func appendTexts(p []byte, texts ...string) []byte {
	for _, t := range texts {
		p = append(p, strings.ReplaceAll(t, "\x00", " ")...)
		p = append(p, 0)
	}
	return p
}

// Truncate shortens s to at most max bytes without cutting a character, and shows
// by an ellipsis that it did.
func Truncate(s string, max int) string {
	const ellipsis = "…"
	if len(s) <= max {
		return s
	}
	cut := max - len(ellipsis)
	if cut < 0 {
		return ""
	}
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}
