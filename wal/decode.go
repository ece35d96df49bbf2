package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/wed-sql/wed_sql/fold"
)

// LSN is a position in the write-ahead log.
type LSN = pglogrepl.LSN

// Version is a committed state of an instance, as the log has it.
type Version struct {
	Relation uint32 // OID of the flow's wed_flow
	Wid      int64
	Stamp    Stamp
	State    string  // JSON object of the attributes; "" if Parts has it
	Parts    []Value // the attributes one by one, if some of them are missing

	note string // why State is not the state
	heal *gap   // nil in what the stream brings
}

// gap is what healing knows of a state besides the state.
type gap struct {
	missing bool   // lines of states before it are
	fired   []fire // what is there of the instance
}

// fire is a job, or a timer of one.
type fire struct {
	rule    fold.Rule
	version int64 // of the state that fired it
	pooled  bool  // it is in job_pool
}

// Value is one attribute of a state.
type Value struct {
	Name    string
	JSON    string
	Missing bool // stored out of line and not changed: the log does not have it
}

// Commit is a transaction that wrote states, or a part of one.
type Commit struct {
	XID      uint32
	At       LSN       // of its commit record
	Time     time.Time // when it committed
	End      LSN       // behind its commit record; 0 for a part that is not the last
	Versions []Version
}

// size estimates what applying c takes in memory, in bytes.
func (c *Commit) size() int {
	n := 0
	for i := range c.Versions {
		n += c.Versions[i].size()
	}
	return n
}

func (v *Version) size() int {
	n := 256 + len(v.State) + 4*(len(v.Stamp.Pending)+len(v.Stamp.Matched)) + len(v.Stamp.Error)
	for _, p := range v.Parts {
		n += 64 + len(p.Name) + len(p.JSON)
	}
	return n
}

// partBytes bounds the memory of a part of a transaction.
const partBytes = 1 << 20

// decoder makes commits of the messages of pgoutput, protocol version 1. Messages
// that tell of no state are ignored.
type decoder struct {
	relations map[uint32]*relation
	start     LSN // transactions that committed below are known
	open      bool
	skip      bool
	current   Commit
	bytes     int // of current
	scratch   []byte
	// stray is told of rows that no guard has stamped.
	stray func(relation string, err error)
	// alarm is told of the timers that a transaction has set.
	alarm  func(alarm)
	alarms alarm // of the current transaction
}

// alarm is what a transaction has written into wed_sql.timer.
type alarm struct {
	xid     uint32
	due     time.Time // the earliest; zero: none
	signals []int32   // flows for which a signal was kept
}

type relation struct {
	name       string
	columns    []column
	wid, stamp int // indexes of these columns
}

type column struct {
	name string
	key  string // `"name":` as it stands in the JSON
	typ  uint32
}

func newDecoder(start LSN, stray func(string, error)) *decoder {
	return &decoder{relations: make(map[uint32]*relation), start: start, stray: stray}
}

// inTransaction tells whether a transaction has begun and not ended yet.
func (d *decoder) inTransaction() bool { return d.open }

// decode takes one message. It returns a commit when there is one to apply, or
// when the current one has maxStates states.
func (d *decoder) decode(message []byte, maxStates int) (*Commit, error) {
	if len(message) == 0 {
		return nil, errors.New("empty message")
	}
	switch typ := pglogrepl.MessageType(message[0]); typ {
	case pglogrepl.MessageTypeBegin:
		var m pglogrepl.BeginMessage
		if err := m.Decode(message[1:]); err != nil {
			return nil, fmt.Errorf("begin: %w", err)
		}
		d.open, d.skip = true, m.FinalLSN < d.start
		d.current, d.bytes = Commit{XID: m.Xid, At: m.FinalLSN, Time: m.CommitTime}, 0
		d.alarms = alarm{xid: m.Xid}
		return nil, nil
	case pglogrepl.MessageTypeCommit:
		var m pglogrepl.CommitMessage
		if err := m.Decode(message[1:]); err != nil {
			return nil, fmt.Errorf("commit: %w", err)
		}
		if !d.open {
			return nil, errors.New("commit without a begin")
		}
		d.open = false
		if d.skip {
			return nil, nil
		}
		if !d.alarms.due.IsZero() && d.alarm != nil {
			d.alarm(d.alarms)
		}
		done := d.current
		done.End = m.TransactionEndLSN
		d.current = Commit{}
		return &done, nil
	case pglogrepl.MessageTypeRelation:
		id, rel, err := readRelation(message[1:])
		if err != nil {
			return nil, fmt.Errorf("relation: %w", err)
		}
		d.relations[id] = rel
		return nil, nil
	case pglogrepl.MessageTypeInsert, pglogrepl.MessageTypeUpdate:
		if !d.open {
			return nil, fmt.Errorf("message %q outside of a transaction", typ)
		}
		if d.skip {
			return nil, nil
		}
		if err := d.row(message[1:]); err != nil {
			return nil, fmt.Errorf("message %q: %w", typ, err)
		}
		if len(d.current.Versions) < maxStates && d.bytes < partBytes {
			return nil, nil
		}
		part := d.current
		d.current, d.bytes = Commit{XID: part.XID, At: part.At, Time: part.Time}, 0
		return &part, nil
	}
	return nil, nil
}

// readRelation reads the description of a relation. (That of pglogrepl panics when it is cut short.)
func readRelation(b []byte) (id uint32, r *relation, err error) {
	f := fields{b: b}
	id = f.uint32()
	namespace, name := f.text(), f.text()
	f.bytes(1) // the replica identity
	count := int(binary.BigEndian.Uint16(f.bytes(2)))
	r = &relation{name: namespace + "." + name, wid: -1, stamp: -1}
	for i := 0; i < count && f.err == nil; i++ {
		f.bytes(1) // whether it is of the key
		c := column{name: f.text(), typ: f.uint32()}
		f.bytes(4) // the modifier of the type
		switch c.name {
		case widColumn:
			r.wid = i
		case stampColumn:
			r.stamp = i
		}
		c.key = quoteJSON(c.name) + ":"
		r.columns = append(r.columns, c)
	}
	return id, r, f.err
}

// fields reads the fields of a message; after the first that is not there, all are zero.
type fields struct {
	b   []byte
	err error
}

func (f *fields) bytes(n int) []byte {
	if len(f.b) < n {
		f.err, f.b = errShort, nil
		return make([]byte, n)
	}
	field := f.b[:n]
	f.b = f.b[n:]
	return field
}

func (f *fields) uint32() uint32 { return binary.BigEndian.Uint32(f.bytes(4)) }

func (f *fields) text() string {
	n := bytes.IndexByte(f.b, 0)
	if n < 0 {
		f.err, f.b = errShort, nil
		return ""
	}
	text := string(f.b[:n])
	f.b = f.b[n+1:]
	return text
}

// row reads an Insert, or the new row of an Update.
func (d *decoder) row(b []byte) error {
	if len(b) < 5 {
		return errShort
	}
	oid := binary.BigEndian.Uint32(b)
	rel := d.relations[oid]
	if rel == nil {
		return fmt.Errorf("row of relation %d, which was not described", oid)
	}
	t := tuple{b: b[5:]}
	if b[4] != 'N' { // the old key comes first, if it changed; nobody needs it
		t.begin()
		for t.left > 0 {
			t.next()
		}
		if len(t.b) == 0 || t.b[0] != 'N' {
			return fmt.Errorf("relation %s: no new row", rel.name)
		}
		t.b = t.b[1:]
	}
	if rel.name == timerTable {
		return d.timer(rel, t)
	}
	if rel.wid < 0 || rel.stamp < 0 {
		return nil // not a flow's: somebody added a table to the publication
	}
	if t.begin(); t.left != len(rel.columns) {
		return fmt.Errorf("relation %s: row of %d columns, want %d", rel.name, t.left, len(rel.columns))
	}

	v := Version{Relation: oid}
	values := make([]datum, len(rel.columns))
	missing := false
	for i := range values {
		values[i].kind, values[i].text = t.next()
		missing = missing || values[i].kind == datumUnchanged
	}
	if t.err != nil {
		return fmt.Errorf("relation %s: %w", rel.name, t.err)
	}
	var err error
	if v.Wid, err = strconv.ParseInt(string(values[rel.wid].text), 10, 64); err != nil {
		// A table that is not as its flow needs it stops no other flow.
		d.stray(rel.name, fmt.Errorf("wid: %w", err))
		return nil
	}
	if values[rel.stamp].kind != datumText {
		d.stray(rel.name, fmt.Errorf("instance %d has no stamp", v.Wid))
		return nil
	}
	if v.Stamp, err = ParseStamp(string(values[rel.stamp].text)); err != nil {
		d.stray(rel.name, fmt.Errorf("instance %d: %w", v.Wid, err))
		return nil
	}
	if missing {
		v.Parts = rel.parts(values)
	} else {
		d.scratch = rel.appendState(d.scratch[:0], values)
		v.State = string(d.scratch)
		if cap(d.scratch) > partBytes {
			d.scratch = nil // not for ever as large as the largest state
		}
	}
	d.current.Versions = append(d.current.Versions, v)
	d.bytes += v.size()
	return nil
}

const timerTable = "wed_sql.timer"

// timer reads a row of wed_sql.timer.
func (d *decoder) timer(rel *relation, t tuple) error {
	if t.begin(); t.left != len(rel.columns) {
		return fmt.Errorf("relation %s: row of %d columns, want %d", rel.name, t.left, len(rel.columns))
	}
	var due time.Time
	var flow int64
	signal := false
	for _, c := range rel.columns {
		_, text := t.next()
		switch c.name {
		case "due_at":
			// A time that Go has none for is looked at when it is due, like any other.
			due, _ = time.Parse(timestampLayout, string(text))
		case "flow_id":
			flow, _ = strconv.ParseInt(string(text), 10, 32)
		case "kind":
			signal = string(text) == signalTimer
		}
	}
	if t.err != nil {
		return fmt.Errorf("relation %s: %w", rel.name, t.err)
	}
	if signal {
		d.alarms.signals = append(d.alarms.signals, int32(flow))
	}
	if !due.IsZero() && (d.alarms.due.IsZero() || due.Before(d.alarms.due)) {
		d.alarms.due = due
	}
	return nil
}

type datum struct {
	kind byte
	text []byte
}

const (
	datumNull      = 'n'
	datumUnchanged = 'u'
	datumText      = 't'
)

// appendState appends the JSON object of the attributes, in the order of the columns.
func (r *relation) appendState(b []byte, values []datum) []byte {
	b = append(b, '{')
	for i, c := range r.columns {
		if i == r.wid || i == r.stamp {
			continue
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(b, c.key...)
		b = appendDatum(b, c.typ, values[i])
	}
	return append(b, '}')
}

// parts is appendState for a row with values missing.
func (r *relation) parts(values []datum) []Value {
	parts := make([]Value, 0, len(values))
	for i, c := range r.columns {
		switch {
		case i == r.wid || i == r.stamp:
		case values[i].kind == datumUnchanged:
			parts = append(parts, Value{Name: c.name, Missing: true})
		default:
			parts = append(parts, Value{Name: c.name, JSON: string(appendDatum(nil, c.typ, values[i]))})
		}
	}
	return parts
}

func appendDatum(b []byte, typ uint32, v datum) []byte {
	if v.kind == datumNull {
		return append(b, "null"...)
	}
	return appendValue(b, typ, v.text)
}

var errShort = errors.New("message is too short")

// tuple reads the columns of a TupleData. pglogrepl would do, with two allocations
// for each value.
type tuple struct {
	b    []byte
	left int // columns to come
	err  error
}

func (t *tuple) begin() {
	if len(t.b) < 2 {
		t.fail()
		return
	}
	t.left, t.b = int(binary.BigEndian.Uint16(t.b)), t.b[2:]
}

func (t *tuple) fail() {
	t.err, t.left, t.b = errShort, 0, nil
}

// next returns the next column. Its text is valid as long as the message is.
func (t *tuple) next() (kind byte, text []byte) {
	if len(t.b) < 1 {
		t.fail()
		return datumNull, nil
	}
	t.left--
	kind, t.b = t.b[0], t.b[1:]
	if kind == datumNull || kind == datumUnchanged {
		return kind, nil
	}
	if len(t.b) < 4 {
		t.fail()
		return datumNull, nil
	}
	n := int(binary.BigEndian.Uint32(t.b))
	if t.b = t.b[4:]; n > len(t.b) {
		t.fail()
		return datumNull, nil
	}
	text, t.b = t.b[:n], t.b[n:]
	return kind, text
}
