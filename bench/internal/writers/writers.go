// Package writers says what a notification in each writer's transaction costs all of
// them, and what a write to wed_flow does, whose notifications the engine sends.
package writers

import (
	"context"
	"fmt"

	"github.com/wed-sql/wed_sql/bench/internal/bare"
	"github.com/wed-sql/wed_sql/bench/internal/contest"
	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// Sizes say how much is written, and how many listen.
type Sizes struct{ Writes, Listeners int }

const clients = 32

// kind of write: of one row, in a transaction of one statement.
type kind struct {
	name      string
	flow      bool   // needs wed_sql
	statement string // of row :wid
	channel   string // that the listeners listen to
	listeners int
}

func kinds(sizes Sizes) []kind {
	const (
		update = "update plain set v = v + 1 where wid = :wid"
		notify = "with written as (" + update + " returning wid) select pg_notify('written', wid::text) from written"
		// the lock comes first, as in any transition, and what the state fires is notified by the engine
		write = "update busy.wed_flow set v = v + 1 where wid = :wid and wed_sql.try_lock(:wid, :tgid)"
	)
	return []kind{
		{name: "plain update", statement: update},
		{name: "plain update, NOTIFY in it", statement: notify},
		{name: "plain update, NOTIFY in it, 1 listener", statement: notify, channel: "written", listeners: 1},
		{name: "wed_flow, no listener", flow: true, statement: write},
		{name: listening("wed_flow, %s listeners", sizes.Listeners), flow: true, statement: write, channel: "rest", listeners: sizes.Listeners},
		{name: listening("wed_flow, %s listeners to what is fired", sizes.Listeners), flow: true, statement: write, channel: "second", listeners: sizes.Listeners},
	}
}

func listening(format string, n int) string {
	s := fmt.Sprint(n)
	if n >= 1000 {
		s = fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return fmt.Sprintf(format, s)
}

// Bouts of all kinds of writes.
func Bouts(sizes Sizes) (bouts []contest.Bout) {
	for _, k := range kinds(sizes) {
		bouts = append(bouts, contest.Bout{Workload: "writers", System: k.name, Run: func(ctx context.Context, s *server.Server, r *report.Report) error {
			tps, err := k.measure(ctx, s, sizes.Writes)
			if err == nil {
				r.Add(report.Writers, k.name, report.PerSecond, tps)
			}
			return err
		}})
	}
	return bouts
}

const (
	plain = `create table plain (wid bigint primary key, v integer default 0, pad text default repeat('x', 90)) with (fillfactor = 70);
		insert into plain (wid) select generate_series(1, %d)`
	// two flows: in one each write fires the next transition, in the other one all wait for something
	flows = `select wed_sql.create_flow('busy'); select wed_sql.create_flow('idle');
		insert into busy.wed_attr (aname, atype, adv) values ('v', 'integer', '0'), ('pad', 'text', repeat('x', 90));
		insert into busy.wed_trig (trname, cpred) values ('first', 'v = 0'), ('second', 'v = 1');
		insert into busy.wed_trig (cpred, cfinal) values ('v = 2', true);
		insert into idle.wed_attr (aname, atype, adv) values ('v', 'integer', '0');
		insert into idle.wed_trig (trname, cpred) values ('rest', 'v = 0');
		insert into idle.wed_trig (cpred, cfinal) values ('v = 1', true);
		insert into idle.wed_flow (v) select 0 from generate_series(1, 100)`
)

func (k kind) measure(ctx context.Context, s *server.Server, writes int) (perSecond float64, err error) {
	err = s.With(ctx, "writers", func(db *server.Database) error {
		perSecond, err = k.write(ctx, db, writes)
		return err
	})
	return perSecond, err
}

func (k kind) write(ctx context.Context, db *server.Database, writes int) (perSecond float64, err error) {
	each := writes / clients
	tgid, err := k.fill(ctx, db, each*clients)
	if err != nil {
		return 0, err
	}
	stop, err := db.Listen(ctx, k.channel, k.listeners)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := stop(); err == nil {
			err = e
		}
	}()
	if err := db.Settle(ctx); err != nil {
		return 0, err
	}
	script := "\\set i :i + 1\n\\set wid :client_id * :each + :i\n" + k.statement + ";\n"
	return bare.PGBench(ctx, db, script, clients, fmt.Sprintf("--transactions=%d", each), "--define=i=0",
		fmt.Sprintf("--define=each=%d", each), fmt.Sprintf("--define=tgid=%d", tgid))
}

func (k kind) fill(ctx context.Context, db *server.Database, rows int) (tgid int32, err error) {
	if !k.flow {
		return 0, db.Exec(ctx, fmt.Sprintf(plain, rows))
	}
	for _, sql := range []string{
		"create extension wed_sql", flows,
		fmt.Sprintf("insert into busy.wed_flow (v) select 0 from generate_series(1, %d)", rows),
		"select wed_sql.sync('10 minutes')",
	} {
		if err := db.Exec(ctx, sql); err != nil {
			return 0, err
		}
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, "select tgid from busy.wed_trig where trname = 'first'").Scan(&tgid)
	return tgid, err
}
