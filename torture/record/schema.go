// Package record writes down, beside wed_sql and independently of it, what is written to flows: by triggers of its own, and
// by the workers in their own transactions.
package record

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
)

// Schema is where all of it is, in each database.
const Schema = "torture"

// The trigger before the guard notes the rules whose commit had returned before the transaction wrote its first state (the one
// behind it comes when the statement has written all of its rows), that one the state, and the rules that could be seen. Rows
// of an instance come in the order of its states, for each is written while the instance is locked.
const schema = `
create schema torture;
create table torture.state (
    seq bigint generated always as identity primary key,
    flow text not null, wid bigint not null, xid text not null default pg_current_xact_id()::text,
    state jsonb not null, by_rule integer not null, rules bigint not null, low bigint not null, high bigint not null,
    at timestamptz not null default clock_timestamp());
create index on torture.state (flow, wid, seq);
create table torture.written (
    id text primary key,
    n bigint generated always as identity, xid text not null default pg_current_xact_id()::text,
    flow text not null, wid bigint not null, tgid integer, transition text, protocol text not null, worker text not null,
    set jsonb not null, at timestamptz not null default clock_timestamp());
create index on torture.written (flow, wid, n);
create table torture.unresolved (id text primary key, protocol text not null);
create table torture.definition (flow text not null, version bigint not null, body jsonb not null, change text not null, primary key (flow, version));
create table torture.acknowledged (flow text not null, version bigint not null, primary key (flow, version));
create table torture.mood (drain boolean not null);
insert into torture.mood values (false);
create table torture.violation (what text not null, at timestamptz not null default clock_timestamp());
create table torture.sighting (what text not null, n bigint not null);

create function torture.rules_in_force(relation oid) returns bigint language plpgsql volatile
    set search_path = pg_catalog, pg_temp as $$
begin
    return (select rules_version from wed_sql.flow where wed_flow = relation);
end $$;

create function torture.before_state() returns trigger language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_setting('torture.low', true), '') = '' then
        perform set_config('torture.low', (select coalesce(max(version), 0)::text from torture.acknowledged where flow = tg_table_schema), true);
    end if;
    return new;
end $$;

create function torture.after_state() returns trigger language plpgsql
    set search_path = pg_catalog, pg_temp set timezone = 'UTC' as $$
begin
    insert into torture.state (flow, wid, state, by_rule, rules, low, high)
    values (tg_table_schema, new.wid, to_jsonb(new) - 'wid' - '_stamp', coalesce((new._stamp).written_by, 0), (new._stamp).rules,
            current_setting('torture.low')::bigint, torture.rules_in_force(tg_relid));
    return null;
end $$;
`

// Prepare makes the tables and functions.
func Prepare(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, schema); err != nil {
		return fmt.Errorf("make the tables of the record: %w", err)
	}
	return nil
}

// Querier is a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Watch has the states of a flow recorded.
func Watch(ctx context.Context, db Querier, name string) error {
	_, err := db.Exec(ctx, fmt.Sprintf(`
		create trigger aa_before_state before insert or update on %[1]s.wed_flow for each row execute function torture.before_state();
		create trigger zzz_after_state after insert or update on %[1]s.wed_flow for each row execute function torture.after_state()`,
		predicate.QuoteIdent(name)))
	if err != nil {
		return fmt.Errorf("have the states of %s recorded: %w", name, err)
	}
	return nil
}

// Define notes the definition that is in force when the transaction commits, unless it is the one before.
func Define(ctx context.Context, db Querier, d *flow.Definition, change string) error {
	before := d.Version
	err := db.QueryRow(ctx, "select rules_version from wed_sql.flow where wed_flow = $1::text::regclass", predicate.QuoteIdent(d.Flow)+".wed_flow").Scan(&d.Version)
	if err != nil {
		return fmt.Errorf("look up the version of %s: %w", d.Flow, err)
	}
	if d.Version == before { // what was drawn is what was there
		return nil
	}
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if _, err := db.Exec(ctx, "insert into torture.definition (flow, version, body, change) values ($1, $2, $3, $4)", d.Flow, d.Version, string(body), change); err != nil {
		return fmt.Errorf("note the definition of %s: %w", d.Flow, err)
	}
	return nil
}

// Acknowledge is to be called when the commit of a definition has returned: from then on it is in force.
func Acknowledge(ctx context.Context, db Querier, d *flow.Definition) error {
	_, err := db.Exec(ctx, "insert into torture.acknowledged values ($1, $2)", d.Flow, d.Version)
	return err
}

// Latest is the definition of a flow that was committed last.
func Latest(ctx context.Context, db Querier, name string) (*flow.Definition, error) {
	var body []byte
	err := db.QueryRow(ctx, "select body from torture.definition where flow = $1 order by version desc limit 1", name).Scan(&body)
	if err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", name, err)
	}
	d := &flow.Definition{}
	return d, json.Unmarshal(body, d)
}

// Write is what a worker notes of what it writes.
type Write struct {
	ID         string
	Flow       string
	WID        int64
	TGID       int32  // 0: not known
	Transition string // "": an initial state
	Protocol   string
	Worker     string
	Set        map[string]*string
}

// Note is to be called in the transaction that writes the state.
func Note(ctx context.Context, db Querier, w Write) error {
	set, err := json.Marshal(w.Set)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, `insert into torture.written (id, flow, wid, tgid, transition, protocol, worker, set)
	                        values ($1, $2, $3, nullif($4::integer, 0), nullif($5, ''), $6, $7, $8)`,
		w.ID, w.Flow, w.WID, w.TGID, w.Transition, w.Protocol, w.Worker, string(set))
	return err
}
