package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/internal/flowgraph"
)

// mostStates is how many states of a flow's history are read for its graph.
const mostStates = 50_000

func flowGraphCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "graph",
		Usage:     "draw a flow",
		ArgsUsage: "[NAME]",
		Description: `Infers a graph from the rules and the history, of which it reads the states of
the newest instances. A solid arrow: the one has fired the other, so often, and
it took so long until the other was committed. A dashed one: it writes what the
other's condition reads; to more it has not led yet. See docs/pictures.md.

Example: wedctl flow graph travel --out travel.svg`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "format", Usage: "svg, dot or mermaid; default: as FILE or terminal"},
			outFlag(), flowFlag(),
			&cli.StringFlag{Name: "since", Usage: "only states of the last `INTERVAL`, as '7 days'"},
			&cli.IntFlag{Name: "states", Value: mostStates, Usage: "read `N` states at most"},
			&cli.BoolFlag{Name: "all", DisableDefaultText: true, Usage: "draw all arrows that are known"},
			dsnFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Len() > 1 || c.Args().Present() && c.IsSet("flow") {
				return usagef("%s draws one flow", c.Command.HelpName)
			}
			format, err := graphFormat(c.String("format"), c.String("out"), con.shown)
			if err != nil {
				return err
			}
			if c.Int("states") < 0 {
				return usagef("--states is a number of states, not %d", c.Int("states"))
			}
			conn, err := connect(c.Context, dsn(c), "wedctl flow graph")
			if err != nil {
				return err
			}
			defer hangUp(conn)
			flow := c.Args().First()
			if flow != "" {
				err = requireFlow(c.Context, conn, flow)
			} else {
				flow, err = con.theFlow(c, conn)
			}
			if err != nil {
				return needs(err, rightsOfReader)
			}
			g, err := readGraph(c.Context, conn, flow, graphQuery{
				since: c.String("since"), most: c.Int("states"), options: flowgraph.Options{All: c.Bool("all")},
			})
			if err != nil {
				return needs(err, rightsOfReader)
			}
			drawing, err := format(g)
			if err != nil {
				return err
			}
			return con.writePicture(c.String("out"), drawing)
		},
	}
}

// mostArrows is the number of arrows beyond which a graph takes long to draw, and nobody can read it.
const mostArrows = 1000

func drawGraph(g *flowgraph.Graph) ([]byte, error) {
	if len(g.Arrows) > mostArrows {
		return nil, &failure{
			code: exitFailure, message: fmt.Sprintf("the graph of flow %q is too large to be drawn: it has %d arrows", g.Flow, len(g.Arrows)),
			hint: "--format dot writes it for other programs; without --all there may be less of it",
		}
	}
	return g.SVG(), nil
}

// outFlag names the file that a picture goes to.
func outFlag() cli.Flag {
	return &cli.StringFlag{Name: "out", Usage: "write to `FILE` instead of standard output"}
}

// graphFormat chooses what a graph is drawn as.
func graphFormat(format, out string, terminal bool) (func(*flowgraph.Graph) ([]byte, error), error) {
	if format == "" {
		switch strings.ToLower(filepath.Ext(out)) {
		case ".dot", ".gv":
			format = "dot"
		case ".mmd", ".mermaid", ".md":
			format = "mermaid"
		case ".png", ".jpg", ".jpeg", ".gif", ".pdf", ".webp":
			return nil, usagef("%s is not drawn: give a file the name .svg, .dot or .mmd, or say --format", out)
		default:
			format = "svg"
			if terminal && out == "" {
				format = "mermaid"
			}
		}
	}
	switch format {
	case "svg":
		return drawGraph, nil
	case "dot":
		return func(g *flowgraph.Graph) ([]byte, error) { return g.DOT(), nil }, nil
	case "mermaid":
		return func(g *flowgraph.Graph) ([]byte, error) { return g.Mermaid(), nil }, nil
	}
	return nil, usagef("--format is svg, dot or mermaid, not %q", format)
}

// writePicture writes a picture to a file, or to standard output if none is named.
func (c *console) writePicture(file string, picture []byte) error {
	if file == "" || file == "-" {
		if _, err := c.out.Write(picture); err != nil {
			return fmt.Errorf("write the picture: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(file, picture, 0o666); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// graphQuery says what of a flow is to be looked at.
type graphQuery struct {
	since   string // an interval; empty: always
	most    int
	options flowgraph.Options
}

// readGraph infers the graph of a flow, from one snapshot.
func readGraph(ctx context.Context, conn *pgx.Conn, flow string, q graphQuery) (*flowgraph.Graph, error) {
	stats, err := readStats(ctx, conn, flow)
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback(ctx)
	rules, err := readRules(ctx, tx, flow)
	if err != nil {
		return nil, err
	}
	history := flowgraph.NewHistory(rules)
	extent, err := readHistory(ctx, tx, flow, q, history)
	if err != nil {
		return nil, err
	}
	return flowgraph.New(flow, rules, stats, history, extent, q.options), nil
}

// readStats returns the statistics of a flow's transitions; nil if they are not for this role to read.
func readStats(ctx context.Context, conn *pgx.Conn, flow string) (map[string]flowgraph.Stat, error) {
	rows, err := conn.Query(ctx, `
		select trname, done, failed + timed_out + lost, coalesce(waiting, 0), coalesce(running + leased, 0),
			coalesce(mean_wait_time, 0), coalesce(mean_run_time, 0), mean_run_time is not null
		from wed_sql.stat_transition where flow = $1`, flow)
	if err != nil {
		return nil, fmt.Errorf("read the statistics: %w", err)
	}
	stats := make(map[string]flowgraph.Stat)
	var name string
	var s flowgraph.Stat
	var wait, run float64
	_, err = pgx.ForEachRow(rows, []any{&name, &s.Done, &s.Failed, &s.Waiting, &s.Working, &wait, &run, &s.Timed}, func() error {
		s.MeanWait, s.MeanRun = ofMilliseconds(wait), ofMilliseconds(run)
		stats[name] = s
		return nil
	})
	if sqlState(err) == "42501" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the statistics: %w", err)
	}
	return stats, nil
}

func ofMilliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// ofSeconds turns seconds into a time, or the longest that there can be.
func ofSeconds(s float64) time.Duration {
	if s *= float64(time.Second); s < math.MaxInt64 {
		return time.Duration(s)
	}
	return math.MaxInt64
}

// readRules returns the rules of a flow, with the attributes that they are about.
func readRules(ctx context.Context, tx pgx.Tx, flow string) ([]flowgraph.Rule, error) {
	rows, err := tx.Query(ctx, `
		select t.tgid, coalesce(t.tgname, ''), coalesce(t.cname, ''), coalesce(t.trname, ''), t.cpred,
			coalesce(a.reads, '{}'), a.reads is not null, t.enabled, coalesce(t.action, ''), coalesce(a.sets, '{}'),
			coalesce(extract(epoch from t.delay), 0)::float8, extract(epoch from t.timeout)::float8, coalesce(t.max_attempts, 0),
			t.withdrawable, coalesce(t.undo, '')
		from `+pgx.Identifier{flow, "wed_trig"}.Sanitize()+` t
		left join wed_sql.rule_attributes($1) a on a.tgid = t.tgid order by t.tgid`, flow)
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	rules, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r flowgraph.Rule, err error) {
		var delay, timeout float64
		err = row.Scan(&r.TGID, &r.Name, &r.Condition, &r.Transition, &r.Predicate, &r.Reads, &r.Valid, &r.Enabled,
			&r.Action, &r.Sets, &delay, &timeout, &r.MaxAttempts, &r.Withdrawable, &r.Undo)
		r.Delay, r.Timeout = ofSeconds(delay), ofSeconds(timeout)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	return rules, nil
}

// readHistory adds states of the newest instances to a history.
func readHistory(ctx context.Context, tx pgx.Tx, flow string, q graphQuery, h *flowgraph.History) (flowgraph.Extent, error) {
	var extent flowgraph.Extent
	var since *string
	if q.since != "" {
		var forward bool
		err := tx.QueryRow(ctx, `select $1::text::interval > interval '0'`, q.since).Scan(&forward)
		if err != nil || !forward {
			return extent, usagef("--since is an interval, as '7 days', not %q", q.since)
		}
		since, extent.Since = &q.since, q.since
	}
	table := pgx.Identifier{flow, "wed_trace"}.Sanitize()
	rows, err := tx.Query(ctx, `
		select l.wid, l.version, coalesce(l.trw, ''), l.trf, l.status::text, l.tstmp, l.pending,
			case when l.known then array(select e.key from jsonb_each(l.state) e where e.value is distinct from l.before -> e.key)
			     else '{}' end,
			l.known
		from (select t.*, lag(t.state) over earlier as before, coalesce(t.version = 0 or lag(t.version) over earlier = t.version - 1, false) as known
			from (select * from `+table+` order by wid desc, version desc limit $1) t
			window earlier as (partition by t.wid order by t.version)) l
		where $2::text is null or l.tstmp >= now() - $2::text::interval
		order by l.wid, l.version`, q.most, since)
	if err != nil {
		return extent, fmt.Errorf("read the history: %w", err)
	}
	var s flowgraph.State
	_, err = pgx.ForEachRow(rows, []any{&s.WID, &s.Version, &s.Writer, &s.Fired, &s.Status, &s.At, &s.Pending, &s.Changed, &s.Known}, func() error {
		h.Add(s)
		s = flowgraph.State{}
		return nil
	})
	if err != nil {
		return extent, fmt.Errorf("read the history: %w", err)
	}
	err = tx.QueryRow(ctx, `select exists (select from `+table+` offset $1)`, q.most).Scan(&extent.Partly)
	if err != nil {
		return extent, fmt.Errorf("look whether there is more history: %w", err)
	}
	return extent, nil
}
