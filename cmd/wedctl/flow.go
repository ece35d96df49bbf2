package main

import "github.com/urfave/cli/v2"

func flowCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "flow",
		Usage: "define flows, and look at them",
		Description: `A flow is a schema with the attributes and rules of a process.

Example: wedctl flow list`,
		Subcommands: []*cli.Command{
			flowCreateCommand(con),
			flowApplyCommand(con),
			flowListCommand(con),
			flowShowCommand(con),
			flowCheckCommand(con),
			flowExportCommand(con),
			flowDropCommand(con),
		},
	}
}

// flowFlag names the flow that a command is about.
func flowFlag() cli.Flag {
	return &cli.StringFlag{Name: "flow", Aliases: []string{"f"}, Usage: "`NAME` of the flow"}
}
