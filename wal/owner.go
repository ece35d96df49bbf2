package wal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A flow's wed_flow belongs to the flow's owner, while the follower's session is a
// superuser's as a rule. Reading somebody's table can run his functions: those of an
// index are evaluated by the planner, those of a type when a value becomes text. So the
// table is read as its owner, in a security-restricted operation, and what is read goes
// through a table of ours. (What the follower writes to is not the owner's, and nothing
// of his is in it.)

// sqlOwnersRows makes that table. It is the session's own; everybody may insert there,
// and nobody else can reach it.
const sqlOwnersRows = `create temporary table owners_rows (xid text, wid bigint, stamp text, version bigint, vals text[]) on commit drop;
grant insert on pg_temp.owners_rows to public`

// describe locks a flow's wed_flow until the end of the transaction and lists its
// columns as a Relation message does, wid and the stamp first.
func describe(ctx context.Context, db database, f *flow) (*relation, error) {
	if _, err := db.Exec(ctx, "lock table only "+f.table+" in access share mode"); err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, `
select attname::text, atttypid from pg_attribute
 where attrelid = $1 and attnum > 0 and not attisdropped and attgenerated = ''
 order by case attname when $2::text then -1 when $3::text then 0 else attnum end`, f.relation, widColumn, stampColumn)
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
		return nil, fmt.Errorf("%s: %w", f.table, errNotOurs)
	}
	return r, nil
}

// readAsOwner copies the rows that satisfy a condition on f to pg_temp.owners_rows: the
// text of each value as the log would have it, by its type's output function.
func readAsOwner(ctx context.Context, db database, f *flow, r *relation, condition string) error {
	var values strings.Builder
	for i, c := range r.columns[2:] {
		if i > 0 {
			values.WriteString(", ")
		}
		name := "f." + ident(c.name)
		values.WriteString("case num_nulls(" + name + ") when 0 then format('%s', " + name + ") end")
	}
	command := "insert into pg_temp.owners_rows (xid, wid, stamp, version, vals) select f.xmin::text, f.wid, format('%s', f._stamp), (f._stamp).version, array[" +
		values.String() + "]::text[] from only " + f.table + " f where " + condition
	if _, err := db.Exec(ctx, "select wed_sql.execute_as_owner($1::oid::regclass, $2)", f.relation, command); err != nil {
		return fmt.Errorf("read %s as its owner: %w", f.table, err)
	}
	return nil
}

var errNotOurs = errors.New("is not the table that was made for the flow any more")

// isOwners tells errors that the owner of a table has made from those of the server.
func isOwners(err error) bool {
	if errors.Is(err, errNotOurs) {
		return true
	}
	var server *pgconn.PgError
	if !errors.As(err, &server) || len(server.Code) != 5 {
		return false
	}
	switch server.Code[:2] {
	case "08", "40", "53", "55", "57", "58", "F0", "XX":
		return false
	}
	return true
}

func textDatum(text *string) datum {
	if text == nil {
		return datum{kind: datumNull}
	}
	return datum{kind: datumText, text: []byte(*text)}
}
