package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/definition"
)

func flowShowCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "show",
		Usage:     "show a flow: attributes, rules, and how it goes",
		ArgsUsage: "NAME",
		Description: `Its rules as they are in force, who may perform them, and how many instances
and jobs there are.

Example: wedctl flow show orders`,
		Flags: []cli.Flag{outputFlag(), dsnFlag()},
		Action: func(c *cli.Context) error {
			name, err := theName(c)
			if err != nil {
				return err
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl flow show")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			d, status, err := readFlow(c.Context, conn, name)
			if err != nil {
				return err
			}
			counts, err := countFlow(c.Context, conn, name)
			if err != nil {
				return needs(err, rightsOfAuthor)
			}
			if !asJSON {
				con.writeFlow(name, d, status, counts)
				return nil
			}
			return writeObject(con.out, struct {
				Flow string `json:"flow"`
				definition.Status
				flowCounts
				*definition.Definition
			}{name, status, counts, d})
		},
	}
}

// flowCounts is how many instances and jobs a flow has.
type flowCounts struct {
	Instances map[string]int64 `json:"instances"` // by status
	Jobs      map[string]int64 `json:"jobs"`      // by transition
}

func countFlow(ctx context.Context, conn *pgx.Conn, flow string) (flowCounts, error) {
	schema := pgx.Identifier{flow}.Sanitize()
	counts := flowCounts{}
	for _, q := range []struct {
		into *map[string]int64
		sql  string
	}{
		{&counts.Instances, fmt.Sprintf(`select status::text, count(*) from %s.wed_instance group by 1`, schema)},
		{&counts.Jobs, fmt.Sprintf(`select trname, count(*) from %s.job_pool group by 1`, schema)},
	} {
		*q.into = make(map[string]int64)
		rows, err := conn.Query(ctx, q.sql)
		if err != nil {
			return counts, fmt.Errorf("count what flow %q has: %w", flow, err)
		}
		var key string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error {
			(*q.into)[key] = n
			return nil
		}); err != nil {
			return counts, fmt.Errorf("count what flow %q has: %w", flow, err)
		}
	}
	return counts, nil
}

func (n flowCounts) String() string {
	var list []string
	for _, s := range []struct{ status, what string }{{"R", "running"}, {"E", "exception"}, {"S", "suspended"}, {"F", "ended"}, {"C", "cancelled"}} {
		switch k := n.Instances[s.status]; {
		case k > 0 && s.status == "E":
			list = append(list, several(k, s.what))
		case k > 0:
			list = append(list, fmt.Sprintf("%d %s", k, s.what))
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func (c *console) writeFlow(name string, d *definition.Definition, status definition.Status, counts flowCounts) {
	fmt.Fprintf(c.out, "flow %s, owned by %s; version %d of its definition\n", c.bold(name), status.Owner, status.Version)
	fmt.Fprintf(c.out, "instances: %s\n", counts)
	if s := d.Settings.Consistent; s != nil {
		fmt.Fprintf(c.out, "consistent where %s\n", onOneLine(*s))
	}
	if s := d.Settings.MaxStates; s != nil {
		fmt.Fprintf(c.out, "at most %d states without an intervention (0: no limit)\n", *s)
	}
	fmt.Fprintln(c.out)
	if len(d.Attributes) == 0 {
		fmt.Fprintln(c.out, "no attributes")
	} else {
		rows := make([][]string, len(d.Attributes))
		for i, a := range d.Attributes {
			rows[i] = []string{a.Name, shortType(a.Type), "-"}
			if a.Default != nil {
				rows[i][2] = "'" + *a.Default + "'"
			}
		}
		c.writeTable([]string{"ATTRIBUTE", "TYPE", "DEFAULT"}, rows, tableLook{wrap: []int{2}})
	}
	fmt.Fprintln(c.out)
	c.writeRules(d, counts)
}

func (c *console) writeRules(d *definition.Definition, counts flowCounts) {
	if len(d.Rules) == 0 {
		fmt.Fprintln(c.out, "no rules")
		return
	}
	var rows [][]string
	for _, r := range d.Rules {
		label, jobs := r.Label(), "-"
		if r.Final {
			label = "(final)"
		} else {
			jobs = fmt.Sprint(counts.Jobs[*r.Transition])
		}
		rows = append(rows, []string{label, onOneLine(r.Condition), orDash(strings.Join(ruleSettings(r), ", ")), jobs, orDash(strings.Join(rolesOf(d, r), ", "))})
	}
	c.writeTable([]string{"TRANSITION", "WHEN", "HOW", "JOBS", "WORKER ROLES"}, rows, tableLook{right: []int{3}, wrap: []int{1, 2}})
	if n := counts.Jobs["_EXCPT"]; n > 0 {
		fmt.Fprintf(c.out, "\n%s for recovery (_EXCPT)\n", several(n, "job"))
	}
}

func rolesOf(d *definition.Definition, r definition.Rule) []string {
	var roles []string
	for _, w := range d.Workers {
		if r.Transition != nil && w.Transition == *r.Transition && !slices.Contains(roles, w.Role) {
			roles = append(roles, w.Role)
		}
	}
	return roles
}
