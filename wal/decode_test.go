package wal

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wed-sql/wed_sql/fold"
)

// Messages of pgoutput, version 1, as the documentation has them.

type col struct {
	name string
	typ  uint32
}

func be16(b []byte, n int) []byte    { return binary.BigEndian.AppendUint16(b, uint16(n)) }
func be32(b []byte, n int) []byte    { return binary.BigEndian.AppendUint32(b, uint32(n)) }
func be64(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }
func cstr(b []byte, s string) []byte { return append(append(b, s...), 0) }

func msgBegin(final LSN, at time.Time, xid int) []byte {
	b := be64([]byte{'B'}, uint64(final))
	b = be64(b, uint64(at.UnixMicro()-946_684_800_000_000))
	return be32(b, xid)
}

func msgCommit(at, end LSN) []byte {
	b := be64([]byte{'C', 0}, uint64(at))
	return be64(be64(b, uint64(end)), 0)
}

func msgRelation(oid int, name string, cols ...col) []byte {
	b := cstr(cstr(be32([]byte{'R'}, oid), "flow"), name)
	b = be16(append(b, 'd'), len(cols))
	for _, c := range cols {
		b = be32(be32(cstr(append(b, 0), c.name), int(c.typ)), -1)
	}
	return b
}

// unchanged stands for a value that is stored out of line.
const unchanged = "\x00unchanged"

func msgTuple(b []byte, values ...*string) []byte {
	b = be16(b, len(values))
	for _, v := range values {
		switch {
		case v == nil:
			b = append(b, 'n')
		case *v == unchanged:
			b = append(b, 'u')
		default:
			b = append(be32(append(b, 't'), len(*v)), *v...)
		}
	}
	return b
}

func msgInsert(oid int, values ...*string) []byte {
	return msgTuple(append(be32([]byte{'I'}, oid), 'N'), values...)
}

func msgUpdate(oid int, values ...*string) []byte {
	return msgTuple(append(be32([]byte{'U'}, oid), 'N'), values...)
}

var travel = []col{{"wid", int8OID}, {"_stamp", 16400}, {"a1", 25}, {"n", int4OID}}

func stampOf(version string) *string { return ptr("(" + version + ",1,,{},{2},f,,,,,,,,,,)") }

func decodeAll(t *testing.T, d *decoder, maxStates int, messages ...[]byte) []Commit {
	t.Helper()
	var commits []Commit
	for _, m := range messages {
		c, err := d.decode(m, maxStates)
		if err != nil {
			t.Fatalf("message %q: %v", m[0], err)
		}
		clear(m) // the stream's buffer is used again
		if c != nil {
			commits = append(commits, *c)
		}
	}
	return commits
}

func noStray(t *testing.T) func(string, error) {
	return func(relation string, err error) { t.Errorf("stray row of %s: %v", relation, err) }
}

var ignoreNote = cmpopts.IgnoreUnexported(Version{})

func TestDecode(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	stamp := Stamp{Rules: 1, Matched: []fold.Rule{2}}
	second := stamp
	second.Version = 1
	got := decodeAll(t, newDecoder(0, noStray(t)), 100,
		msgBegin(100, at, 7),
		msgRelation(5, "wed_flow", travel...),
		msgInsert(5, ptr("1"), stampOf("0"), ptr(`x"y`), nil),
		msgUpdate(5, ptr("1"), stampOf("1"), ptr("z"), ptr("3")),
		msgCommit(100, 110),
		// DDL in mid-stream: a column more, another order, another type.
		msgBegin(200, at, 8),
		msgRelation(5, "wed_flow", col{"_stamp", 16400}, col{"n", 25}, col{"wid", int8OID}, col{"new col", boolOID}),
		msgInsert(5, stampOf("0"), ptr("3"), ptr("2"), ptr("t")),
		msgCommit(200, 210),
		[]byte("Oan origin"), []byte("Y..."), []byte("Mmessage"), []byte("T"), []byte("D"),
	)
	want := []Commit{
		{XID: 7, At: 100, Time: at, End: 110, Versions: []Version{
			{Relation: 5, Wid: 1, Stamp: stamp, State: `{"a1":"x\"y","n":null}`},
			{Relation: 5, Wid: 1, Stamp: second, State: `{"a1":"z","n":3}`},
		}},
		{XID: 8, At: 200, Time: at, End: 210, Versions: []Version{
			{Relation: 5, Wid: 2, Stamp: stamp, State: `{"n":"3","new col":true}`},
		}},
	}
	if diff := cmp.Diff(want, got, ignoreNote, cmp.Transformer("utc", time.Time.UTC)); diff != "" {
		t.Error(diff)
	}
}

func TestAnUpdateWithAnOldKeyIsRead(t *testing.T) {
	t.Parallel()
	m := append(be32([]byte{'U'}, 5), 'K')
	m = msgTuple(m, ptr("1"), nil, nil, nil)
	m = msgTuple(append(m, 'N'), ptr("1"), stampOf("1"), ptr("z"), nil)
	got := decodeAll(t, newDecoder(0, noStray(t)), 100,
		msgBegin(1, time.Now(), 1), msgRelation(5, "wed_flow", travel...), m, msgCommit(1, 2))
	if len(got) != 1 || len(got[0].Versions) != 1 || got[0].Versions[0].State != `{"a1":"z","n":null}` {
		t.Errorf("%+v", got)
	}
}

func TestAValueOutOfLineIsMissing(t *testing.T) {
	t.Parallel()
	got := decodeAll(t, newDecoder(0, noStray(t)), 100,
		msgBegin(1, time.Now(), 1), msgRelation(5, "wed_flow", travel...),
		msgUpdate(5, ptr("1"), stampOf("1"), ptr(unchanged), ptr("4")), msgCommit(1, 2))
	want := []Value{{Name: "a1", Missing: true}, {Name: "n", JSON: "4"}}
	if diff := cmp.Diff(want, got[0].Versions[0].Parts); diff != "" {
		t.Error(diff)
	}
}

func TestALargeTransactionComesInParts(t *testing.T) {
	t.Parallel()
	messages := [][]byte{msgBegin(1, time.Now(), 9), msgRelation(5, "wed_flow", travel...)}
	for range 7 {
		messages = append(messages, msgInsert(5, ptr("1"), stampOf("0"), nil, nil))
	}
	messages = append(messages, msgCommit(1, 2))
	var sizes []int
	for i, c := range decodeAll(t, newDecoder(0, noStray(t)), 3, messages...) {
		sizes = append(sizes, len(c.Versions))
		if last := i == 2; c.XID != 9 || (c.End != 0) != last {
			t.Errorf("part %d: %+v", i, c)
		}
	}
	if diff := cmp.Diff([]int{3, 3, 1}, sizes); diff != "" {
		t.Error(diff)
	}

	// A long state counts for many.
	big := ptr(strings.Repeat("x", partBytes))
	got := decodeAll(t, newDecoder(0, noStray(t)), 100, msgBegin(1, time.Now(), 9), msgRelation(5, "wed_flow", travel...),
		msgInsert(5, ptr("1"), stampOf("0"), big, nil), msgInsert(5, ptr("2"), stampOf("0"), big, nil), msgCommit(1, 2))
	if len(got) != 3 || len(got[2].Versions) != 0 || got[2].End != 2 {
		t.Errorf("%d parts", len(got))
	}
}

func TestTransactionsThatAreKnownAreSkipped(t *testing.T) {
	t.Parallel()
	d := newDecoder(100, noStray(t))
	insert := func() []byte { return msgInsert(5, ptr("1"), stampOf("0"), nil, nil) }
	got := decodeAll(t, d, 1, msgBegin(99, time.Now(), 1), msgRelation(5, "wed_flow", travel...), insert(), msgCommit(99, 100),
		msgBegin(100, time.Now(), 2), insert(), msgCommit(100, 120))
	if len(got) != 2 || got[0].XID != 2 || got[1].End != 120 {
		t.Errorf("%+v", got)
	}
}

func TestRowsThatAreNoStatesAreIgnored(t *testing.T) {
	t.Parallel()
	var strays []string
	d := newDecoder(0, func(relation string, err error) { strays = append(strays, relation+": "+err.Error()) })
	got := decodeAll(t, d, 10, msgBegin(1, time.Now(), 1), msgRelation(5, "wed_flow", travel...),
		msgRelation(6, "other", col{"wid", int8OID}),
		msgInsert(6, ptr("1")),
		msgInsert(5, ptr("1"), nil, nil, nil),
		msgInsert(5, ptr("2"), ptr("(x)"), nil, nil),
		msgInsert(5, ptr("3"), stampOf("0"), nil, nil), msgCommit(1, 2))
	if len(got) != 1 || len(got[0].Versions) != 1 || got[0].Versions[0].Wid != 3 || len(strays) != 2 {
		t.Errorf("%+v, strays %q", got, strays)
	}
}

func TestBrokenMessagesAreErrors(t *testing.T) {
	t.Parallel()
	whole := [][]byte{
		msgBegin(1, time.Now(), 1), msgRelation(5, "wed_flow", travel...),
		msgInsert(5, ptr("1"), stampOf("0"), ptr("text"), nil),
	}
	for n := range len(whole[2]) {
		d := newDecoder(0, noStray(t))
		for _, m := range whole[:2] {
			if _, err := d.decode(m, 10); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.decode(whole[2][:n], 10); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(whole[2]))
		}
	}
	for name, m := range map[string][]byte{
		"row outside of a transaction": whole[2],
		"commit without a begin":       msgCommit(1, 2),
		"empty message":                {},
	} {
		if _, err := newDecoder(0, noStray(t)).decode(m, 10); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecodeDoesNotPanicOnRows(f *testing.F) {
	f.Add(msgInsert(5, ptr("1"), stampOf("0"), ptr("text"), nil))
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) == 0 || m[0] != 'I' && m[0] != 'U' {
			t.Skip()
		}
		d := newDecoder(0, func(string, error) {})
		_, _ = d.decode(msgBegin(1, time.Now(), 1), 10)
		_, _ = d.decode(msgRelation(5, "wed_flow", travel...), 10)
		_, _ = d.decode(m, 10)
	})
}

func TestUnusable(t *testing.T) {
	t.Parallel()
	const name, system = "wed_sql_5", 42
	good := slot{Plugin: plugin, Confirmed: ptr("0/10"), WALStatus: "reserved"}
	row := follower{epoch: 2, slot: name, applied: 0x10, system: system}
	if why := unusable(&good, name, row, system); why != "" {
		t.Fatalf("a good slot: %s", why)
	}
	for what, change := range map[string]func(*slot, *follower){
		"never followed":      func(_ *slot, f *follower) { f.applied = 0 },
		"another cluster":     func(_ *slot, f *follower) { f.system = 1 },
		"another database":    func(_ *slot, f *follower) { f.slot = "wed_sql_6" },
		"lost":                func(s *slot, _ *follower) { s.WALStatus = "lost" },
		"invalidated":         func(s *slot, _ *follower) { s.Invalidation = "idle_timeout" },
		"conflicting":         func(s *slot, _ *follower) { s.Conflicting = true },
		"another plugin":      func(s *slot, _ *follower) { s.Plugin = "test_decoding" },
		"ahead of the tables": func(s *slot, _ *follower) { s.Confirmed = ptr("0/11") },
		"without a position":  func(s *slot, _ *follower) { s.Confirmed = nil },
	} {
		s, f := good, row
		change(&s, &f)
		if unusable(&s, name, f, system) == "" {
			t.Errorf("%s: used", what)
		}
	}
	if unusable(nil, name, row, system) == "" {
		t.Error("missing: used")
	}
}
