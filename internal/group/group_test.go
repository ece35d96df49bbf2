package group_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/wed-sql/wed_sql/internal/group"
)

func TestAPanicIsAnErrorThatEndsTheGroup(t *testing.T) {
	t.Parallel()
	g, _ := group.New(context.Background())
	g.Go("waiter", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	g.Go("careless", func(context.Context) error { return fmt.Errorf("%d", []int{}[len(os.Args)]) })
	var p *group.PanicError
	if err := g.Wait(); !errors.As(err, &p) || p.Name != "careless" || !strings.Contains(err.Error(), "group_test.go") {
		t.Errorf("Wait: %v", err)
	}
}

func TestTheFirstErrorIsReturned(t *testing.T) {
	t.Parallel()
	want := errors.New("first")
	g, _ := group.New(context.Background())
	g.Go("fine", func(context.Context) error { return nil })
	g.Go("waiter", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	g.Go("fails", func(context.Context) error { return want })
	if err := g.Wait(); !errors.Is(err, want) {
		t.Errorf("Wait: %v", err)
	}
}
