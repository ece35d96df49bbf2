package predicate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// Value of an attribute: nil (null), bool, int64, *big.Rat (numeric), string, time.Time, Document or []*string.
type Value any

// Document is a value of type jsonb.
type Document struct{ Root any }

// State is a state of an instance.
type State map[string]Value

// Parse reads a value from its text, as PostgreSQL would; of a timestamp it takes RFC 3339 and PostgreSQL's own form only.
func Parse(t Type, text string) (Value, error) {
	switch t {
	case Boolean:
		return strconv.ParseBool(text)
	case Integer:
		return strconv.ParseInt(text, 10, 32)
	case Numeric:
		if r, ok := new(big.Rat).SetString(text); ok {
			return r, nil
		}
		return nil, fmt.Errorf("numeric %q", text)
	case Text:
		return text, nil
	case Timestamp:
		if at, err := time.Parse("2006-01-02 15:04:05.999999-07", text); err == nil {
			return at, nil // as wed_trace has it
		}
		return time.Parse(time.RFC3339Nano, text)
	case JSON:
		root, err := decode([]byte(text))
		return Document{root}, err
	case TextArray:
		return parseArray(text)
	}
	return nil, fmt.Errorf("type %q", t)
}

// parseArray reads arrays whose elements need no quotes.
func parseArray(text string) (Value, error) {
	inner, opened := strings.CutPrefix(text, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if !opened || !closed {
		return nil, fmt.Errorf("array %q", text)
	}
	elements := []*string{}
	if inner == "" {
		return elements, nil
	}
	for e := range strings.SplitSeq(inner, ",") {
		if e == "NULL" {
			elements = append(elements, nil)
		} else {
			elements = append(elements, &e)
		}
	}
	return elements, nil
}

func decode(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var root any
	err := d.Decode(&root)
	return root, err
}

// FromJSON reads a value as PostgreSQL's to_jsonb has it.
func FromJSON(t Type, data json.RawMessage) (Value, error) {
	if string(data) == "null" {
		return nil, nil
	}
	switch t {
	case JSON:
		root, err := decode(data)
		return Document{root}, err
	case TextArray:
		if strings.HasPrefix(string(data), `"`) { // as its text, as wed_trace has it
			var text string
			if err := json.Unmarshal(data, &text); err != nil {
				return nil, err
			}
			return Parse(t, text)
		}
		elements := []*string{}
		err := json.Unmarshal(data, &elements)
		return elements, err
	case Text, Timestamp:
		var s string
		if err := json.Unmarshal(data, &s); err != nil {
			return nil, err
		}
		return Parse(t, s)
	}
	return Parse(t, string(data))
}

// isNull also sees JSON's null behind a jsonb: that is a value.
func isNull(v Value) bool { return v == nil }

func number(v any) *big.Rat {
	r, ok := new(big.Rat).SetString(fmt.Sprint(v))
	if !ok {
		return nil
	}
	return r
}

// sameDocument is jsonb's equality.
func sameDocument(a, b any) bool {
	switch x := a.(type) {
	case nil:
		return b == nil
	case json.Number:
		y, ok := b.(json.Number)
		return ok && number(x).Cmp(number(y)) == 0
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			w, ok := y[k]
			if !ok || !sameDocument(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !sameDocument(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return a == b
}

// Same says whether two values are the same, null and null too.
func Same(a, b Value) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return compare(a, b) == 0
}

// compare orders two values that are not null and of the same type; those that have no order here are -1 if they differ.
func compare(a, b Value) int {
	switch x := a.(type) {
	case bool:
		switch {
		case x == b.(bool):
			return 0
		case x:
			return 1
		}
		return -1
	case int64:
		if y, ok := b.(*big.Rat); ok {
			return new(big.Rat).SetInt64(x).Cmp(y)
		}
		return big.NewInt(x).Cmp(big.NewInt(b.(int64)))
	case *big.Rat:
		if y, ok := b.(int64); ok {
			return x.Cmp(new(big.Rat).SetInt64(y))
		}
		return x.Cmp(b.(*big.Rat))
	case string:
		return strings.Compare(x, b.(string))
	case time.Time:
		return x.Compare(b.(time.Time))
	case Document:
		if sameDocument(x.Root, b.(Document).Root) {
			return 0
		}
		return -1
	case []*string:
		if sameArray(x, b.([]*string)) {
			return 0
		}
		return -1
	}
	panic(fmt.Sprintf("predicate: a value of type %T", a))
}

func sameArray(a, b []*string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if (a[i] == nil) != (b[i] == nil) || a[i] != nil && *a[i] != *b[i] {
			return false
		}
	}
	return true
}
