package main

import (
	"bytes"
	"fmt"
	"testing"
)

func TestWhatWouldCommandATerminalIsShown(t *testing.T) {
	for written, want := range map[string]string{
		"a\tb\nc é 😀\n":                  "a\tb\nc é 😀\n",
		"\x1b]0;title\x07":               `\x1B]0;title\x07`,
		"\x1b[1mbold\x1b[0m":             "\x1b[1mbold\x1b[0m",
		"\x1b[2J\x1b[31mred\x1b[0m":      "\\x1B[2J\x1b[31mred\x1b[0m",
		"overwritten\rby this":           `overwritten\x0Dby this`,
		"\r\x1b[Kstill busy: 3 s ...":    "\r\x1b[Kstill busy: 3 s ...",
		"a\u009b2J\x7f":                  `a\x9B2J\x7F`,
		"\x1b[8mhidden":                  `\x1B[8mhidden`,
		"no UTF-8 \xff\xfe and \x1bc it": "no UTF-8 \xff\xfe and \\x1Bc it",
	} {
		var b bytes.Buffer
		n, err := fmt.Fprint(screen{&b}, written)
		if err != nil || n != len(written) {
			t.Errorf("%q: %d, %v", written, n, err)
		}
		if got := b.String(); got != want {
			t.Errorf("%q: %q, not %q", written, got, want)
		}
	}
}
