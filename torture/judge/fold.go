// Package judge is an interpreter of Algorithm 1 that is as naive as it can be, and knows nothing of wed_sql's own: from the
// states that were recorded beside it, and the definitions that were in force, it works out what must be in wed_trace,
// job_pool and wed_instance, and says where they differ.
package judge

import (
	"fmt"
	"slices"
	"time"

	"github.com/wed-sql/wed_sql/torture/flow"
)

// pending is a rule that is pending.
type pending struct {
	since int  // number of the state that fired it
	clock bool // its delay runs, as far as the states tell
}

// outcome is what must be seen of a state.
type outcome struct {
	by      string // name of the transition that wrote it; "": none
	fired   []string
	notify  []int32 // rules of the jobs that workers must be told of
	status  string
	pending []int32
	failed  bool
}

// instance is what Algorithm 1 keeps of one.
type instance struct {
	flow      *Flow
	pool      map[int32]pending
	withdrawn map[job]bool // jobs that may lie around for a moment
	run       int          // states since somebody has seen to it
	ended     bool
}

type job struct {
	tgid    int32
	version int
}

// step is a state, and who wrote it.
type step struct {
	number int
	at     time.Time
	rules  *flow.Definition
	by     int32 // 0: no rule
	gaveUp int32 // the rule whose attempts are used up, in a state that says so
	state  verdict
	// remains says whether a job is said to pend after it: only to know which clocks had run down.
	remains func(job) bool
	fired   func(job) bool // whether the delay of a job is known to have run down
	said    func(string)   // of a violation
}

type verdict struct {
	final  bool
	failed bool
	due    []*flow.Rule
}

// next goes on to a state.
func (i *instance) next(s step) outcome {
	f := i.flow
	if i.ended {
		s.said("an instance that has ended was written")
	}
	out := outcome{status: "R"}
	switch {
	case s.by != 0:
		p, ok := i.pool[s.by]
		if !ok {
			s.said(fmt.Sprintf("written by rule %d, which was not pending", s.by))
		}
		if ok && p.clock && !s.fired(job{s.by, p.since}) {
			s.said(fmt.Sprintf("written by rule %d before its delay was over", s.by))
		}
		delete(i.pool, s.by)
		out.by = f.transition(s.rules, s.by)
	case s.gaveUp != 0:
		if _, ok := i.pool[s.gaveUp]; !ok {
			s.said(fmt.Sprintf("attempts of rule %d are used up, which was not pending", s.gaveUp))
		}
		i.withdraw(s.gaveUp)
		out.by = "_FAIL"
	}

	if s.by == f.Exception {
		i.run = 0
	} else if s.number > 0 {
		i.run++
	}
	v := s.state
	if s.gaveUp != 0 {
		v = verdict{failed: true}
	} else if i.run >= f.MaxStates && !v.final && !v.failed {
		v = verdict{failed: true}
	}

	switch {
	case v.failed:
		out.failed, out.status = true, "E"
		i.fireException(s.number, &out)
	case v.final:
		for tgid := range i.pool {
			i.withdrawUnlessDue(s, tgid)
		}
		if len(i.pool) > 0 {
			s.said(fmt.Sprintf("final while %v pend", i.tgids()))
		}
		clear(i.pool)
		i.ended, out.status = true, "F"
	default:
		for tgid := range i.pool {
			if !slices.ContainsFunc(v.due, func(r *flow.Rule) bool { return r.TGID == tgid }) {
				i.withdrawUnlessDue(s, tgid)
			}
		}
		for _, r := range v.due {
			i.fire(r, s.number, &out)
		}
		if len(i.pool) == 0 {
			out.status = "E"
			i.fireException(s.number, &out)
		}
	}
	slices.Sort(out.fired)
	out.pending = i.tgids()
	return out
}

func (i *instance) tgids() []int32 {
	tgids := []int32{}
	for tgid := range i.pool {
		tgids = append(tgids, tgid)
	}
	slices.Sort(tgids)
	return tgids
}

func (i *instance) fire(r *flow.Rule, number int, out *outcome) {
	if _, already := i.pool[r.TGID]; already {
		return
	}
	p := pending{since: number, clock: r.Delay > 0}
	i.pool[r.TGID] = p
	if p.clock {
		return
	}
	out.fired = append(out.fired, r.Transition)
	if r.Action == nil {
		out.notify = append(out.notify, r.TGID)
	}
}

func (i *instance) fireException(number int, out *outcome) {
	if _, already := i.pool[i.flow.Exception]; already {
		return
	}
	i.pool[i.flow.Exception] = pending{since: number}
	out.fired = append(out.fired, flow.Exception)
	out.notify = append(out.notify, i.flow.Exception)
}

func (i *instance) withdraw(tgid int32) {
	i.withdrawn[job{tgid, i.pool[tgid].since}] = true
	delete(i.pool, tgid)
}

// withdrawUnlessDue withdraws a rule whose condition does not hold: if it may be, or its delay still runs. Whether a delay has
// run down before the state was written, the states do not say: it must be known to have, if the job is still there.
func (i *instance) withdrawUnlessDue(s step, tgid int32) {
	p := i.pool[tgid]
	if tgid != i.flow.Exception && i.flow.rule(s.rules, tgid).Withdrawable {
		i.withdraw(tgid)
		return
	}
	if !p.clock {
		return
	}
	if !s.remains(job{tgid, p.since}) {
		i.withdraw(tgid)
		return
	}
	if !s.fired(job{tgid, p.since}) {
		s.said(fmt.Sprintf("rule %d pends on, though its condition does not hold and its delay was not over", tgid))
	}
	i.pool[tgid] = pending{since: p.since}
}
