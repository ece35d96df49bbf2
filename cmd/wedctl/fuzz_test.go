package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// What is set on the command line is one assignment of one constant, whatever is in it.
func FuzzAnAssignmentIsOne(f *testing.F) {
	for _, s := range []string{"a=b", "=", "a==", `it's=it''s`, `"x"=\'; drop table x; --`, "é=\n", "a", `a\=b\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		list, err := parseAssignments([]string{arg})
		name, value, ok := strings.Cut(arg, "=")
		if (err == nil) != (ok && name != "") {
			t.Fatalf("%q: %v", arg, err)
		}
		if err != nil || strings.Contains(arg, "\x00") || !utf8.ValidString(arg) {
			return
		}
		tokens, err := sqllex.Tokens(setClause(list))
		if err != nil || len(tokens) != 4 || tokens[0].Value != name || !tokens[1].Is("=") || tokens[2].Kind != sqllex.String || tokens[2].Value != value {
			t.Fatalf("%q is %s: %+v, %v", arg, setClause(list), tokens, err)
		}
		if _, err := parseAssignments([]string{arg, arg}); err == nil {
			t.Fatalf("%q may be set twice", arg)
		}
	})
}

// A state that a command prints is passed on with its values as they are written, or refused.
func FuzzAStateIsPassedOnAsItIsWritten(f *testing.F) {
	for _, s := range []string{`{"a": 1.10}`, `{"a":1,"a":2}`, `null`, "", " \n", `{} {}`, `{"a":1e999}`, `[1]`, "{", `{"a":"\ud800"}`, "\ufeff{}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		state, err := parseState(output)
		if err != nil {
			return
		}
		for name, v := range state {
			raw, ok := v.(json.RawMessage)
			if !ok || !json.Valid(raw) || !bytes.Contains(output, raw) {
				t.Fatalf("%q: %q is %s", output, name, v)
			}
		}
		if len(state) > 0 {
			if keys, err := parseObject(string(output)); err != nil || len(keys) != len(state) || !slices.IsSorted(keys) {
				t.Fatalf("%q: %q, %v", output, keys, err)
			}
		}
	})
}

func FuzzAnInstanceIsItsNumber(f *testing.F) {
	for _, s := range []string{"0", "-1", "9223372036854775807", "9223372036854775808", "1_0", "+1", "0x1", "٣", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		wid, err := parseWID(arg)
		if err == nil && (wid < 0 || strings.TrimLeft(strings.TrimPrefix(arg, "+"), "0") != strings.TrimLeft(strconv.FormatInt(wid, 10), "0")) &&
			strings.TrimLeft(arg, "-") == arg {
			t.Fatalf("%q is %d", arg, wid)
		}
	})
}

// Whatever stands on the command line: what is offered begins with what is there.
func FuzzACompletionBeginsWithWhatIsThere(f *testing.F) {
	for _, s := range []string{"flow che", "--out", "--output=j", "instance start a=", "status --outpu", "'fl", `"`, "-- x", "job list --state a,", "worker run -f x -- ls -"} {
		f.Add(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no database is asked
	app := newApp(&console{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Split(line, " ")
		last := unquote(words[len(words)-1])
		for _, c := range newCompleter(app).complete(ctx, words) {
			if !strings.HasPrefix(c.word, last) {
				t.Fatalf("%q is offered for %q", c.word, line)
			}
		}
	})
}

// What would command a terminal is shown, not done.
func FuzzAScreenIsNotCommanded(f *testing.F) {
	for _, s := range []string{"\x1b[2J", "a\tb", "\x1b[1m\x1b[\x1b[0m31m", "\x9b31m", "\u009b2J", "\xff\x1b", "\r\x1b[K", "\r"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		shown := visible(p)
		for len(shown) > 0 {
			if sequence := own.Find(shown); sequence != nil {
				shown = shown[len(sequence):]
				continue
			}
			r, n := utf8.DecodeRune(shown)
			if commands(r) {
				t.Fatalf("%q is shown as %q", p, visible(p))
			}
			shown = shown[n:]
		}
	})
}
