package stress

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/worker"
)

// asWorker makes the test binary be a worker of a transition: workers are processes that can be killed.
const (
	asWorker   = "STRESS_AS_WORKER"
	workerKind = "STRESS_WORKER_KIND"
)

func TestMain(m *testing.M) {
	if transition := os.Getenv(asWorker); transition != "" {
		if err := work(transition, os.Getenv(workerKind)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kinds of workers in Go
const (
	goJobs    = "go"
	goBatches = "go, batches"
	goLeases  = "go, leases"
)

func work(transition, kind string) error {
	attribute, value := sets(transition)
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
			_, err := db.Exec(ctx, "insert into "+workersFlow+".written values ($1, $2, $3)", job.WID, transition, kind)
			return err
		})
		return worker.State{attribute: value}, nil
	}, o)
	if err != nil {
		return err
	}
	return worker.RunUntilSignal(context.Background(), w)
}

// kinds are the workers of all languages.
func kinds(t *testing.T) []kind {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []kind
	for _, name := range []string{goJobs, goBatches, goLeases} {
		kinds = append(kinds, kind{name, func(transition string) *exec.Cmd {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), asWorker+"="+transition, workerKind+"="+name)
			return cmd
		}})
	}
	return kinds
}
