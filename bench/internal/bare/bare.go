// Package bare has pgbench do the transaction of the statements that a transition
// cannot do without: lock, update one row, delete one row, commit. No system that
// takes one job per transaction can be faster.
package bare

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/wed-sql/wed_sql/bench/internal/server"
)

const tables = `create table plain (wid bigint primary key, pad text default repeat('x', 90), a1 text default 'ready', a2 text, a3 text)
		with (fillfactor = 70);
	create table plain_job (wid bigint, tgid integer, trname text, payload jsonb, fired_at timestamptz default now(),
		primary key (wid, tgid));
	create index on plain_job (trname, fired_at);
	insert into plain (wid) select generate_series(1, %[1]d);
	insert into plain_job (wid, tgid, trname) select wid, 1, 'x' from plain`

const script = `\set i :i + 1
\set wid :client_id * :each + :i
begin;
select pg_try_advisory_xact_lock(:wid::integer, 1);
update plain set a2 = 'x' where wid = :wid;
delete from plain_job where wid = :wid and tgid = 1;
commit;
`

// Ceiling is how many such transactions so many clients make per second, each of a row and a job of its own.
func Ceiling(ctx context.Context, s *server.Server, transactions, clients int) (perSecond float64, err error) {
	err = s.With(ctx, "bare", func(db *server.Database) error {
		each := transactions / clients
		if err := db.Exec(ctx, fmt.Sprintf(tables, each*clients)); err != nil {
			return err
		}
		if err := db.Settle(ctx); err != nil {
			return err
		}
		perSecond, err = PGBench(ctx, db, script, clients, fmt.Sprintf("--transactions=%d", each), "--define=i=0",
			fmt.Sprintf("--define=each=%d", each))
		return err
	})
	return perSecond, err
}

// PGBench runs a script and returns the transactions per second that it reports.
func PGBench(ctx context.Context, db *server.Database, script string, clients int, args ...string) (float64, error) {
	args = append([]string{"--no-vacuum", "--protocol=prepared", "--file=-", "--jobs=2", fmt.Sprintf("--client=%d", clients)}, args...)
	cmd := exec.CommandContext(ctx, "pgbench", append(args, db.Name)...)
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if tps, ok := strings.CutPrefix(line, "tps = "); ok {
			return strconv.ParseFloat(strings.Fields(tps)[0], 64)
		}
	}
	return 0, fmt.Errorf("pgbench does not say how fast it was:\n%s", out)
}
