package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is the extension's default_version, too.
const version = "0.1.0"

func versionCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the version of wedctl",
		Description: `The extension and its module should be of the same version.

Example: wedctl version`,
		Action: func(*cli.Context) error {
			revision := ""
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" && len(s.Value) >= 12 {
						revision = s.Value[:12] + ", "
					}
				}
			}
			fmt.Fprintf(con.out, "wedctl %s (%s%s %s/%s)\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
