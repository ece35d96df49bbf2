package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"
)

func flowListCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the flows of a database",
		Description: `With the number of their transitions, of instances that were started, have
ended, are exceptions now, and of jobs that wait and that are worked on.

Example: wedctl flow list`,
		Flags: []cli.Flag{outputFlag(), dsnFlag()},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return usagef("%s takes no arguments", c.Command.HelpName)
			}
			asJSON, err := wantsJSON(c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context, dsn(c), "wedctl flow list")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			if _, err := requireExtension(c.Context, conn); err != nil {
				return err
			}
			flows, err := listFlows(c.Context, conn)
			if err != nil {
				return needs(err, rightsOfStatus)
			}
			return con.writeFlows(flows, asJSON)
		},
	}
}

// flowSummary is what is to be told of a flow in one line.
type flowSummary struct {
	Flow        string `json:"flow"`
	Transitions int64  `json:"transitions"`
	Instances   int64  `json:"instances"`
	Ended       int64  `json:"ended"`
	Exceptions  *int64 `json:"exceptions"`
	Waiting     *int64 `json:"waiting"`
	Running     *int64 `json:"running"`

	raw json.RawMessage
}

// listFlows returns the flows of the database, by name.
func listFlows(ctx context.Context, conn *pgx.Conn) ([]flowSummary, error) {
	rows, err := conn.Query(ctx, `
		select row_to_json(l) from (
			select f.flow, count(t.trname) filter (where t.trname <> '_EXCPT') as transitions,
				f.instances, f.finals + f.cancelled as ended, f.recovering as exceptions,
				sum(t.waiting)::bigint as waiting, sum(t.running + t.leased)::bigint as running
			from wed_sql.stat_flow f left join wed_sql.stat_transition t on t.flow = f.flow
			group by f.flow, f.instances, f.finals, f.cancelled, f.recovering order by f.flow) l`)
	if err != nil {
		return nil, fmt.Errorf("list the flows: %w", err)
	}
	flows, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f flowSummary, err error) {
		if err := row.Scan(&f.raw); err != nil {
			return f, err
		}
		return f, json.Unmarshal(f.raw, &f)
	})
	if err != nil {
		return nil, fmt.Errorf("list the flows: %w", err)
	}
	return flows, nil
}

func (c *console) writeFlows(flows []flowSummary, asJSON bool) error {
	if asJSON {
		raw := make([]json.RawMessage, len(flows))
		for i := range flows {
			raw[i] = flows[i].raw
		}
		return writeJSON(c.out, raw)
	}
	if len(flows) == 0 {
		fmt.Fprintln(c.out, "no flow in this database")
		return nil
	}
	rows := make([][]string, len(flows))
	for i, f := range flows {
		rows[i] = []string{
			f.Flow, fmt.Sprint(f.Transitions), fmt.Sprint(f.Instances), fmt.Sprint(f.Ended),
			number(f.Exceptions), number(f.Waiting), number(f.Running),
		}
	}
	c.writeTable([]string{"FLOW", "TRANSITIONS", "INSTANCES", "ENDED", "EXCEPTIONS", "WAITING", "RUNNING"},
		rows, tableLook{right: []int{1, 2, 3, 4, 5, 6}})
	return nil
}
