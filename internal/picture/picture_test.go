package picture

import (
	"encoding/xml"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/wed-sql/wed_sql/internal/layered"
)

func TestEscapedTextIsReadAsItWas(t *testing.T) {
	for in, want := range map[string]string{
		`a<b & "c">d'e`:       `a<b & "c">d'e`,
		"two\nlines\tand tab": "two\nlines\tand tab",
		"]]> <!-- &amp;":      "]]> <!-- &amp;",
		"bell\a and return\r": "bell\u2407 and return\u240d",
		"\ufffe":              "\ufffd",
		"broken \xff":         "broken \ufffd",
		"ключ 漢字 שלום 🚀":      "ключ 漢字 שלום 🚀",
	} {
		var got struct {
			Text string `xml:",chardata"`
		}
		if err := xml.Unmarshal([]byte("<t>"+Escape(in)+"</t>"), &got); err != nil {
			t.Errorf("%q: %v", in, err)
		} else if got.Text != want {
			t.Errorf("%q is read as %q, want %q", in, got.Text, want)
		}
	}
}

func TestALabelIsOneLineAndTurnsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := Label(rapid.String().Draw(t, "text"))
		if strings.ContainsAny(label, "\n\r\t\u202e\u2066\u2028\u0085") || !utf8.ValidString(label) {
			t.Fatalf("%q", label)
		}
	})
}

func TestAClippedTextIsNoWiderAndNoLongerThanItMayBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Font{Size: 11, Bold: rapid.Bool().Draw(t, "bold"), Fixed: rapid.Bool().Draw(t, "fixed")}
		s := rapid.String().Draw(t, "text")
		most := rapid.Float64Range(20, 300).Draw(t, "most")
		got := f.Clip(s, most)
		if f.Width(got) > most {
			t.Fatalf("%q is %v wide, may be %v", got, f.Width(got), most)
		}
		if f.Width(s) <= most && got != s {
			t.Fatalf("%q became %q, although it fits", s, got)
		}
		lines := f.Wrap(s, most, 3)
		if len(lines) > 3 {
			t.Fatalf("%d lines", len(lines))
		}
		for _, l := range lines {
			if f.Width(l) > most {
				t.Fatalf("%q is %v wide, may be %v", l, f.Width(l), most)
			}
		}
	})
}

func TestTimesAreWrittenAsPeopleSayThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                       "0 s",
		17 * time.Nanosecond:                    "17 ns",
		1230 * time.Nanosecond:                  "1.2 µs",
		999400 * time.Nanosecond:                "999 µs",
		999600 * time.Nanosecond:                "1 ms",
		12345 * time.Microsecond:                "12 ms",
		1500 * time.Millisecond:                 "1.5 s",
		9960 * time.Millisecond:                 "10 s",
		59600 * time.Millisecond:                "1 min",
		200 * time.Second:                       "3 min 20 s",
		5*time.Hour + 10*time.Minute:            "5 h 10 min",
		24*time.Hour - time.Second:              "1 d",
		3*24*time.Hour + 18*time.Hour:           "3 d 18 h",
		400 * 24 * time.Hour:                    "400 d",
		-(2 * time.Second):                      "-2 s",
		time.Hour:                               "1 h",
		59*time.Minute + 59900*time.Millisecond: "1 h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is written %q, want %q", int64(d), got, want)
		}
	}
}

// contrast is as WCAG computes it.
func contrast(a, b string) float64 {
	l := func(hex string) float64 {
		sum := 0.0
		for i, f := range []float64{0.2126, 0.7152, 0.0722} {
			var c int
			for _, r := range hex[1+2*i : 3+2*i] {
				c = c*16 + strings.IndexRune("0123456789abcdef", r)
			}
			v := float64(c) / 255
			if v <= 0.03928 {
				v /= 12.92
			} else {
				v = math.Pow((v+0.055)/1.055, 2.4)
			}
			sum += f * v
		}
		return sum
	}
	x, y := l(a), l(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestColoursAreLegible(t *testing.T) {
	for name, p := range map[string]palette{"light": light, "dark": dark} {
		for what, c := range map[string]struct {
			of, on string
			least  float64
		}{
			"ink on paper": {p.ink, p.paper, 7}, "ink on a card": {p.ink, p.card, 7}, "muted on paper": {p.muted, p.paper, 4.5},
			"muted on a card": {p.muted, p.card, 4.5}, "muted on a shade": {p.muted, p.shade, 4.5}, "warning on paper": {p.warn, p.paper, 4.5},
			"warning on a card": {p.warn, p.card, 4.5}, "bad on paper": {p.bad, p.paper, 4.5}, "ink on bad": {p.ink, p.badShade, 7},
			"muted on bad": {p.muted, p.badShade, 4.5}, "accent on paper": {p.accent, p.paper, 4.5}, "accent on soft": {p.accent, p.soft, 3},
			"good on paper": {p.good, p.paper, 4.5}, "a line on paper": {p.line, p.paper, 3},
		} {
			if got := contrast(c.of, c.on); got < c.least {
				t.Errorf("%s: %s has a contrast of %.2f, want %v", name, what, got, c.least)
			}
		}
	}
}

func TestADocumentIsWholeAndHasADarkSide(t *testing.T) {
	c := &Canvas{}
	c.Group("node", `"a" & b`, func() { c.Text("name", 1, 2, "<x>\n") })
	doc := string(c.Document("title <1>", "description & more", layered.Size{Width: 10, Height: 20}, Style("text{fill:INK}")))
	for _, want := range []string{"<title>&quot;a&quot; &amp; b</title>", "title &lt;1&gt;", "prefers-color-scheme:dark", "&lt;x&gt;\u240a</text>", `role="img"`} {
		if !strings.Contains(doc, want) {
			t.Errorf("it has no %s:\n%s", want, doc)
		}
	}
	if err := xml.Unmarshal([]byte(doc), new(struct{})); err != nil {
		t.Error(err)
	}
}
