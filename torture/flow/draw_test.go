package flow_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/torture/flow"
	"github.com/wed-sql/wed_sql/torture/predicate"
)

func TestASeedDrawsTheSameFlow(t *testing.T) {
	t.Parallel()
	draw := func() *flow.Definition { return flow.Draw(rand.New(rand.NewPCG(42, 0)), "f") }
	if diff := cmp.Diff(draw(), draw()); diff != "" {
		t.Error(diff)
	}
}

// Flows that never end, or only fail, would prove little.
func TestInstancesReachTheirEndAndExceptions(t *testing.T) {
	t.Parallel()
	const flows, instances, most, changes = 6, 20, 60, 4
	ended, excepted := 0, 0
	for seed := range uint64(flows) {
		r := rand.New(rand.NewPCG(seed, 0))
		d := flow.Draw(r, "f")
		for i := range changes {
			changed, _ := d.Change(r, i)
			d = changed
		}
		for range instances {
			set, _ := d.Initial(r)
			s, err := d.Apply(predicate.State{}, set)
			for n := 0; err == nil && n < most; n++ {
				v, err := d.Judge(s)
				if err != nil {
					t.Fatal(err)
				}
				if v.Final {
					ended++
					break
				}
				if v.Failed || len(v.Due) == 0 {
					excepted++
				}
				if s, err = d.Apply(s, d.Next(r, s, []flow.Goal{flow.Any, flow.OnGo, flow.End}[n%3])); err != nil {
					t.Fatal(err)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if ended < flows*instances*9/10 || excepted < flows {
		t.Errorf("of %d instances %d have ended, and there were %d exceptions", flows*instances, ended, excepted)
	}
}
