package wal

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestAppendValue(t *testing.T) {
	t.Parallel()
	const textOID, timestamptzOID, byteaOID, int4ArrayOID = 25, 1184, 17, 1007
	tests := []struct {
		typ  uint32
		text string
		want string
	}{
		{boolOID, "t", "true"}, {boolOID, "f", "false"},
		{int2OID, "-1", "-1"}, {int4OID, "2147483647", "2147483647"}, {int8OID, "9223372036854775807", "9223372036854775807"},
		{float4OID, "1e+20", "1e+20"}, {float8OID, "-0", "-0"}, {float8OID, "NaN", `"NaN"`},
		{float8OID, "Infinity", `"Infinity"`}, {float8OID, "-Infinity", `"-Infinity"`},
		{numericOID, "0.10", "0.10"}, {numericOID, "NaN", `"NaN"`}, {numericOID, "-Infinity", `"-Infinity"`},
		{jsonbOID, `{"a": [1, null]}`, `{"a": [1, null]}`},
		{jsonOID, `{ "a" : 1e3, "b": "\u00e9" }`, `{ "a" : 1e3, "b": "\u00e9" }`},
		{jsonOID, `"1e99999 true"`, `"1e99999 true"`},
		{jsonOID, `"\u0000"`, `"\"\\u0000\""`},
		{jsonOID, `"\ud800"`, `"\"\\ud800\""`},
		{jsonOID, `"\\u0000"`, `"\\u0000"`},
		{jsonOID, `1e400000`, `"1e400000"`},
		{textOID, "", `""`}, {textOID, "a\"b\\c\n\r\t\x01é", `"a\"b\\c\n\r\t\u0001é"`},
		{timestamptzOID, "2026-01-01 00:00:00+00", `"2026-01-01 00:00:00+00"`},
		{byteaOID, `\x00ff`, `"\\x00ff"`}, {int4ArrayOID, "{1,2}", `"{1,2}"`},
	}
	for _, tt := range tests {
		got := string(appendValue(nil, tt.typ, []byte(tt.text)))
		if got != tt.want {
			t.Errorf("type %d, %q: got %s, want %s", tt.typ, tt.text, got, tt.want)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("type %d, %q: %s is not JSON", tt.typ, tt.text, got)
		}
	}
}

func TestAppendStringIsReadBackAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var back string
		if err := json.Unmarshal(appendString(nil, []byte(s)), &back); err != nil {
			t.Fatal(err)
		}
		if back != s {
			t.Errorf("got %q, want %q", back, s)
		}
	})
}

func TestIdent(t *testing.T) {
	t.Parallel()
	if got := ident(`a"b`); got != `"a""b"` {
		t.Error(got)
	}
}
