package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
	"github.com/wed-sql/wed_sql/torture/record"
)

// create makes a flow.
func create(ctx context.Context, conn *pgx.Conn, d *flow.Definition, maxStates int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select wed_sql.create_flow($1)", d.Flow); err != nil {
			return fmt.Errorf("create flow %s: %w", d.Flow, err)
		}
		if _, err := tx.Exec(ctx, "select wed_sql.alter_flow($1, max_states => $2)", d.Flow, maxStates); err != nil {
			return fmt.Errorf("alter flow %s: %w", d.Flow, err)
		}
		if err := redefine(ctx, tx, &flow.Definition{Flow: d.Flow}, d); err != nil {
			return err
		}
		if err := record.Watch(ctx, tx, d.Flow); err != nil {
			return err
		}
		return record.Define(ctx, tx, d, "created")
	})
}

// redefine makes a definition of another one. Rules that are new get their TGIDs.
func redefine(ctx context.Context, tx pgx.Tx, from, to *flow.Definition) error {
	attributes, triggers := predicate.QuoteIdent(to.Flow)+".wed_attr", predicate.QuoteIdent(to.Flow)+".wed_trig"
	execute := func(sql string, args ...any) error {
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("define %s: %w", to.Flow, err)
		}
		return nil
	}
	var errs []error
	for _, c := range to.Columns {
		if from.Column(c.Name) == nil {
			errs = append(errs, execute("insert into "+attributes+" (aname, atype, adv) values ($1, $2, $3)", c.Name, string(c.Type), c.Default))
		}
	}
	for _, r := range from.Rules {
		if !slices.ContainsFunc(to.Rules, func(x *flow.Rule) bool { return x.TGID == r.TGID }) {
			errs = append(errs, execute("delete from "+triggers+" where tgid = $1", r.TGID))
		}
	}
	for _, r := range to.Rules {
		i := slices.IndexFunc(from.Rules, func(x *flow.Rule) bool { return x.TGID == r.TGID && r.TGID != 0 })
		if i >= 0 && ruleRow(to, r) == ruleRow(from, from.Rules[i]) {
			continue
		}
		if i >= 0 {
			errs = append(errs, execute(fmt.Sprintf("update %s set %s = %s where tgid = $1", triggers, ruleColumns, ruleRow(to, r)), r.TGID))
		} else if err := tx.QueryRow(ctx, fmt.Sprintf("insert into %s %s values %s returning tgid", triggers, ruleColumns, ruleRow(to, r))).Scan(&r.TGID); err != nil {
			errs = append(errs, fmt.Errorf("define rule %s of %s: %w", r.Transition, to.Flow, err))
		}
	}
	for _, c := range from.Columns {
		if to.Column(c.Name) == nil {
			errs = append(errs, execute("delete from "+attributes+" where aname = $1", c.Name))
		}
	}
	return errors.Join(errs...)
}

const ruleColumns = "(trname, cpred, cfinal, enabled, timeout, delay, action, withdrawable, priority, max_attempts, backoff, max_backoff)"

func ruleRow(d *flow.Definition, r *flow.Rule) string {
	optional := func(given bool, literal string) string {
		if given {
			return literal
		}
		return "null"
	}
	interval := func(d time.Duration) string { return fmt.Sprintf("interval '%d microseconds'", d.Microseconds()) }
	set := map[string]*string{}
	for name, text := range r.Action {
		set[name] = &text
	}
	return "(" + strings.Join([]string{
		optional(!r.Final, predicate.QuoteLiteral(r.Transition)), predicate.QuoteLiteral(r.Condition.SQL()),
		fmt.Sprint(r.Final), fmt.Sprint(r.Enabled), interval(r.Timeout), optional(r.Delay > 0, interval(r.Delay)),
		optional(r.Action != nil, predicate.QuoteLiteral(d.SetClause(set))), fmt.Sprint(r.Withdrawable), fmt.Sprint(r.Priority),
		optional(r.MaxAttempts > 0, fmt.Sprint(r.MaxAttempts)), interval(r.Backoff), "interval '1 second'",
	}, ", ") + ")"
}

// examine compares what the conditions of a definition say in Go with what PostgreSQL says, on states of all kinds.
func examine(ctx context.Context, conn *pgx.Conn, d *flow.Definition, states []map[string]*string) (compared int, err error) {
	for _, set := range states {
		s, err := d.Apply(predicate.State{}, set)
		if err != nil {
			return compared, err
		}
		var columns []string
		for _, c := range d.Columns {
			value := "null"
			if t := set[c.Name]; t != nil {
				value = predicate.QuoteLiteral(*t)
			}
			columns = append(columns, fmt.Sprintf("%s::%s as %s", value, c.Type, predicate.QuoteIdent(c.Name)))
		}
		for _, r := range d.Rules {
			want, failure := r.Condition.Eval(s)
			// A subquery with OFFSET keeps the planner from evaluating what the state's constants let it.
			var got *bool
			sql := fmt.Sprintf("select %s from (select %s offset 0) s", r.Condition.SQL(), strings.Join(columns, ", "))
			answer := conn.QueryRow(ctx, sql).Scan(&got)
			compared++
			same := (failure != nil) == (answer != nil)
			if failure == nil && answer == nil {
				same = got == nil && want == nil || got != nil && want == *got
			}
			if !same {
				return compared, fmt.Errorf("the judge's evaluation differs: %v (%v), and PostgreSQL says %v (%v): %s", want, failure, got, answer, sql)
			}
		}
	}
	return compared, nil
}
