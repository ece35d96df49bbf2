package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestChangesShowWhatAStateSets(t *testing.T) {
	first := json.RawMessage(`{"b": null, "a": "x", "c": {"k": 1}, "d": "two words"}`)
	second := json.RawMessage(`{"b": 5, "a": null, "c": {"k": 1}, "d": "", "e": "null"}`)
	if got, want := changes(nil, first), `a=x c={"k": 1} d="two words"`; got != want {
		t.Errorf("first state: %s, want %s", got, want)
	}
	if got, want := changes(first, second), `a=null b=5 d="" e="null"`; got != want {
		t.Errorf("second state: %s, want %s", got, want)
	}
	if got := changes(second, second); got != "" {
		t.Errorf("the same state: %s", got)
	}
}

func TestTraceSaysWhoWroteWhat(t *testing.T) {
	var out bytes.Buffer
	con := &console{out: &out}
	writer, message := "book_hotel", "division by zero"
	con.writeTrace([]traceLine{
		{Version: 0, State: json.RawMessage(`{"a": 1}`), TrF: []string{"x", "y"}, Status: "R", Pending: []string{"x", "y"}},
		{Version: 1, State: json.RawMessage(`{"a": 2}`), TrW: &writer, Status: "E", Error: &message},
	}, false)
	lines := strings.Split(out.String(), "\n")
	for i, words := range [][]string{
		{"#", "COMMITTED", "S", "WRITTEN BY", "FIRED", "PENDING", "NEW VALUES"},
		{"0 ", "R", "(new)", "x, y", "a=1"},
		{"1 ", "E", "book_hotel", "-", "a=2", "division by zero"},
	} {
		for _, w := range words {
			if !strings.Contains(lines[i], w) {
				t.Errorf("no %q in line %d: %s", w, i, lines[i])
			}
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours without a terminal")
	}
}

func TestStatusNamesWhatIsWrong(t *testing.T) {
	rows := []engineStatus{{Database: "a", State: "streaming"}, {Database: "b", State: "backing off"}}
	if err := judgeStatus("a", rows); err != nil {
		t.Errorf("a: %v", err)
	}
	for database, says := range map[string]string{"b": "backing off", "c": "not serving it"} {
		if err := judgeStatus(database, rows); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", database, err, says)
		}
	}
}

func TestJSONOutputIsOneDocument(t *testing.T) {
	for _, rows := range [][]json.RawMessage{nil, {json.RawMessage(`{"a":1}`)}, {json.RawMessage(`1`), json.RawMessage(`2`)}} {
		var out bytes.Buffer
		if err := writeJSON(&out, rows); err != nil {
			t.Fatal(err)
		}
		var got []json.RawMessage
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != len(rows) {
			t.Errorf("%s: %v", out.String(), err)
		}
	}
}

func TestUnitsFit(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 16 << 20: "16.0 MiB", 3 << 40: "3.0 TiB"} {
		if got := byteSize(n); got != want {
			t.Errorf("%d bytes: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "just now", 90 * time.Second: "90 s ago", 90 * time.Minute: "90 min ago", 30 * time.Hour: "30 h ago", 72 * time.Hour: "3 days ago",
	} {
		if got := ago(time.Now().Add(-d)); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

func TestValuesAreCutToTheTerminal(t *testing.T) {
	for width, want := range map[int]string{5: "Züri…", 6: "Zürich", 1: "…", 0: "", -3: ""} {
		if got := shorten("Zürich", width); got != want {
			t.Errorf("width %d: %q, want %q", width, got, want)
		}
	}
}

func TestNamesAreQuotedOnlyIfNeeded(t *testing.T) {
	for name, want := range map[string]string{"travel": "travel", "Travel": `"Travel"`, "a-b": `"a-b"`, "1a": `"1a"`, "": `""`} {
		if got := quoted(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	header := []string{"NAME", "TEXT", "LIST"}
	rows := [][]string{{"a", strings.Repeat("word ", 20) + "end", "one, two, three"}, {"b", "short", "-"}}
	for _, width := range []int{0, 30, 40, 60, 200} {
		var out bytes.Buffer
		con := &console{out: &out, width: width}
		con.writeTable(header, rows, tableLook{wrap: []int{1, 2}})
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		for _, l := range lines {
			if width > 0 && len(l) > width {
				t.Errorf("width %d: %q is too long", width, l)
			}
		}
		if width == 0 && len(lines) != 3 {
			t.Errorf("without a terminal, rows are broken:\n%s", out.String())
		}
		if got := strings.Count(out.String(), "word"); got != 20 {
			t.Errorf("width %d: %d of 20 words:\n%s", width, got, out.String())
		}
	}
}
