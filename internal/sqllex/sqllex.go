// Package sqllex takes SQL apart into tokens and statements as PostgreSQL does,
// with standard_conforming_strings on, without a server.
package sqllex

import (
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Kind says what a token is.
type Kind int

const (
	EOF     Kind = iota
	Ident        // a name or key word; Value has it folded to lower case if it is not quoted
	Quoted       // a "quoted" name
	String       // a constant in quotes of any kind
	BitText      // B'01' or X'1F'
	Number       // 1, 1.5, 1e10
	Param        // $1
	Op           // an operator, or one of ( ) [ ] , ; . : :: := =>
)

// Token is a piece of SQL. Text is how it is written, Value what it means.
type Token struct {
	Kind  Kind
	Text  string
	Value string
	Start int // in bytes
}

// End returns where what follows the token begins.
func (t Token) End() int { return t.Start + len(t.Text) }

// Is reports whether the token is this key word (in lower case) or operator.
func (t Token) Is(word string) bool {
	return (t.Kind == Ident || t.Kind == Op) && t.Value == word
}

// Error says where and why a text cannot be SQL.
type Error struct {
	At  int // in bytes
	Msg string
}

func (e *Error) Error() string { return e.Msg }

// Tokens takes a text apart. The last token is EOF.
func Tokens(sql string) ([]Token, error) {
	l := lexer{sql: sql}
	var all []Token
	for {
		t, err := l.next()
		if err != nil {
			return all, err
		}
		all = append(all, t)
		if t.Kind == EOF {
			return all, nil
		}
	}
}

// Statement is one of several in a text, without the semicolon that ends it.
type Statement struct {
	Text   string
	Start  int     // of Text in the whole, in bytes
	Tokens []Token // without EOF; their positions are in the whole
}

// Statements takes a script apart at its semicolons. Those that have nothing but
// comments are left out.
func Statements(script string) ([]Statement, error) {
	tokens, err := Tokens(script)
	if err != nil {
		return nil, err
	}
	var all []Statement
	var current []Token
	depth := 0
	for _, t := range tokens {
		switch {
		case t.Is("("):
			depth++
		case t.Is(")"):
			depth = max(depth-1, 0)
		}
		if t.Kind != EOF && (depth > 0 || !t.Is(";")) {
			current = append(current, t)
			continue
		}
		if len(current) > 0 {
			start, end := current[0].Start, current[len(current)-1].End()
			all = append(all, Statement{Text: script[start:end], Start: start, Tokens: current})
		}
		current, depth = nil, 0
	}
	return all, nil
}

type lexer struct {
	sql string
	at  int
}

func (l *lexer) fail(at int, format string, args ...any) error {
	return &Error{At: at, Msg: fmt.Sprintf(format, args...)}
}

func (l *lexer) rest() string { return l.sql[l.at:] }

// skip goes on to the next token, over white space and comments.
func (l *lexer) skip() error {
	for l.at < len(l.sql) {
		switch {
		case isSpace(l.sql[l.at]):
			l.at++
		case strings.HasPrefix(l.rest(), "--"):
			l.at += lineLength(l.rest())
		case strings.HasPrefix(l.rest(), "/*"):
			n := commentLength(l.rest())
			if n < 0 {
				return l.fail(l.at, "unterminated /* comment")
			}
			l.at += n
		default:
			return nil
		}
	}
	return nil
}

func lineLength(s string) int {
	if i := strings.IndexAny(s, "\n\r"); i >= 0 {
		return i
	}
	return len(s)
}

// commentLength returns the length of the comment that s begins with, -1 if it has no
// end. Comments may be nested.
func commentLength(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); {
		switch s[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return -1
}

func (l *lexer) next() (Token, error) {
	if err := l.skip(); err != nil {
		return Token{}, err
	}
	start := l.at
	if start == len(l.sql) {
		return Token{Kind: EOF, Start: start}, nil
	}
	kind, value, err := l.scan()
	if err != nil {
		return Token{}, err
	}
	text := l.sql[start:l.at]
	if kind == Op || kind == Number || kind == Param {
		value = text
	}
	return Token{Kind: kind, Text: text, Value: value, Start: start}, nil
}

// scan reads one token from where the lexer stands.
func (l *lexer) scan() (Kind, string, error) {
	c := l.sql[l.at]
	following := byte(0)
	if l.at+1 < len(l.sql) {
		following = l.sql[l.at+1]
	}
	switch {
	case c == '\'':
		return l.quotedString(0, false)
	case strings.IndexByte("eEnN", c) >= 0 && following == '\'':
		return l.quotedString(1, c == 'e' || c == 'E')
	case strings.IndexByte("bBxX", c) >= 0 && following == '\'':
		_, value, err := l.quotedString(1, false)
		return BitText, value, err
	case (c == 'u' || c == 'U') && strings.HasPrefix(l.rest()[1:], "&'"):
		return l.quotedString(2, false)
	case (c == 'u' || c == 'U') && strings.HasPrefix(l.rest()[1:], `&"`):
		l.at += 2
		return l.quotedName()
	case c == '"':
		return l.quotedName()
	case isNameStart(c):
		n := nameLength(l.rest())
		word := l.rest()[:n]
		l.at += n
		return Ident, fold(word), nil
	case c == '$':
		return l.dollar()
	case isDigit(c) || c == '.' && isDigit(following):
		l.at += numberLength(l.rest())
		return Number, "", nil
	case strings.IndexByte("()[],;", c) >= 0:
		l.at++
		return Op, "", nil
	case c == '.' || c == ':':
		l.at++
		if s := l.sql[l.at-1:]; strings.HasPrefix(s, "::") || strings.HasPrefix(s, ":=") || strings.HasPrefix(s, "..") {
			l.at++
		}
		return Op, "", nil
	case strings.IndexByte(operatorChars, c) >= 0:
		l.at += operatorLength(l.rest())
		return Op, "", nil
	case c == '\\':
		return 0, "", l.fail(l.at, "a backslash begins a command of psql, which only psql understands")
	}
	return 0, "", l.fail(l.at, "unexpected character %q", []rune(l.rest())[0])
}

// quotedString reads a constant whose opening quote is after a prefix; if its parts
// stand on several lines, all of them.
func (l *lexer) quotedString(prefix int, escapes bool) (Kind, string, error) {
	start := l.at
	l.at += prefix
	var value strings.Builder
	for {
		l.at++ // the opening quote
		for closed := false; !closed; {
			switch {
			case l.at >= len(l.sql):
				return 0, "", l.fail(start, "unterminated quoted string")
			case escapes && l.sql[l.at] == '\\' && l.at+1 < len(l.sql):
				n, ok := unescape(&value, l.rest())
				if !ok {
					return 0, "", l.fail(l.at, "a Unicode escape that is no character")
				}
				l.at += n
			case strings.HasPrefix(l.rest(), "''"):
				value.WriteByte('\'')
				l.at += 2
			case l.sql[l.at] == '\'':
				l.at++
				closed = true
			default:
				value.WriteByte(l.sql[l.at])
				l.at++
			}
		}
		n := continuation(l.rest())
		if n == 0 {
			if escapes && (strings.Contains(value.String(), "\x00") || !utf8.ValidString(value.String()) && utf8.ValidString(l.sql[start:l.at])) {
				return 0, "", l.fail(start, "escapes that make no text")
			}
			return String, value.String(), nil
		}
		l.at += n
	}
}

// continuation returns how far it is to the quote of another part of a string; 0 if
// there is none. A newline must be between them.
func continuation(s string) int {
	newline := false
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\'':
			if newline {
				return i
			}
			return 0
		case s[i] == '\n' || s[i] == '\r':
			newline = true
			i++
		case isSpace(s[i]):
			i++
		case strings.HasPrefix(s[i:], "--"):
			i += lineLength(s[i:])
		default:
			return 0
		}
	}
	return 0
}

// unescape writes what a backslash sequence means, and returns its length; false if it means nothing.
func unescape(b *strings.Builder, s string) (length int, ok bool) {
	number := func(from, most, base int) (value rune, n int) {
		for n < most && from+n < len(s) {
			d := digit(s[from+n])
			if d >= base {
				break
			}
			value = value*rune(base) + rune(d)
			n++
		}
		return value, n
	}
	switch c := s[1]; c {
	case 'b':
		b.WriteByte('\b')
	case 'f':
		b.WriteByte('\f')
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case 'x':
		v, n := number(2, 2, 16)
		if n == 0 {
			b.WriteByte(c)
			return 2, true
		}
		b.WriteByte(byte(v))
		return 2 + n, true
	case 'u', 'U':
		most := 4
		if c == 'U' {
			most = 8
		}
		v, n := number(2, most, 16)
		if n < most {
			return 0, false
		}
		if second := 2 + n; utf16.IsSurrogate(v) && strings.HasPrefix(s[second:], `\u`) { // two of them are one character
			low, m := number(second+2, 4, 16)
			if r := utf16.DecodeRune(v, low); r != utf8.RuneError && m == 4 {
				b.WriteRune(r)
				return second + 2 + m, true
			}
		}
		if v < 0 || !utf8.ValidRune(v) {
			return 0, false
		}
		b.WriteRune(v)
		return 2 + n, true
	case '0', '1', '2', '3', '4', '5', '6', '7':
		v, n := number(1, 3, 8)
		b.WriteByte(byte(v))
		return 1 + n, true
	default:
		b.WriteByte(c)
	}
	return 2, true
}

func digit(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return 99
}

func (l *lexer) quotedName() (Kind, string, error) {
	start := l.at
	l.at++
	var value strings.Builder
	for l.at < len(l.sql) {
		switch {
		case strings.HasPrefix(l.rest(), `""`):
			value.WriteByte('"')
			l.at += 2
		case l.sql[l.at] == '"':
			l.at++
			if value.Len() == 0 {
				return 0, "", l.fail(start, "a quoted name is empty")
			}
			return Quoted, value.String(), nil
		default:
			value.WriteByte(l.sql[l.at])
			l.at++
		}
	}
	return 0, "", l.fail(start, "unterminated quoted name")
}

// dollar reads what begins with a dollar sign: a parameter or a quoted string.
func (l *lexer) dollar() (Kind, string, error) {
	start := l.at
	s := l.rest()
	n := 1
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	if n > 1 {
		l.at += n
		return Param, "", nil
	}
	if n < len(s) && isNameStart(s[n]) {
		n++
		for n < len(s) && (isNameStart(s[n]) || isDigit(s[n])) {
			n++
		}
	}
	if n == len(s) || s[n] != '$' {
		return 0, "", l.fail(start, "a dollar sign that begins neither a quoted string nor a parameter")
	}
	tag := s[:n+1]
	length := strings.Index(s[n+1:], tag)
	if length < 0 {
		return 0, "", l.fail(start, "unterminated %s-quoted string", tag)
	}
	l.at += n + 1 + length + len(tag)
	return String, s[n+1 : n+1+length], nil
}

const operatorChars = "+-*/<>~!@#%^&|`?="

// operatorLength returns the length of the operator that s begins with. A comment ends
// it, and so does a sign at its end that would be that of the next operand.
func operatorLength(s string) int {
	n := 0
	for n < len(s) && strings.IndexByte(operatorChars, s[n]) >= 0 {
		if n > 0 && (strings.HasPrefix(s[n:], "--") || strings.HasPrefix(s[n:], "/*")) {
			break
		}
		n++
	}
	for n > 1 && (s[n-1] == '+' || s[n-1] == '-') && !strings.ContainsAny(s[:n-1], "~!@#%^&|`?") {
		n--
	}
	return n
}

func numberLength(s string) int {
	if len(s) > 2 && s[0] == '0' && strings.IndexByte("xXoObB", s[1]) >= 0 && digit(s[2]) < 16 {
		n := 2
		for n < len(s) && (digit(s[n]) < 16 || s[n] == '_') {
			n++
		}
		return n
	}
	digits := func(n int) int {
		for n < len(s) && (isDigit(s[n]) || s[n] == '_' && n+1 < len(s) && isDigit(s[n+1])) {
			n++
		}
		return n
	}
	n := digits(0)
	if n < len(s) && s[n] == '.' && !strings.HasPrefix(s[n:], "..") {
		n = digits(n + 1)
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		m := n + 1
		if m < len(s) && (s[m] == '+' || s[m] == '-') {
			m++
		}
		if m < len(s) && isDigit(s[m]) {
			n = digits(m)
		}
	}
	return n
}

func nameLength(s string) int {
	n := 0
	for n < len(s) && (isNameStart(s[n]) || isDigit(s[n]) || s[n] == '$') {
		n++
	}
	return n
}

// fold makes ASCII letters small, as PostgreSQL does with names in UTF-8.
func fold(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + ('a' - 'A')
		}
	}
	return string(b)
}

func isSpace(c byte) bool { return strings.IndexByte(" \t\n\r\f\v", c) >= 0 }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isNameStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

// QuoteName returns a name as it has to be written in SQL.
func QuoteName(name string) string {
	for i := range len(name) {
		if c := name[i]; !(c >= 'a' && c <= 'z' || c == '_' || i > 0 && isDigit(c)) {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
	}
	if name == "" || reserved[name] {
		return `"` + name + `"`
	}
	return name
}

// QuoteString returns a constant as it has to be written in SQL: between dollars when
// it has quotes of its own, so that it can be read.
func QuoteString(s string) string {
	if strings.ContainsAny(s, `'\`) {
		for _, tag := range []string{"$$", "$sql$"} {
			if !strings.Contains(s+"$", tag) {
				return tag + s + tag
			}
		}
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

var reserved = func() map[string]bool {
	m := make(map[string]bool)
	for _, w := range strings.Fields(`all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
		boolean both case cast char character check coalesce collate collation column concurrently constraint create cross
		current_catalog current_date current_role current_schema current_time current_timestamp current_user dec decimal
		default deferrable desc distinct do else end except exists extract false fetch float for foreign freeze from full
		grant greatest group grouping having ilike in initially inner inout int integer intersect interval into is isnull
		join json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar json_serialize
		json_table json_value lateral leading least left like limit localtime localtimestamp merge_action national natural
		nchar none normalize not notnull null nullif numeric offset on only or order out outer overlaps overlay placing
		position precision primary real references returning right row select session_user setof similar smallint some
		substring symmetric system_user table tablesample then time timestamp to trailing treat trim true union unique
		user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists
		xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable`) {
		m[w] = true
	}
	return m
}()

// Reserved reports whether a word, in lower case, is a name only if it is quoted.
func Reserved(word string) bool { return reserved[word] }
