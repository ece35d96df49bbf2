package stress

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	workersFlow = "stress_workers"
	killPause   = 100 * time.Millisecond // between two kills
	inProgress  = 100                    // instances that are under way while workers are killed
)

var transitions = []string{"tr_a2", "tr_a3", "tr_final"}

// Every kind of worker there is performs figure 2, side by side, and one of them is killed by SIGKILL all the time: 200
// times, or as WED_SQL_STRESS_KILLS says. Every instance ends as Algorithm 1 says, and no business row is written twice.
func TestKilledWorkersLoseAndDoubleNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	conn := connect(ctx, t)
	defineFigure2(ctx, t, conn, workersFlow)
	t.Cleanup(func() { execute(context.Background(), t, conn, "select wed_sql.drop_flow($1)", workersFlow) })
	// What a worker does besides: nothing would refuse a second row.
	execute(ctx, t, conn, "create table "+workersFlow+".written (flow text, wid bigint, tgid integer, version bigint)")
	execute(ctx, t, conn, "select wed_sql.sync('2 minutes')")

	all := newTrade(t)
	f := newFleet(t)
	for _, g := range all.managers() {
		f.add(g, "")
	}
	for _, k := range all.kinds() {
		for _, transition := range transitions {
			f.add(k, transition)
		}
	}
	n := f.killWhileDriving(ctx, conn, kills(t))

	f.awaitEnd(ctx, conn, n)
	f.stop((*member).performs)
	// Who is slow may have got no job beside the others.
	done := query[[]string](ctx, t, conn, "select array_agg(distinct "+byWhom+") from "+workersFlow+".wed_trace where trw is not null")
	for _, k := range all.kinds() {
		if slices.Contains(done, k.name) {
			continue
		}
		t.Logf("workers of kind %q had got no job: one instance for them alone", k.name)
		for _, transition := range transitions {
			f.add(k, transition)
		}
		execute(ctx, t, conn, "insert into "+workersFlow+".wed_flow default values")
		n++
		f.awaitEnd(ctx, conn, n)
		f.stop((*member).performs)
	}
	f.stop(func(*member) bool { return true })
	judgeAll(ctx, t, conn, workersFlow, n)
	if left := query[int](ctx, t, conn, "select count(*) from "+workersFlow+".job_pool"); left != 0 {
		t.Errorf("%d jobs are left", left)
	}
	judgeBusiness(ctx, t, conn)
	f.report(ctx, conn, n)
}

// awaitEnd waits until so many instances have ended.
func (f *fleet) awaitEnd(ctx context.Context, conn *pgx.Conn, n int) {
	f.Helper()
	t := f.T
	ended := fmt.Sprintf("select count(*) from %s.wed_trace where status = 'F'", workersFlow)
	for deadline := time.Now().Add(5 * time.Minute); query[int](ctx, t, conn, ended) < n; {
		f.check()
		if time.Now().After(deadline) {
			t.Errorf("%d of %d instances have ended; of the others pend:\n%s", query[int](ctx, t, conn, ended), n,
				query[string](ctx, t, conn, "select coalesce(string_agg(j::text, E'\\n'), 'nothing') from (select * from "+workersFlow+".job_pool limit 10) j"))
			break
		}
		execute(ctx, t, conn, "select wed_sql.sync('2 minutes')")
	}
}

// byWhom is the kind of worker that has written a state: each writes its name.
const byWhom = "case trw when 'tr_a2' then state->>'a2' when 'tr_a3' then state->>'a3' else state->>'a1' end"

// judgeBusiness compares what the workers have written besides with the states. Those that reach the database by a gateway
// write nothing besides.
func judgeBusiness(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	t.Helper()
	rows, err := conn.Query(ctx, `
		select format('instance %s, %s by %s: %s rows for %s states', wid, transition, s.worker, coalesce(w.n, 0), coalesce(s.n, 0))
		  from (select r.wid, t.trname as transition, count(*) as n
		          from `+workersFlow+`.written r join `+workersFlow+`.wed_trig t using (tgid) group by 1, 2) w
		  full join (select wid, trw as transition, min(`+byWhom+`) as worker, count(*) as n
		               from `+workersFlow+`.wed_trace where trw is not null and `+byWhom+` <> $1 group by 1, 2) s
		 using (wid, transition)
		 where w.n is distinct from s.n limit 10`, throughGateway)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Errorf("business rows: %s", w)
	}
}

func kills(t *testing.T) int {
	t.Helper()
	s := os.Getenv("WED_SQL_STRESS_KILLS")
	if s == "" {
		return 200
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("WED_SQL_STRESS_KILLS: %v", err)
	}
	return n
}

// fleet is a number of worker processes that are started again when they are killed.
type fleet struct {
	*testing.T
	group   errgroup.Group
	members []*member
	stopped []*member
}

type member struct {
	kind       kind
	transition string
	cmd        *exec.Cmd
	output     *bytes.Buffer
	kills      int
	killed     bool
	gone       chan struct{}
	failure    error
}

// performs tells workers from the gateways that they need.
func (m *member) performs() bool { return m.transition != "" }

func newFleet(t *testing.T) *fleet {
	f := &fleet{T: t}
	t.Cleanup(func() {
		for _, m := range f.members {
			_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
			<-m.gone
		}
		_ = f.group.Wait()
	})
	return f
}

func (f *fleet) add(k kind, transition string) {
	f.Helper()
	m := &member{kind: k, transition: transition}
	f.start(m)
	f.members = append(f.members, m)
}

func (f *fleet) start(m *member) {
	f.Helper()
	m.cmd, m.output, m.killed, m.gone = m.kind.command(m.transition), &bytes.Buffer{}, false, make(chan struct{})
	m.cmd.Stdout, m.cmd.Stderr = m.output, m.output
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.cmd.WaitDelay = time.Second
	if err := m.cmd.Start(); err != nil {
		f.Fatalf("start a worker (%s): %v", m.kind.name, err)
	}
	cmd, gone := m.cmd, m.gone
	f.group.Go(func() error {
		defer close(gone)
		m.failure = cmd.Wait()
		return nil
	})
}

// awaitReady waits until a member would take notice of SIGTERM: it has started then.
func (f *fleet) awaitReady(m *member) {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); !hasStarted(m.cmd); time.Sleep(time.Millisecond) {
		f.check()
		if time.Now().After(deadline) {
			f.Fatalf("a worker (%s, %s) does not start:\n%s", m.kind.name, m.transition, m.output)
		}
	}
}

// hasStarted reports whether a worker would take notice of SIGTERM. Node.js has a handler of its own from the beginning:
// there, a worker has one of its own before it connects.
func hasStarted(cmd *exec.Cmd) bool {
	if cmd.Args[0] == "node" && !hasSocket(cmd.Process.Pid) {
		return false
	}
	return catches(cmd.Process.Pid, syscall.SIGTERM)
}

func hasSocket(pid int) bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return err == nil && slices.ContainsFunc(files, func(f string) bool {
		to, err := os.Readlink(f)
		return err == nil && strings.HasPrefix(to, "socket:")
	})
}

// catches reports whether a process has a handler of a signal.
func catches(pid int, s syscall.Signal) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, mask, _ := strings.Cut(string(status), "\nSigCgt:\t")
	mask, _, _ = strings.Cut(mask, "\n")
	caught, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && caught&(1<<(s-1)) != 0
}

// kill kills a member, its children included, and starts it again.
func (f *fleet) kill(m *member) {
	f.Helper()
	f.check()
	m.killed = true
	if err := syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		f.Fatalf("kill a worker (%s): %v", m.kind.name, err)
	}
	<-m.gone
	m.kills++
	f.start(m)
}

// check fails when a worker has ended by itself.
func (f *fleet) check() {
	f.Helper()
	for _, m := range f.members {
		select {
		case <-m.gone:
			f.Fatalf("a worker (%s, %s) ended by itself: %v\n%s", m.kind.name, m.transition, m.failure, m.output)
		default:
		}
	}
}

// killWhileDriving kills members at random, each of them as often as the others, and keeps a number of instances under
// way. It returns how many were started.
func (f *fleet) killWhileDriving(ctx context.Context, conn *pgx.Conn, kills int) (started int) {
	f.Helper()
	order := []*member{}
	for range kills {
		if len(order) == 0 {
			order = slices.Clone(f.members)
			rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		under := started - query[int](ctx, f.T, conn, "select count(*) from "+workersFlow+".wed_trace where status = 'F'")
		if under < inProgress {
			execute(ctx, f.T, conn, "insert into "+workersFlow+".wed_flow select from generate_series(1, $1)", inProgress-under)
			started += inProgress - under
		}
		f.awaitReady(order[0])
		// Not what is waited for, but when the blow falls.
		time.Sleep(rand.N(2 * killPause))
		f.kill(order[0])
		order = order[1:]
	}
	return started
}

// stop has some of them finish, as an operator would.
func (f *fleet) stop(which func(*member) bool) {
	f.Helper()
	var going, staying []*member
	for _, m := range f.members {
		if which(m) {
			f.awaitReady(m)
			going = append(going, m)
		} else {
			staying = append(staying, m)
		}
	}
	f.members, f.stopped = staying, append(f.stopped, going...)
	for _, m := range going {
		_ = syscall.Kill(m.cmd.Process.Pid, syscall.SIGTERM)
	}
	for _, m := range going {
		select {
		case <-m.gone:
		case <-time.After(time.Minute):
			f.Errorf("a worker (%s, %s) does not end when it is told to:\n%s", m.kind.name, m.transition, m.output)
			_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
			<-m.gone
			continue
		}
		if m.failure != nil {
			f.Errorf("a worker (%s, %s) that is told to end does so with %v:\n%s", m.kind.name, m.transition, m.failure, m.output)
		}
	}
}

// report logs what was survived, and by whom.
func (f *fleet) report(ctx context.Context, conn *pgx.Conn, n int) {
	total, by := 0, map[string]int{}
	for _, m := range f.stopped {
		total += m.kills
		by[m.kind.name] += m.kills
	}
	rows, err := conn.Query(ctx, "select "+byWhom+", count(*) from "+workersFlow+".wed_trace where trw is not null group by 1 order by 1")
	if err != nil {
		f.Fatal(err)
	}
	var summary []string
	var worker string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&worker, &count}, func() error {
		summary = append(summary, fmt.Sprintf("%s: %d done, killed %d times", worker, count, by[worker]))
		delete(by, worker)
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	for other, kills := range by {
		if !strings.HasPrefix(other, "gateway ") {
			f.Errorf("workers of kind %q have done nothing", other)
		}
		summary = append(summary, fmt.Sprintf("%s: killed %d times", other, kills))
	}
	f.Logf("%d instances, %d kills; %s", n, total, strings.Join(summary, "; "))
}
