package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func instanceTraceCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "trace",
		Usage:     "show the history of an instance",
		ArgsUsage: "WID",
		Description: `One line per state, in commit order: its number (#); its status (S: R regular,
E exception, F final, S suspended, C cancelled); the transition, or with an
underscore the intervention, that wrote it; which transitions it fired; which
were pending (not on a narrow terminal); what it changed.

Example: wedctl instance trace -f travel 2`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.BoolFlag{Name: "full", DisableDefaultText: true, Usage: "show every attribute, not only what changed"},
			&cli.BoolFlag{Name: "svg", DisableDefaultText: true, Usage: "draw it, as a timeline"},
			outFlag(), outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			wid, err := oneWID(c)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			drawn, err := con.wantsTimeline(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl instance trace")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			flow, err := con.theFlow(c, conn)
			if err != nil {
				return needs(err, rightsOfReader)
			}
			if drawn {
				return con.drawLife(c.Context, conn, flow, wid, c.String("out"))
			}
			lines, err := readTrace(c.Context, conn, flow, "where t.wid = $1 order by t.version", wid)
			switch {
			case err != nil:
				return needs(err, rightsOfReader)
			case len(lines) == 0:
				return noHistory(flow, wid)
			case asJSON:
				raw := make([]json.RawMessage, len(lines))
				for i := range lines {
					raw[i] = lines[i].raw
				}
				return writeJSON(con.out, raw)
			}
			con.writeTrace(lines, c.Bool("full"))
			return nil
		},
	}
}

func noHistory(flow string, wid int64) error {
	return notFound(fmt.Sprintf("`wedctl instance list -f %s` lists the instances", quoted(flow)),
		"flow %q has no history of an instance %d", flow, wid)
}

// traceLine is a line of wed_trace.
type traceLine struct {
	WID     int64           `json:"wid"`
	Version int64           `json:"version"`
	State   json.RawMessage `json:"state"`
	TrW     *string         `json:"trw"`
	TrF     []string        `json:"trf"`
	Status  string          `json:"status"`
	Tstmp   time.Time       `json:"tstmp"`
	Pending []string        `json:"pending"`
	Error   *string         `json:"error"`
	Healed  bool            `json:"healed"`

	raw json.RawMessage
}

// readTrace returns lines of wed_trace, which the query calls t. What is
// pending is there by the names that the transitions have now.
func readTrace(ctx context.Context, conn *pgx.Conn, flow, where string, args ...any) ([]traceLine, error) {
	rows, err := conn.Query(ctx, `
		select row_to_json(l) from (
			select t.wid, t.version, t.state, t.trw, t.trf, t.status, t.tstmp,
				array(select coalesce(g.trname, case when t.status = 'E' then '_EXCPT' else 'tgid ' || p.tgid end)
					from unnest(t.pending) as p (tgid)
					left join `+pgx.Identifier{flow, "wed_trig"}.Sanitize()+` g on g.tgid = p.tgid
					order by p.tgid) as pending,
				t.error, t.healed
			from `+pgx.Identifier{flow, "wed_trace"}.Sanitize()+` t `+where+`) l`, args...)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l traceLine, err error) {
		if err := row.Scan(&l.raw); err != nil {
			return l, err
		}
		return l, json.Unmarshal(l.raw, &l)
	})
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	return lines, nil
}

func (c *console) writeTrace(lines []traceLine, full bool) {
	var before json.RawMessage
	layout := "15:04:05.000"
	if lines[0].Tstmp.Local().YearDay() != time.Now().YearDay() || time.Since(lines[0].Tstmp) > 24*time.Hour {
		layout = "2006-01-02 15:04:05.000"
	}
	header := []string{"#", "COMMITTED", "S", "WRITTEN BY", "FIRED", "PENDING", "NEW VALUES"}
	const pending = 5
	narrow := c.width > 0 && c.width < 90
	rows := make([][]string, len(lines))
	for i, l := range lines {
		if full {
			before = nil
		}
		values := changes(before, l.State)
		if l.Error != nil {
			values = strings.TrimSpace(values + " " + c.red(*l.Error))
		}
		rows[i] = []string{
			fmt.Sprint(l.Version), l.Tstmp.Local().Format(layout), c.status(l.Status), writer(l),
			orDash(strings.Join(l.TrF, ", ")), orDash(strings.Join(l.Pending, ", ")), values,
		}
		before = l.State
		if narrow {
			rows[i] = slices.Delete(rows[i], pending, pending+1)
		}
	}
	if narrow {
		header = slices.Delete(header, pending, pending+1)
	}
	c.writeTable(header, rows, tableLook{right: []int{0}, wrap: []int{4, 5, 6}})
	if lines[0].Healed || lines[0].Version > 0 {
		fmt.Fprintln(c.out, c.dim("earlier states were not recorded: the engine had lost its place and went on from the table"))
	}
}

// writer names the transition that wrote a state.
func writer(l traceLine) string {
	switch {
	case l.TrW != nil:
		return *l.TrW
	case l.Version == 0:
		return "(new)"
	}
	return "(reopened)"
}

// status marks the letter of a status by a colour.
func (c *console) status(s string) string {
	switch s {
	case "E":
		return c.red(s)
	case "F":
		return c.green(s)
	case "S", "C":
		return c.dim(s)
	}
	return s
}

// changes lists the attributes in which a state differs from the one before it,
// in alphabetical order. Of a first state, it lists those that have a value.
func changes(before, after json.RawMessage) string {
	return strings.Join(changeList(before, after), " ")
}

func changeList(before, after json.RawMessage) []string {
	var was, is map[string]json.RawMessage
	if json.Unmarshal(after, &is) != nil {
		return []string{string(after)}
	}
	if before != nil && json.Unmarshal(before, &was) != nil {
		was = nil
	}
	var list []string
	for name, value := range is {
		old, known := was[name]
		if known && string(old) == string(value) || !known && string(value) == "null" {
			continue
		}
		list = append(list, name+"="+plain(value))
	}
	slices.Sort(list)
	return list
}

// plain writes a JSON value without the quotes that a reader does not need.
func plain(value json.RawMessage) string {
	var s string
	if json.Unmarshal(value, &s) != nil {
		return string(value)
	}
	if s == "" || s == "null" || strings.ContainsAny(s, " =\"\t\n") {
		return string(value)
	}
	return s
}

// quoted writes an identifier as a person would: with quotes if it needs them.
func quoted(name string) string {
	plain := func(r rune) bool { return r >= 'a' && r <= 'z' || r == '_' }
	if name != "" && plain(rune(name[0])) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !plain(r) && (r < '0' || r > '9') }) {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}
