package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

const rightsOfLister = "usage on the flow's schema, select on its wed_instance, wed_flow and job_pool"

func instanceListCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list instances, the newest first",
		Description: `With what is pending, since when an instance is in its state, and why it is an
exception, or why the last attempt at a pending job has failed. --where takes
SQL over the attributes and wid, status, pending, since, error.

Example: wedctl instance list -f travel --status exception`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.StringFlag{Name: "status", Aliases: []string{"s"}, Usage: "only `S`: regular, exception, final, suspended, ..."},
			&cli.StringFlag{Name: "pending", Aliases: []string{"t"}, Usage: "only where the transition `NAME` is pending"},
			&cli.StringFlag{Name: "where", Aliases: []string{"w"}, Usage: "only those that satisfy `SQL`"},
			&cli.StringFlag{Name: "attributes", Aliases: []string{"a"}, Usage: "show these attributes, too: `A,B`, or *"},
			&cli.BoolFlag{Name: "oldest", DisableDefaultText: true, Usage: "the oldest first"},
			&cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Value: 50, Usage: "at most so many; 0: all"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("%s takes no arguments: `wedctl instance show` shows one instance", c.Command.HelpName)
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			l, err := newInstanceList(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl instance list")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			if l.flow, err = con.theFlow(c, conn); err != nil {
				return needs(err, rightsOfLister)
			}
			if err := l.checkAttributes(c.Context, conn); err != nil {
				return err
			}
			raw, rows, err := l.read(c.Context, conn)
			switch {
			case err != nil:
				return needs(err, rightsOfLister)
			case asJSON:
				return writeJSON(con.out, raw[:min(len(raw), l.most())])
			}
			con.writeInstances(l, rows)
			return nil
		},
	}
}

// instanceList is what instances are asked for.
type instanceList struct {
	flow       string
	statuses   []string // letters
	pending    string
	where      string
	attributes []string
	oldest     bool
	limit      int
}

func newInstanceList(c *cli.Context) (*instanceList, error) {
	l := &instanceList{
		pending: c.String("pending"), where: c.String("where"), attributes: words(c.String("attributes")),
		oldest: c.Bool("oldest"), limit: c.Int("limit"),
	}
	if l.limit < 0 {
		return nil, usagef("--limit is a number of instances, not %d", l.limit)
	}
	if c.IsSet("where") && strings.TrimSpace(l.where) == "" {
		return nil, usagef("--where needs a condition")
	}
	for _, word := range words(c.String("status")) {
		letter, ok := statusLetter(word)
		if !ok {
			return nil, usagef("--status is regular, exception, final, suspended or cancelled, or the first letter of one, not %q", word)
		}
		l.statuses = append(l.statuses, letter)
	}
	if len(l.attributes) > 0 && c.String("output") == "json" {
		return nil, usagef("--attributes is for the table: --output json has all of them")
	}
	return l, nil
}

// words are the parts of a list with commas.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// checkAttributes refuses to show what is no attribute.
func (l *instanceList) checkAttributes(ctx context.Context, conn *pgx.Conn) error {
	if len(l.attributes) == 0 || slices.Contains(l.attributes, "*") {
		return nil
	}
	types, err := attributeTypes(ctx, conn, l.flow)
	if err != nil {
		return err
	}
	return checkAttributes(l.flow, types, l.attributes)
}

// statusLetter returns the letter of a status, which may be given by its word.
func statusLetter(word string) (letter string, ok bool) {
	for letter, name := range statusNames {
		if strings.EqualFold(word, letter) || strings.EqualFold(word, name) {
			return letter, true
		}
	}
	return "", false
}

// most is the number of instances that are shown.
func (l *instanceList) most() int {
	if l.limit == 0 {
		return int(^uint(0) >> 1)
	}
	return l.limit
}

// instanceRow is an instance as it is now.
type instanceRow struct {
	WID        int64                      `json:"wid"`
	Version    int64                      `json:"version"`
	Status     string                     `json:"status"`
	Pending    []string                   `json:"pending"`
	Since      *time.Time                 `json:"since"`
	Error      *string                    `json:"error"`
	JobError   *string                    `json:"job_error"`
	Attributes map[string]json.RawMessage `json:"attributes"`
}

// read returns the instances, and one more if there are more than are shown.
func (l *instanceList) read(ctx context.Context, conn *pgx.Conn) ([]json.RawMessage, []instanceRow, error) {
	table := func(name string) string { return pgx.Identifier{l.flow, name}.Sanitize() }
	// As the interventions have it: the same condition finds the same instances.
	var conditions []string
	var args []any
	if l.where != "" {
		conditions = append(conditions, "(\n"+l.where+"\n)")
	}
	if len(l.statuses) > 0 {
		args = append(args, l.statuses)
		conditions = append(conditions, fmt.Sprintf("wed_instance.status::text = any ($%d)", len(args)))
	}
	if l.pending != "" {
		args = append(args, l.pending)
		conditions = append(conditions, fmt.Sprintf("wid in (select _j.wid from %s _j where _j.trname = $%d)", table("job_pool"), len(args)))
	}
	where := ""
	if len(conditions) > 0 {
		where = "where " + strings.Join(conditions, " and ")
	}
	order, limit := "desc", ""
	if l.oldest {
		order = "asc"
	}
	if l.limit > 0 {
		limit = fmt.Sprintf("limit %d", l.limit+1)
	}
	raw, rows, err := readRows[instanceRow](ctx, conn, "list the instances of flow "+quoted(l.flow), `
		select i.wid, i.version, i.status, i.pending, i.since, i.error,
			(select _j.last_error from `+table("job_pool")+` _j where _j.wid = i.wid and _j.last_error is not null
				order by _j.attempts desc, _j.tgid limit 1) as job_error,
			i.attributes
		from (select wed_flow.wid, wed_instance.version, wed_instance.status, wed_instance.pending, wed_instance.since, wed_instance.error,
				to_jsonb(wed_flow) - 'wid' - '_stamp' as attributes
			from only `+table("wed_flow")+` join `+table("wed_instance")+` using (wid) `+where+`
			order by wed_flow.wid `+order+` `+limit+`) i
		order by i.wid `+order, args...)
	return raw, rows, err
}

func (con *console) writeInstances(l *instanceList, rows []instanceRow) {
	if len(rows) == 0 {
		fmt.Fprintln(con.out, "no such instance")
		return
	}
	more := len(rows) > l.most()
	rows = rows[:min(len(rows), l.most())]
	names := l.attributes
	if slices.Contains(names, "*") {
		names = slices.Sorted(maps.Keys(rows[0].Attributes))
	}
	header := []string{"WID", "STATUS", "SINCE", "PENDING"}
	for _, n := range names {
		header = append(header, strings.ToUpper(n))
	}
	look := tableLook{right: []int{0}, wrap: []int{3}}
	failed := slices.ContainsFunc(rows, func(r instanceRow) bool { return r.trouble() != "" })
	if failed {
		header = append(header, "ERROR")
	}
	for i := 4; i < len(header); i++ {
		look.wrap = append(look.wrap, i)
	}
	cells := make([][]string, len(rows))
	for i, r := range rows {
		cells[i] = []string{fmt.Sprint(r.WID), con.statusWord(r.Status), agoOf(r.Since), orDash(strings.Join(r.Pending, ", "))}
		for _, n := range names {
			value := "-"
			if v, ok := r.Attributes[n]; ok && string(v) != "null" {
				value = plain(v)
			}
			cells[i] = append(cells[i], value)
		}
		if failed {
			cells[i] = append(cells[i], orDash(r.trouble()))
		}
	}
	con.writeTable(header, cells, look)
	if more {
		fmt.Fprintln(con.out, con.dim("and more: --limit 0 shows all, --status, --pending and --where those that you want"))
	}
}

// trouble says what is wrong with an instance.
func (r instanceRow) trouble() string {
	switch {
	case r.Error != nil:
		return *r.Error
	case r.JobError != nil:
		return *r.JobError
	case r.Status == "E":
		return "nothing was due"
	}
	return ""
}

// statusWord writes a status as a word, marked by a colour.
func (con *console) statusWord(letter string) string {
	word, ok := statusNames[letter]
	if !ok {
		word = letter
	}
	switch letter {
	case "E":
		return con.red(word)
	case "F":
		return con.green(word)
	case "S", "C":
		return con.dim(word)
	}
	return word
}
