package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/internal/servertest"
	"github.com/wed-sql/wed_sql/internal/stall"
	"github.com/wed-sql/wed_sql/sweeper"
)

const template = "sweeper_test_template"

func TestMain(m *testing.M) {
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	restore, err := servertest.Prepare(ctx, dsn, template, `
select wed_sql.create_flow('f');
insert into f.wed_attr (aname, adv) values ('a', 'x');
insert into f.wed_trig (trname, cpred, timeout) values ('go', 'a is not null', '1 second');
insert into f.wed_flow default values`)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the server:", err)
		os.Exit(1)
	}
	status := m.Run()
	if err := restore(); err != nil {
		fmt.Fprintln(os.Stderr, "restore the server:", err)
		status = 1
	}
	os.Exit(status)
}

// start has a sweeper run in a database of the test's own, and returns what connects there.
func start(t *testing.T) (*sweeper.Sweeper, func() *pgx.Conn) {
	t.Helper()
	dsn := os.Getenv("WED_SQL_TEST_CONN")
	if dsn == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	name := pgx.Identifier{strings.ToLower(t.Name())}
	for _, sql := range []string{"drop database if exists " + name.Sanitize(), "create database " + name.Sanitize() + " template " + template} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "drop database "+name.Sanitize()+" with (force)"); err != nil {
			t.Error(err)
		}
		_ = admin.Close(context.Background())
	})
	config.Database = name[0]
	s := sweeper.New(sweeper.Settings{
		Open: func(ctx context.Context) (sweeper.Session, error) { return sweeper.Open(ctx, config, nil) },
		Log:  slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	return s, func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
}

func TestATransactionThatTakesTooLongIsEnded(t *testing.T) {
	s, connect := start(t)
	conn, observer := connect(), connect()
	// The test has no follower.
	if _, err := observer.Exec(t.Context(), `insert into f.job_pool (wid, tgid, trname, timeout, payload, fired_at, version)
select 1, tgid, trname, timeout, '{}', now(), 0 from f.wed_trig on conflict do nothing`); err != nil {
		t.Fatal(err)
	}
	machine := stall.Watch(t)
	var begun time.Time
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "select now() from f.job_pool where pg_try_advisory_xact_lock(wid::int, tgid)").Scan(&begun); err != nil {
		t.Fatal(err)
	}
	s.Jobs(time.Second)
	_, err := conn.Exec(t.Context(), "select pg_sleep(10)")
	took := time.Since(begun)
	var server *pgconn.PgError
	if !errors.As(err, &server) || server.Code != "57P01" || !strings.Contains(server.Detail, "lock of a pending job") {
		t.Errorf("the transaction ended with %v", err)
	}
	if took < time.Second || took > machine.Patience(1250*time.Millisecond) {
		t.Errorf("it was ended after %v", took)
	}
}

func TestTimersAreDoneWhenTheirTransactionHasEnded(t *testing.T) {
	s, connect := start(t)
	conn, observer := connect(), connect()
	// A withdrawn job that is gone already: nothing but the timer is left of it.
	const set = `insert into wed_sql.timer (flow_id, wid, tgid, kind, version, due_at)
select flow_id, $1::bigint, 1, 'w', 1, clock_timestamp() + $2::interval from wed_sql.flow returning due_at, pg_current_xact_id()::xid::text::bigint`
	left := func() (n int) {
		t.Helper()
		if err := observer.QueryRow(t.Context(), "select count(*) from wed_sql.timer").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var due time.Time
	var xid int64
	if err := conn.QueryRow(t.Context(), set, 1, "1 second").Scan(&due, &xid); err != nil {
		t.Fatal(err)
	}
	machine := stall.Watch(t)
	s.Due(due, uint32(xid))
	for left() > 0 {
	}
	if late := time.Since(due); late < 0 || late > machine.Patience(time.Second) {
		t.Errorf("done %v after its time", late)
	}

	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), set, 2, "0").Scan(&due, &xid); err != nil {
		t.Fatal(err)
	}
	s.Due(due, uint32(xid)) // as if it was read from the log before others see it
	if err := conn.QueryRow(t.Context(), "select pg_sleep(0.3)::text").Scan(new(string)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "commit"); err != nil {
		t.Fatal(err)
	}
	committed := time.Now()
	for left() > 0 {
	}
	if late := time.Since(committed); late > machine.Patience(time.Second) {
		t.Errorf("done %v after it was committed", late)
	}
}
