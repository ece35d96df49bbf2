package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

const description = `The server is the one of the usual PG* variables (PGHOST, PGSERVICE, ...) or of
--dsn DSN, -d DSN: a connection string or URL, as for psql. Exit status: 0 done;
1 failed; 2 wrong usage; 3 could not connect; 4 not found (flow, instance, ...).

Example: wedctl demo`

// The form of all help: that of one command, whatever it is, fits a screen.
const (
	appHelp = `{{.Name}} - {{.Usage}}

Usage: {{.UsageText}}

Commands:{{range .VisibleCommands}}{{if ne .Name "help"}}
  {{.Name}}{{"\t"}}{{.Usage}}{{end}}{{end}}

{{.Description}}
`
	commandHelp = `{{.HelpName}} - {{.Usage}}

Usage: {{if .UsageText}}{{.UsageText}}{{else}}{{.HelpName}}{{if .VisibleCommands}} COMMAND{{end}}{{if .VisibleFlags}} [OPTION...]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}{{end}}

{{.Description}}
{{if .VisibleCommands}}
Commands:{{range .VisibleCommands}}
  {{.Name}}{{"\t"}}{{.Usage}}{{end}}
{{else if .VisibleFlags}}
Options:{{range .VisibleFlags}}
  {{.}}{{end}}
{{end}}`
)

func newApp(con *console) *cli.App {
	app := &cli.App{
		Name:                   "wedctl",
		Usage:                  "the command line of wed_sql",
		UsageText:              "wedctl COMMAND [OPTION...] [ARGUMENT...]",
		Description:            description,
		CustomAppHelpTemplate:  appHelp,
		Reader:                 con.in,
		Writer:                 con.out,
		ErrWriter:              con.err,
		HideVersion:            true,
		UseShortOptionHandling: true,
		Flags:                  []cli.Flag{dsnFlag()},
		Commands: []*cli.Command{
			flowCommand(con),
			instanceCommand(con),
			jobCommand(con),
			workerCommand(con),
			gatewayCommand(con),
			statusCommand(con),
			topCommand(con),
			doctorCommand(con),
			demoCommand(con),
			completionCommand(con),
			completeCommand(con),
			versionCommand(con),
		},
		Action:         noCommand,
		OnUsageError:   usageError,
		ExitErrHandler: func(*cli.Context, error) {}, // run does it
	}
	inform(app.Commands)
	return app
}

// inform gives commands, and theirs, what all have in common.
func inform(commands []*cli.Command) {
	for _, c := range commands {
		c.CustomHelpTemplate = commandHelp
		c.HideHelpCommand = true
		c.OnUsageError = usageError
		if len(c.Subcommands) > 0 && c.Action == nil {
			c.Action = noCommand
		}
		inform(c.Subcommands)
	}
}

// noCommand shows the help, or refuses what is not a command.
func noCommand(c *cli.Context) error {
	if c.Args().Present() {
		return usagef("there is no command %q: see %s --help", c.Args().First(), c.App.Name)
	}
	return cli.ShowSubcommandHelp(c)
}

func usageError(_ *cli.Context, err error, _ bool) error { return usagef("%s", err) }

// helpLast is for who types "wedctl help flow list" instead of "wedctl flow list --help".
func helpLast(args []string) []string {
	if len(args) < 2 || args[1] != "help" {
		return args
	}
	return slices.Concat(args[:1], args[2:], []string{"--help"})
}

// flagsFirst moves a command's flags before its arguments, where urfave/cli
// wants them: `trace 2 --flow travel` is as good as `trace --flow travel 2`.
// What follows -- stays as it is.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	out, rest := []string{args[0]}, args[1:]
	commands, flags := app.Commands, app.Flags
	var flagArgs, plain []string
	for len(rest) > 0 && rest[0] != "--" {
		arg := rest[0]
		rest = rest[1:]
		if arg == "--help" || arg == "-h" {
			if len(commands) > 0 {
				out = append(out, plain...) // none of them
			}
			return append(out, "--help") // whatever else was typed
		}
		if len(arg) > 1 && arg[0] == '-' {
			flagArgs = append(flagArgs, arg)
			if takesValue(flags, arg) && len(rest) > 0 {
				flagArgs = append(flagArgs, rest[0])
				rest = rest[1:]
			}
			continue
		}
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return len(plain) == 0 && c.HasName(arg) })
		if i < 0 {
			plain = append(plain, arg)
			continue
		}
		out = append(append(out, flagArgs...), arg)
		flagArgs, flags, commands = nil, commands[i].Flags, commands[i].Subcommands
	}
	return slices.Concat(out, flagArgs, plain, rest)
}

// takesValue reports whether the argument is a flag whose value is the next one.
func takesValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			_, isBool := f.(*cli.BoolFlag)
			return !isBool
		}
	}
	return false
}

// requireFlags refuses a command line that lacks one of the flags.
func requireFlags(c *cli.Context, names ...string) error {
	for _, n := range names {
		if c.String(n) == "" {
			return usagef("%s needs --%s", c.Command.HelpName, n)
		}
	}
	return nil
}
