package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func statusCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show what the engine does, and how the flows are",
		Description: `The engine's state in each database, how far behind it is, how much WAL its slot
keeps, its last error; then the flows of the database that wedctl is connected
to. With -o json only the former: the rows of the view wed_sql.status.

Exit status 1 when the engine does not follow the database that wedctl is
connected to.

Example: wedctl status -o json`,
		Flags: []cli.Flag{outputFlag(), dsnFlag()},
		Action: func(c *cli.Context) error {
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl status")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			return showStatus(c.Context, con, conn, asJSON)
		},
	}
}

// engineStatus is a row of wed_sql.status.
type engineStatus struct {
	Database  string     `json:"datname"`
	State     string     `json:"state"`
	Since     *time.Time `json:"since"`
	LagBytes  *int64     `json:"lag_bytes"`
	LagSecond *float64   `json:"lag_seconds"`
	Retained  *int64     `json:"retained_bytes"`
	States    *int64     `json:"states"`
	Error     *string    `json:"last_error"`
	ErrorAt   *time.Time `json:"last_error_at"`
	Warning   *string    `json:"warning"`
	EnginePID *int       `json:"engine_pid"`
	Started   *time.Time `json:"engine_started"`
}

const stateStreaming = "streaming"

// readStatus returns the rows of the status view, as they are and understood.
func readStatus(ctx context.Context, conn *pgx.Conn) (raw []json.RawMessage, rows []engineStatus, err error) {
	q, err := conn.Query(ctx, `select row_to_json(s) from wed_sql.status s order by datname`)
	if err != nil {
		return nil, nil, fmt.Errorf("read wed_sql.status: %w", err)
	}
	raw, err = pgx.CollectRows(q, pgx.RowTo[json.RawMessage])
	if err != nil {
		return nil, nil, fmt.Errorf("read wed_sql.status: %w", err)
	}
	rows = make([]engineStatus, len(raw))
	for i, r := range raw {
		if err := json.Unmarshal(r, &rows[i]); err != nil {
			return nil, nil, fmt.Errorf("understand wed_sql.status: %w", err)
		}
	}
	return raw, rows, nil
}

func showStatus(ctx context.Context, con *console, conn *pgx.Conn, asJSON bool) error {
	if _, err := requireExtension(ctx, conn); err != nil {
		return err
	}
	raw, rows, err := readStatus(ctx, conn)
	if err != nil {
		return needs(err, rightsOfStatus)
	}
	if asJSON {
		err = writeJSON(con.out, raw)
	} else {
		con.writeStatus(rows)
		err = con.showFlows(ctx, conn)
	}
	if err != nil {
		return err
	}
	return judgeStatus(conn.Config().Database, rows)
}

// showFlows shows the flows of the database, below the engine.
func (con *console) showFlows(ctx context.Context, conn *pgx.Conn) error {
	flows, err := listFlows(ctx, conn)
	if err != nil {
		return needs(err, rightsOfStatus)
	}
	fmt.Fprintln(con.out)
	if err := con.writeFlows(flows, false); err != nil {
		return err
	}
	for _, f := range flows {
		if f.Exceptions != nil && *f.Exceptions > 0 {
			fmt.Fprintf(con.out, "\n%s %s of flow %s: `wedctl instance list -f %s --status exception`\n", con.yellow("waiting for somebody:"),
				count(int(*f.Exceptions), "exception"), quoted(f.Flow), quoted(f.Flow))
		}
	}
	return nil
}

// judgeStatus fails when the engine does not follow the database.
func judgeStatus(database string, rows []engineStatus) error {
	state := "not serving it"
	for _, r := range rows {
		if r.Database == database {
			state = r.State
		}
	}
	f := &failure{code: exitFailure, message: fmt.Sprintf("the engine does not follow database %q: it is %s", database, state)}
	switch state {
	case stateStreaming:
		return nil
	case "starting", "healing":
		f.hint = "it will in a moment"
	case "off":
		f.hint = "wed_sql.enabled = on in postgresql.conf and `select pg_reload_conf()` switch it on"
	case "backing off":
		f.hint = "it tries again by itself; LAST ERROR says what is in its way"
	case "left alone":
		f.hint = "LAST ERROR says why"
	case "standby":
		f.hint = "flows run on the primary server"
	default:
		f.hint = "the server's log says why"
	}
	return f
}

func (c *console) writeStatus(rows []engineStatus) {
	cells := make([][]string, len(rows))
	for i, r := range rows {
		state := c.yellow(r.State)
		if r.State == stateStreaming {
			state = c.green(r.State)
		}
		lastError := "-"
		if r.Error != nil && *r.Error != "" {
			lastError = *r.Error
			if r.ErrorAt != nil {
				lastError += " (" + ago(*r.ErrorAt) + ")"
			}
		}
		cells[i] = []string{
			r.Database, state, agoOf(r.Since), lag(r.LagBytes, r.LagSecond), bytesOf(r.Retained),
			number(r.States), lastError,
		}
	}
	if len(rows) > 0 && rows[0].EnginePID != nil {
		fmt.Fprintf(c.out, "engine: process %d, started %s\n\n", *rows[0].EnginePID, agoOf(rows[0].Started))
	}
	c.writeTable([]string{"DATABASE", "STATE", "SINCE", "LAG", "WAL KEPT", "STATES", "LAST ERROR"},
		cells, tableLook{right: []int{5}, wrap: []int{6}})
	for _, r := range rows {
		if r.Warning != nil && *r.Warning != "" {
			fmt.Fprintf(c.out, "\n%s %s: %s\n", c.yellow("warning:"), r.Database, *r.Warning)
		}
	}
}

func lag(bytes *int64, seconds *float64) string {
	switch {
	case bytes == nil || seconds == nil:
		return "-"
	case *bytes == 0:
		return "none"
	}
	return fmt.Sprintf("%s, %.1f s", byteSize(*bytes), *seconds)
}

func bytesOf(n *int64) string {
	if n == nil {
		return "-"
	}
	return byteSize(*n)
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func agoOf(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return ago(*t)
}

// ago says how long ago something was, in the unit that fits.
func ago(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// byteSize writes a number of bytes in the unit that fits.
func byteSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= unit {
		value, units = value/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}
