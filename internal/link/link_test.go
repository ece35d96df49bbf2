package link_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/internal/link"
	"github.com/wed-sql/wed_sql/internal/stall"
)

// pair returns a link and the worker's end of it.
func pair(t *testing.T) (*link.Link, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.New(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "worker")
	worker, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	t.Cleanup(func() { _ = l.Close(); _ = worker.Close() })
	return l, worker
}

// send runs Send until the test ends.
func send(t *testing.T, l *link.Link) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Send(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func read(t *testing.T, worker net.Conn) []byte {
	t.Helper()
	if err := worker.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2*link.MaxPacket)
	n, err := worker.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if n > link.MaxPacket {
		t.Fatalf("a packet of %d bytes", n)
	}
	return buf[:n]
}

func TestCommandsArriveAndTheEndOfTheFileEndsIt(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	for _, p := range []string{`C{"port":5432}`, "R", "R\x00\x01\x02\x03", "?unknown", "D\x00\x01\x02\x03\x00\x00\x00\x07", "E\x00\x01\x02\x03\x00\x00\x00\x07", "A\x00\x01\x02\x03", "P"} {
		if _, err := worker.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := worker.Close(); err != nil {
		t.Fatal(err)
	}
	var got []link.Command
	if err := l.Receive(context.Background(), func(c link.Command) { got = append(got, c) }); err != nil {
		t.Fatalf("Receive: %v", err)
	}
	want := []link.Command{
		{Kind: link.Reload, Settings: []byte(`{"port":5432}`)},
		{Kind: link.Everywhere},
		{Kind: link.Discover, Database: 0x00010203},
		{Kind: link.Leave, Database: 0x00010203, Ticket: 7},
		{Kind: link.Return, Database: 0x00010203, Ticket: 7},
		{Kind: link.Abandoned, Database: 0x00010203},
		{Kind: link.Ping},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, _ := pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Receive(ctx, func(link.Command) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive: %v", err)
	}
}

func TestStatusPacket(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	l.Status(link.Status{Database: 5, Name: "app", Phase: link.Streaming, Slot: "wed_sql_5", Flushed: 0x1_0000_0002, States: 7, Err: "no\x00ne", Warning: "w"})
	want := "S\x00\x00\x00\x05s\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x07app\x00wed_sql_5\x00no ne\x00w\x00"
	if diff := cmp.Diff(want, string(read(t, worker))); diff != "" {
		t.Error(diff)
	}
}

func TestEachLeaveIsAnsweredAfterTheStatusThatGoesWithIt(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	l.Status(link.Status{Database: 5, Phase: link.Gone})
	l.Left(5, 7)
	l.Left(5, 8)
	l.Status(link.Status{Database: 6, Phase: link.Waiting})
	send(t, l)
	seen := map[string]int{}
	for i := range 4 {
		p := read(t, worker)
		seen[string(p[:5])+string(p[len(p)-1:])] = i
	}
	gone, first, second := seen["S\x00\x00\x00\x05\x00"], seen["D\x00\x00\x00\x05\x07"], seen["D\x00\x00\x00\x05\x08"]
	if len(seen) != 4 || gone > first || first > second {
		t.Errorf("seen in the order %v", seen)
	}
}

func TestCountersAreThrottledAndChangesAreNot(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	s := link.Status{Database: 5, Phase: link.Waiting}
	l.Status(s)
	read(t, worker)
	start := time.Now()
	for i := range uint64(3) { // the first move of the counters is sent at once, then one a second
		s.States = i + 1
		l.Status(s)
		if got := binary.BigEndian.Uint64(read(t, worker)[14:]); got != i+1 {
			t.Fatalf("states = %d, want %d", got, i+1)
		}
	}
	if d := time.Since(start); d < 1900*time.Millisecond {
		t.Errorf("three moves of the counters were sent within %v", d)
	}
	s.States, s.Phase = 10, link.BackedOff
	machine := stall.Watch(t)
	start = time.Now()
	l.Status(s)
	if p := read(t, worker); p[5] != 'b' || time.Since(start) > machine.Patience(500*time.Millisecond) {
		t.Errorf("a change of phase arrived as %q after %v", p[5], time.Since(start))
	}
}

func TestThePositionThatArrivesLastIsTheNewest(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	const last = 10_000
	go func() {
		for lsn := uint64(1); lsn <= last; lsn++ {
			l.Applied(9, lsn, time.Time{})
		}
	}()
	packets, before := 0, uint64(0)
	for before < last {
		p := read(t, worker)
		lsn := binary.BigEndian.Uint64(p[5:])
		if p[0] != 'A' || lsn <= before {
			t.Fatalf("%q after %d", p, before)
		}
		before = lsn
		packets++
	}
	if packets > last/2 {
		t.Errorf("%d packets for %d positions in a row", packets, last)
	}
}

func TestAWorkerThatDoesNotReadStopsNobody(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	long := strings.Repeat("x", 7000)
	for range 2000 { // far more than the socket takes
		l.Log('I', long, "", "")
	}
	for {
		if p := read(t, worker); strings.Contains(string(p), "log messages of the engine were lost") {
			return
		}
	}
}

func TestWhatWasLoggedBeforeTheEndIsSent(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l.Log('E', "last words", "", "")
	if err := l.Send(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := string(read(t, worker)); got != "LElast words\x00\x00\x00" {
		t.Errorf("got %q", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the last words: %v", err)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	level := new(slog.LevelVar)
	log := slog.New(l.Handler(level)).With("database", "my app")
	long := strings.Repeat("é", 9000)

	log.Debug("not enabled")
	level.Set(slog.LevelDebug)
	tests := []struct {
		emit func()
		want string
	}{
		{func() { log.Debug("d", "n", 1) }, "LDd database=\"my app\" n=1\x00\x00\x00"},
		{func() { log.Info("i", "lsn", "0/1", "hint", "Do it.") }, "LIi database=\"my app\" lsn=0/1\x00\x00Do it.\x00"},
		{func() { log.Warn("w", "err", errors.New("short"), "detail", "More.") }, "LWw database=\"my app\": short\x00More.\x00\x00"},
		{func() { log.WithGroup("g").Error("e", slog.Group("h", "k", "a\"b")) }, "LEe database=\"my app\" g.h.k=\"a\\\"b\"\x00\x00\x00"},
		{func() { log.Info("e", "err", errors.New("two\nlines")) }, "LIe database=\"my app\"\x00two\nlines\x00\x00"},
	}
	for _, tt := range tests {
		tt.emit()
		if diff := cmp.Diff(tt.want, string(read(t, worker))); diff != "" {
			t.Error(diff)
		}
	}

	log.Info(long, "err", errors.New(long), "hint", long)
	p := read(t, worker)
	if !utf8.Valid(p) || strings.Count(string(p), "…") != 3 || strings.Count(string(p), "\x00") != 3 {
		t.Errorf("a long line was cut badly: %d bytes, valid UTF-8 %v", len(p), utf8.Valid(p))
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	l, worker := pair(t)
	send(t, l)
	log := slog.New(l.Handler(slog.LevelInfo))
	var wg sync.WaitGroup
	for i := range uint32(8) {
		wg.Go(func() {
			for n := range uint64(200) {
				log.Info("x", "n", n)
				l.Applied(i, n, time.Now())
				l.Status(link.Status{Database: i, States: n, Phase: link.Streaming})
			}
			l.Status(link.Status{Database: i, Phase: link.Gone})
		})
	}
	gone := 0
	for gone < 8 {
		if p := read(t, worker); p[0] == 'S' && p[5] == 'x' {
			gone++
		}
	}
	wg.Wait()
}
