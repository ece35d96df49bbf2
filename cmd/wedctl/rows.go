package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
)

// querier runs queries: a connection, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// readRows returns the rows of a query as JSON, for programs, and understood.
func readRows[T any](ctx context.Context, db querier, what, sql string, args ...any) (raw []json.RawMessage, rows []T, err error) {
	q, err := db.Query(ctx, "select to_json(q) from (\n"+sql+"\n) q", args...)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", what, err)
	}
	raw, err = pgx.CollectRows(q, pgx.RowTo[json.RawMessage])
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", what, err)
	}
	rows = make([]T, len(raw))
	for i, r := range raw {
		if err := json.Unmarshal(r, &rows[i]); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return raw, rows, nil
}

// writeObject writes one value as JSON.
func writeObject(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
