package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/definition"
)

func flowApplyCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "apply",
		Usage:     "make a flow what a file says",
		ArgsUsage: "FILE",
		Description: `FILE (- for standard input) has "insert into wed_attr ..." and "insert into
wed_trig ...". Shows the difference, asks, and applies it in one transaction.
With --exit-code, --dry-run exits with 5 if there is one.

Example: wedctl flow apply orders.sql --dry-run`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "flow", Aliases: []string{"f"}, Usage: "`NAME`; else what the file says, or is called"},
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, DisableDefaultText: true, Usage: "change nothing"},
			&cli.BoolFlag{Name: "exit-code", DisableDefaultText: true, Usage: "of --dry-run: exit with 5 if they differ"},
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, DisableDefaultText: true, Usage: "do not ask"},
			&cli.BoolFlag{Name: "allow-drop", DisableDefaultText: true, Usage: "drop attributes that have values"},
			&cli.BoolFlag{Name: "rematch", DisableDefaultText: true, Usage: "match resting instances anew, too"},
			&cli.BoolFlag{Name: "revoke", DisableDefaultText: true, Usage: "revoke what the file does not grant"},
			&cli.DurationFlag{Name: "lock-timeout", Value: 5 * time.Second, Usage: "wait so long for others"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error { return applyFlow(c, con) },
	}
}

// application is what apply is asked to do.
type application struct {
	file        *definition.File
	flow        string
	allowDrop   bool
	rematch     bool
	revoke      bool
	lockTimeout time.Duration
}

// outcome is what an application does, or would do.
type applied struct {
	created bool
	loaded  *definition.Loaded
	plan    *definition.Plan
	preview *definition.Preview
	anew    *definition.Anew // of --rematch
}

func applyFlow(c *cli.Context, con *console) error {
	if c.Args().Len() != 1 {
		return usagef("%s needs a FILE, or - for standard input", c.Command.HelpName)
	}
	path, dryRun := c.Args().First(), c.Bool("dry-run")
	if c.Bool("exit-code") && !dryRun {
		return usagef("--exit-code is for --dry-run")
	}
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	ask := !dryRun && !c.Bool("yes")
	if ask && (path == "-" || !con.asks) {
		return &failure{code: exitUsage, message: "there is nobody to ask", hint: "--yes applies the file without asking, --dry-run shows what that would do"}
	}
	file, err := con.readFlowFile(path)
	if err != nil {
		return describeProblems(err)
	}
	a := application{
		file: file, allowDrop: c.Bool("allow-drop"), rematch: c.Bool("rematch"), revoke: c.Bool("revoke"), lockTimeout: c.Duration("lock-timeout"),
	}
	if a.flow, err = flowOfFile(c.String("flow"), path, file); err != nil {
		return err
	}
	conn, err := connect(c.Context, dsn(c), "wedctl flow apply")
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := requireExtension(c.Context, conn); err != nil {
		return err
	}
	return a.carryOut(c, con, conn, dryRun, ask, asJSON)
}

// carryOut applies the file, after the user has seen what that means.
func (a *application) carryOut(c *cli.Context, con *console, conn *pgx.Conn, dryRun, ask, asJSON bool) error {
	ctx := c.Context
	result, err := a.attempt(ctx, conn, !dryRun && !ask, nil)
	if err != nil {
		return err
	}
	if ask {
		con.writeApplied(a, result, false)
		if !result.changes(a) {
			return nil
		}
		if err := a.refuseLoss(result); err != nil {
			return err
		}
		yes, err := con.agreed("\nApply?")
		if err != nil {
			return err
		}
		if !yes {
			return &failure{code: exitFailure, message: "nothing was changed"}
		}
		if result, err = a.attempt(ctx, conn, true, result.plan); err != nil {
			return err
		}
		fmt.Fprintln(con.out, con.green("applied")+a.rematched(result))
		return nil
	}
	if asJSON {
		err = writeApplied(con.out, a, result, !dryRun)
	} else {
		con.writeApplied(a, result, !dryRun)
	}
	if err == nil && dryRun && c.Bool("exit-code") && result.changes(a) {
		err = &failure{code: exitDiffers, message: fmt.Sprintf("flow %q is not what %s says", a.flow, a.file.Name)}
	}
	return err
}

// changes reports whether applying does anything.
func (r *applied) changes(a *application) bool {
	return r.created || !r.plan.Empty() || a.revoke && len(r.plan.Revokes) > 0 || a.rematch && (r.anew == nil || r.anew.Changed > 0)
}

// refuseLoss refuses to drop attributes that have values, unless that is wanted.
func (a *application) refuseLoss(r *applied) error {
	if len(r.preview.Losses) == 0 || a.allowDrop {
		return nil
	}
	var lost []string
	for _, l := range r.preview.Losses {
		lost = append(lost, fmt.Sprintf("%q (%s)", l.Attribute, several(l.Values, "value")))
	}
	return &failure{
		code: exitFailure, message: "nothing was changed: attributes that are not in the file have values: " + strings.Join(lost, ", "),
		hint: "--allow-drop drops them and what is in them; or keep them in the file",
	}
}

// attempt applies the file in a transaction, and keeps that if it is told to. If expected
// is given, it must be what it comes to once more.
func (a *application) attempt(ctx context.Context, conn *pgx.Conn, keep bool, expected *definition.Plan) (*applied, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	r, err := a.write(ctx, tx)
	if sqlState(err) == "55P03" {
		_ = tx.Rollback(ctx)
		return nil, inTheWay(ctx, conn, a.flow, a.lockTimeout)
	}
	if err != nil {
		return nil, ownFlow(describeProblems(err), a.flow)
	}
	if expected != nil && !reflect.DeepEqual(expected, r.plan) {
		return nil, &failure{code: exitFailure, message: fmt.Sprintf("nothing was changed: somebody else has changed flow %q meanwhile", a.flow), hint: "look at the difference again"}
	}
	if !keep {
		return r, nil
	}
	if err := a.refuseLoss(r); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	return r, nil
}

// write does all that applying is, up to the commit.
func (a *application) write(ctx context.Context, tx pgx.Tx) (*applied, error) {
	_, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true), set_config('intervalstyle', 'postgres', true)`,
		fmt.Sprintf("%dms", max(a.lockTimeout.Milliseconds(), 1)))
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	r := &applied{}
	exists, err := definition.Exists(ctx, tx, a.flow)
	if err != nil {
		return nil, err
	}
	r.created = !exists
	if r.loaded, err = definition.Load(ctx, tx, a.file); err != nil {
		return nil, err
	}
	doing := "make"
	if r.created {
		_, err = tx.Exec(ctx, `select wed_sql.create_flow($1)`, a.flow)
	} else {
		doing = "lock"
		schema := pgx.Identifier{a.flow}.Sanitize()
		_, err = tx.Exec(ctx, fmt.Sprintf(`lock table %[1]s.wed_attr, %[1]s.wed_trig in share row exclusive mode`, schema))
	}
	if err != nil {
		return nil, fmt.Errorf("%s flow %q: %w", doing, a.flow, err)
	}
	current, _, err := definition.Read(ctx, tx, a.flow)
	if err != nil {
		return nil, err
	}
	r.plan = definition.Compare(current, &r.loaded.Definition)
	if r.preview, err = r.plan.Losses(ctx, tx, a.flow); err != nil {
		return nil, err
	}
	if err := r.plan.Write(ctx, tx, a.flow, r.loaded); err != nil {
		return nil, err
	}
	if a.revoke {
		if err := r.plan.Revoke(ctx, tx, a.flow); err != nil {
			return nil, err
		}
	}
	switch {
	case a.rematch && !r.created:
		anew, err := definition.Rematch(ctx, tx, a.flow)
		r.anew = &anew
		return r, err
	case !r.created && len(r.plan.Rules) > 0:
		return r, r.preview.Rehearse(ctx, tx, a.flow, mostRehearsed)
	}
	return r, nil
}

// mostRehearsed is the number of instances that a preview looks at.
const mostRehearsed = 1000

// describeProblems shows what is wrong with a file.
func describeProblems(err error) error {
	p, ok := errors.AsType[*definition.Problems](err)
	if !ok {
		return err
	}
	message := p.Error()
	if n := len(p.List); n > 1 {
		message += fmt.Sprintf("\n%d errors:", n)
	}
	return &failure{code: exitFailure, message: message + "\nnothing was changed"}
}

// inTheWay says who has kept us from a flow.
func inTheWay(ctx context.Context, conn *pgx.Conn, flow string, waited time.Duration) error {
	f := &failure{
		code: exitFailure, message: fmt.Sprintf("nothing was changed: others use flow %q, and %v was not enough for them to end", flow, waited),
		hint: "try again, or wait longer: --lock-timeout",
	}
	rows, err := conn.Query(ctx, `
		select distinct format('process %s (%s%s), %s for %s s', a.pid, a.usename, coalesce(nullif(', ' || a.application_name, ', '), ''),
			coalesce(a.state, 'active'), extract(epoch from clock_timestamp() - a.xact_start)::integer)
		from pg_locks l join pg_class c on c.oid = l.relation join pg_namespace n on n.oid = c.relnamespace
		join pg_stat_activity a on a.pid = l.pid
		where n.nspname = $1 and l.granted and l.pid <> pg_backend_pid() and a.xact_start is not null limit 5`, flow)
	if err != nil {
		return f
	}
	others, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(others) > 0 {
		f.message += ": " + strings.Join(others, "; ")
	}
	return f
}

// changeJSON is one of the differences, for programs.
type changeJSON struct {
	Change  string              `json:"change"` // add, change, remove
	What    string              `json:"what"`   // attribute, rule, setting, grant
	Name    string              `json:"name"`
	Columns []definition.Column `json:"columns,omitempty"`
}

func (r *applied) list(a *application) []changeJSON {
	list := []changeJSON{}
	kind := func(c definition.Change) string {
		switch {
		case c.Old < 0:
			return "add"
		case c.New < 0:
			return "remove"
		}
		return "change"
	}
	for _, c := range r.plan.Attributes {
		name := ""
		if c.New >= 0 {
			name = r.plan.New.Attributes[c.New].Name
		} else {
			name = r.plan.Old.Attributes[c.Old].Name
		}
		list = append(list, changeJSON{kind(c), "attribute", name, c.Columns})
	}
	for _, c := range r.plan.Rules {
		if c.New >= 0 {
			list = append(list, changeJSON{kind(c), "rule", r.plan.New.Rules[c.New].Label(), c.Columns})
		} else {
			list = append(list, changeJSON{kind(c), "rule", r.plan.Old.Rules[c.Old].Label(), nil})
		}
	}
	for _, c := range r.plan.Settings {
		list = append(list, changeJSON{"change", "setting", c.Name, []definition.Column{c}})
	}
	for _, g := range r.plan.Grants {
		list = append(list, changeJSON{"add", "grant", g.Transition + " to " + g.Role, nil})
	}
	if a.revoke {
		for _, g := range r.plan.Revokes {
			list = append(list, changeJSON{"remove", "grant", g.Transition + " to " + g.Role, nil})
		}
	}
	return list
}

func writeApplied(w interface{ Write([]byte) (int, error) }, a *application, r *applied, done bool) error {
	return writeObject(w, struct {
		Flow      string              `json:"flow"`
		Created   bool                `json:"created"`
		Applied   bool                `json:"applied"`
		Changes   []changeJSON        `json:"changes"`
		Preview   *definition.Preview `json:"preview"`
		Rematched *definition.Anew    `json:"rematched"`
	}{a.flow, r.created, done, r.list(a), r.preview, r.anew})
}
