package main

import "github.com/urfave/cli/v2"

func jobCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "job",
		Usage: "look at pending transitions",
		Description: `A job is a transition of an instance that is due: a row of its flow's job_pool.

Example: wedctl job list --state waiting`,
		Subcommands: []*cli.Command{
			jobListCommand(con),
		},
	}
}
