package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

const rightsOfJobs = "usage on the flow's schema, select on its job_pool; membership in pg_monitor, to see who holds a job"

func jobListCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list pending jobs, the oldest first",
		Description: `Of one flow, or of all. A job is waiting for a worker; running (a session has
its lock); leased; or delayed: it has failed, and is tried again at a time.
AGE is since it was fired, FAILED how often it was tried in vain, and why.

Example: wedctl job list --state waiting --older-than '10 min'`,
		Flags: []cli.Flag{
			flowFlag(),
			&cli.StringFlag{Name: "transition", Aliases: []string{"t"}, Usage: "only jobs of the transition `NAME`"},
			&cli.StringFlag{Name: "state", Aliases: []string{"s"}, Usage: "only `S`: waiting, running, leased, delayed"},
			&cli.StringFlag{Name: "older-than", Usage: "only if fired `T` ago or more"},
			&cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Value: 50, Usage: "at most so many; 0: all"},
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
			filter := jobFilter{transition: c.String("transition"), state: c.String("state"), olderThan: c.String("older-than")}
			if filter.state != "" && !slices.Contains(jobStates, filter.state) {
				return usagef("--state is %s, not %q", strings.Join(jobStates, ", "), filter.state)
			}
			limit := c.Int("limit")
			if limit < 0 {
				return usagef("--limit is a number of jobs, not %d", limit)
			}
			if limit > 0 {
				filter.limit = limit + 1 // to know whether there are more
			}
			conn, err := connect(c.Context, dsn(c), "wedctl job list")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			var flows []string
			if name := c.String("flow"); name != "" {
				flows, err = []string{name}, requireFlow(c.Context, conn, name)
			} else if _, err = requireExtension(c.Context, conn); err == nil {
				flows, err = flowNames(c.Context, conn)
			}
			if err != nil {
				return needs(err, rightsOfJobs)
			}
			raw, jobs, holders, err := readJobs(c.Context, conn, flows, filter)
			if err != nil {
				return needs(err, rightsOfJobs)
			}
			more := limit > 0 && len(jobs) > limit
			if more {
				raw, jobs = raw[:limit], jobs[:limit]
			}
			if asJSON {
				return writeJSON(con.out, raw)
			}
			con.writeJobs(jobs, len(flows) > 1)
			if more {
				fmt.Fprintln(con.out, con.dim("and more: --limit 0 lists all, --transition, --state and --older-than those that you want"))
			}
			if !holders {
				fmt.Fprintln(con.err, con.dim("who holds a job is only shown to members of pg_monitor: some that are \"waiting\" may be running"))
			}
			return nil
		},
	}
}

func (con *console) writeJobs(jobs []pendingJob, flows bool) {
	if len(jobs) == 0 {
		fmt.Fprintln(con.out, "no such job")
		return
	}
	header := []string{"FLOW", "WID", "TRANSITION", "STATE", "AGE", "FAILED", "WHO HAS IT"}
	rows := make([][]string, len(jobs))
	for i, j := range jobs {
		rows[i] = []string{
			j.Flow, fmt.Sprint(j.WID), j.Transition, con.jobState(j.State),
			span(time.Since(j.FiredAt)), j.failedAttempts(), j.holder(),
		}
	}
	look := tableLook{right: []int{1}, wrap: []int{5, 6}}
	if !flows {
		header, look = header[1:], tableLook{right: []int{0}, wrap: []int{4, 5}}
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	con.writeTable(header, rows, look)
}
