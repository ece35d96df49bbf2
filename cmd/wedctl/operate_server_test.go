package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wed-sql/wed_sql/internal/pulse"
)

// office is a database with a flow in which a clerk is wanted, then a boss.
type office struct {
	*testing.T
	dsn string
}

func openOffice(t *testing.T) *office {
	t.Helper()
	o := &office{T: t, dsn: testDatabase(t)}
	execute(t, o.dsn, "create extension wed_sql", "select wed_sql.create_flow('desk')",
		"insert into desk.wed_attr (aname, atype, adv) values ('stage', 'text', 'new'), ('n', 'integer', null), ('note', 'text', null), ('tags', 'jsonb', null)",
		"insert into desk.wed_trig (trname, cpred) values ('clerk', $$stage = 'new'$$), ('boss', $$stage = 'checked'$$)",
		"insert into desk.wed_trig (cpred, cfinal) values ($$stage = 'done'$$, true)", "select wed_sql.sync()")
	return o
}

// run expects an exit status, and returns what was printed.
func (o *office) run(status int, args ...string) (stdout, stderr string) {
	o.Helper()
	stdout, stderr, got := wedctl(o.Context(), append([]string{"-d", o.dsn}, args...)...)
	if got != status {
		o.Fatalf("%q: exit status %d, want %d\n%s%s", args, got, status, stdout, stderr)
	}
	return stdout, stderr
}

// settle waits until what was written is in the history and in the job pool.
func (o *office) settle() {
	o.Helper()
	execute(o.T, o.dsn, "select wed_sql.sync()")
}

func (o *office) wids(args ...string) string {
	o.Helper()
	out, _ := o.run(exitOK, append([]string{"instance", "list", "-o", "json"}, args...)...)
	var rows []instanceRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		o.Fatalf("%v: %s", err, out)
	}
	wids := make([]string, len(rows))
	for i, r := range rows {
		wids[i] = fmt.Sprint(r.WID)
	}
	return strings.Join(wids, " ")
}

func TestStartPrintsTheNumberOfWhatItHasStarted(t *testing.T) {
	o := openOffice(t)
	awkward := `it's "quoted" \ and = équal` + "\n" + `$1`
	if out, _ := o.run(exitOK, "instance", "start", "note="+awkward, "n=7"); out != "1\n" {
		t.Errorf("prints %q", out)
	}
	if got := value(t, o.dsn, "select note from desk.wed_flow where wid = 1 and n = 7 and stage = 'new'"); got != awkward {
		t.Errorf("wrote %q", got)
	}
	out, _ := o.run(exitOK, "instance", "start", "--set-json", `{"n": 3, "note": null, "tags": {"a": [1]}}`, "--count", "2", "-o", "json")
	if out != "[\n  {\"flow\":\"desk\",\"wid\":2},\n  {\"flow\":\"desk\",\"wid\":3}\n]\n" {
		t.Errorf("prints %s", out)
	}
	if got := value(t, o.dsn, `select count(*) from desk.wed_flow where n = 3 and note is null and tags = '{"a": [1]}'`); got != "2" {
		t.Errorf("%s were started", got)
	}
	o.run(exitOK, "instance", "start", `tags=["x"]`, "--set-json", `{"n": 4}`)
	o.run(exitOK, "instance", "start", "-n", "2100")
	if got := value(t, o.dsn, "select count(*) from desk.wed_flow"); got != "2104" {
		t.Errorf("%s instances, want 2104", got)
	}
	if _, stderr := o.run(exitNotFound, "instance", "start", "nope=1"); !strings.Contains(stderr, "n, note, stage, tags") {
		t.Errorf("says %q", stderr)
	}
	o.run(exitFailure, "instance", "start", "n=many")
	o.run(exitFailure, "instance", "start", "-n", "3", "stage=nowhere")
	if got := value(t, o.dsn, "select count(*) from desk.wed_flow"); got != "2104" {
		t.Errorf("%s instances, want 2104", got)
	}
}

func TestListFindsInstances(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "n=1")
	o.run(exitOK, "instance", "start", "n=2", "stage=checked")
	o.run(exitOK, "instance", "start", "n=3", "stage=done")
	o.run(exitOK, "instance", "start", "n=4")
	o.settle()
	o.run(exitOK, "instance", "cancel", "4")
	o.settle()
	for want, args := range map[string][]string{
		"4 3 2 1": {}, "1 2 3 4": {"--oldest"}, "4 3": {"--limit", "2"}, "3": {"--status", "final"},
		"2 1": {"-s", "R"}, "4 3 1": {"--where", "n <> 2"}, "2": {"--pending", "boss"},
		"1": {"--where", "n < 3 -- small\n", "--pending", "clerk", "-s", "regular,final"}, "": {"--where", "wed_instance.version > 9"},
		"4": {"--status", "Cancelled"},
	} {
		if got := o.wids(args...); got != want {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
	out, _ := o.run(exitOK, "instance", "list", "-a", "n,note", "-n", "1", "-s", "R")
	if !strings.Contains(out, "boss") || !strings.Contains(out, "NOTE") || !strings.Contains(out, "and more") {
		t.Errorf("prints %s", out)
	}
	o.run(exitNotFound, "instance", "list", "-a", "nope")
	o.run(exitFailure, "instance", "list", "--where", "nope = 1")
	o.run(exitUsage, "instance", "list", "--status", "sad")
}

func TestShowTellsAllOfAnInstance(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "n=5")
	o.settle()
	execute(t, o.dsn, "update desk.wed_trig set backoff = '1 hour' where trname = 'clerk'",
		"select wed_sql.fail('desk', 1, tgid, 'no ink') from desk.job_pool", "select wed_sql.sync()")
	out, _ := o.run(exitOK, "instance", "show", "1")
	for _, want := range []string{"instance 1 of flow desk", "regular", "clerk", "delayed", "1: no ink", "next attempt in", "retry", "failed"} {
		if !strings.Contains(out, want) {
			t.Errorf("does not tell %q:\n%s", want, out)
		}
	}
	out, _ = o.run(exitOK, "instance", "show", "1", "-o", "json")
	var v struct {
		Status     string
		Attributes struct{ N int }
		Jobs       []pendingJob
		Events     []event
		Timers     []timer
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Status != "R" || v.Attributes.N != 5 || len(v.Jobs) != 1 || v.Jobs[0].State != jobDelayed ||
		len(v.Events) != 1 || len(v.Timers) != 1 {
		t.Errorf("%v: %s", err, out)
	}
	o.run(exitNotFound, "instance", "show", "99")
	if out, _ := o.run(exitOK, "instance", "list"); !strings.Contains(out, "no ink") {
		t.Errorf("the list does not say why:\n%s", out)
	}
}

func TestEachInterventionIsACommand(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "3")
	o.settle()
	status := func(wid int) string {
		t.Helper()
		o.settle()
		return value(t, o.dsn, fmt.Sprintf("select status || version || ' ' || array_to_string(pending, ',') from desk.wed_instance where wid = %d", wid))
	}
	for _, c := range []struct {
		line string
		want string // of instance 1 then
	}{
		{"suspend 1 --until +1hour", "S1 "},
		{"suspend 1 --until 2099-01-01 --dry-run", "S1 "},
		{"resume 1", "R2 clerk"},
		{"skip 1 -t clerk stage=nowhere --dry-run", "R2 clerk"},
		{"skip 1 -t clerk stage=nowhere note=it's", "E3 _EXCPT"},
		{"retry 1 --dry-run", "E3 _EXCPT"},
		{"repair 1 stage=checked", "R4 boss"},
		{"rewind 1 --to 0", "R5 clerk"},
		{"rematch 1", "R5 clerk"},
		{"rematch", "R5 clerk"},
		{"skip 1 --transition clerk --set stage='checked'", "R6 boss"},
		{"cancel 1 --reason enough", "C7 "},
	} {
		if stdout, stderr := o.run(exitOK, append([]string{"instance"}, strings.Fields(c.line)...)...); status(1) != c.want {
			t.Fatalf("after %s it is %s, want %s\n%s%s", c.line, status(1), c.want, stdout, stderr)
		}
	}
	if got := value(t, o.dsn, "select detail from desk.wed_event where event = 'cancelled'"); got != "enough" {
		t.Errorf("the reason is %q", got)
	}
	if got := value(t, o.dsn, "select state->>'note' from desk.wed_trace where wid = 1 and version = 3"); got != "it's" {
		t.Errorf("note is %q", got)
	}
	execute(t, o.dsn, "insert into desk.wed_attr (aname) values ('again')")
	o.run(exitOK, "instance", "reopen", "1", "stage=new")
	if got := status(1); got != "R8 clerk" {
		t.Errorf("reopened, it is %s", got)
	}

	// Some of several.
	out, stderr := o.run(exitFailure, "instance", "resume", "2", "3")
	if strings.Count(out, "is not suspended") != 2 || !strings.Contains(stderr, "2 instances could not be resumed") {
		t.Errorf("%s%s", out, stderr)
	}
	if _, stderr = o.run(exitNotFound, "instance", "suspend", "2", "77"); !strings.Contains(stderr, "77") || status(2) != "S1 " {
		t.Errorf("says %q", stderr)
	}
	o.run(exitNotFound, "instance", "suspend", "77")
	o.run(exitUsage, "instance", "repair", "2")
	o.run(exitUsage, "instance", "skip", "2")
	o.run(exitUsage, "instance", "rewind", "2")
}

func TestManyInstancesAreNotTouchedUnasked(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "3")
	o.settle()
	cancelled := func() string {
		return value(t, o.dsn, "select count(*) from desk.wed_instance where status = 'C'")
	}
	answer := func(asks bool, answer string, args ...string) (stderr string, status int) {
		var out, err bytes.Buffer
		con := &console{in: strings.NewReader(answer), out: &out, err: &err, asks: asks}
		status = run(t.Context(), append([]string{"wedctl", "-d", o.dsn, "instance", "cancel", "--where", "true"}, args...), con)
		return err.String(), status
	}
	if stderr, status := answer(false, ""); status != exitUsage || !strings.Contains(stderr, "3 instances of flow desk") || cancelled() != "0" {
		t.Errorf("without a terminal: exit status %d, %s cancelled: %s", status, cancelled(), stderr)
	}
	for _, no := range []string{"\n", "n\n", "", "yeah\n"} {
		if stderr, status := answer(true, no); status != exitFailure || !strings.Contains(stderr, "3 instances of flow desk will be cancelled") || cancelled() != "0" {
			t.Errorf("answer %q: exit status %d, %s cancelled: %s", no, status, cancelled(), stderr)
		}
	}
	if _, status := answer(true, "y\n"); status != exitOK || cancelled() != "3" {
		t.Errorf("exit status %d, %s cancelled", status, cancelled())
	}
	o.run(exitOK, "instance", "start")
	o.settle()
	o.run(exitOK, "instance", "cancel", "--where", "status = 'R'") // one is not many
	o.run(exitOK, "instance", "start", "-n", "2")
	o.settle()
	o.run(exitOK, "instance", "cancel", "--where", "status = 'R'", "--yes")
	if cancelled() != "6" {
		t.Errorf("%s cancelled", cancelled())
	}
}

func TestWatchEndsWithItsInstances(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "4")
	o.settle()
	o.run(exitOK, "instance", "skip", "1", "-t", "clerk", "stage=done")
	o.run(exitOK, "instance", "cancel", "2")
	o.settle()
	if out, _ := o.run(exitOK, "instance", "watch", "1"); !strings.Contains(out, "F  _SKIP") {
		t.Errorf("prints %s", out)
	}
	if _, stderr := o.run(exitFailure, "instance", "watch", "1", "2"); !strings.Contains(stderr, "instance 2 is cancelled") {
		t.Errorf("says %s", stderr)
	}
	if _, stderr := o.run(exitFailure, "instance", "watch", "3", "--timeout", "10ms"); !strings.Contains(stderr, "within 10ms") {
		t.Errorf("says %s", stderr)
	}
	o.run(exitNotFound, "instance", "watch", "99")

	one, oneOut, _ := start(t, "instance", "watch", "3", "-o", "json", "-d", o.dsn)
	all, allOut, _ := start(t, "instance", "watch", "-d", o.dsn)
	readUntil(t, oneOut, `"version":0`)
	readUntil(t, allOut, "WRITTEN BY")
	o.run(exitOK, "instance", "skip", "3", "-t", "clerk", "stage=checked")
	readUntil(t, oneOut, `"kind":"state"`)
	readUntil(t, allOut, "stage=checked")
	o.run(exitOK, "instance", "start", "n=5")
	readUntil(t, allOut, "n=5")
	o.run(exitOK, "instance", "skip", "3", "-t", "boss", "stage=wrong")
	if err := one.Wait(); one.ProcessState.ExitCode() != exitFailure {
		t.Errorf("an exception: %v", err)
	}
	readUntil(t, allOut, "_EXCPT")
	if err := all.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := all.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	patient, patientOut, _ := start(t, "instance", "watch", "3", "--patient", "-d", o.dsn)
	readUntil(t, patientOut, "stage=wrong")
	o.run(exitOK, "instance", "repair", "3", "stage=done")
	rest, err := io.ReadAll(patientOut)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(rest, []byte("stage=checked")) {
		t.Errorf("a state is printed once more: %s", rest)
	}
	if err := patient.Wait(); err != nil {
		t.Errorf("led out of the exception and ended: %v", err)
	}
}

func TestOnlyFlowNeedsNoName(t *testing.T) {
	o := openOffice(t)
	if _, stderr := o.run(exitOK, "instance", "list"); !strings.Contains(stderr, "flow desk, the only one") {
		t.Errorf("does not say which: %q", stderr)
	}
	if _, stderr := o.run(exitOK, "instance", "list", "-o", "json"); stderr != "" {
		t.Errorf("tells a program %q", stderr)
	}
	execute(t, o.dsn, `select wed_sql.create_flow('Other desk')`)
	if _, stderr := o.run(exitUsage, "instance", "list"); !strings.Contains(stderr, `"Other desk", desk`) || !strings.Contains(stderr, flowEnv) {
		t.Errorf("does not say which there are: %q", stderr)
	}
	o.run(exitOK, "instance", "list", "-f", "Other desk")
	t.Setenv(flowEnv, "desk")
	o.run(exitOK, "instance", "list")
	execute(t, o.dsn, `select wed_sql.drop_flow('Other desk')`, `select wed_sql.drop_flow('desk')`)
	o.run(exitNotFound, "instance", "list")
	t.Setenv(flowEnv, "")
	o.run(exitNotFound, "instance", "list")
}

func TestJobListTellsWhoHasAJob(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "4")
	o.settle()
	execute(t, o.dsn, "select wed_sql.lease_job('desk', 2, tgid, '1 hour') from desk.job_pool where wid = 2",
		"update desk.wed_trig set backoff = '1 hour' where trname = 'clerk'", "select wed_sql.fail('desk', 3, tgid, 'no ink') from desk.job_pool where wid = 3")
	holder := open(t.Context(), t, o.dsn)
	defer hangUp(holder)
	if _, err := holder.Exec(t.Context(), "begin; select wed_sql.try_lock(1, tgid) from desk.job_pool where wid = 1"); err != nil {
		t.Fatal(err)
	}
	out, _ := o.run(exitOK, "job", "list", "-o", "json")
	var jobs []pendingJob
	if err := json.Unmarshal([]byte(out), &jobs); err != nil {
		t.Fatal(err)
	}
	states := make(map[int64]string)
	for _, j := range jobs {
		states[j.WID] = j.State
	}
	if got := fmt.Sprint(states); got != "map[1:running 2:leased 3:delayed 4:waiting]" {
		t.Errorf("states are %s", got)
	}
	for state, want := range map[string]string{
		"running": fmt.Sprintf("pid %d, since", holder.PgConn().PID()), "leased": "ends in 60 min", "delayed": "1: no ink", "waiting": "4",
	} {
		if out, _ := o.run(exitOK, "job", "list", "--state", state); !strings.Contains(out, want) || strings.Count(out, "\n") != 2 {
			t.Errorf("%s: does not tell %q:\n%s", state, want, out)
		}
	}
	if out, _ := o.run(exitOK, "job", "list", "--older-than", "1 hour"); out != "no such job\n" {
		t.Errorf("older ones: %s", out)
	}
	if out, _ := o.run(exitOK, "job", "list", "-t", "clerk", "-n", "2"); !strings.Contains(out, "and more") {
		t.Errorf("no word of those that are left out:\n%s", out)
	}
	o.run(exitFailure, "job", "list", "--older-than", "ages")
	o.run(exitUsage, "job", "list", "--state", "lazy")
}

func TestStatusShowsTheFlows(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "2")
	o.settle()
	o.run(exitOK, "instance", "skip", "1", "-t", "clerk", "stage=wrong")
	o.settle()
	out, _ := o.run(exitOK, "status")
	if !strings.Contains(out, "streaming") || !regexp.MustCompile(`(?m)^desk +2 `).MatchString(out) || !strings.Contains(out, "1 exception of flow desk") {
		t.Errorf("prints %s", out)
	}
}

func TestTopPrintsWhereThereIsNoTerminal(t *testing.T) {
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "2")
	o.settle()
	out, _ := o.run(exitOK, "top", "-n", "2", "-i", "200ms")
	if strings.Count(out, "wedctl top") != 2 || !regexp.MustCompile(`(?m)^  clerk +2 `).MatchString(out) || strings.Contains(out, "\x1b") {
		t.Errorf("prints %s", out)
	}
	out, _ = o.run(exitOK, "top", "--once", "-i", "200ms", "-o", "json", "--sort", "waiting")
	var v pulse.View
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Engine.State != "streaming" || v.Rows[0].Transition != "clerk" || *v.Rows[0].Waiting != 2 {
		t.Errorf("%v: %s", err, out)
	}
	o.run(exitNotFound, "top", "--once", "-f", "nowhere")

	// A session that ends is replaced.
	cmd, live, stderr := start(t, "top", "-i", "200ms", "-d", o.dsn)
	readUntil(t, live, "clerk")
	execute(t, o.dsn, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'wedctl top' and datname = current_database()")
	for stderr.Len() == 0 && cmd.ProcessState == nil {
		readUntil(t, live, "wedctl top")
	}
	readUntil(t, live, "clerk")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v: %s", err, stderr)
	}
}

// openTerminal returns the two ends of a new terminal.
func openTerminal(t *testing.T, width, height uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	resize(t, slave, width, height)
	return master, slave
}

func resize(t *testing.T, tty *os.File, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

func TestTopGivesTheTerminalBackAsItWas(t *testing.T) {
	o := openOffice(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*exec.Cmd, *os.File) error{
		"q":       func(_ *exec.Cmd, tty *os.File) error { _, err := tty.WriteString("q"); return err },
		"Ctrl-C":  func(_ *exec.Cmd, tty *os.File) error { _, err := tty.WriteString("\x03"); return err },
		"SIGTERM": func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := openTerminal(t, 80, 24)
			before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, "top", "-i", "1h", "-d", o.dsn)
			cmd.Env = append(os.Environ(), "TERM=xterm")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			readUntil(t, master, "by name")
			if _, err := master.WriteString("s"); err != nil {
				t.Fatal(err)
			}
			readUntil(t, master, "by oldest")
			resize(t, slave, 40, 8) // fewer columns than the footer has
			readUntil(t, master, "q ends  s sorts (by oldest)  space looks"+"\x1b[0m")
			if err := end(cmd, master); err != nil {
				t.Fatal(err)
			}
			readUntil(t, master, leaveScreen)
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ends with %v", err)
			}
			after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			if *before != *after {
				t.Errorf("the terminal was %+v, and is %+v", *before, *after)
			}
		})
	}
}

func TestBashCompletesWhatTheDatabaseHas(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	o := openOffice(t)
	o.run(exitOK, "instance", "start", "-n", "2")
	o.settle()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script, _, status := wedctl(t.Context(), "completion", "bash")
	if status != exitOK {
		t.Fatalf("exit status %d", status)
	}
	complete := func(words ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bash, "--norc", "--noprofile", "-c", script+`
			self=$1; shift
			COMP_WORDS=(wedctl "$@") COMP_CWORD=$#
			_wedctl "$self"
			printf '%s|' "${COMPREPLY[@]}"`, "bash", self)
		cmd.Args = append(cmd.Args, words...)
		cmd.Env = append(os.Environ(), dsnEnv+"="+o.dsn)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
		return string(out)
	}
	for _, c := range []struct {
		want  string
		words []string
	}{
		{"instance|", []string{"ins"}},
		{"list|", []string{"instance", "li"}},
		{"--output|", []string{"instance", "list", "--ou"}},
		{"desk|", []string{"instance", "list", "--flow", ""}},
		{"desk|", []string{"instance", "list", "--flow", "=", "d"}},
		{"desk|", []string{"instance", "list", "--flow", "="}},
		{"clerk|", []string{"job", "list", "-f", "desk", "-t", "c"}},
		{"boss|clerk|_EXCPT|", []string{"worker", "run", "-f", "desk", "-t", ""}},
		{"exception|", []string{"instance", "list", "-s", "e"}},
		{"2|1|", []string{"instance", "cancel", ""}},
		{"n=|note=|", []string{"instance", "start", "n"}},
		{"n=|note=|", []string{"instance", "skip", "1", "n"}},
		{"table|", []string{"-d", `"` + o.dsn + `"`, "status", "-o", "t"}},
		{"bash|zsh|fish|", []string{"completion", ""}},
		{"|", []string{"instance", "list", "-f", "nowhere", "-t", ""}},
		{"|", []string{"worker", "run", "--", "ec"}},
	} {
		got := complete(c.words...)
		for range 2 { // nobody is kept waiting for what a database that is busy would have said
			if got == c.want {
				break
			}
			got = complete(c.words...)
		}
		if got != c.want {
			t.Errorf("%q: %s, want %s", c.words, got, c.want)
		}
	}

	// A shell executes what it has completed.
	execute(t, o.dsn, `insert into desk.wed_attr (aname) values ('$(touch x)'), (E'two\nlines'), (E'\x1b]0;title\x07')`)
	if got, want := complete("instance", "start", ""), `\$\(touch\ x\)=|n=|note=|stage=|tags=|`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestWhatKeepsFromConnectingIsSaid(t *testing.T) {
	o := openOffice(t)
	execute(t, o.dsn, "drop role if exists wedctl_guest", "create role wedctl_guest login connection limit 0")
	defer execute(t, o.dsn, "drop role wedctl_guest")
	for parameters, says := range map[string]string{
		"dbname=no_such_database": "PGDATABASE", "user=no_such_role": "PGUSER", "user=wedctl_guest": "max_connections", "port=1": "no server listens",
	} {
		_, stderr, status := wedctl(t.Context(), "status", "-d", o.dsn+" "+parameters)
		if status != exitConnect || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") > 2 {
			t.Errorf("%s: exit status %d, does not say %q: %s", parameters, status, says, stderr)
		}
	}
	service := t.TempDir() + "/services"
	content := "[office]\n" + strings.ReplaceAll(strings.ReplaceAll(o.dsn, "dbname=postgres ", ""), " ", "\n") + "\n"
	if err := os.WriteFile(service, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGSERVICEFILE", service)
	t.Setenv("PGSERVICE", "office")
	if stdout, stderr, status := wedctl(t.Context(), "instance", "start"); status != exitOK || stdout != "1\n" {
		t.Errorf("by PGSERVICE: exit status %d: %s", status, stderr)
	}
	if _, stderr, status := wedctl(t.Context(), "status", "-d", "service=nowhere"); status != exitUsage || !strings.Contains(stderr, "PGSERVICEFILE") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
}

func TestDoctorFailsWhenSomethingIsToBeMended(t *testing.T) {
	o := openOffice(t)
	if out, _ := o.run(exitFailure, "doctor", "--dsn", o.dsn+" dbname=template1"); !strings.Contains(out, "create extension wed_sql;") {
		t.Errorf("prints %s", out)
	}
	out, _, _ := wedctl(t.Context(), "doctor", "-o", "json", "-d", o.dsn)
	var findings []struct{ Check, Severity, What string }
	if err := json.Unmarshal([]byte(out), &findings); err != nil || len(findings) < 20 {
		t.Errorf("%v: %s", err, out)
	}
	for _, f := range findings {
		if f.Severity == "" || f.What == "" {
			t.Errorf("%+v", f)
		}
	}
}
