package wal

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/fold"
)

// BenchmarkApply writes batches of states that fire two jobs each, in the database
// that WED_SQL_TEST_CONN names, with nothing before or behind the applier.
func BenchmarkApply(b *testing.B) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		b.Skip("needs a server: set WED_SQL_TEST_CONN")
	}
	for _, size := range []int{1, 10, 1000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			ctx := context.Background()
			config, err := pgx.ParseConfig(dsn)
			if err != nil {
				b.Fatal(err)
			}
			config.Database = template
			conn, err := pgx.ConnectConfig(ctx, sessionConfig(config))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = closeConn(conn.PgConn()) }()
			a := newApplier(conn, slog.New(slog.DiscardHandler), 0)
			a.dedupe = false
			var relation uint32
			var rules, wid int64
			var tgids []fold.Rule
			if err := conn.QueryRow(ctx, "select wed_flow::oid, rules_version, (select max(tgid) + 1 from travel.wed_trig), (select epoch from wed_sql.follower), (select coalesce(max(wid), 0) from travel.wed_trace) from wed_sql.flow").
				Scan(&relation, &rules, new(int32), &a.epoch, &wid); err != nil {
				b.Fatal(err)
			}
			if err := conn.QueryRow(ctx, "select array_agg(tgid) from travel.wed_trig where trname in ('tr_a2', 'tr_a3')").Scan(&tgids); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for b.Loop() {
				batch := make([]Commit, size)
				for i := range batch {
					wid++
					batch[i] = Commit{Time: time.Now(), End: 1, Versions: []Version{{Relation: relation, Wid: wid,
						State: `{"a1":"ready","a2":null,"a3":null}`, Stamp: Stamp{Rules: rules, Matched: tgids}}}}
				}
				if _, err := a.apply(ctx, batch, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "states/s")
		})
	}
}
