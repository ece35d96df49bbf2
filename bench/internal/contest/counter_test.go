package contest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/wed-sql/wed_sql/bench/internal/contest"
)

func TestAHandlerThatStartsBeforeItsCommitIsKnownWaitedForNothing(t *testing.T) {
	t.Parallel()
	c := contest.NewCounter()
	took, err := c.Pace(t.Context(), 3, time.Millisecond, func(i int) (int64, error) {
		c.Started(int64(i)) // before Pace learns of the commit
		c.Done()
		return int64(i), nil
	})
	if err != nil || len(took) != 3 || took[0] != 0 || took[2] != 0 {
		t.Errorf("%v, %v", took, err)
	}
}

func TestJobsThatWereNeverStartedAreNoResult(t *testing.T) {
	t.Parallel()
	c := contest.NewCounter()
	_, err := c.Pace(t.Context(), 2, time.Millisecond, func(i int) (int64, error) {
		c.Done()
		return int64(i), nil
	})
	if err == nil {
		t.Error("no error")
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := contest.NewCounter().Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
