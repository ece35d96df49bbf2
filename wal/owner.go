package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A flow's wed_flow belongs to the flow's owner, and reading somebody's table can run
// his functions: those of an index are evaluated by the planner, those of a type when a
// value becomes text. So the table is read by functions of the extension, as its owner
// and in a security-restricted operation; what comes back is text.

// describe lists the columns of a flow's wed_flow as a Relation message does, wid and
// the stamp first. The caller has locked the table.
func describe(ctx context.Context, db querier, relid uint32, name string) (*relation, error) {
	rows, err := db.Query(ctx, `
select attname::text, atttypid from pg_attribute
 where attrelid = $1 and attnum > 0 and not attisdropped and attgenerated = ''
 order by case attname when $2::text then -1 when $3::text then 0 else attnum end`, relid, widColumn, stampColumn)
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	r := &relation{name: name, wid: 0, stamp: 1}
	var column column
	_, err = pgx.ForEachRow(rows, []any{&column.name, &column.typ}, func() error {
		column.key = quoteJSON(column.name) + ":"
		r.columns = append(r.columns, column)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	if len(r.columns) < 2 || r.columns[0].name != widColumn || r.columns[1].name != stampColumn {
		return nil, errNotOurs
	}
	return r, nil
}

var errNotOurs = errors.New("its wed_flow is not the table that was made for it any more")

func textDatum(text *string) datum {
	if text == nil {
		return datum{kind: datumNull}
	}
	return datum{kind: datumText, text: []byte(*text)}
}
