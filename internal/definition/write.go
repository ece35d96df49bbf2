package definition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ruleColumns are those of wed_trig that a definition sets, with their types.
const (
	ruleNames = `tgname, enabled, trname, cname, cpred, cfinal, timeout, delay, action, withdrawable, priority, max_attempts, backoff, max_backoff, undo`
	ruleTypes = `tgid integer, tgname text, enabled boolean, trname text, cname text, cpred text, cfinal boolean, timeout interval, delay interval,
		action text, withdrawable boolean, priority integer, max_attempts integer, backoff interval, max_backoff interval, undo text`
)

// Write makes a plan's difference in a flow, in a transaction that is the caller's. What
// the database refuses is returned as *Problems: as much of it as can be found out at
// once. The transaction is of no use then.
func (p *Plan) Write(ctx context.Context, tx pgx.Tx, flow string, from *Loaded) error {
	w := writer{tx: tx, plan: p, schema: pgx.Identifier{flow}.Sanitize(), flow: flow, from: from, problems: &Problems{File: from.File, List: from.problems}}
	// the first three find what is wrong, and go on
	for i, step := range []func(context.Context) error{
		w.addAttributes, w.tryRules, w.trySettings, w.park, w.changeAttributes, w.writeRules, w.writeSettings, w.writeGrants,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if i > 1 && len(w.problems.List) > 0 {
			slices.SortStableFunc(w.problems.List, func(a, b *Problem) int { return a.At - b.At })
			return w.problems
		}
	}
	return nil
}

type writer struct {
	tx       pgx.Tx
	plan     *Plan
	schema   string
	flow     string
	from     *Loaded
	problems *Problems
}

// try executes a command; what PostgreSQL finds wrong is a problem, at a place that
// locate knows, and does not end the transaction. keep says whether its effect stays.
func (w *writer) try(ctx context.Context, keep bool, locate func(query string, at int) int, sql string, args ...any) error {
	sub, err := w.tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Rollback(ctx) }()
	if _, err = sub.Exec(ctx, sql, args...); err == nil {
		if keep {
			return sub.Commit(ctx)
		}
		return nil
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || slices.Contains([]string{"55P03", "57014", "40P01", "40001", "42501"}, e.Code) {
		return fmt.Errorf("change flow %q: %w", w.flow, err)
	}
	w.problems.List = append(w.problems.List, problemOf(err, locate))
	return nil
}

// place is where in the file all that is wrong with something is.
func place(at int) func(string, int) int { return func(string, int) int { return at } }

func (w *writer) addAttributes(ctx context.Context) error {
	for _, c := range w.plan.Attributes {
		if c.Old >= 0 {
			continue
		}
		a := w.plan.New.Attributes[c.New]
		if w.from.invalid[a.Name] {
			continue
		}
		known := len(w.problems.List)
		err := w.try(ctx, true, place(w.from.PlaceOfAttribute(c.New)),
			fmt.Sprintf(`insert into %s.wed_attr (aname, adv, atype) values ($1, $2, $3)`, w.schema), a.Name, a.Default, a.Type)
		if err != nil {
			return err
		}
		if len(w.problems.List) > known {
			w.from.invalid[a.Name] = true
		}
	}
	return nil
}

// tryRules tries each rule by itself, to tell of all that are wrong. If attributes have
// to change first, it is done later.
func (w *writer) tryRules(ctx context.Context) error {
	if w.changesTypes() {
		return nil
	}
	return w.tryEach(ctx)
}

func (w *writer) tryEach(ctx context.Context) error {
	for _, c := range w.plan.Rules {
		if c.New < 0 || w.from.isInvalid(w.plan.New.Rules[c.New]) {
			continue
		}
		if err := w.tryRule(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) tryRule(ctx context.Context, c Change) error {
	r := w.plan.New.Rules[c.New]
	r.Undo = nil // what undoes what is looked at with all rules together
	row, err := json.Marshal([]Rule{r})
	if err != nil {
		return fmt.Errorf("write a rule: %w", err)
	}
	sql := fmt.Sprintf(`insert into %s.wed_trig (%s) select %[2]s from jsonb_to_recordset($1) r(%s)`, w.schema, ruleNames, ruleTypes)
	if c.Old >= 0 {
		sql = fmt.Sprintf(`with loose as (update %[1]s.wed_trig set undo = null where undo is not null and tgid <> %[4]d)
			update %[1]s.wed_trig t set (%[2]s) = (select %[2]s from jsonb_to_recordset($1) r(%[3]s)) where t.tgid = %[4]d`,
			w.schema, ruleNames, ruleTypes, w.plan.Old.Rules[c.Old].ID)
	}
	return w.try(ctx, false, func(query string, at int) int { return w.placeInRule(c.New, query, at) }, sql, row)
}

// placeInRule returns where in the file a place of a condition or an action is, as
// PostgreSQL was given them.
func (w *writer) placeInRule(i int, query string, at int) int {
	r := w.plan.New.Rules[i]
	if at > 0 {
		b := byteOf(query, at)
		if query == r.Condition {
			return w.from.PlaceInCondition(i, b)
		}
		if start := indexAfterSet(query); r.Action != nil && start >= 0 && b >= start {
			return w.from.PlaceInAction(i, min(b-start, len(*r.Action)))
		}
	}
	return w.from.PlaceOfRule(i)
}

// changesTypes reports whether attributes change such that rules may have to change with
// them.
func (w *writer) changesTypes() bool {
	return slices.ContainsFunc(w.plan.Attributes, func(c Change) bool {
		return c.New < 0 || slices.ContainsFunc(c.Columns, func(col Column) bool { return col.Name == "atype" })
	})
}

// park takes out of the way what uses an attribute as it was: rules that are removed, and
// the conditions of those that change.
func (w *writer) park(ctx context.Context) error {
	if !w.changesTypes() {
		return nil
	}
	var removed, changed []int
	for _, c := range w.plan.Rules {
		switch {
		case c.New < 0:
			removed = append(removed, w.plan.Old.Rules[c.Old].ID)
		case c.Old >= 0:
			changed = append(changed, w.plan.Old.Rules[c.Old].ID)
		}
	}
	_, err := w.tx.Exec(ctx, fmt.Sprintf(`with gone as (delete from %[1]s.wed_trig where tgid = any ($1)),
			loose as (update %[1]s.wed_trig set undo = null where undo is not null and tgid <> all ($1) and tgid <> all ($2))
		update %[1]s.wed_trig set cpred = 'false', undo = null where tgid = any ($2)`, w.schema), removed, changed)
	if err != nil {
		return fmt.Errorf("put aside what flow %q had: %w", w.flow, err)
	}
	if len(w.plan.Settings) > 0 {
		if _, err := w.tx.Exec(ctx, `select wed_sql.alter_flow($1, consistent => '')`, w.flow); err != nil {
			return fmt.Errorf("put aside the consistency condition of flow %q: %w", w.flow, err)
		}
	}
	return nil
}

func (w *writer) changeAttributes(ctx context.Context) error {
	for _, c := range w.plan.Attributes {
		var err error
		switch {
		case c.New < 0:
			err = w.try(ctx, true, place(-1), fmt.Sprintf(`delete from %s.wed_attr where aname = $1`, w.schema), w.plan.Old.Attributes[c.Old].Name)
		case c.Old >= 0:
			a := w.plan.New.Attributes[c.New]
			known := len(w.problems.List)
			err = w.try(ctx, true, place(w.from.PlaceOfAttribute(c.New)),
				fmt.Sprintf(`update %s.wed_attr set adv = $2, atype = $3 where aname = $1`, w.schema), a.Name, a.Default, a.Type)
			if len(w.problems.List) > known && w.problems.List[known].Hint == "" {
				w.problems.List[known].Hint = fmt.Sprintf("what instances have in attribute %q has to be a value of the new type, too; "+
					"or leave it as it is, and add another attribute", a.Name)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeRules does all that is to be done to rules in one statement, for what they make
// wrong together is looked at when it ends.
func (w *writer) writeRules(ctx context.Context) error {
	var removed []int
	var changed, added []Rule
	for _, c := range w.plan.Rules {
		switch {
		case c.New < 0:
			removed = append(removed, w.plan.Old.Rules[c.Old].ID)
		case c.Old >= 0:
			r := w.plan.New.Rules[c.New]
			r.ID = w.plan.Old.Rules[c.Old].ID
			changed = append(changed, r)
		default:
			added = append(added, w.plan.New.Rules[c.New])
		}
	}
	parked := w.changesTypes()
	if parked {
		// undo was put aside, also where the rule does not change
		for i, r := range w.plan.Old.Rules {
			if r.Undo != nil && !slices.ContainsFunc(w.plan.Rules, func(c Change) bool { return c.Old == i }) {
				changed = append(changed, r)
			}
		}
	}
	if len(removed)+len(changed)+len(added) == 0 {
		return nil
	}
	if parked {
		if err := w.tryEach(ctx); err != nil || len(w.problems.List) > 0 {
			return err
		}
	}
	changedRows, err := json.Marshal(orEmpty(changed))
	if err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	addedRows, err := json.Marshal(orEmpty(added))
	if err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	return w.try(ctx, true, place(-1), fmt.Sprintf(`
		with gone as (delete from %[1]s.wed_trig where tgid = any ($1)),
			changed as (update %[1]s.wed_trig t set (%[2]s) =
				(select %[2]s from jsonb_to_recordset($2) r(%[3]s) where r.tgid = t.tgid)
				where t.tgid in (select tgid from jsonb_to_recordset($2) r(tgid integer)))
		insert into %[1]s.wed_trig (%[2]s) select %[2]s from rows from (jsonb_to_recordset($3) as (%[3]s)) with ordinality
			order by ordinality`, w.schema, ruleNames, ruleTypes), removed, changedRows, addedRows)
}

func orEmpty(rules []Rule) []Rule {
	if rules == nil {
		return []Rule{}
	}
	return rules
}

func (w *writer) writeSettings(ctx context.Context) error { return w.alterFlow(ctx, true) }

// trySettings tries them before anything has changed, if that is possible.
func (w *writer) trySettings(ctx context.Context) error {
	s := w.plan.New.Settings
	if w.changesTypes() || s.Consistent != nil && w.from.isInvalid(Rule{Condition: *s.Consistent}) {
		return nil
	}
	return w.alterFlow(ctx, false)
}

func (w *writer) alterFlow(ctx context.Context, keep bool) error {
	if len(w.plan.Settings) == 0 {
		return nil
	}
	s := w.plan.New.Settings
	consistent, maxStates := "", int64(-1)
	if s.Consistent != nil {
		consistent = *s.Consistent
	}
	if s.MaxStates != nil {
		maxStates = *s.MaxStates
	}
	at := w.from.File.placeOfString(consistent)
	return w.try(ctx, keep, func(query string, in int) int {
		if at < 0 || in < 1 || query != consistent {
			return at
		}
		return w.from.File.insideAt(at, byteOf(query, in))
	}, `select wed_sql.alter_flow($1, $2, $3)`, w.flow, consistent, maxStates)
}

func (w *writer) writeGrants(ctx context.Context) error {
	for _, g := range w.plan.Grants {
		err := w.try(ctx, true, place(w.from.File.placeOfGrant(g)), `select wed_sql.grant_worker($1, $2, $3)`, w.flow, g.Transition, g.Role)
		if err != nil {
			return err
		}
	}
	return nil
}

// Revoke takes from worker roles what a plan's new definition does not grant them.
func (p *Plan) Revoke(ctx context.Context, tx pgx.Tx, flow string) error {
	for _, r := range p.Revokes {
		if _, err := tx.Exec(ctx, `select wed_sql.revoke_worker($1, $2, $3)`, flow, r.Transition, r.Role); err != nil {
			return fmt.Errorf("revoke %s from %s: %w", r.Transition, r.Role, err)
		}
	}
	return nil
}
