package definition

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// Problem is what is wrong with a file, or with a row that it defines.
type Problem struct {
	At      int    // in the file's text, in bytes; -1: nowhere
	Message string // what PostgreSQL or we say
	Detail  string
	Hint    string
}

func (p *Problem) Error() string { return p.Message }

// Problems are all that is wrong with a file.
type Problems struct {
	File *File
	List []*Problem
}

func (p *Problems) Error() string {
	lines := make([]string, len(p.List))
	for i, one := range p.List {
		lines[i] = p.File.Describe(one)
	}
	return strings.Join(lines, "\n")
}

// Place returns the place of a problem in its file; ok is false if it has none.
func (f *File) Place(at int) (place sqllex.Place, ok bool) {
	if at < 0 {
		return sqllex.Place{}, false
	}
	return sqllex.PlaceOf(f.Text, at), true
}

// Describe writes a problem as compilers do: the place, what is wrong, the line and a
// caret under the place.
func (f *File) Describe(p *Problem) string {
	var b strings.Builder
	b.WriteString(f.Name)
	place, ok := f.Place(p.At)
	if ok {
		fmt.Fprintf(&b, ":%d:%d", place.Line, place.Column)
	}
	b.WriteString(": " + p.Message)
	if ok {
		b.WriteString("\n" + Excerpt(f.Text, place))
	}
	if p.Detail != "" {
		b.WriteString("\n    " + p.Detail)
	}
	if p.Hint != "" {
		b.WriteString("\n    hint: " + p.Hint)
	}
	return b.String()
}

// widestExcerpt is the number of characters of a line that are shown.
const widestExcerpt = 72

// Excerpt shows a place in a text: its line and, under it, a caret.
func Excerpt(text string, place sqllex.Place) string {
	line := []rune(strings.ReplaceAll(sqllex.Line(text, place.Line), "\t", " "))
	column := min(place.Column, len(line)+1)
	before, after := "", ""
	if len(line) > widestExcerpt {
		if cut := column - widestExcerpt*2/3; cut > 0 {
			line, column, before = line[cut:], column-cut, "..."
		}
		if len(line) > widestExcerpt {
			line, after = line[:widestExcerpt], "..."
		}
	}
	return fmt.Sprintf("    %s%s%s\n    %s^", before, string(line), after, strings.Repeat(" ", len(before)+column-1))
}

// problemOf turns an error of PostgreSQL into a problem. locate says where in the file
// a place of the statement, or of what PostgreSQL was given inside it, is.
func problemOf(err error, locate func(query string, at int) int) *Problem {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return nil
	}
	p := &Problem{At: locate("", -1), Message: e.Message, Detail: e.Detail, Hint: e.Hint}
	switch {
	case e.Position > 0:
		p.At = locate("", int(e.Position))
	case e.InternalPosition > 0:
		p.At = locate(e.InternalQuery, int(e.InternalPosition))
	}
	return p
}
