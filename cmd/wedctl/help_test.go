package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// A terminal has at least so many lines and columns; the prompt takes one.
const screenLines, screenColumns = 24 - 1, 80

func TestEveryHelpFitsAScreenAndHasAnExample(t *testing.T) {
	lines := func(args []string) {
		out, _, status := wedctl(t.Context(), append(args, "--help")...)
		if status != exitOK {
			t.Errorf("%v --help: exit status %d", args, status)
		}
		if !strings.Contains(out, "Example: wedctl "+strings.Join(args, " ")) && !strings.Contains(out, "\n  wedctl "+strings.Join(args, " ")) {
			t.Errorf("%v --help has no example:\n%s", args, out)
		}
		list := strings.Split(strings.TrimRight(out, "\n"), "\n")
		if len(list) > screenLines {
			t.Errorf("%v --help has %d lines, a screen %d:\n%s", args, len(list), screenLines, out)
		}
		for _, l := range list {
			if n := utf8.RuneCountInString(l); n > screenColumns {
				t.Errorf("%v --help has a line of %d characters, a screen %d:\n%s", args, n, screenColumns, l)
			}
		}
	}
	lines(nil)
	var walk func(path []string, commands []*cli.Command)
	walk = func(path []string, commands []*cli.Command) {
		for _, c := range commands {
			if c.Hidden || c.Name == "help" {
				continue
			}
			args := append(append([]string(nil), path...), c.Name)
			lines(args)
			walk(args, c.Subcommands)
		}
	}
	walk(nil, newApp(&console{}).Commands)
}
