package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

// start starts a cluster with a flow in database postgres whose instances stay where they begin.
func start(t *testing.T) (context.Context, *cluster.Cluster) {
	t.Helper()
	if os.Getenv("WED_SQL_TEST_CONN") == "" {
		t.Skip("needs a server's installation with wed_sql in PATH: WED_SQL_TEST_CONN is not set")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	execute(ctx, t, c, "create extension wed_sql", "select wed_sql.create_flow('travel')",
		"insert into travel.wed_attr (aname) values ('a'); insert into travel.wed_trig (trname, cpred) values ('go', 'a is null')")
	if err := c.Streaming(ctx, []string{"postgres"}); err != nil {
		t.Fatal(err)
	}
	return ctx, c
}

// execute executes each of the commands in a transaction of its own.
func execute(ctx context.Context, t *testing.T, c *cluster.Cluster, commands ...string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, c.ConnString("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range commands {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// goesOn inserts an instance and sees that its job comes.
func goesOn(ctx context.Context, t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if err := c.Streaming(ctx, []string{"postgres"}); err != nil {
		t.Fatal(err)
	}
	execute(ctx, t, c, "insert into travel.wed_flow default values", "select wed_sql.sync()", `do $$ begin
		if exists (select from travel.wed_flow f where not exists (select from travel.job_pool j where j.wid = f.wid)) then
			raise 'an instance has no job'; end if; end $$`)
}

func one(t *testing.T, c *cluster.Cluster, kind cluster.Kind) cluster.Process {
	t.Helper()
	found, err := c.Find(kind)
	if err != nil || len(found) != 1 {
		all, _ := c.Processes()
		t.Fatalf("%s: %v, %v; there are %v", kind, found, err, all)
	}
	return found[0]
}

func TestClusterKnowsItsProcesses(t *testing.T) {
	ctx, c := start(t)
	engine, supervisor, postmaster := one(t, c, cluster.Engine), one(t, c, cluster.Supervisor), one(t, c, cluster.Postmaster)
	one(t, c, cluster.Walsender)
	if engine.Parent != supervisor.PID || supervisor.Parent != postmaster.PID {
		t.Errorf("the engine is a child of %d, the supervisor, %d, of %d, the postmaster is %d",
			engine.Parent, supervisor.PID, supervisor.Parent, postmaster.PID)
	}
	if pid, err := c.EnginePID(ctx, "postgres"); err != nil || pid != engine.PID {
		t.Errorf("wed_sql.status says %d, %v; it is %d", pid, err, engine.PID)
	}
	sessions, err := c.Sessions(ctx)
	if err != nil || len(sessions) == 0 {
		t.Fatal(sessions, err)
	}
	for _, s := range sessions {
		if p, ok := c.Process(s.PID); ok && p.Kind != cluster.Backend {
			t.Errorf("%v is the backend of %v", p, s)
		}
	}

	if err := engine.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.Streaming(ctx, []string{"postgres"}, engine.PID); err != nil {
		t.Fatal(err)
	}
	if engine.Alive() || engine.Signal(syscall.SIGKILL) == nil {
		t.Error("the engine that was killed can be killed again")
	}
	goesOn(ctx, t, c)
}

func TestClusterComesBackHoweverItIsEnded(t *testing.T) {
	ctx, c := start(t)
	for _, mode := range []cluster.Mode{cluster.Fast, cluster.Immediate} {
		if err := c.Restart(ctx, mode); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		goesOn(ctx, t, c)
	}
	// Killed, while a child of it does not notice.
	engine, walsender := one(t, c, cluster.Engine), one(t, c, cluster.Walsender)
	if err := walsender.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if walsender.Alive() || engine.Alive() {
		t.Error("a process has outlived its server")
	}
	goesOn(ctx, t, c)
}

func TestClosedItLeavesNothing(t *testing.T) {
	_, c := start(t)
	postmaster := one(t, c, cluster.Postmaster)
	all, err := c.Processes()
	if err != nil {
		t.Fatal(err)
	}
	if segments(t, postmaster.PID) == "" {
		t.Error("it has no shared memory to leave")
	}
	if err := postmaster.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Alive() {
			t.Errorf("%v is left", p)
		}
	}
	if left := segments(t, postmaster.PID); left != "" {
		t.Errorf("shared memory is left:\n%s", left)
	}
}

// segments are the lines of System V shared memory that was made by a process.
func segments(t *testing.T, pid int) string {
	t.Helper()
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == strconv.Itoa(pid) { // key shmid perms size cpid
			left = append(left, line)
		}
	}
	return strings.Join(left, "")
}

func TestFailoverKeepsTheAddress(t *testing.T) {
	ctx, c := start(t)
	goesOn(ctx, t, c)
	for _, kill := range []bool{false, true} {
		if err := c.AddStandby(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.Synchronous(ctx, kill); err != nil {
			t.Fatal(err)
		}
		before := c.Data()
		if err := c.Failover(ctx, kill); err != nil {
			t.Fatal(err)
		}
		if c.Data() == before {
			t.Error("it is the same server")
		}
		goesOn(ctx, t, c)
	}
	execute(ctx, t, c, `do $$ begin if (select count(*) from travel.wed_flow) <> 3 then raise 'an instance is lost'; end if; end $$`)
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	if os.Getenv("WED_SQL_TEST_CONN") == "" {
		t.Skip("needs a server's installation in PATH: WED_SQL_TEST_CONN is not set")
	}
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	_, err = cluster.Start(t.Context(), cluster.Config{Dir: dir, Settings: []string{"shared_buffers = many"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers"`) {
		t.Errorf("the log is not quoted: %v", err)
	}
	if out, err := exec.Command("ls", dir).CombinedOutput(); err == nil {
		t.Errorf("its directory is left:\n%s", out)
	}
}
