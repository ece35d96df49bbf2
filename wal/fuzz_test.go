package wal

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"

	"github.com/wed-sql/wed_sql/fold"
)

// unframed takes bytes apart into messages: two bytes of length before each.
func unframed(data []byte) (messages [][]byte) {
	for len(data) >= 2 {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		messages = append(messages, data[2:2+n])
		data = data[2+n:]
	}
	return messages
}

func framed(messages ...[]byte) (data []byte) {
	for _, m := range messages {
		data = append(be16(data, len(m)), m...)
	}
	return data
}

// Whatever messages come, in whatever order: none is taken for what it is not, and what is made of them is sound.
func FuzzAnyMessagesMakeSoundCommitsOrAnError(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	relation := msgRelation(5, "wed_flow", travel...)
	f.Add(framed(msgBegin(100, at, 7), relation, msgInsert(5, ptr("1"), stampOf("0"), ptr(`x"y`), nil), msgCommit(100, 110)))
	f.Add(framed(msgBegin(100, at, 7), relation, msgUpdate(5, ptr("1"), stampOf("1"), ptr(unchanged), ptr("NaN")), msgCommit(100, 110)))
	f.Add(framed(msgBegin(100, at, 7), cstr(cstr([]byte{'R', 0, 0, 0, 9}, "wed_sql"), "timer"), msgInsert(9), msgCommit(1, 2)))
	f.Add(framed([]byte("U\x00\x00\x00\x05K\x00\x01n"), []byte("I"), []byte("B"), []byte("C"), []byte("R\xff")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newDecoder(0, func(string, error) {})
		d.alarm = func(alarm) {}
		for _, m := range unframed(data) {
			commit, err := d.decode(m, 2)
			if err != nil || commit == nil {
				continue
			}
			if len(commit.Versions) > 2 {
				t.Fatalf("%d states, want 2 at most", len(commit.Versions))
			}
			for i := range commit.Versions {
				v := &commit.Versions[i]
				if (v.State == "") == (v.Parts == nil) {
					t.Fatalf("%+v has its state in two places, or in none", v)
				}
				_ = outcome(v, &flow{})
			}
		}
	})
}

// naive reads a row as pglogrepl does, which is slower.
func naive(message []byte) (columns []datum, ok bool) {
	m, err := pglogrepl.Parse(message)
	if err != nil {
		return nil, false
	}
	var tuple *pglogrepl.TupleData
	switch m := m.(type) {
	case *pglogrepl.InsertMessage:
		tuple = m.Tuple
	case *pglogrepl.UpdateMessage:
		tuple = m.NewTuple
	}
	if tuple == nil {
		return nil, false
	}
	for _, c := range tuple.Columns {
		columns = append(columns, datum{c.DataType, c.Data})
	}
	return columns, true
}

func FuzzARowIsWhatPglogreplReads(f *testing.F) {
	f.Add("1", "x\"y", "3", false, true, byte(0))
	f.Add("9223372036854775807", strings.Repeat("é\n\x01", 40), "-1", true, false, byte('K'))
	f.Add("-1", "", "NaN", true, true, byte('O'))
	f.Fuzz(func(t *testing.T, wid, a, n string, null, missing bool, old byte) {
		values := []*string{&wid, stampOf("0"), &a, &n}
		if null {
			values[3] = nil
		}
		if missing {
			values[2] = ptr(unchanged)
		}
		message := msgInsert(5, values...)
		if old == 'K' || old == 'O' {
			message = msgTuple(append(be32([]byte{'U'}, 5), old), &a, nil)
			message = msgTuple(append(message, 'N'), values...)
		}
		want, ok := naive(slices.Clone(message))
		if !ok {
			t.Fatalf("pglogrepl cannot read %q", message)
		}
		d := newDecoder(0, func(string, error) {})
		_, _ = d.decode(msgBegin(1, time.Now(), 1), 10)
		_, _ = d.decode(msgRelation(5, "wed_flow", travel...), 10)
		if _, err := d.decode(message, 10); err != nil {
			t.Fatal(err)
		}
		number, err := strconv.ParseInt(wid, 10, 64)
		if err != nil {
			if len(d.current.Versions) > 0 {
				t.Fatalf("%q was taken for a wid", wid)
			}
			return
		}
		v := d.current.Versions[0]
		if v.Wid != number {
			t.Fatalf("instance %d, want %s", v.Wid, wid)
		}
		if missing != (v.Parts != nil) {
			t.Fatalf("missing: %t, %+v", missing, v)
		}
		if missing || !utf8.ValidString(a) || n != "3" {
			return
		}
		var state struct {
			A *string
			N *int
		}
		if err := json.Unmarshal([]byte(v.State), &state); err != nil {
			t.Fatalf("%s: %v", v.State, err)
		}
		if *state.A != string(want[2].text) || (state.N == nil) != (want[3].kind == datumNull) {
			t.Fatalf("%s, want %s", v.State, want[2].text)
		}
	})
}

// A stamp that was read is the same when it is written and read again.
func FuzzAStampIsReadAsItWas(f *testing.F) {
	f.Add(`(5,6,4,{4},{},f,"division by zero, at ""a1"" \\ (x)",t,{1},{2},S,{3},7,"2026-01-01 00:00:00+00",,{9})`)
	f.Add(`(0,1,,{},{2},f,,,,,,,,,,)`)
	f.Add(`(-1,9223372036854775807,-2147483648,"{1,2}","{}",t,"",,,,,,,infinity,-infinity,)`)
	f.Add(`(,,,,,,,,,,,,,,,)`)
	f.Fuzz(func(t *testing.T, text string) {
		stamp, err := ParseStamp(text)
		if err != nil {
			return
		}
		number := func(n int64) *string { return ptr(strconv.FormatInt(n, 10)) }
		rules := func(r []fold.Rule) *string { return ptr(intArray(r)) }
		fields := []*string{number(stamp.Version), number(stamp.Rules), nil, rules(stamp.Pending), rules(stamp.Matched), ptr("f"), nil, stamp.Transition,
			nil, rules(stamp.Withdrawn), nil, nil, nil, nil, nil, rules(stamp.Clocks)}
		if stamp.By != fold.None {
			fields[2] = number(int64(stamp.By))
		}
		if stamp.Final {
			fields[5] = ptr("t")
		}
		if stamp.Failed {
			fields[6] = &stamp.Error
		}
		since := make([]string, len(stamp.Since))
		for i, v := range stamp.Since {
			since[i] = strconv.FormatInt(v, 10)
		}
		fields[8] = ptr("{" + strings.Join(since, ",") + "}")
		if stamp.Status != 0 {
			fields[10] = ptr(string([]byte{byte(stamp.Status)}))
		}
		again, err := ParseStamp(recordOut(fields...))
		if err != nil {
			t.Fatalf("%q, written again: %v", text, err)
		}
		again.FiredAt, again.BeganAt = stamp.FiredAt, stamp.BeganAt
		if diff := cmp.Diff(stamp, again); diff != "" {
			t.Fatalf("%q: %s", text, diff)
		}
	})
}

func FuzzAPositionIsReadAsItWas(f *testing.F) {
	f.Add("0/0")
	f.Add("FFFFFFFF/FFFFFFFF")
	f.Add("1/2/3")
	f.Add("-1/x")
	f.Fuzz(func(t *testing.T, text string) {
		lsn, err := parseLSN(text)
		if err != nil {
			return
		}
		if again, err := parseLSN(lsn.String()); err != nil || again != lsn {
			t.Fatalf("%q is %s, and that %s: %v", text, lsn, again, err)
		}
	})
}

// A value becomes JSON of its own, whatever is in it.
func FuzzAnyValueIsOneJSONValue(f *testing.F) {
	for _, s := range []string{"", `a"b\`, "t", "1", "-1.5e10", "NaN", `{"a": [1, null]}`, `"\ud800"`, `1e99999`, "\x00", "\u2028", "]", `"\u0000"`, "Infinity", "1e5 ", `"a`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return // the server has refused it
		}
		for typ, valid := range map[uint32]bool{
			25: true, 1184: true, 17: true, 1007: true, boolOID: true,
			jsonOID: json.Valid([]byte(text)), jsonbOID: json.Valid([]byte(text)),
			int8OID: isInteger(text), numericOID: isInteger(text) || text == "NaN" || text == "Infinity",
		} {
			if got := appendValue(nil, typ, []byte(text)); valid && !json.Valid(got) {
				t.Fatalf("%q of type %d becomes %s", text, typ, got)
			}
		}
	})
}

func isInteger(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// readTextArray is array_in for what textArray writes.
func readTextArray(text string) (elements []string, ok bool) {
	text, ok = strings.CutPrefix(text, "{")
	for ok && !strings.HasPrefix(text, "}") {
		if text, ok = strings.CutPrefix(text, `"`); !ok {
			return nil, false
		}
		var element strings.Builder
		for len(text) > 0 && text[0] != '"' {
			if text[0] == '\\' {
				text = text[1:]
			}
			if text == "" {
				return nil, false
			}
			element.WriteByte(text[0])
			text = text[1:]
		}
		if text, ok = strings.CutPrefix(text, `"`); !ok {
			return nil, false
		}
		elements = append(elements, element.String())
		text = strings.TrimPrefix(text, ",")
	}
	return elements, text == "}"
}

func FuzzATextArrayIsReadAsItWas(f *testing.F) {
	f.Add("", "a", `"\`)
	f.Add("null", "{}", ",")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		want := []string{a, b, c}
		if got, ok := readTextArray(textArray(want)); !ok || !slices.Equal(got, want) {
			t.Fatalf("%q is written %s", want, textArray(want))
		}
	})
}

// A notification is JSON that NOTIFY takes, and says which job it is about.
func FuzzANotificationIsReadAsItWas(f *testing.F) {
	f.Add("travel", "book", "1 day", `{"a": 1}`, int64(1), int32(2), false)
	f.Add(`a"b\`, "\n\u202e", "", `{}`, int64(-1), int32(-1), true)
	f.Add(strings.Repeat("é", 31), strings.Repeat("\x01", 63), "x", `{"a":"`+strings.Repeat("x", 7900)+`"}`, int64(1)<<62, int32(1)<<30, false)
	f.Fuzz(func(t *testing.T, name, transition, timeout, state string, wid int64, tgid int32, private bool) {
		if len(name) > 63 || len(transition) > 63 || len(timeout) > 100 || !json.Valid([]byte(state)) ||
			!utf8.ValidString(name+transition+timeout+state) {
			return
		}
		payload := notification(&flow{name: name, private: private}, &Version{Wid: wid, State: state}, fold.Rule(tgid), rule{transition: transition, timeout: &timeout})
		var got struct {
			Flow, Trname, Timeout string
			Wid                   int64
			Tgid                  int32
			Payload               json.RawMessage
			Omitted               bool `json:"payload_omitted"`
		}
		if err := json.Unmarshal([]byte(payload), &got); err != nil || len(payload) > maxPayload {
			t.Fatalf("%d bytes, %v: %s", len(payload), err, payload)
		}
		if got.Flow != name || got.Trname != transition || got.Timeout != timeout || got.Wid != wid || got.Tgid != tgid || got.Omitted == (got.Payload != nil) ||
			private && !got.Omitted {
			t.Fatalf("%s", payload)
		}
	})
}
