package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

func shortageFaults() []Fault {
	return []Fault{
		{Name: "disk full", Weight: 2, Down: true, Inject: fillDisk},
		{Name: "connections exhausted", Weight: 2, Inject: exhaustConnections},
		{Name: "notification queue full", Weight: 2, Inject: fillQueue},
		{Name: "clock moved", Weight: 3, Clock: true, Inject: moveClock},
	}
}

// isCode tells whether the server has said one of the SQLSTATEs.
func isCode(err error, codes ...string) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return false
	}
	for _, code := range codes {
		if server.Code == code {
			return true
		}
	}
	return false
}

// fillDisk lets no file of the server grow for a while. One that cannot write its log crashes, and does not come up until it
// can: then it is started again.
func fillDisk(ctx context.Context, w World) error {
	s, err := switchesOf(w)
	if err != nil {
		return err
	}
	before, err := s.refused()
	if err != nil {
		return err
	}
	if err := s.full(true); err != nil {
		return err
	}
	// Something that must grow, if nothing else does. What becomes of it, is the fault.
	_ = execute(ctx, w, "postgres",
		"create table public.wed_sql_fault_growth as select repeat('x', 500) as x from generate_series(1, 1000)",
		newSegment)
	err = rest(ctx, between(w, 100*time.Millisecond, 3*time.Second))
	if err := errors.Join(err, s.full(false)); err != nil {
		return err
	}
	if err := w.Cluster().Resume(ctx); err != nil {
		return err
	}
	if err := w.Cluster().Ready(ctx); err != nil {
		return err
	}
	if err := execute(ctx, w, "postgres", "drop table if exists public.wed_sql_fault_growth"); err != nil {
		return err
	}
	if err := healed(ctx, w); err != nil {
		return err
	}
	after, err := s.refused()
	if err == nil && after == before {
		return skipped("nothing was to be written")
	}
	return err
}

// exhaustConnections leaves no connection for anybody but the superuser, and of these none but the reserved ones, which the
// engine does not take; and has the engine look for some.
func exhaustConnections(ctx context.Context, w World) (err error) {
	const role = "wed_sql_fault_crowd"
	err = execute(ctx, w, "postgres", "do $$ begin create role "+role+" login; exception when duplicate_object then null; end $$")
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(w.Cluster().ConnString("postgres"))
	if err != nil {
		return err
	}
	config.User = role
	var crowd []*pgx.Conn
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, conn := range crowd {
			_ = conn.Close(bye)
		}
		if err == nil {
			err = healed(ctx, w)
		}
	}()
	fill := func() error {
		for len(crowd) < 10000 {
			conn, err := pgx.ConnectConfig(ctx, config)
			if isCode(err, "53300") {
				return nil
			}
			if err != nil {
				return fmt.Errorf("exhaust the connections: %w", err)
			}
			crowd = append(crowd, conn)
		}
		return errors.New("exhaust the connections: there is no end of them")
	}
	if err := fill(); err != nil {
		return err
	}
	p, err := one(w, cluster.Engine)
	if err == nil {
		err = signal(p, syscall.SIGKILL)
	}
	if err != nil {
		return err
	}
	if err := gone(ctx, p); err != nil {
		return err
	}
	if err := fill(); err != nil { // with those that were the engine's
		return err
	}
	return rest(ctx, between(w, 500*time.Millisecond, 3*time.Second))
}

// smallQueue is a size of the notification queue, in pages, that can be filled.
const smallQueue = 64

// fillQueue keeps the notification queue full for a while. Before PostgreSQL 17 its size is 8 GB whatever one wants; there
// each first commit of the engine is refused in the same way, by a trigger.
func fillQueue(ctx context.Context, w World) error {
	database, err := anyDatabase(w)
	if err != nil {
		return err
	}
	var pages *int
	if err := within(ctx, w, database, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select current_setting('max_notify_queue_pages', true)::int").Scan(&pages)
	}); err != nil {
		return err
	}
	if pages != nil && *pages <= 16*smallQueue {
		err = holdQueue(ctx, w, database)
	} else {
		err = refuseNotifications(ctx, w, database)
	}
	if err != nil {
		return fmt.Errorf("fill the notification queue: %w", err)
	}
	return healed(ctx, w)
}

// holdQueue fills it, with a listener that does not read.
func holdQueue(ctx context.Context, w World, database string) error {
	return within(ctx, w, database, func(listener *pgx.Conn) error {
		for _, sql := range []string{"listen wed_sql_fault", "begin"} {
			if _, err := listener.Exec(ctx, sql); err != nil {
				return err
			}
		}
		err := within(ctx, w, database, func(conn *pgx.Conn) error {
			for {
				_, err := conn.Exec(ctx, "select pg_notify('wed_sql_fault', $1 || n) from generate_series(1, 10) n",
					strings.Repeat("x", 7900))
				if isCode(err, "54000") {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		return rest(ctx, between(w, 500*time.Millisecond, 3*time.Second))
	})
}

func refuseNotifications(ctx context.Context, w World, database string) error {
	err := execute(ctx, w, database, `
create sequence if not exists public.wed_sql_fault_refused;
create or replace function public.wed_sql_fault_refuse() returns trigger language plpgsql as $$
begin
    if nextval('public.wed_sql_fault_refused') % 2 = 1 then
        raise 'too many notifications in the NOTIFY queue' using errcode = 'program_limit_exceeded';
    end if;
    return null;
end
$$;
create constraint trigger wed_sql_fault after update on wed_sql.follower deferrable initially deferred
    for each row execute function public.wed_sql_fault_refuse()`)
	if err != nil {
		return err
	}
	err = rest(ctx, between(w, 500*time.Millisecond, 3*time.Second))
	return errors.Join(err, execute(ctx, w, database, "drop trigger wed_sql_fault on wed_sql.follower",
		"drop function public.wed_sql_fault_refuse(); drop sequence public.wed_sql_fault_refused"))
}

// moveClock has the server's clock be wrong for a while, but not the engine's.
func moveClock(ctx context.Context, w World) error {
	s, err := switchesOf(w)
	if err != nil {
		return err
	}
	by := between(w, time.Second, time.Hour)
	if w.Rand().Intn(2) == 0 {
		by = -by
	}
	if err := s.ahead(by); err != nil {
		return err
	}
	err = rest(ctx, between(w, 200*time.Millisecond, 4*time.Second))
	if err := errors.Join(err, s.ahead(0)); err != nil {
		return err
	}
	return healed(ctx, w)
}
