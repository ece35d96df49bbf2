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

// valueNow reads a value from the row, "" if there is none.
func (a *applier) valueNow(ctx context.Context, f *flow, wid int64, name string) (value string, err error) {
	if _, err := a.db.Exec(ctx, "begin"); err != nil {
		return "", err
	}
	defer func() {
		_, end := a.db.Exec(ctx, "rollback") // it has only read
		err = errors.Join(err, end)
	}()
	r, err := describe(ctx, a.db, f)
	if err != nil {
		return "", err
	}
	for _, c := range r.columns {
		if c.name != name {
			continue
		}
		rows, err := a.db.Query(ctx, "select "+ident(name)+" from only "+f.table+" where wid = $1",
			pgx.QueryResultFormats{pgx.TextFormatCode}, wid)
		if err != nil {
			return "", err
		}
		defer rows.Close()
		if rows.Next() {
			d := datum{kind: datumText, text: rows.RawValues()[0]}
			if d.text == nil {
				d.kind = datumNull
			}
			value = string(appendDatum(nil, c.typ, d))
		}
		rows.Close()
		return value, rows.Err()
	}
	return "", nil
}

// describe locks a flow's wed_flow until the end of the transaction and lists its
// columns as a Relation message does, wid and the stamp first.
//
// The table is its owner's, who may have put anything in its place, while this session
// is a superuser's as a rule. So it is made sure, once nobody can change it any more,
// that it is the table that it was, and that the columns of ours have our types: then
// reading it runs nobody's functions. For the same reason no value is cast.
func describe(ctx context.Context, db database, f *flow) (*relation, error) {
	if _, err := db.Exec(ctx, "lock table only "+f.table+" in access share mode"); err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, `
select a.attname::text, a.atttypid
  from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.oid = $1 and c.oid = to_regclass($2::text) and c.relkind = 'r'
   and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
   and case a.attname when $3::text then a.atttypid = 'int8'::regtype
                      when $4::text then a.atttypid = 'wed_sql.stamp'::regtype else true end
 order by case a.attname when $3::text then -1 when $4::text then 0 else a.attnum end`,
		f.relation, f.table, widColumn, stampColumn)
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	r := &relation{name: f.name, wid: 0, stamp: 1}
	var name string
	var typ uint32
	_, err = pgx.ForEachRow(rows, []any{&name, &typ}, func() error {
		r.columns = append(r.columns, column{name: name, key: quoteJSON(name) + ":", typ: typ})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	if len(r.columns) < 2 || r.columns[0].name != widColumn || r.columns[1].name != stampColumn {
		return nil, fmt.Errorf("%s is not the table that was made for the flow", f.table)
	}
	return r, nil
}
