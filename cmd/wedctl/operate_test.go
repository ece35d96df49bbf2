package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/wed-sql/wed_sql/internal/pulse"
)

func TestOperatorsMistakesAreSaidBeforeAnythingHappens(t *testing.T) {
	nowhere := "host=" + t.TempDir()
	for _, c := range []struct {
		line string
		says string
	}{
		{"instance start customer", "NAME=VALUE"},
		{"instance start a=1 a=2", "twice"},
		{"instance start a=1 --set-json {\"a\":1}", "twice"},
		{"instance start --set-json [1]", "one JSON object"},
		{"instance start --set-json {}{}", "one JSON object"},
		{"instance start --count 0", "--count"},
		{"instance list 7", "instance show"},
		{"instance list --status happy", `"happy"`},
		{"instance list --limit -1", "--limit"},
		{"instance show", "WID"},
		{"instance show 1 2", "WID"},
		{"instance show --events -1 1", "--events"},
		{"instance show one", `"one"`},
		{"instance trace -1", "-1"},
		{"instance watch one", `"one"`},
		{"instance watch --interval 0s", "--interval"},
		{"instance cancel", "--where"},
		{"instance cancel 1 --where true", "not both"},
		{"instance cancel 1 stage=x", `"stage=x"`},
		{"instance cancel --where ", "--where true"},
		{"instance skip 1", "--transition"},
		{"instance skip 1 -t t a=1 --set a=1", "not both"},
		{"instance repair 1", "NAME=VALUE"},
		{"instance rewind 1", "--to"},
		{"instance resume all", `"all"`},
		{"instance cancel 1 -o xml", `"xml"`},
		{"job list 7", "arguments"},
		{"job list --state idle", `"idle"`},
		{"job list --limit -1", "--limit"},
		{"top now", "arguments"},
		{"top --interval 1ms", "--interval"},
		{"top --sort age", `"age"`},
		{"top -n 0", "--count"},
		{"doctor now", "arguments"},
		{"completion", "bash"},
		{"completion tcsh", "bash"},
	} {
		args := strings.Split(c.line, " ")
		_, stderr, status := wedctl(t.Context(), append([]string{"-d", nowhere}, args...)...)
		if status != exitUsage || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, want %d; says %q, want something of %q", c.line, status, exitUsage, stderr, c.says)
		}
	}
	for _, line := range []string{
		"instance start", "instance start a=1 b= c=x=y", "instance list", "instance show 1", "instance watch", "instance cancel 1 2", "instance rematch",
		"instance skip 1 -t t a=1", "instance rewind 1 --to 0", "job list", "top", "doctor",
	} {
		if _, stderr, status := wedctl(t.Context(), append([]string{"-d", nowhere}, strings.Split(line, " ")...)...); status != exitConnect {
			t.Errorf("%s: exit status %d, want %d: %s", line, status, exitConnect, stderr)
		}
	}
}

func TestSetClauseKeepsEveryValueAsItIs(t *testing.T) {
	list, err := parseAssignments([]string{"a=it's", `B c=back\slash`, "d=", "e=x=y", `f"=1`})
	if err != nil {
		t.Fatal(err)
	}
	want := `"a" = 'it''s', "B c" =  E'back\\slash', "d" = '', "e" = 'x=y', "f""" = '1'`
	if got := setClause(list); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestEveryInterventionHasAWordForWhatItHasDone(t *testing.T) {
	for _, op := range interventions() {
		if op.done == "" || op.usage == "" || !strings.Contains(op.about, "Example: wedctl instance "+op.name) {
			t.Errorf("%+v", op)
		}
	}
}

func TestCompletionNeedsNoServerForWhatWedctlKnows(t *testing.T) {
	nowhere := "host=" + t.TempDir()
	for line, want := range map[string]string{
		"":                              "flow instance job worker status top doctor demo completion version",
		"st":                            "status",
		"instance re":                   "resume retry repair rewind rematch reopen",
		"instance list --sta":           "--status",
		"instance list --status e":      "exception",
		"instance list --status=ex":     "--status=exception",
		"instance list -s final,ca":     "final,cancelled",
		"job list --state ":             "waiting running leased delayed",
		"instance list -o j":            "json",
		"top --sort w":                  "waiting",
		"completion f":                  "fish",
		"worker run -f f -t t -- ":      "",
		"instance list -d host=/x -o t": "table",
		"instance show ":                "",
		"no such comm":                  "",
		"instance list --nonsense=":     "",
	} {
		args := append([]string{"-d", nowhere}, strings.Split(line, " ")...)
		stdout, stderr, status := wedctl(t.Context(), append([]string{"__complete", "--"}, args...)...)
		var words []string
		for l := range strings.Lines(stdout) {
			word, _, _ := strings.Cut(strings.TrimSpace(l), "\t")
			words = append(words, word)
		}
		for _, w := range strings.Fields(want) {
			if !slices.Contains(words, w) {
				t.Errorf("%q: %v, without %s", line, words, w)
			}
		}
		if line != "" && len(words) != len(strings.Fields(want)) || status != exitOK || stderr != "" {
			t.Errorf("%q: %v, want %s (exit status %d: %s)", line, words, want, status, stderr)
		}
	}
}

func TestTopFitsEveryScreen(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	view := pulse.View{At: time.Now(), Most: 10_000, Engine: &pulse.Engine{State: "streaming"}}
	for i := range 40 {
		rate, age := 12345.6, 3600.0*float64(i)
		view.Rows = append(view.Rows, pulse.Row{
			Flow: fmt.Sprintf("flow_with_a_long_name_%d", i/10), Transition: "transition_with_a_long_näme_" + fmt.Sprint(i), Waiting: number(10_000),
			Running: number(100), Leased: number(0), OldestSeconds: &age, DonePerSecond: &rate, Failed: 7, FailedLately: 1, MeanWaitMS: &age,
		})
	}
	for _, size := range [][2]int{{80, 24}, {140, 50}, {40, 8}, {20, 3}, {300, 100}, {1, 1}} {
		for _, order := range pulse.Orders {
			top := &top{con: &console{color: true}, database: "db", view: view, order: order}
			lines, _ := top.screen(size[0], size[1], 0, nil)
			if len(lines) != size[1] {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, l := range lines {
				if n := text.StringWidthWithoutEscSequences(l); n > size[0] {
					t.Errorf("%v: a line of %d columns: %q", size, n, l)
				}
			}
		}
	}
	top := &top{con: &console{}, database: "db", view: view, order: pulse.ByName}
	lines, offset := top.screen(80, 24, 1000, context.DeadlineExceeded)
	all := strings.Join(lines, "\n")
	if !strings.Contains(all, "connection lost") || !strings.Contains(all, "of 44)") || offset != 44-19 || !strings.Contains(lines[22], "_39") && !strings.Contains(lines[22], "transition") {
		t.Errorf("scrolled to the end (%d):\n%s", offset, all)
	}
}

func TestTextHangsBelowItself(t *testing.T) {
	var out bytes.Buffer
	(&console{out: &out, width: 30}).hang("title  ", "one two three four five six seven")
	if got, want := out.String(), "title  one two three four five\n       six seven\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	out.Reset()
	(&console{out: &out}).hang("title  ", strings.Repeat("x ", 100))
	if strings.Count(out.String(), "\n") != 1 {
		t.Errorf("without a terminal: %q", out.String())
	}
}

func TestSpansHaveTheUnitThatFits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 12 * time.Millisecond: "12 ms", 1500 * time.Millisecond: "1.5 s", 61 * time.Second: "61 s",
		5 * time.Minute: "5 min", 3 * time.Hour: "3 h", 72 * time.Hour: "3 days",
	} {
		if got := span(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
