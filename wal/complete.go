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
	if f == nil || !a.writes(f) {
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
	rows, err := a.db.Query(ctx, `select (state -> $3::text)::text from `+f.trace+` where wid = $1 and version = $2`,
		v.Wid, v.Stamp.Version-1, name)
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
	now, err := a.valueNow(ctx, f, v.Wid, name)
	if err != nil {
		return "", &failure{err: err, step: stepState, flow: f}
	}
	if now == "" {
		a.log.Warn("a value is not in the log and was not found: null is recorded",
			"flow", f.name, "instance", v.Wid, "version", v.Stamp.Version, "attribute", name)
		now = "null"
	}
	return now, nil
}

// valueNow reads a value from the row, "" if there is none. It takes no longer than a
// moment, whoever owns the table.
func (a *applier) valueNow(ctx context.Context, f *flow, wid int64, name string) (value string, err error) {
	if _, err := a.db.Exec(ctx, "begin; set local statement_timeout = '1s'"); err != nil {
		return "", err
	}
	defer func() {
		_, end := a.db.Exec(ctx, "rollback") // it has only read
		err = errors.Join(err, end)
	}()
	rows, err := a.db.Query(ctx, "select type, value from wed_sql.current_value($1, $2, $3)", f.id, wid, name)
	if err != nil {
		return "", err
	}
	var typ *uint32
	var text *string
	_, err = pgx.ForEachRow(rows, []any{&typ, &text}, func() error {
		if typ != nil && text != nil {
			value = string(appendDatum(nil, *typ, textDatum(text)))
		}
		return nil
	})
	return value, err
}
