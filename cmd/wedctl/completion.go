package main

import (
	"embed"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"
)

//go:embed completion/*
var completionScripts embed.FS

// The shells that wedctl has a script for.
var completionShells = []string{"bash", "zsh", "fish"}

func completionCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that has a shell complete command lines",
		ArgsUsage: "bash|zsh|fish",
		Description: `Commands and options are completed, and what the database has: flows,
transitions, attributes, numbers of instances. In ~/.bashrc, or ~/.zshrc after
compinit: source <(wedctl completion bash), or zsh; for fish, once:
wedctl completion fish > ~/.config/fish/completions/wedctl.fish

Example: wedctl completion bash > /etc/bash_completion.d/wedctl`,
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 || !slices.Contains(completionShells, c.Args().First()) {
				return usagef("%s needs the name of a shell: bash, zsh or fish", c.Command.HelpName)
			}
			script, err := completionScripts.ReadFile("completion/wedctl." + c.Args().First())
			if err != nil {
				return fmt.Errorf("read the script: %w", err)
			}
			if _, err := con.out.Write(script); err != nil {
				return fmt.Errorf("write the script: %w", err)
			}
			return nil
		},
	}
}
