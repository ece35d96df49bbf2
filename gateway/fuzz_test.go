package gateway

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A file of tokens is taken with each of its lines, or not at all.
func FuzzAFileOfTokensIsTakenAsAWhole(f *testing.F) {
	_, line, err := NewToken("w", []string{"travel/book", "*/*"}, "r", true)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "# no\n\n" + line, line + "\n" + line, line + line, `{"name":"x"}`, strings.ToUpper(line), "\xff", `{"name":"a","sha256":"00","allow":["/"]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read, err := readTokens(strings.NewReader(text))
		if err != nil {
			if read != nil {
				t.Fatal("a file with a mistake was read in part")
			}
			return
		}
		lines, grants := 0, 0
		for l := range strings.SplitSeq(text, "\n") {
			if l = strings.TrimSpace(l); l != "" && l[0] != '#' {
				lines++
			}
		}
		for _, list := range read {
			grants += len(list)
			for _, g := range list {
				if g.name == "" || len(g.allow) == 0 && !g.metrics || read.find(g.hash) != g {
					t.Fatalf("%+v", g)
				}
			}
		}
		if grants != lines {
			t.Fatalf("%d grants of %d lines", grants, lines)
		}
	})
}

// A pattern with names as in a URL allows these, and no others.
func FuzzAPatternAllowsWhatItNames(f *testing.F) {
	f.Add("travel", "book hotel", "*", "x")
	f.Add("a/b", "*", "%2A", "a")
	f.Add("100%", "é\n", "", "\x00")
	f.Fuzz(func(t *testing.T, flow, transition, otherFlow, otherTransition string) {
		escape := func(s string) string { return strings.ReplaceAll(url.PathEscape(s), "*", "%2A") }
		p, err := parsePattern(escape(flow) + "/" + escape(transition))
		if flow == "" || transition == "" {
			if err == nil {
				t.Fatalf("%q/%q is taken for %+v", flow, transition, p)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q/%q: %v", flow, transition, err)
		}
		g := &grant{allow: []pattern{p}}
		if !g.allows(flow, transition) {
			t.Fatalf("%+v does not allow %q/%q", p, flow, transition)
		}
		if (otherFlow != flow || otherTransition != transition) && g.allows(otherFlow, otherTransition) {
			t.Fatalf("%+v allows %q/%q", p, otherFlow, otherTransition)
		}
		_, _ = parsePattern(flow + transition)
	})
}

func FuzzADurationIsWhatItSays(f *testing.F) {
	for _, s := range []string{"30s", "1h30m", "5", "-1", "NaN", "1e300", "0x1p-2", "", "1e9", "inf", "9223372036s", "1_0", ".5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseSpan(s)
		if err != nil {
			return
		}
		again, err := parseSpan(d.String())
		if err != nil || again != d {
			t.Fatalf("%q is %s, which is %s: %v", s, d, again, err)
		}
	})
}

// Whatever is sent: an answer that a client can read, and never that the gateway has failed.
func FuzzAnyRequestIsAnswered(f *testing.F) {
	f.Add("POST", "/v1/flows/f/transitions/t/lease", `{"lease":"1s","max_jobs":1,"wait":0}`, "application/json", "")
	f.Add("GET", "/v1/flows/f/transitions/t/events?credit=1&lease=1s", "", "", "Bearer x")
	f.Add("POST", "/v1/flows/f/jobs/1/2/complete", `{"lckid":"x","state":{"a":1}}`, "", "")
	f.Add("POST", "/v1/flows/f/jobs/1/2/fail", `{"lckid":"x","error":"y"}`, "text/plain; charset", "")
	f.Add("POST", "/v1/flows/%ff/jobs/-1/99999999999/extend", `{"lckid":1}`, "application/x-www-form-urlencoded", "")
	f.Add("POST", "/v1/flows/f/jobs/1/2/release", `{"lckid":"x"} {}`, "\x00", "")
	f.Add("OPTIONS", "/metrics", `[`, ";", "")
	f.Add("DELETE", "//v1/../healthz", strings.Repeat("[", 900), "application/json", "")
	store := newFakeStore()
	store.add(1 << 40)
	g, _ := fake(f, store, Config{MaxBody: 1000, MaxWait: time.Millisecond, MaxLease: time.Hour})
	f.Fuzz(func(t *testing.T, method, target, body, kind, authorization string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") || strings.Contains(target, "/events") && method == http.MethodGet {
			return // net/http refuses it; a stream has no end
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost/", strings.NewReader(body))
		if err != nil {
			return
		}
		r.URL = u
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code >= 500 {
			t.Fatalf("%s %s %q: %d %s", method, target, body, w.Code, w.Body)
		}
		if kind := w.Header().Get("Content-Type"); strings.Contains(kind, "json") && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s: %s is no JSON", method, target, w.Body)
		}
	})
}

// The parameters of a stream are taken, or refused as the client's mistake.
func FuzzTheParametersOfAStream(f *testing.F) {
	for _, s := range []string{"credit=1&lease=1s", "credit=0", "credit=1&credit=2", "lease=NaN", "%zz", "credit=1001", ";", "lease=-1", "lease=1h&credit=٣"} {
		f.Add(s)
	}
	g, _ := fake(f, newFakeStore(), Config{MaxLease: time.Hour})
	f.Fuzz(func(t *testing.T, query string) {
		values, _ := url.ParseQuery(query) // as net/http does
		lease, credit, err := g.streamOptions(values)
		if err != nil {
			if p := problemOf(err); p.Status != http.StatusBadRequest {
				t.Fatalf("%q: %+v", query, p)
			}
			return
		}
		if credit < 1 || credit > maxJobs || lease <= 0 || lease > time.Hour {
			t.Fatalf("%q: %d jobs for %s", query, credit, lease)
		}
	})
}

// A stream of events is read by who knows lines only, whatever the names and states are.
func FuzzAnEventIsReadAsItWas(f *testing.F) {
	f.Add("1-2", "book", `{"a": "x"}`, "why")
	f.Add("x", "\n\ndata: x", `{"a":"\n"}`, "\r\r\nevent: end\n")
	f.Add("\u2028", "é\u202e", " [1,\n2] ", "")
	f.Fuzz(func(t *testing.T, lckid, transition, payload, why string) {
		if !json.Valid([]byte(payload)) || !utf8.ValidString(lckid+transition+payload+why) || strings.ContainsAny(lckid, "\r\n\x00") {
			return // the server's own: a UUID
		}
		text := jobEvents([]*Job{{Lckid: lckid, TrName: transition, Payload: json.RawMessage(payload), LastError: &why}, {Lckid: "second", Payload: json.RawMessage("1")}})
		var ids, data []string
		lines := bufio.NewScanner(strings.NewReader(text))
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "id":
				ids = append(ids, value)
			case "data":
				data = append(data, value)
			case "event":
				if value != "job" {
					t.Fatalf("an event %q", value)
				}
			case "":
			default:
				t.Fatalf("a line %q", lines.Text())
			}
		}
		if len(ids) != 2 || len(data) != 2 || ids[0] != lckid || ids[1] != "second" {
			t.Fatalf("%d ids, %d data: %s", len(ids), len(data), text)
		}
		var job Job
		if err := json.Unmarshal([]byte(data[0]), &job); err != nil || job.TrName != transition || *job.LastError != why {
			t.Fatalf("%s: %v", data[0], err)
		}
	})
}

// What a client sends as a name reaches the database as it is, or not at all.
func FuzzANameIsTakenAsItIs(f *testing.F) {
	for _, s := range []string{"", "a", "\x00", "\xff", strings.Repeat("é", 32), "a b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isName(s) != (s != "" && len(s) <= 63 && utf8.ValidString(s) && !strings.Contains(s, "\x00")) {
			t.Fatalf("%q", s)
		}
		if c := clean(s); !utf8.ValidString(c) || strings.Contains(c, "\x00") || clean(c) != c {
			t.Fatalf("%q becomes %q", s, c)
		}
		_ = isOwnName(s)
	})
}
