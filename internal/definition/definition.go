// Package definition reads, writes and compares the definitions of flows: attributes,
// rules, and what belongs to a flow as a whole.
package definition

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Definition is what a flow is defined by.
type Definition struct {
	Attributes []Attribute `json:"attributes"`
	Rules      []Rule      `json:"rules"`
	Settings   Settings    `json:"settings"`
	Workers    []Worker    `json:"workers"`
}

// Attribute is a row of wed_attr.
type Attribute struct {
	Name    string  `json:"aname"`
	Default *string `json:"adv"`
	Type    string  `json:"atype"`
}

// Rule is a row of wed_trig.
type Rule struct {
	ID           int     `json:"tgid,omitempty"` // 0: it is not in the database
	Name         *string `json:"tgname"`
	Enabled      bool    `json:"enabled"`
	Transition   *string `json:"trname"`
	CName        *string `json:"cname"`
	Condition    string  `json:"cpred"`
	Final        bool    `json:"cfinal"`
	Timeout      *string `json:"timeout"`
	Delay        *string `json:"delay"`
	Action       *string `json:"action"`
	Withdrawable bool    `json:"withdrawable"`
	Priority     int     `json:"priority"`
	MaxAttempts  *int    `json:"max_attempts"`
	Backoff      *string `json:"backoff"`
	MaxBackoff   *string `json:"max_backoff"`
	Undo         *string `json:"undo"`
}

// Settings belong to a flow as a whole.
type Settings struct {
	Consistent *string `json:"consistent"`
	MaxStates  *int64  `json:"max_states"`
}

// Worker is a role that may perform a transition.
type Worker struct {
	Transition string `json:"trname"`
	Role       string `json:"role"`
}

// Label names a rule for people: by its name, or its transition.
func (r Rule) Label() string {
	switch {
	case r.Name != nil && r.Transition != nil:
		return fmt.Sprintf("%s (%s)", *r.Name, *r.Transition)
	case r.Final:
		return "the final condition"
	case r.Transition != nil:
		return *r.Transition
	}
	return "a rule without a transition"
}

// Status is what a flow is besides its definition.
type Status struct {
	Owner   string `json:"owner"`
	Version int64  `json:"version"` // of the definition
}

// Exists reports whether there is a flow of this name.
func Exists(ctx context.Context, q Queryer, flow string) (found bool, err error) {
	// the tables that only a flow has, whoever may see what is in them
	err = q.QueryRow(ctx, `
		select exists (select from pg_namespace n
			join pg_class a on a.relnamespace = n.oid and a.relname = 'wed_attr'
			join pg_class t on t.relnamespace = n.oid and t.relname = 'wed_trig'
			where n.nspname = $1)`, flow).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("look for flow %q: %w", flow, err)
	}
	return found, nil
}

// Queryer is a connection or a transaction.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Read returns the definition of a flow: attributes in the order of their columns,
// rules as they were made.
func Read(ctx context.Context, q Queryer, flow string) (*Definition, Status, error) {
	d := &Definition{}
	var status Status
	schema := pgx.Identifier{flow}.Sanitize()
	err := q.QueryRow(ctx, `select owner, rules_version, consistent, max_states from wed_sql.flow_settings where flow = $1`, flow).
		Scan(&status.Owner, &status.Version, &d.Settings.Consistent, &d.Settings.MaxStates)
	if err != nil {
		return nil, Status{}, fmt.Errorf("read the settings of flow %q: %w", flow, err)
	}
	d.Attributes, err = readRows[Attribute](ctx, q, fmt.Sprintf(`
		select to_jsonb(a) from %[1]s.wed_attr a
		left join pg_attribute c on c.attrelid = '%[2]s'::regclass and c.attname = a.aname and not c.attisdropped
		order by c.attnum`, schema, literal(schema+".wed_flow")))
	if err != nil {
		return nil, Status{}, fmt.Errorf("read the attributes of flow %q: %w", flow, err)
	}
	d.Rules, err = readRows[Rule](ctx, q, fmt.Sprintf(`select to_jsonb(t) from %s.wed_trig t order by tgid`, schema))
	if err != nil {
		return nil, Status{}, fmt.Errorf("read the rules of flow %q: %w", flow, err)
	}
	d.Workers, err = readRows[Worker](ctx, q, `
		select to_jsonb(w) from wed_sql.flow_worker w where flow = $1 order by trname collate "C", role collate "C"`, flow)
	if err != nil {
		return nil, Status{}, fmt.Errorf("read the worker roles of flow %q: %w", flow, err)
	}
	return d, status, nil
}

// literal returns what a text is between quotes.
func literal(s string) string {
	var b []byte
	for i := range len(s) {
		if s[i] == '\'' {
			b = append(b, '\'')
		}
		b = append(b, s[i])
	}
	return string(b)
}

// readRows reads rows that are JSON objects.
func readRows[T any](ctx context.Context, q Queryer, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v T, err error) {
		var raw []byte
		if err := row.Scan(&raw); err != nil {
			return v, err
		}
		return v, json.Unmarshal(raw, &v)
	})
}
