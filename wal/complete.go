package wal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// complete fills in the values that the log does not have, because they are stored
// out of line (TOAST) and were not changed: the state before has them.
func (a *applier) complete(ctx context.Context, batch []Commit) error {
	type key struct {
		relation uint32
		wid      int64
		version  int64
	}
	states := make(map[key]string) // of this batch, by key of the state
	for v := range versions(batch) {
		if v.Parts != nil {
			before := states[key{v.Relation, v.Wid, v.Stamp.Version - 1}]
			if err := a.completeVersion(ctx, v, before); err != nil {
				return err
			}
		}
		states[key{v.Relation, v.Wid, v.Stamp.Version}] = v.State
	}
	return nil
}

func (a *applier) completeVersion(ctx context.Context, v *Version, before string) error {
	f := a.catalog.flows[v.Relation]
	if f == nil || f.damaged() {
		return nil // it is discarded anyway
	}
	var known map[string]json.RawMessage
	if before != "" {
		if err := json.Unmarshal([]byte(before), &known); err != nil {
			return fmt.Errorf("instance %d, version %d: state before: %w", v.Wid, v.Stamp.Version, err)
		}
	}
	var b strings.Builder
	for i, p := range v.Parts {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(quoteJSON(p.Name))
		b.WriteByte(':')
		if p.Missing {
			if value, ok := known[p.Name]; ok {
				p.JSON = string(value)
			} else {
				var err error
				if p.JSON, err = a.valueBefore(ctx, f, v, p.Name); err != nil {
					return err
				}
			}
		}
		b.WriteString(p.JSON)
	}
	b.WriteByte('}')
	v.State, v.Parts = b.String(), nil
	return nil
}

// valueBefore reads a value from the trace line before; or, if there is none, from
// the row as it is now, which has the same value unless it was changed since.
func (a *applier) valueBefore(ctx context.Context, f *flow, v *Version, name string) (string, error) {
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`select (state -> $3::text)::text from ` + f.trace + ` where wid = $1 and version = $2`,
			[]any{v.Wid, v.Stamp.Version - 1, name}},
		{`select (to_jsonb(t) -> $2::text)::text from ` + f.table + ` t where wid = $1`,
			[]any{v.Wid, name}},
	} {
		rows, err := a.db.Query(ctx, q.sql, q.args...)
		if err != nil {
			return "", &failure{err: err, step: stepTrace, flow: f}
		}
		value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[*string])
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return "", &failure{err: err, step: stepTrace, flow: f}
		}
		if value != nil {
			return *value, nil
		}
	}
	a.log.Warn("a value is not in the log and was not found: null is recorded",
		"flow", f.name, "instance", v.Wid, "version", v.Stamp.Version, "attribute", name)
	return "null", nil
}
