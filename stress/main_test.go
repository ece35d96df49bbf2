package stress

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/wed-sql/wed_sql/worker"
)

// asWorker makes the test binary be a worker of a transition: workers are processes that can be killed.
const asWorker = "STRESS_AS_WORKER"

func TestMain(m *testing.M) {
	if transition := os.Getenv(asWorker); transition != "" {
		if err := work(transition); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func work(transition string) error {
	attribute, value := sets(transition)
	w, err := worker.New(worker.Config{
		DSN: os.Getenv("WED_SQL_TEST_CONN"), Flow: workersFlow, Transition: transition, Concurrency: 2,
		Handler: func(ctx context.Context, job *worker.Job) (worker.State, error) {
			_, err := job.DB().Exec(ctx, "insert into "+workersFlow+".written values ($1, $2, 'go')", job.WID, transition)
			return worker.State{attribute: value}, err
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return w.Run(ctx)
}

// kinds are the workers of all languages.
func kinds(t *testing.T) []kind {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []kind{
		{"go", func(transition string) *exec.Cmd {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), asWorker+"="+transition)
			return cmd
		}},
	}
}
