package wal

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/fold"
)

// A rule that recovers: its transition is reserved, and it belongs to no wed_trig row.
const exceptionTransition = "_EXCPT"

// flow is what the follower knows of a flow.
type flow struct {
	id        int32
	name      string // of its schema
	relation  uint32 // OID of wed_flow
	table     string // wed_flow, qualified and quoted; so are the next two
	trace     string // "" if it is missing, as pool is: somebody dropped it by force
	pool      string
	excpt     fold.Rule
	private   bool // has worker roles that may not see each other's jobs
	followed  bool
	signalled bool // signals may be kept for its jobs
	since     LSN  // states committed before may have their line already, from healing
}

func (f *flow) damaged() bool { return f.trace == "" || f.pool == "" }

// rule is a rule as a version of its flow's definition has it.
type rule struct {
	transition string
	timeout    *string       // an interval, as text
	limit      time.Duration // the same; 0: none
	delay      *string       // an interval, as text; nil: it fires at once
	action     bool          // the engine performs it
	priority   int32
}

// ruleSet is the rules of a flow in one version of its definition, with the last
// words of those that were removed before: their jobs may still be pending.
type ruleSet map[fold.Rule]rule

func (s ruleSet) get(f *flow, r fold.Rule) rule {
	got, ok := s[r]
	switch {
	case ok && got.transition != "":
	case r == f.excpt:
		got.transition = exceptionTransition
	default: // restored from a backup that lacks it: the job must not be lost for that
		got.transition = "rule " + strconv.Itoa(int(r))
	}
	return got
}

type ruleKey struct {
	flow  int32
	rules int64
}

// catalog caches flows by the OID of their wed_flow, and their rules by version.
// Neither changes without a new OID or version, but for the names of tables; a
// statement that fails for a name makes the applier call forget.
type catalog struct {
	flows map[uint32]*flow
	rules map[ruleKey]ruleSet
}

// A follower that lags behind a definition that is being worked on meets a few
// versions at once, hardly more.
const maxRuleSets = 256

func newCatalog() *catalog {
	c := new(catalog)
	c.forget()
	return c
}

func (c *catalog) forget() {
	c.flows = make(map[uint32]*flow)
	c.rules = make(map[ruleKey]ruleSet)
}

// querier is the part of a connection that reading the catalog takes.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// knows tells whether everything that is needed for v is here.
func (c *catalog) knows(v *Version) bool {
	f := c.flows[v.Relation]
	return f != nil && c.rules[ruleKey{f.id, v.Stamp.Rules}] != nil
}

// load reads what is needed for the versions. What is not there afterwards does not
// exist. The transactions of the versions must have ended: a definition may have
// been made in one of them.
func (c *catalog) load(ctx context.Context, db querier, versions func(func(*Version) bool)) error {
	var err error
	loaded := false
	for v := range versions {
		if c.flows[v.Relation] == nil && !loaded {
			if err = c.loadFlows(ctx, db); err != nil {
				return err
			}
			loaded = true
		}
		f := c.flows[v.Relation]
		if f == nil {
			continue
		}
		key := ruleKey{f.id, v.Stamp.Rules}
		if c.rules[key] != nil {
			continue
		}
		if len(c.rules) >= maxRuleSets {
			clear(c.rules)
		}
		if c.rules[key], err = loadRules(ctx, db, key); err != nil {
			return err
		}
	}
	return nil
}

func (c *catalog) loadFlows(ctx context.Context, db querier) error {
	rows, err := db.Query(ctx, `
select f.flow_id, n.nspname, t.oid, f.excpt_tgid,
       quote_ident(n.nspname) || '.' || quote_ident(t.relname),
       coalesce(quote_ident(rn.nspname) || '.' || quote_ident(r.relname), ''),
       coalesce(quote_ident(pn.nspname) || '.' || quote_ident(p.relname), ''),
       t.relrowsecurity, w.since is not null, coalesce(w.since, '0/0')::text,
       exists (select from wed_sql.signal s where s.flow_id = f.flow_id)
  from wed_sql.flow f left join wed_sql.followed w on w.flow_id = f.flow_id
  join pg_class t on t.oid = f.wed_flow  join pg_namespace n  on n.oid  = t.relnamespace
  left join pg_class r on r.oid = f.wed_trace left join pg_namespace rn on rn.oid = r.relnamespace
  left join pg_class p on p.oid = f.job_pool  left join pg_namespace pn on pn.oid = p.relnamespace`)
	if err != nil {
		return fmt.Errorf("read wed_sql.flow: %w", err)
	}
	flows, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*flow, error) {
		f := new(flow)
		var since string
		err := row.Scan(&f.id, &f.name, &f.relation, &f.excpt, &f.table, &f.trace, &f.pool, &f.private, &f.followed, &since, &f.signalled)
		if err == nil {
			f.since, err = parseLSN(since)
		}
		return f, err
	})
	if err != nil {
		return fmt.Errorf("read wed_sql.flow: %w", err)
	}
	c.flows = make(map[uint32]*flow, len(flows))
	for _, f := range flows {
		c.flows[f.relation] = f
	}
	return nil
}

func loadRules(ctx context.Context, db querier, key ruleKey) (ruleSet, error) {
	rows, err := db.Query(ctx, `
select distinct on (tgid) tgid, coalesce(trname, ''), timeout::text, coalesce(extract(epoch from timeout), 0)::double precision,
       delay::text, action is not null, priority
  from wed_sql.rule where flow_id = $1 and valid_from <= $2
 order by tgid, valid_from desc`, key.flow, key.rules)
	if err != nil {
		return nil, fmt.Errorf("read wed_sql.rule: %w", err)
	}
	set := make(ruleSet)
	var id fold.Rule
	var r rule
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&id, &r.transition, &r.timeout, &seconds, &r.delay, &r.action, &r.priority}, func() error {
		r.limit = time.Duration(min(seconds, math.MaxInt32) * float64(time.Second))
		set[id] = r
		r.timeout, r.delay = nil, nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read wed_sql.rule: %w", err)
	}
	return set, nil
}
