package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/doctor"
)

func doctorCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "find what is wrong with the server, and how to mend it",
		Description: `Looks at settings, sessions, the engine, its slots, and what waits in the
database's flows, and changes nothing. Members of pg_monitor see most of it.

Exit status 0 when there is neither an error nor a warning, else 1.

Example: wedctl doctor --all`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, DisableDefaultText: true, Usage: "show what is as it should be, too"},
			outputFlag(), dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("%s takes no arguments", c.Command.HelpName)
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl doctor")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			findings, err := doctor.Examine(c.Context, conn)
			if err != nil {
				return err
			}
			if asJSON {
				err = con.writeFindingsJSON(findings)
			} else {
				con.writeFindings(findings, c.Bool("all"))
			}
			if err != nil {
				return err
			}
			return judgeFindings(conn.Config().Database, findings)
		},
	}
}

func (con *console) writeFindingsJSON(findings []doctor.Finding) error {
	raw := make([]json.RawMessage, len(findings))
	for i, f := range findings {
		var err error
		if raw[i], err = json.Marshal(f); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
	}
	return writeJSON(con.out, raw)
}

// The text of a finding is indented by so much, and not wider than a person reads
// with ease.
const (
	findingIndent = 9
	readableWidth = 100
)

func (con *console) writeFindings(findings []doctor.Finding, all bool) {
	reader := *con
	reader.width = min(con.width, readableWidth)
	counts := make(map[doctor.Severity]int)
	checks := make(map[string]bool)
	for _, f := range findings {
		checks[f.Check] = true
		counts[f.Severity]++
		if f.Severity == doctor.OK {
			if all {
				fmt.Fprintf(con.out, "%s%s\n", con.severity(f.Severity), f.What)
			}
			continue
		}
		indent := strings.Repeat(" ", findingIndent)
		reader.hang(con.severity(f.Severity), f.Check+": "+f.What)
		if f.Why != "" {
			reader.hang(indent, f.Why)
		}
		if f.Mend != "" { // in one line, to be copied
			fmt.Fprintf(con.out, "%s%s%s\n", indent, con.green("→ "), f.Mend)
		}
		fmt.Fprintln(con.out)
	}
	if all && counts[doctor.OK] > 0 {
		fmt.Fprintln(con.out)
	}
	fmt.Fprintf(con.out, "%s: %s, %s, %s; %d as they should be\n", count(len(checks), "check"),
		count(counts[doctor.Error], "error"), count(counts[doctor.Warning], "warning"), count(counts[doctor.Note], "note"), counts[doctor.OK])
}

// severity writes a severity as the first column.
func (con *console) severity(s doctor.Severity) string {
	word := fmt.Sprintf("%-*s", findingIndent, s)
	switch s {
	case doctor.Error:
		return con.red(word)
	case doctor.Warning:
		return con.yellow(word)
	case doctor.OK:
		return con.green(word)
	}
	return word
}

// judgeFindings fails when something should be mended.
func judgeFindings(database string, findings []doctor.Finding) error {
	n := 0
	for _, f := range findings {
		if f.Severity.Worse(doctor.Note) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return &failure{code: exitFailure, message: fmt.Sprintf("%s should be mended on the server of database %q", count(n, "thing"), database)}
}
