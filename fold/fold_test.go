package fold_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/fold"
)

const excpt fold.Rule = 99

func TestNext(t *testing.T) {
	t.Parallel()
	type rules = []fold.Rule
	tests := map[string]struct {
		prev  rules
		state fold.State
		want  fold.Outcome
	}{
		"an initial state fires what it matches": {
			nil, fold.State{Matched: rules{2, 1}},
			fold.Outcome{Pending: rules{1, 2}, Fired: rules{1, 2}, Status: fold.Regular}},
		"an initial state may be final": {
			nil, fold.State{Final: true},
			fold.Outcome{Pending: rules{}, Fired: rules{}, Status: fold.Final}},
		"a pending rule is not fired twice": {
			rules{1, 2}, fold.State{By: 1, Matched: rules{2}},
			fold.Outcome{Pending: rules{2}, Fired: rules{}, Status: fold.Regular}},
		"a pending rule stays though its condition holds no more": {
			rules{1, 2}, fold.State{By: 1},
			fold.Outcome{Pending: rules{2}, Fired: rules{}, Status: fold.Regular}},
		"a rule fires again if its condition holds after its own transition": {
			rules{1}, fold.State{By: 1, Matched: rules{1}},
			fold.Outcome{Pending: rules{1}, Fired: rules{1}, Status: fold.Regular}},
		"the last branch fires the join": {
			rules{2}, fold.State{By: 2, Matched: rules{3}},
			fold.Outcome{Pending: rules{3}, Fired: rules{3}, Status: fold.Regular}},
		"nothing pending and not final is an exception": {
			rules{3}, fold.State{By: 3},
			fold.Outcome{Pending: rules{excpt}, Fired: rules{excpt}, Status: fold.Exception}},
		"recovery may lead to the next exception": {
			rules{excpt}, fold.State{By: excpt},
			fold.Outcome{Pending: rules{excpt}, Fired: rules{excpt}, Status: fold.Exception}},
		"recovery may lead back": {
			rules{excpt}, fold.State{By: excpt, Matched: rules{1}},
			fold.Outcome{Pending: rules{1}, Fired: rules{1}, Status: fold.Regular}},
		"a failed condition is an exception beside what else is pending": {
			rules{1, 2}, fold.State{By: 1, Failed: true},
			fold.Outcome{Pending: rules{2, excpt}, Fired: rules{excpt}, Status: fold.Exception}},
		"an exception that is pending is not fired twice": {
			rules{2, excpt}, fold.State{By: 2, Failed: true},
			fold.Outcome{Pending: rules{excpt}, Fired: rules{}, Status: fold.Exception}},
		"a final state ends it": {
			rules{3}, fold.State{By: 3, Final: true},
			fold.Outcome{Pending: rules{}, Fired: rules{}, Status: fold.Final}},
		"what is withdrawn leaves without being performed": {
			rules{1, 2, 3}, fold.State{By: 1, Withdrawn: rules{2}},
			fold.Outcome{Pending: rules{3}, Fired: rules{}, Status: fold.Regular}},
		"what is withdrawn is fired anew if it is due": {
			rules{1, 2}, fold.State{Withdrawn: rules{2}, Matched: rules{2}},
			fold.Outcome{Pending: rules{1, 2}, Fired: rules{2}, Status: fold.Regular}},
		"when all is withdrawn, it is an exception": {
			rules{1, 2}, fold.State{Withdrawn: rules{1, 2}},
			fold.Outcome{Pending: rules{excpt}, Fired: rules{excpt}, Status: fold.Exception}},
		"an exception whose job is withdrawn, and for which nothing is due, is one anew": {
			rules{excpt}, fold.State{Withdrawn: rules{excpt}},
			fold.Outcome{Pending: rules{excpt}, Fired: rules{excpt}, Status: fold.Exception}},
		"nothing pends while it is suspended": {
			rules{1, 2}, fold.State{Withdrawn: rules{1, 2}, Status: fold.Suspended},
			fold.Outcome{Pending: rules{}, Fired: rules{}, Status: fold.Suspended}},
		"a cancelled instance has ended": {
			rules{1, 2}, fold.State{Withdrawn: rules{1, 2}, Final: true, Status: fold.Cancelled},
			fold.Outcome{Pending: rules{}, Fired: rules{}, Status: fold.Cancelled}},
		"a reopened instance has no writer among the rules": {
			rules{}, fold.State{Matched: rules{7}},
			fold.Outcome{Pending: rules{7}, Fired: rules{7}, Status: fold.Regular}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, fold.Next(tt.prev, tt.state, excpt)); diff != "" {
				t.Errorf("Next (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNextLeavesItsArgumentsAlone(t *testing.T) {
	t.Parallel()
	prev, matched := []fold.Rule{3, 1, 2}, []fold.Rule{5, 4}
	out := fold.Next(prev, fold.State{By: 1, Matched: matched}, excpt)
	for i := range out.Pending {
		out.Pending[i] = -1
	}
	if diff := cmp.Diff([]fold.Rule{3, 1, 2}, prev); diff != "" {
		t.Errorf("prev was changed:\n%s", diff)
	}
	if diff := cmp.Diff([]fold.Rule{5, 4}, matched); diff != "" {
		t.Errorf("matched was changed:\n%s", diff)
	}
}
