package main

import "github.com/urfave/cli/v2"

func instanceCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "instance",
		Usage: "start instances, look at them, put them right",
		Description: `An instance is a row of its flow's wed_flow; its number is its wid.

Example: wedctl instance trace -f travel 2`,
		Subcommands: []*cli.Command{
			instanceTraceCommand(con),
		},
	}
}
