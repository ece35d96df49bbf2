package main

import (
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"
)

func instanceCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:        "instance",
		Usage:       "start instances, look at them, put them right",
		Description: `Example: wedctl instance trace -f travel 2`,
		Subcommands: slices.Concat([]*cli.Command{
			instanceStartCommand(con),
			instanceListCommand(con),
			instanceShowCommand(con),
			instanceTraceCommand(con),
			instanceWatchCommand(con),
		}, interventionCommands(con)),
	}
}

// oneWID returns the instance that the only argument names.
func oneWID(c *cli.Context) (int64, error) {
	if c.Args().Len() != 1 {
		return 0, usagef("%s needs one WID, the number of an instance", c.Command.HelpName)
	}
	return parseWID(c.Args().First())
}

func parseWID(arg string) (int64, error) {
	wid, err := strconv.ParseInt(arg, 10, 64)
	if err != nil || wid < 0 {
		return 0, usagef("WID is the number of an instance, not %q", arg)
	}
	return wid, nil
}

// statusNames are the words for the letters of a status.
var statusNames = map[string]string{"R": "regular", "E": "exception", "F": "final", "S": "suspended", "C": "cancelled"}
