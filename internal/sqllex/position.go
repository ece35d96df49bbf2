package sqllex

import (
	"strings"
	"unicode/utf8"
)

// Place is a position as a person counts: from 1, a column being a character.
type Place struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

// PlaceOf returns the place of a byte in a text.
func PlaceOf(text string, at int) Place {
	at = min(max(at, 0), len(text))
	before := text[:at]
	line := 1 + strings.Count(before, "\n")
	return Place{Line: line, Column: 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])}
}

// Line returns a line of a text, counted from 1.
func Line(text string, number int) string {
	for ; number > 1; number-- {
		_, text, _ = strings.Cut(text, "\n")
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimRight(line, "\r")
}

// ByteOf returns where a character of a text begins, counted from 1 as PostgreSQL does.
func ByteOf(text string, character int) int {
	at := 0
	for ; character > 1 && at < len(text); character-- {
		_, n := utf8.DecodeRuneInString(text[at:])
		at += n
	}
	return at
}
