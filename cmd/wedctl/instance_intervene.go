package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

const rightsOfIntervener = "the rights of the flow's owner, or membership in his role"

// intervention is one of the functions by which operators put instances right,
// as a command. All have the same form; what is particular to one is here.
type intervention struct {
	name  string // of the command, and of the function
	done  string // what becomes of an instance
	usage string
	about string // with an example

	flags []cli.Flag
	sets  bool // takes NAME=VALUE and --set: the function's set_clause
	// everywhere is the condition of the instances that are meant if none are named.
	everywhere string
	// arguments adds what the function takes besides, by its names.
	arguments func(c *cli.Context, args map[string]any) error
}

func transitionFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "transition", Aliases: []string{"t"}, Usage: usage}
}

var setFlag = &cli.StringFlag{Name: "set", Usage: "`SQL` as after SET, instead of NAME=VALUE"}

// textArgument passes a flag on to the function, if it is given.
func textArgument(flag, name string) func(*cli.Context, map[string]any) error {
	return func(c *cli.Context, args map[string]any) error {
		if c.IsSet(flag) {
			args[name] = c.String(flag)
		}
		return nil
	}
}

func interventions() []intervention {
	return []intervention{
		{
			name: "cancel", done: "cancelled", usage: "end instances where they are",
			about: `Whatever pends, nothing more happens to them.

Example: wedctl instance cancel -f travel 7 --reason 'the customer is gone'`,
		},
		{
			name: "suspend", done: "suspended", usage: "have instances rest, until a time or for good",
			about: `Nothing pends meanwhile, and nobody can change them, until "resume" or the TIME:
what SQL accepts as one, or + and an interval. Once more changes the time.

Example: wedctl instance suspend -f travel 7 --until '+2 hours'`,
			flags:     []cli.Flag{&cli.StringFlag{Name: "until", Usage: "`TIME` at which they go on by themselves"}},
			arguments: textArgument("until", "until"),
		},
		{
			name: "resume", done: "resumed", usage: "have suspended instances go on",
			about: `What pended is due again, and the state is judged by the rules in force.

Example: wedctl instance resume -f travel 7`,
		},
		{
			name: "retry", done: "retried", usage: "have jobs that failed be tried again now",
			about: `Also those of an exception whose attempts are used up: they get all of them
again. Any other exception is judged anew, by the rules in force.

Example: wedctl instance retry -f travel --where "error like '%timeout%'"`,
			flags:     []cli.Flag{transitionFlag("only jobs of the transition `NAME`")},
			arguments: textArgument("transition", "transition"),
		},
		{
			name: "skip", done: "skipped", usage: "take a pending transition as performed",
			about: `With a new state (NAME=VALUE, the value as in SQL between quotes), or without.

Example: wedctl instance skip -f travel 7 -t book_hotel hotel_status=own`,
			flags: []cli.Flag{transitionFlag("`NAME` of it; required")},
			sets:  true,
			arguments: func(c *cli.Context, args map[string]any) error {
				args["transition"] = c.String("transition")
				return requireFlags(c, "transition")
			},
		},
		{
			name: "repair", done: "repaired", usage: "lead exceptions out by a new state",
			about: `NAME=VALUE sets an attribute, the value written as in SQL between quotes.

Example: wedctl instance repair -f travel 7 flight_status=booked`,
			sets: true,
			arguments: func(c *cli.Context, args map[string]any) error {
				if args["set_clause"] == nil {
					return usagef("%s needs a new state: NAME=VALUE, or --set", c.Command.HelpName)
				}
				return nil
			},
		},
		{
			name: "rewind", done: "rewound", usage: "go on from an earlier state",
			about: `Attributes are as they were in that state, and what pended then is due. Nothing
is undone outside: "compensate" does that. "instance trace" shows the numbers.

Example: wedctl instance rewind -f travel 7 --to 1`,
			flags: []cli.Flag{&cli.Int64Flag{Name: "to", Usage: "`NUMBER` of the state; required"}},
			arguments: func(c *cli.Context, args map[string]any) error {
				if !c.IsSet("to") {
					return usagef("%s needs --to, the number of a state", c.Command.HelpName)
				}
				args["version"] = c.Int64("to")
				return nil
			},
		},
		{
			name: "compensate", done: "compensated", usage: "undo what was done, step by step",
			about: `The transitions since the newest consistent state become undone by those that
their rules name in "undo", the latest first.

Example: wedctl instance compensate -f travel 7 --consistent 'hotel is null'`,
			flags:     []cli.Flag{&cli.StringFlag{Name: "consistent", Usage: "`SQL` that holds where it leads back to"}},
			arguments: textArgument("consistent", "consistent"),
		},
		{
			name: "rematch", done: "judged anew", usage: "judge states anew, after rules were changed",
			about: `Lists, and writes, only what that changes. Jobs that have failed too often are
for "retry". Without WIDs and --where: all that are regular or exceptions.

Example: wedctl instance rematch -f travel --dry-run`,
			everywhere: "wed_instance.status in ('R', 'E')",
		},
		{
			name: "reopen", done: "reopened", usage: "have instances that have ended go on",
			about: `After attributes or rules of their flow were added or changed; with a new state
(NAME=VALUE), or without.

Example: wedctl instance reopen -f travel 7 trip=refund`,
			sets: true,
		},
	}
}

func interventionCommands(con *console) []*cli.Command {
	all := interventions()
	commands := make([]*cli.Command, len(all))
	for i, op := range all {
		flags := slices.Concat([]cli.Flag{flowFlag()}, op.flags)
		arguments := "[WID...]"
		if op.sets {
			flags = append(flags, setFlag)
			arguments = "[WID...] [NAME=VALUE...]"
		}
		commands[i] = &cli.Command{
			Name: op.name, Usage: op.usage, ArgsUsage: arguments, Description: op.about,
			Flags: append(flags,
				&cli.StringFlag{Name: "where", Aliases: []string{"w"}, Usage: "instead of WIDs: all that satisfy `SQL`"},
				&cli.StringFlag{Name: "reason", Aliases: []string{"r"}, Usage: "`TEXT` for the history"},
				&cli.BoolFlag{Name: "dry-run", DisableDefaultText: true, Usage: "only show what would become of them"},
				&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, DisableDefaultText: true, Usage: "do not ask, however many they are"},
				outputFlag(), dsnFlag(),
			),
			Action: func(c *cli.Context) error { return intervene(c, con, op) },
		}
	}
	return commands
}

// order is an intervention with all that it is asked to do.
type order struct {
	intervention
	wids  []int64
	where string
	args  map[string]any
}

func newOrder(c *cli.Context, op intervention) (*order, error) {
	o := &order{intervention: op, where: c.String("where"), args: make(map[string]any)}
	var set []string
	for _, arg := range c.Args().Slice() {
		if op.sets && strings.Contains(arg, "=") {
			set = append(set, arg)
			continue
		}
		wid, err := parseWID(arg)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(o.wids, wid) {
			o.wids = append(o.wids, wid)
		}
	}
	switch {
	case c.IsSet("where") && strings.TrimSpace(o.where) == "":
		return nil, usagef("--where needs a condition: `--where true` is about all instances")
	case o.where == "" && len(o.wids) == 0 && op.everywhere != "":
		o.where = op.everywhere
	case o.where == "" && len(o.wids) == 0:
		return nil, usagef("%s needs the WID of an instance, or --where", c.Command.HelpName)
	case o.where != "" && len(o.wids) > 0:
		return nil, usagef("%s takes WIDs or --where, not both", c.Command.HelpName)
	}
	if op.sets {
		assignments, err := parseAssignments(set)
		switch {
		case err != nil:
			return nil, err
		case len(set) > 0 && c.IsSet("set"):
			return nil, usagef("%s takes NAME=VALUE or --set, not both", c.Command.HelpName)
		case len(set) > 0:
			o.args["set_clause"] = setClause(assignments)
		case c.IsSet("set"):
			o.args["set_clause"] = c.String("set")
		}
	}
	if c.IsSet("reason") {
		o.args["reason"] = c.String("reason")
	}
	if op.arguments != nil {
		return o, op.arguments(c, o.args)
	}
	return o, nil
}

func intervene(c *cli.Context, con *console, op intervention) error {
	asJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	o, err := newOrder(c, op)
	if err != nil {
		return err
	}
	conn, err := connect(c.Context, dsn(c), "wedctl instance "+op.name)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	flow, err := con.theFlow(c, conn)
	if err != nil {
		return needs(err, rightsOfIntervener)
	}
	dryRun := c.Bool("dry-run")
	if o.where != "" && !dryRun && !c.Bool("yes") {
		if err := o.confirm(c.Context, con, conn, flow); err != nil {
			return needs(err, rightsOfIntervener)
		}
	}
	var raw []json.RawMessage
	var rows []intervened
	err = con.busy(c.Context, op.name, func(ctx context.Context) (err error) {
		raw, rows, err = o.call(ctx, conn, flow, dryRun)
		return err
	})
	if err != nil {
		return needs(err, rightsOfIntervener)
	}
	if asJSON {
		err = writeJSON(con.out, raw)
	} else {
		con.writeInterventions(o, rows, dryRun)
	}
	if err != nil {
		return err
	}
	return o.judge(flow, rows)
}

// call calls the function.
func (o *order) call(ctx context.Context, conn *pgx.Conn, flow string, dryRun bool) ([]json.RawMessage, []intervened, error) {
	params := []string{"flow => $1::text", "dry_run => $2::boolean"}
	args := []any{flow, dryRun}
	add := func(name, kind string, value any) {
		args = append(args, value)
		params = append(params, fmt.Sprintf("%s => $%d::%s", name, len(args), kind))
	}
	switch {
	case o.where != "":
		add("instances", "text", o.where)
	case len(o.wids) == 1:
		add("wid", "bigint", o.wids[0])
	default:
		list := make([]string, len(o.wids))
		for i, w := range o.wids {
			list[i] = strconv.FormatInt(w, 10)
		}
		add("instances", "text", "wid in ("+strings.Join(list, ", ")+")")
	}
	for name, value := range o.args {
		switch until, isText := value.(string); {
		case name == "until" && isText && strings.HasPrefix(until, "+"):
			args = append(args, until[1:])
			params = append(params, fmt.Sprintf("until => clock_timestamp() + $%d::text::interval", len(args)))
		case name == "until":
			add(name, "text::timestamptz", value)
		case name == "version":
			add(name, "bigint", value)
		default:
			add(name, "text", value)
		}
	}
	raw, rows, err := readRows[intervened](ctx, conn, o.name, `
		select wid, version, status::text as status, pending, fired, withdrawn, error
		from wed_sql.`+o.name+`(`+strings.Join(params, ", ")+`)`, args...)
	if sqlState(err) == "P0002" && len(o.wids) == 1 {
		return nil, nil, noInstance(flow, o.wids[0])
	}
	return raw, rows, err
}

// intervened is a row of what the functions return, wed_sql.intervention.
type intervened struct {
	WID       int64    `json:"wid"`
	Version   *int64   `json:"version"`
	Status    *string  `json:"status"`
	Pending   []string `json:"pending"`
	Fired     []string `json:"fired"`
	Withdrawn []string `json:"withdrawn"`
	Error     *string  `json:"error"`
}

// refused reports that the intervention was not possible on this instance.
func (r intervened) refused() bool { return r.Version == nil }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// confirm asks before more than one instance is touched: how many that are, it
// finds out by doing it all and taking it back.
func (o *order) confirm(ctx context.Context, con *console, conn *pgx.Conn, flow string) error {
	var rows []intervened
	err := con.busy(ctx, "count the instances", func(ctx context.Context) (err error) {
		_, rows, err = o.call(ctx, conn, flow, true)
		return err
	})
	if err != nil {
		return err
	}
	possible := 0
	for _, r := range rows {
		if !r.refused() {
			possible++
		}
	}
	if len(rows) <= 1 {
		return nil
	}
	what := count(possible, "instance") + " of flow " + quoted(flow)
	if possible < len(rows) {
		what += fmt.Sprintf(" (of %d that satisfy the condition)", len(rows))
	}
	if !con.asks {
		return &failure{
			code: exitUsage, message: fmt.Sprintf("%s would be %s: --yes does it", what, o.done),
			hint: "--dry-run shows what would become of them",
		}
	}
	fmt.Fprintf(con.err, "%s will be %s. Go on? [y/N] ", what, o.done)
	answer, err := bufio.NewReader(con.in).ReadString('\n')
	if err != nil && err != io.EOF {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &failure{code: exitFailure, message: "nothing was changed"}
}

func (con *console) writeInterventions(o *order, rows []intervened, dryRun bool) {
	if len(rows) > 0 {
		header := []string{"WID", "#", "STATUS", "PENDING", "FIRED", "WITHDRAWN", "ERROR"}
		failed := slices.ContainsFunc(rows, func(r intervened) bool { return r.Error != nil })
		if !failed {
			header = header[:6]
		}
		cells := make([][]string, len(rows))
		for i, r := range rows {
			status := "-"
			if r.Status != nil {
				status = con.statusWord(*r.Status)
			}
			cells[i] = []string{
				fmt.Sprint(r.WID), number(r.Version), status, orDash(strings.Join(r.Pending, ", ")),
				orDash(strings.Join(r.Fired, ", ")), orDash(strings.Join(r.Withdrawn, ", ")),
			}
			if failed {
				cells[i] = append(cells[i], con.red(textOf(r.Error)))
			}
		}
		con.writeTable(header, cells, tableLook{right: []int{0, 1}, wrap: []int{3, 4, 5, 6}})
	}
	done := 0
	for _, r := range rows {
		if !r.refused() {
			done++
		}
	}
	switch {
	case dryRun:
		fmt.Fprintf(con.err, "%s would be %s; nothing was changed\n", count(done, "instance"), o.done)
	default:
		fmt.Fprintf(con.err, "%s %s\n", count(done, "instance"), o.done)
	}
}

// judge fails when something that was asked for was not possible.
func (o *order) judge(flow string, rows []intervened) error {
	refused := 0
	for _, r := range rows {
		if r.refused() {
			refused++
		}
	}
	if refused > 0 {
		return &failure{code: exitFailure, message: fmt.Sprintf("%s could not be %s: ERROR says why", count(refused, "instance"), o.done)}
	}
	if o.where != "" || o.everywhere != "" {
		return nil // those that satisfy a condition, or that it changes
	}
	var missing []string
	for _, w := range o.wids {
		if !slices.ContainsFunc(rows, func(r intervened) bool { return r.WID == w }) {
			missing = append(missing, strconv.FormatInt(w, 10))
		}
	}
	if len(missing) > 0 {
		return notFound(fmt.Sprintf("`wedctl instance list -f %s` lists the instances", quoted(flow)),
			"flow %q has no instance %s", flow, some(missing, 8))
	}
	return nil
}
