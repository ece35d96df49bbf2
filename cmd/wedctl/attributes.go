package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// assignment is what a command line says of an attribute, as SQL.
type assignment struct {
	name string
	text string // how its value is written, as the type's input has it
}

// parseAssignments understands arguments of the form NAME=VALUE.
func parseAssignments(args []string) ([]assignment, error) {
	list := make([]assignment, len(args))
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, usagef("an attribute is set by NAME=VALUE, not %q", arg)
		}
		if slices.ContainsFunc(list[:i], func(a assignment) bool { return a.name == name }) {
			return nil, usagef("attribute %q is set twice", name)
		}
		list[i] = assignment{name, value}
	}
	return list, nil
}

// setClause writes assignments as SQL accepts them after SET.
func setClause(list []assignment) string {
	parts := make([]string, len(list))
	for i, a := range list {
		parts[i] = pgx.Identifier{a.name}.Sanitize() + " = " + literal(a.text)
	}
	return strings.Join(parts, ", ")
}

// literal writes a text as an SQL literal, whatever standard_conforming_strings is.
func literal(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// parseObject understands a JSON object, and returns its keys in order.
func parseObject(text string) (keys []string, err error) {
	var object map[string]json.RawMessage
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&object); err != nil || object == nil || dec.More() {
		return nil, usagef("it takes one JSON object of attributes and values, not %s", excerpt(bytes.TrimSpace([]byte(text))))
	}
	return slices.Sorted(maps.Keys(object)), nil
}

// attributeTypes returns the attributes of a flow with their types, as SQL writes them.
func attributeTypes(ctx context.Context, conn *pgx.Conn, flow string) (map[string]string, error) {
	rows, err := conn.Query(ctx, `
		select attname::text, format_type(atttypid, atttypmod) from pg_attribute
		where attrelid = to_regclass($1) and attnum > 0 and not attisdropped and attname not in ('wid', '_stamp')`,
		pgx.Identifier{flow, "wed_flow"}.Sanitize())
	if err != nil {
		return nil, fmt.Errorf("list the attributes of flow %q: %w", flow, err)
	}
	types := make(map[string]string)
	var name, kind string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		types[name] = kind
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the attributes of flow %q: %w", flow, err)
	}
	return types, nil
}

// checkAttributes refuses names that are no attributes of a flow.
func checkAttributes(flow string, types map[string]string, names []string) error {
	for _, n := range names {
		if _, ok := types[n]; ok {
			continue
		}
		hint := "it has none"
		if len(types) > 0 {
			hint = "it has " + some(slices.Sorted(maps.Keys(types)), 12)
		}
		return &failure{code: exitNotFound, message: fmt.Sprintf("flow %q has no attribute %q", flow, n), hint: hint}
	}
	return nil
}
