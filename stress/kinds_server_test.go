package stress

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/worker"
)

// kind is a kind of worker: how to start one that performs a transition of figure 2. It writes its name into the attribute
// that the transition is there for and, in the same transaction, a row of written.
type kind struct {
	name    string
	command func(transition string) *exec.Cmd
}

// kinds of workers in Go, and the one that writes no row
const (
	goJobs         = "go"
	goBatches      = "go, batches"
	goLeases       = "go, leases"
	throughGateway = "bash through a gateway"
)

// sets is the attribute that each transition is there for.
func sets(transition string) (attribute string) {
	switch transition {
	case "tr_a2":
		return "a2"
	case "tr_a3":
		return "a3"
	}
	return "a1"
}

// work is what a worker in Go does, as a process.
func work(transition, kind string) error {
	w, err := worker.New(worker.Config{DSN: os.Getenv("WED_SQL_TEST_CONN")})
	if err != nil {
		return err
	}
	o := worker.Options{Concurrency: 2}
	switch kind {
	case goBatches:
		o.Batch = 20
	case goLeases:
		o.Lease = time.Second
	}
	err = w.Handle(workersFlow, transition, func(_ context.Context, job *worker.Job) (worker.State, error) {
		job.BeforeCommit(func(ctx context.Context, db worker.Querier) error {
			_, err := db.Exec(ctx, "insert into "+workersFlow+".written (flow, wid, tgid) values ($1, $2, $3)", job.Flow, job.WID, job.TGID)
			return err
		})
		return worker.State{sets(transition): kind}, nil
	}, o)
	if err != nil {
		return err
	}
	return worker.RunUntilSignal(context.Background(), w)
}

// trade knows how to start workers of all kinds.
type trade struct {
	*testing.T
	self     string   // the program that this is
	settings []string // PGHOST and its like
	tokens   string   // file of those that the gateways know
	token    string
	gateways []string // host and port of each
}

func newTrade(t *testing.T) *trade {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(os.Getenv("WED_SQL_TEST_CONN"))
	if err != nil {
		t.Fatal(err)
	}
	a := &trade{T: t, self: self, tokens: filepath.Join(t.TempDir(), "tokens.jsonl"), settings: append(os.Environ(),
		"PGHOST="+config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER="+config.User, "PGDATABASE="+config.Database,
		"PYTHONPATH="+source("python"), "PYTHONDONTWRITEBYTECODE=1")}
	token, err := exec.Command("wedctl", "gateway", "token", "stress", "--allow", workersFlow+"/*", "--append", a.tokens).Output()
	if err != nil {
		t.Fatalf("make a token for the gateways: %v", err)
	}
	a.token = strings.TrimSpace(string(token))
	for range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		a.gateways = append(a.gateways, listener.Addr().String())
		defer listener.Close()
	}
	return a
}

// source is where a file of the repository lies.
func source(path string) string { return filepath.Join("..", filepath.FromSlash(path)) }

// process is a command that has its connection settings from its environment.
func (a *trade) process(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = a.settings
	return cmd
}

// kinds are the workers of all languages and protocols.
func (a *trade) kinds() []kind {
	return []kind{
		a.inGo(goJobs), a.inGo(goBatches), a.inGo(goLeases),
		a.inPython("python"), a.inPython("python, leases", "--lease", "1"),
		a.inBash("bash"), a.inBash("bash, leases", "-l", "1"),
		a.inNode("node"), a.inNode("node, leases", "-l", "1"),
		a.throughGateway(),
	}
}

const writtenTable = workersFlow + ".written"

func (a *trade) inGo(name string) kind {
	return kind{name, func(transition string) *exec.Cmd {
		cmd := a.process(a.self)
		cmd.Env = append(a.settings[:len(a.settings):len(a.settings)], asWorker+"="+transition, workerKind+"="+name)
		return cmd
	}}
}

func (a *trade) inPython(name string, options ...string) kind {
	return kind{name, func(transition string) *exec.Cmd {
		return a.process("/usr/bin/python3", append([]string{source("python/examples/record.py"), "--flow", workersFlow,
			"--transition", transition, "--set", sets(transition) + "=" + name, "--table", writtenTable}, options...)...)
	}}
}

func (a *trade) inBash(name string, options ...string) kind {
	return kind{name, func(transition string) *exec.Cmd {
		args := append([]string{source("examples/bash/worker.sh"), "-f", workersFlow, "-t", transition,
			"-s", "insert into " + writtenTable + " (flow, wid, tgid) values (:'job_flow', :job_wid, :job_tgid)"}, options...)
		return a.process("bash", append(args, "--", "echo", fmt.Sprintf("{%q: %q}", sets(transition), name))...)
	}}
}

func (a *trade) inNode(name string, options ...string) kind {
	return kind{name, func(transition string) *exec.Cmd {
		args := append([]string{source("examples/node/worker.js"), "-f", workersFlow, "-t", transition}, options...)
		return a.process("node", append(args, source("examples/node/record.js"), fmt.Sprintf("{%q: %q}", sets(transition), name), writtenTable)...)
	}}
}

func (a *trade) throughGateway() kind {
	return kind{throughGateway, func(transition string) *exec.Cmd {
		cmd := a.process("bash", source("examples/gateway/worker.sh"), "echo", fmt.Sprintf("{%q: %q}", sets(transition), throughGateway))
		cmd.Env = append(a.settings[:len(a.settings):len(a.settings)], "FLOW="+workersFlow, "TRANSITION="+transition, "LEASE=2",
			"GATEWAYS=http://"+strings.Join(a.gateways, " http://"), "TOKEN="+a.token)
		return cmd
	}}
}

// managers are the gateways: they perform nothing, and are killed like the others.
func (a *trade) managers() []kind {
	var managers []kind
	for _, address := range a.gateways {
		managers = append(managers, kind{"gateway " + address, func(string) *exec.Cmd {
			return a.process("wedctl", "gateway", "--tokens", a.tokens, "--listen", address)
		}})
	}
	return managers
}
