// Package fault has what can happen to a server with wed_sql, and makes it happen.
package fault

import (
	"context"
	"errors"
	"math/rand"
	"os"

	"github.com/wed-sql/wed_sql/torture/cluster"
)

// World is what faults are injected into.
type World interface {
	Cluster() *cluster.Cluster
	Databases() []string      // those with wed_sql
	Processes() []*os.Process // workers that may be killed and stopped; others take their places
	Rand() *rand.Rand         // of the run; one fault at a time uses it
}

// Fault is something that happens to a server. Inject returns when it has been healed, by the fault itself or by the
// system: the databases are followed again. It returns [ErrSkipped] if this machine or server cannot have it.
type Fault struct {
	Name   string
	Weight int  // how often it is drawn, beside others
	Loses  bool // the slot: the histories may have gaps that are marked healed
	Inject func(ctx context.Context, w World) error
}

// ErrSkipped is why a fault was not injected.
var ErrSkipped = errors.New("skipped")
