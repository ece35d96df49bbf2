package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"unicode/utf8"
)

// screen is a terminal to which anything may be written: names and values are what
// others have chosen, and what would command the terminal is shown instead.
type screen struct{ terminal io.Writer }

func (s screen) Write(p []byte) (int, error) {
	if _, err := s.terminal.Write(visible(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// own are the sequences that console.paint and console.busy write.
var own = regexp.MustCompile(`^(\x1b\[(0|1|2|3[1-3])m|\r?\x1b\[K)`)

// visible shows control characters as psql does, all but ends of lines, tabs, and our
// own sequences.
func visible(p []byte) []byte {
	if !bytes.ContainsFunc(p, commands) {
		return p
	}
	var b bytes.Buffer
	for len(p) > 0 {
		if sequence := own.Find(p); sequence != nil {
			b.Write(sequence)
			p = p[len(sequence):]
			continue
		}
		r, n := utf8.DecodeRune(p)
		if commands(r) {
			fmt.Fprintf(&b, `\x%02X`, r)
		} else {
			b.Write(p[:n])
		}
		p = p[n:]
	}
	return b.Bytes()
}

// commands reports whether a terminal may take a character for a command, or for the
// beginning of one.
func commands(r rune) bool {
	return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0
}
