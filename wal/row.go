package wal

import (
	"strings"
	"unicode/utf8"
)

// Types of attributes that are no strings in a state's JSON. The numbers are
// fixed in PostgreSQL's pg_type.dat.
const (
	boolOID    = 16
	int8OID    = 20
	int2OID    = 21
	int4OID    = 23
	jsonOID    = 114
	float4OID  = 700
	float8OID  = 701
	numericOID = 1700
	jsonbOID   = 3802
)

// Names of the columns of wed_flow that are not attributes.
const (
	widColumn   = "wid"
	stampColumn = "_stamp"
)

// appendValue appends the JSON of a value of the type to b: numbers, booleans and
// JSON as they are, and everything else as a string of its text in PostgreSQL.
func appendValue(b []byte, typ uint32, text []byte) []byte {
	switch typ {
	case boolOID:
		if len(text) == 1 && text[0] == 't' {
			return append(b, "true"...)
		}
		return append(b, "false"...)
	case int2OID, int4OID, int8OID:
		return append(b, text...)
	case float4OID, float8OID, numericOID:
		if isFinite(text) {
			return append(b, text...)
		}
	case jsonbOID:
		return append(b, text...)
	case jsonOID:
		if fitsJSONB(text) {
			return append(b, text...)
		}
	}
	return appendString(b, text)
}

// isFinite tells a number from NaN, Infinity and -Infinity.
func isFinite(text []byte) bool {
	if len(text) == 0 {
		return false
	}
	last := text[len(text)-1]
	return last >= '0' && last <= '9'
}

// Numbers within these are within numeric.
const (
	maxDigits   = 10_000
	maxExponent = 4 // with its sign
)

// fitsJSONB tells whether the text of a value of type json is sure to be accepted
// by jsonb, which refuses some of what json takes: the escape \u0000, halves of a
// surrogate pair, and numbers beyond numeric. A state is kept as jsonb; a value that
// would make that fail is kept as a string.
func fitsJSONB(text []byte) bool {
	inString, digits := false, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c < '0' || c > '9' || inString {
			digits = 0
		} else if digits++; digits > maxDigits {
			return false
		}
		switch {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
			if i+4 < len(text) && text[i] == 'u' {
				switch {
				case string(text[i+1:i+5]) == "0000":
					return false
				case (text[i+1] == 'd' || text[i+1] == 'D') && text[i+2] >= '8':
					return false // whole pairs, too: not worth telling apart
				}
			}
		case !inString && (c == 'e' || c == 'E') && i > 0 && text[i-1] >= '0' && text[i-1] <= '9':
			exponent := 0 // its length; the letters of true and false do not follow a digit
			for j := i + 1; j < len(text) && strings.IndexByte("+-0123456789", text[j]) >= 0; j++ {
				exponent++
			}
			if exponent > maxExponent {
				return false
			}
		}
	}
	return true
}

// appendString appends text as a JSON string. Bytes above ASCII stay as they are:
// the server has checked them against its encoding.
func appendString(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, text[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
		}
	}
	b = append(b, text[start:]...)
	return append(b, '"')
}

func quoteJSON(s string) string { return string(appendString(nil, []byte(s))) }

// ident quotes an SQL identifier.
func ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// validText makes text storable whatever a message of the server contained.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "�")
}
