package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/definition"
	"github.com/wed-sql/wed_sql/internal/flowcheck"
	"github.com/wed-sql/wed_sql/internal/sqllex"
)

func flowCheckCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "find what is wrong with a flow before it runs",
		ArgsUsage: "FILE|NAME",
		Description: `Of a FILE (it has a dot or a slash in its name, or is -) or a flow of the
database: conditions that never hold, rules that fire again and again, states
with no way on, and more. What it says is proved; "unknown" is what could not
be found out. Exit status 1 with errors and warnings, not with notes.

Example: wedctl flow check orders.sql`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, DisableDefaultText: true, Usage: "errors and warnings only"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error { return checkFlow(c, con) },
	}
}

// finding is a finding as it is told: with its place.
type finding struct {
	Severity flowcheck.Severity `json:"severity"`
	Check    string             `json:"check"`
	Rule     string             `json:"rule,omitempty"`
	File     string             `json:"file,omitempty"`
	*sqllex.Place
	Message string `json:"message"`
	Why     string `json:"why,omitempty"`
	Do      string `json:"do,omitempty"`

	excerpt string
}

func checkFlow(c *cli.Context, con *console) error {
	if c.Args().Len() != 1 {
		return usagef("%s needs a FILE or the NAME of a flow", c.Command.HelpName)
	}
	what := c.Args().First()
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	isFile := looksLikeFile(what)
	var file *definition.File
	var findings []finding
	if isFile {
		if file, err = con.readFlowFile(what); err != nil && !isAboutFile(err, &findings) {
			return err
		}
		err = nil // what is about the file is among the findings
	}
	if len(findings) == 0 {
		conn, err := connect(c.Context, dsn(c), "wedctl flow check")
		if err != nil {
			return err
		}
		defer hangUp(conn)
		if _, err := requireExtension(c.Context, conn); err != nil {
			return err
		}
		if isFile {
			findings, err = checkFile(c.Context, conn, file)
		} else {
			findings, err = checkLive(c.Context, conn, what)
		}
		if err != nil {
			return err
		}
	}
	if asJSON {
		err = writeFindings(con, findings, c.Bool("quiet"))
	} else {
		con.writeChecked(what, findings, c.Bool("quiet"))
	}
	if err != nil {
		return err
	}
	return judgeChecked(what, findings)
}

// looksLikeFile tells a file from the name of a flow.
func looksLikeFile(what string) bool {
	if what == "-" || strings.ContainsAny(what, "./"+string(os.PathSeparator)) {
		return true
	}
	info, err := os.Stat(what)
	return err == nil && info.Mode().IsRegular()
}

// isAboutFile takes what is wrong with a file as findings.
func isAboutFile(err error, findings *[]finding) bool {
	problems, ok := errors.AsType[*definition.Problems](err)
	if !ok {
		return false
	}
	for _, p := range problems.List {
		f := finding{Severity: flowcheck.Error, Check: "refused", File: problems.File.Name, Message: p.Message, Why: p.Detail, Do: p.Hint}
		if place, ok := problems.File.Place(p.At); ok {
			f.Place, f.excerpt = &place, definition.Excerpt(problems.File.Text, place)
		}
		*findings = append(*findings, f)
	}
	return true
}

// checkFile has the server say what it would refuse, and looks at the rest. A flow of
// another name is made for that, and taken back.
func checkFile(ctx context.Context, conn *pgx.Conn, file *definition.File) ([]finding, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, `select set_config('lock_timeout', '5s', true), set_config('intervalstyle', 'postgres', true)`); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	var findings []finding
	loaded, err := definition.Load(ctx, tx, file)
	if err != nil && !isAboutFile(err, &findings) {
		return nil, needs(err, rightsOfAuthor)
	}
	if err == nil {
		var scratch string
		if err := tx.QueryRow(ctx, `select 'wedctl_check_' || pg_backend_pid()`).Scan(&scratch); err != nil {
			return nil, fmt.Errorf("prepare: %w", err)
		}
		if _, err := tx.Exec(ctx, `select wed_sql.create_flow($1)`, scratch); err != nil {
			return nil, needs(fmt.Errorf("make a flow to try the file in: %w", err), rightsOfAuthor)
		}
		wanted := loaded.Definition
		wanted.Workers = nil // roles are those of where it is applied
		plan := definition.Compare(&definition.Definition{}, &wanted)
		if err := plan.Write(ctx, tx, scratch, loaded); err != nil && !isAboutFile(err, &findings) {
			return nil, needs(err, rightsOfAuthor)
		}
	}
	if loaded == nil {
		return findings, nil
	}
	refused := len(findings) > 0
	for _, f := range flowcheck.Check(&loaded.Definition, nil) {
		if refused && f.Severity == flowcheck.Unknown {
			continue // what the database does not understand either
		}
		findings = append(findings, placed(f, &loaded.Definition, loaded))
	}
	return findings, nil
}

// checkLive looks at a flow of the database, with what its history tells.
func checkLive(ctx context.Context, conn *pgx.Conn, flow string) ([]finding, error) {
	d, _, err := readFlow(ctx, conn, flow)
	if err != nil {
		return nil, err
	}
	seen, err := readSeen(ctx, conn, flow)
	if err != nil {
		return nil, needs(err, rightsOfAuthor)
	}
	var findings []finding
	for _, f := range flowcheck.Check(d, seen) {
		findings = append(findings, placed(f, d, nil))
	}
	return findings, nil
}

// mostSeen is the number of states of the history that are looked at, the newest.
const mostSeen = 10000

// readSeen returns what the newest states of a flow tell of its transitions.
func readSeen(ctx context.Context, conn *pgx.Conn, flow string) ([]flowcheck.Seen, error) {
	schema := pgx.Identifier{flow}.Sanitize()
	rows, err := conn.Query(ctx, fmt.Sprintf(`
		with line as (
			select t.trw, t.trw = any (t.trf) as again,
				array(select n.key from jsonb_each(t.state) n where n.value is distinct from p.state -> n.key order by 1) as writes
			from (select * from %[1]s.wed_trace where trw is not null and trw not like '\_%%' order by tstmp desc limit %[2]d) t
			join %[1]s.wed_trace p on p.wid = t.wid and p.version = t.version - 1)
		select trw, count(*), count(*) filter (where again),
			array(select distinct w from line l, unnest(l.writes) w where l.trw = line.trw order by 1)
		from line group by trw`, schema, mostSeen))
	if err != nil {
		return nil, fmt.Errorf("read the history of flow %q: %w", flow, err)
	}
	seen, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s flowcheck.Seen, err error) {
		return s, row.Scan(&s.Transition, &s.Times, &s.Again, &s.Writes)
	})
	if err != nil {
		return nil, fmt.Errorf("read the history of flow %q: %w", flow, err)
	}
	return seen, nil
}

// placed says where a finding is: in the file, or in the text of its rule.
func placed(f flowcheck.Finding, d *definition.Definition, l *definition.Loaded) finding {
	told := finding{Severity: f.Severity, Check: f.Check, Message: f.Message, Why: f.Why, Do: f.Do}
	at, text := -1, ""
	switch f.Part {
	case flowcheck.InCondition, flowcheck.InAction:
		told.Rule = d.Rules[f.Index].Label()
		text = d.Rules[f.Index].Condition
		if f.Part == flowcheck.InAction {
			text = *d.Rules[f.Index].Action
		}
		switch {
		case l != nil && f.Part == flowcheck.InCondition:
			at = l.PlaceInCondition(f.Index, f.At)
		case l != nil:
			at = l.PlaceInAction(f.Index, f.At)
		}
	}
	switch {
	case l != nil && at >= 0:
		place, _ := l.File.Place(at)
		told.File, told.Place, told.excerpt = l.File.Name, &place, definition.Excerpt(l.File.Text, place)
	case l != nil:
		told.File = l.File.Name
	case text != "":
		told.excerpt = definition.Excerpt(text, sqllex.PlaceOf(text, f.At))
	}
	return told
}

func (f finding) isBad() bool {
	return f.Severity == flowcheck.Error || f.Severity == flowcheck.Warning
}

func writeFindings(con *console, findings []finding, quiet bool) error {
	list := []finding{}
	for _, f := range findings {
		if !quiet || f.isBad() {
			list = append(list, f)
		}
	}
	return writeObject(con.out, list)
}

func (c *console) writeChecked(what string, findings []finding, quiet bool) {
	number := make(map[flowcheck.Severity]int64)
	for _, f := range findings {
		number[f.Severity]++
		if quiet && !f.isBad() {
			continue
		}
		severity := string(f.Severity) + ":"
		switch f.Severity {
		case flowcheck.Error:
			severity = c.red(severity)
		case flowcheck.Warning:
			severity = c.yellow(severity)
		default:
			severity = c.bold(severity)
		}
		place := f.File
		if f.Place != nil {
			place = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
		}
		if place != "" {
			place += ": "
		}
		fmt.Fprintf(c.out, "%s%s %s\n", place, severity, f.Message)
		if f.excerpt != "" {
			fmt.Fprintln(c.out, c.dim(f.excerpt))
		}
		if f.Why != "" {
			fmt.Fprintf(c.out, "    why:  %s\n", f.Why)
		}
		if f.Do != "" {
			fmt.Fprintf(c.out, "    do:   %s\n", f.Do)
		}
		fmt.Fprintln(c.out)
	}
	fmt.Fprintf(c.out, "%s: %s, %s, %s, %d unknown\n", what, several(number[flowcheck.Error], "error"), several(number[flowcheck.Warning], "warning"),
		several(number[flowcheck.Note], "note"), number[flowcheck.Unknown])
}

// judgeChecked fails when there is something that should not be.
func judgeChecked(what string, findings []finding) error {
	bad := int64(0)
	for _, f := range findings {
		if f.isBad() {
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	return &failure{code: exitFailure, message: fmt.Sprintf("%s: %s to look at", what, several(bad, "thing"))}
}
