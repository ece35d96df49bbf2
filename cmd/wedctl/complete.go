package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/pulse"
)

// completeCommand is what the scripts of `wedctl completion` call at each Tab.
func completeCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:            "__complete",
		Hidden:          true,
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			words := c.Args().Slice()
			if len(words) > 0 && words[0] == "--" {
				words = words[1:]
			}
			if len(words) == 0 {
				words = []string{""}
			}
			for _, w := range newCompleter(c.App).complete(c.Context, words) {
				if strings.ContainsFunc(w.word+w.about, unicode.IsControl) {
					continue // a line of its own, or what commands a terminal
				}
				line := w.word
				if w.about != "" {
					line += "\t" + w.about
				}
				fmt.Fprintln(con.out, line)
			}
			return nil
		},
	}
}

// completion is a word that may stand at the end of a command line.
type completion struct{ word, about string }

// completer finds them. What the database would have to tell and cannot is left
// out: nobody wants an error at a Tab.
type completer struct {
	commands []*cli.Command // that may follow
	flags    []cli.Flag     // of the command so far
	path     []string       // the command so far
	plain    []string       // its arguments
	values   map[string]string
	awaiting cli.Flag // the flag that the last word belongs to
	foreign  bool     // after --, a command of somebody else's
}

func newCompleter(app *cli.App) *completer {
	return &completer{commands: app.Commands, flags: app.Flags, values: make(map[string]string)}
}

// complete returns what the last word may become.
func (p *completer) complete(ctx context.Context, words []string) []completion {
	for _, w := range words[:len(words)-1] {
		p.read(unquote(w))
	}
	last := unquote(words[len(words)-1])
	var all []completion
	prefix := ""
	switch {
	case p.foreign:
	case p.awaiting != nil:
		all = p.valuesOf(ctx, p.awaiting)
	case strings.HasPrefix(last, "-") && strings.Contains(last, "="):
		name, _, _ := strings.Cut(last, "=")
		prefix = name + "="
		if f := p.flag(name); f != nil {
			all = p.valuesOf(ctx, f)
		}
	case strings.HasPrefix(last, "-"):
		all = p.flagNames()
	case len(p.commands) > 0 && len(p.plain) == 0:
		for _, c := range p.commands {
			if !c.Hidden {
				all = append(all, completion{c.Name, c.Usage})
			}
		}
	default:
		all = p.arguments(ctx, last)
	}
	if comma := strings.LastIndex(last, ","); comma >= 0 && p.awaiting != nil {
		prefix = last[:comma+1] // the next part of a list
	}
	var fit []completion
	for _, c := range all {
		if c.word = prefix + c.word; strings.HasPrefix(c.word, last) {
			fit = append(fit, c)
		}
	}
	return fit
}

// unquote takes the quotes off a word, as a shell would.
func unquote(w string) string {
	if len(w) >= 1 && (w[0] == '\'' || w[0] == '"') {
		return strings.TrimSuffix(w[1:], w[:1])
	}
	return w
}

// read takes a whole word.
func (p *completer) read(w string) {
	switch {
	case p.foreign:
	case p.awaiting != nil:
		p.values[p.awaiting.Names()[0]] = w
		p.awaiting = nil
	case w == "--":
		p.foreign = true
	case len(w) > 1 && w[0] == '-':
		name, value, set := strings.Cut(w, "=")
		f := p.flag(name)
		switch {
		case f == nil:
		case set:
			p.values[f.Names()[0]] = value
		case takesValue(p.flags, w):
			p.awaiting = f
		}
	default:
		i := slices.IndexFunc(p.commands, func(c *cli.Command) bool { return len(p.plain) == 0 && c.HasName(w) })
		if i < 0 {
			p.plain = append(p.plain, w)
			return
		}
		c := p.commands[i]
		p.path, p.flags, p.commands = append(p.path, c.Name), c.Flags, c.Subcommands
	}
}

func (p *completer) flag(word string) cli.Flag {
	name := strings.TrimLeft(word, "-")
	for _, f := range p.flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func (p *completer) flagNames() []completion {
	var list []completion
	for _, f := range p.flags {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
			continue
		}
		about := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			about = strings.ReplaceAll(d.GetUsage(), "`", "")
		}
		list = append(list, completion{"--" + f.Names()[0], about})
	}
	list = append(list, completion{"--help", "show help"})
	slices.SortFunc(list, func(a, b completion) int { return cmp.Compare(a.word, b.word) })
	return list
}

func plainWords(words ...string) []completion {
	list := make([]completion, len(words))
	for i, w := range words {
		list[i] = completion{word: w}
	}
	return list
}

// valuesOf lists what a flag may be set to, as far as that is known.
func (p *completer) valuesOf(ctx context.Context, f cli.Flag) []completion {
	switch f.Names()[0] {
	case "output":
		return plainWords("json", "table")
	case "status":
		return plainWords("cancelled", "exception", "final", "regular", "suspended")
	case "state":
		return plainWords(jobStates...)
	case "sort":
		list := make([]string, len(pulse.Orders))
		for i, o := range pulse.Orders {
			list[i] = string(o)
		}
		return plainWords(list...)
	case "format":
		return plainWords("dot", "mermaid", "svg")
	case "flow":
		return p.ask(ctx, func(conn *pgx.Conn) ([]completion, error) {
			names, err := flowNames(ctx, conn)
			return plainWords(names...), err
		})
	case "transition", "pending":
		return p.askFlow(ctx, transitionsOf)
	case "attributes":
		return p.askFlow(ctx, func(ctx context.Context, conn *pgx.Conn, flow string) ([]completion, error) {
			return attributesOf(ctx, conn, flow, "")
		})
	}
	return nil
}

// arguments lists what an argument of the command may be.
func (p *completer) arguments(ctx context.Context, last string) []completion {
	path := strings.Join(p.path, " ")
	if path == "completion" && len(p.plain) == 0 {
		return plainWords(completionShells...)
	}
	if len(p.path) == 2 && p.path[0] == "flow" && len(p.plain) == 0 {
		return p.ask(ctx, func(conn *pgx.Conn) ([]completion, error) {
			names, err := flowNames(ctx, conn)
			return plainWords(names...), err
		})
	}
	if len(p.path) != 2 || p.path[0] != "instance" || strings.Contains(last, "=") {
		return nil
	}
	op := slices.IndexFunc(interventions(), func(i intervention) bool { return i.name == p.path[1] })
	sets := p.path[1] == "start" || op >= 0 && interventions()[op].sets
	wids := op >= 0 || slices.Contains([]string{"show", "trace", "watch"}, p.path[1])
	return p.askFlow(ctx, func(ctx context.Context, conn *pgx.Conn, flow string) (list []completion, err error) {
		if sets {
			if list, err = attributesOf(ctx, conn, flow, "="); err != nil {
				return nil, err
			}
		}
		if wids {
			instances, err := instancesOf(ctx, conn, flow, last)
			return append(instances, list...), err
		}
		return list, nil
	})
}

// completionPatience is how long a Tab waits for the database.
const completionPatience = 2 * time.Second

// ask asks the database that the command line so far means.
func (p *completer) ask(ctx context.Context, question func(*pgx.Conn) ([]completion, error)) []completion {
	ctx, cancel := context.WithTimeout(ctx, completionPatience)
	defer cancel()
	conn, err := connect(ctx, cmp.Or(p.values["dsn"], os.Getenv(dsnEnv)), "wedctl completion")
	if err != nil {
		return nil
	}
	defer hangUp(conn)
	list, err := question(conn)
	if err != nil {
		return nil
	}
	return list
}

// askFlow asks about the flow that is named so far, or the only one.
func (p *completer) askFlow(ctx context.Context, question func(context.Context, *pgx.Conn, string) ([]completion, error)) []completion {
	return p.ask(ctx, func(conn *pgx.Conn) ([]completion, error) {
		flow := cmp.Or(p.values["flow"], os.Getenv(flowEnv))
		if flow == "" {
			names, err := flowNames(ctx, conn)
			if err != nil || len(names) != 1 {
				return nil, err
			}
			flow = names[0]
		}
		return question(ctx, conn, flow)
	})
}

func transitionsOf(ctx context.Context, conn *pgx.Conn, flow string) ([]completion, error) {
	rows, err := conn.Query(ctx, `select distinct trname from `+pgx.Identifier{flow, "wed_trig"}.Sanitize()+`
		where trname is not null order by trname`)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return plainWords(append(names, "_EXCPT")...), err
}

func attributesOf(ctx context.Context, conn *pgx.Conn, flow, suffix string) ([]completion, error) {
	types, err := attributeTypes(ctx, conn, flow)
	if err != nil {
		return nil, err
	}
	list := make([]completion, 0, len(types))
	for name, kind := range types {
		list = append(list, completion{name + suffix, kind})
	}
	slices.SortFunc(list, func(a, b completion) int { return cmp.Compare(a.word, b.word) })
	return list, nil
}

// manyInstances is how many instances a Tab offers: the newest.
const manyInstances = 50

func instancesOf(ctx context.Context, conn *pgx.Conn, flow, prefix string) ([]completion, error) {
	rows, err := conn.Query(ctx, `select wid::text, status::text from `+pgx.Identifier{flow, "wed_instance"}.Sanitize()+`
		where wid::text like $1 order by wid desc limit $2`, prefix+"%", manyInstances)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c completion, err error) {
		err = row.Scan(&c.word, &c.about)
		c.about = statusNames[c.about]
		return c, err
	})
}
