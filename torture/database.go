package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/drive"
	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/judge"
	"github.com/wed-sql/wed_sql/torture/predicate"
	"github.com/wed-sql/wed_sql/torture/record"
)

// database with flows.
type database struct {
	*world
	name     string
	flows    []string
	r        *rand.Rand
	listener *listener
}

func newDatabase(w *world, name string, r *rand.Rand) *database {
	d := &database{world: w, name: name, r: r}
	d.listener = newListener(d.dsn())
	return d
}

func (d *database) dsn() string { return d.cluster.ConnString(d.name) }

// with calls f with a connection.
func (d *database) with(ctx context.Context, f func(*pgx.Conn) error) error {
	config, err := pgx.ParseConfig(d.dsn())
	if err != nil {
		return err
	}
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["application_name"] = "torture judge"
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// insist is with, again and again while the server is in trouble.
func (d *database) insist(ctx context.Context, f func(*pgx.Conn) error) error {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		err := d.with(ctx, f)
		if err == nil || ctx.Err() != nil || !drive.Expected(drive.Code(err)) || time.Now().After(deadline) {
			return err
		}
		pause(ctx, 200*time.Millisecond)
	}
}

func (d *database) execute(ctx context.Context, sql string, args ...any) error {
	return d.insist(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", sql, d.name, err)
		}
		return nil
	})
}

// prepare makes the database and its flows.
func (d *database) prepare(ctx context.Context) error {
	if err := d.createDatabase(ctx, d.name); err != nil {
		return err
	}
	return d.with(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "create extension wed_sql"); err != nil {
			return err
		}
		if err := record.Prepare(ctx, conn); err != nil {
			return err
		}
		for i := range d.plan.flows {
			def := flow.Draw(d.r, fmt.Sprintf("%s_f%d", d.name, i))
			if err := create(ctx, conn, def, maxStates); err != nil {
				return err
			}
			d.flows = append(d.flows, def.Flow)
			if err := d.examine(ctx, conn, def, 30); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, "select wed_sql.sync()") // there is a slot
		return err
	})
}

func (d *database) examine(ctx context.Context, conn *pgx.Conn, def *flow.Definition, samples int) error {
	var states []map[string]*string
	for range samples {
		set, _ := def.Initial(d.r)
		states = append(states, set)
	}
	n, err := examine(ctx, conn, def, states)
	d.report.add("conditions compared with PostgreSQL's", int64(n))
	return err
}

// change changes rules and attributes until ctx ends.
func (d *database) change(ctx context.Context) error {
	for n := 0; pause(ctx, time.Duration(500+d.r.IntN(3000))*time.Millisecond); n++ {
		name := d.flows[d.r.IntN(len(d.flows))]
		err := d.with(ctx, func(conn *pgx.Conn) error { return d.changeOne(ctx, conn, name, n) })
		if err != nil && ctx.Err() == nil && !drive.Expected(drive.Code(err)) {
			d.report.violation("%s: a change of the definition failed: %v", name, err)
		}
	}
	return nil
}

func (d *database) changeOne(ctx context.Context, conn *pgx.Conn, name string, n int) error {
	from, err := record.Latest(ctx, conn, name)
	if err != nil {
		return err
	}
	to, what := from.Change(d.r, n)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		if err := redefine(ctx, tx, from, to); err != nil {
			return err
		}
		return record.Define(ctx, tx, to, what)
	})
	if err != nil || to.Version == from.Version {
		return err
	}
	d.report.add("definitions: "+what, 1)
	if err := record.Acknowledge(ctx, conn, to); err != nil {
		return err
	}
	return d.examine(ctx, conn, to, 5)
}

// cleanUp ends prepared transactions that nobody has ended for a second. When they were prepared, by the server's
// clock, says nothing: that clock is moved.
func (d *database) cleanUp(ctx context.Context) error {
	seen := map[string]time.Time{}
	for pause(ctx, 500*time.Millisecond) {
		_ = d.with(ctx, func(conn *pgx.Conn) error { // the next time, then
			gids, err := d.prepared(ctx, conn)
			if err != nil {
				return err
			}
			now, before := time.Now(), seen
			seen = map[string]time.Time{}
			var old []string
			for _, gid := range gids {
				if seen[gid] = before[gid]; seen[gid].IsZero() {
					seen[gid] = now
				} else if now.Sub(seen[gid]) > time.Second {
					old = append(old, gid)
				}
			}
			return d.endPrepared(ctx, conn, old)
		})
	}
	return nil
}

// prepared are the names of the transactions that are, but those of faults, which end them themselves.
func (d *database) prepared(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `select gid from pg_prepared_xacts where database = current_database() and gid !~ '^wed_sql_fault'`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (d *database) endPrepared(ctx context.Context, conn *pgx.Conn, gids []string) error {
	for i, gid := range gids {
		end := []string{"commit prepared", "rollback prepared"}[i%2]
		if _, err := conn.Exec(ctx, end+" "+predicate.QuoteLiteral(gid)); err != nil {
			return err
		}
		d.report.add("prepared transactions ended by somebody else", 1)
	}
	return nil
}

// sample judges some instances while they run.
func (d *database) sample(ctx context.Context) error {
	for pause(ctx, time.Second) {
		name := d.flows[time.Now().UnixNano()%int64(len(d.flows))]
		err := d.with(ctx, func(conn *pgx.Conn) error {
			if err := d.acknowledged(ctx, conn); err != nil {
				return err
			}
			var top int64
			if err := conn.QueryRow(ctx, "select coalesce(max(wid), 0) from "+predicate.QuoteIdent(name)+".wed_flow").Scan(&top); err != nil {
				return err
			}
			return d.judgeSome(ctx, conn, name, top-40, top, false, nil)
		})
		if err != nil && ctx.Err() == nil && !drive.Expected(drive.Code(err)) {
			return fmt.Errorf("judge a sample of %s: %w", name, err)
		}
	}
	return nil
}

// acknowledged looks whether the slot has been told of more than was written: that would be lost.
func (d *database) acknowledged(ctx context.Context, conn *pgx.Conn) error {
	// A slot that has just been made is ahead of the tables, until they are healed.
	streams := func() (streams bool, err error) {
		err = conn.QueryRow(ctx, "select coalesce(bool_and(state = 'streaming'), false) from wed_sql.status where datname = current_database()").Scan(&streams)
		return streams, err
	}
	if before, err := streams(); err != nil || !before {
		return err
	}
	var confirmed *string
	err := conn.QueryRow(ctx, `select max(s.confirmed_flush_lsn)::text from pg_replication_slots s join wed_sql.follower f using (slot_name)
	                            where s.database = current_database()`).Scan(&confirmed)
	if err != nil || confirmed == nil {
		return err
	}
	var applied *string
	var ahead *bool
	if err := conn.QueryRow(ctx, "select applied_lsn::text, applied_lsn < $1::pg_lsn from wed_sql.follower", *confirmed).Scan(&applied, &ahead); err != nil {
		return err
	}
	after, err := streams()
	if err != nil || !after {
		return err
	}
	if ahead != nil && *ahead {
		d.report.violation("%s: the slot's position is %s, and only what is before %s has been applied", d.name, *confirmed, *applied)
	}
	d.report.add("positions of slots looked at", 1)
	return nil
}

// judgeSome judges the instances from one to another, as they are at one moment.
func (d *database) judgeSome(ctx context.Context, conn *pgx.Conn, name string, from, to int64, quiet bool, each func(wid int64, f judge.Finding)) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	f, err := record.LoadFlow(ctx, tx, name)
	if err != nil {
		return err
	}
	f.MaxStates, f.Gaps, f.Clock = maxStates, d.loses.Load(), d.clock.Load()
	instances, err := record.LoadInstances(ctx, tx, name, from, to)
	if err != nil {
		return err
	}
	for wid, i := range instances {
		found := f.Judge(i, quiet)
		for _, v := range found.Violations {
			d.report.about(name, wid, f, i, v)
		}
		if !quiet {
			d.report.add("states judged in samples", int64(found.Judged))
		}
		if each != nil {
			each(wid, found)
		}
	}
	return nil
}

// count is the number of states that were written.
func (d *database) count(ctx context.Context) (n int64) {
	_ = d.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select coalesce(max(seq), 0) from torture.state").Scan(&n)
	})
	return n
}

func (d *database) setMood(ctx context.Context, drain bool) error {
	return d.execute(ctx, "update torture.mood set drain = $1", drain)
}

func (d *database) sync(ctx context.Context) error {
	return d.execute(ctx, "select wed_sql.sync('30 seconds')")
}

// catchUp waits until the engine has seen everything, which must be soon.
func (d *database) catchUp(ctx context.Context) error {
	start := time.Now()
	err := d.sync(ctx)
	if err == nil && time.Since(start) > d.patience {
		d.report.violation("%s: it took the engine %v to catch up after the last fault", d.name, time.Since(start))
	}
	return err
}

// workOff waits until no job and no timer is left; where nothing moves any more, nothing will.
func (d *database) workOff(ctx context.Context) error {
	began := time.Now()
	moved, before := began, ""
	for {
		var left []string
		err := d.insist(ctx, func(conn *pgx.Conn) error {
			left = nil
			for _, name := range d.flows {
				var n int
				err := conn.QueryRow(ctx, fmt.Sprintf("select (select count(*) from %[1]s.wed_instance where status not in ('F', 'C')) + (select count(*) from %[1]s.job_pool)",
					predicate.QuoteIdent(name))).Scan(&n)
				if err != nil {
					return err
				}
				if n > 0 {
					left = append(left, fmt.Sprintf("%s: %d", name, n))
				}
			}
			return nil
		})
		if err != nil || len(left) == 0 {
			return err
		}
		now := strings.Join(left, ", ")
		if now != before {
			moved, before = time.Now(), now
		}
		if time.Since(began) > drained || time.Since(moved) > 2*d.patience {
			d.report.violation("%s: instances and jobs are left after %v: %s", d.name, time.Since(began).Round(time.Second), now)
			return nil
		}
		if !pause(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// lastWord waits until all that was notified has been heard.
func (d *database) lastWord(ctx context.Context) error {
	if err := d.sync(ctx); err != nil {
		return err
	}
	if err := d.execute(ctx, "notify "+lastWord); err != nil {
		return err
	}
	select {
	case <-d.listener.ended:
	case <-time.After(d.patience):
		d.report.violation("%s: a notification was not heard within %v", d.name, d.patience)
	case <-ctx.Done():
	}
	return ctx.Err()
}

// judge judges all that there is.
func (d *database) judge(ctx context.Context) error {
	err := d.insist(ctx, func(conn *pgx.Conn) error {
		gids, err := d.prepared(ctx, conn)
		if err != nil {
			return err
		}
		return d.endPrepared(ctx, conn, gids)
	})
	if err != nil {
		return err
	}
	if err := d.sync(ctx); err != nil {
		return err
	}
	return d.with(ctx, func(conn *pgx.Conn) error {
		notified := newLedger(d)
		for _, name := range d.flows {
			var top int64
			if err := conn.QueryRow(ctx, "select coalesce(max(wid), 0) from "+predicate.QuoteIdent(name)+".wed_flow").Scan(&top); err != nil {
				return err
			}
			const page = 1000
			for from := int64(1); from <= top; from += page {
				err := d.judgeSome(ctx, conn, name, from, from+page-1, true, func(wid int64, f judge.Finding) {
					d.report.found(f)
					notified.check(name, wid, f)
				})
				if err != nil {
					return err
				}
			}
		}
		notified.rest()
		return d.collect(ctx, conn)
	})
}

// collect adds up what clients have seen.
func (d *database) collect(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select what, sum(n)::bigint from torture.sighting group by what")
	if err != nil {
		return err
	}
	var what string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&what, &n}, func() error {
		if rest, is := strings.CutPrefix(what, "unexpected "); is {
			d.report.violation("%s: %d times: %s", d.name, n, rest)
		} else {
			d.report.add(what, n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var committed, not int64
	err = conn.QueryRow(ctx, `select count(w.id), count(*) - count(w.id) from torture.unresolved u left join torture.written w using (id)`).Scan(&committed, &not)
	d.report.add("unknown commits that turned out to be committed", committed)
	d.report.add("unknown commits that turned out not to be", not)
	return err
}

// digest is one of everything that must not change by itself.
func (d *database) digest(ctx context.Context) (digest string, err error) {
	err = d.insist(ctx, func(conn *pgx.Conn) error {
		digest = ""
		for _, name := range d.flows {
			for _, table := range []string{"wed_flow", "wed_trace", "job_pool", "wed_trig", "wed_attr"} {
				var one string
				err := conn.QueryRow(ctx, fmt.Sprintf("select md5(coalesce(string_agg(t::text, E'\\n' order by t::text), '')) from %s.%s t",
					predicate.QuoteIdent(name), table)).Scan(&one)
				if err != nil {
					return err
				}
				digest += one
			}
		}
		return nil
	})
	return digest, err
}
