package stress

import (
	"fmt"
	"os"
	"testing"
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
