// Package group runs goroutines that belong together. It is the only place of the
// engine that starts any: a panic in one of them becomes an error of its group.
package group

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sync/errgroup"
)

// PanicError is a panic that was recovered.
type PanicError struct {
	Name  string // of the goroutine
	Value any    // of panic
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in %s: %v\n%s", e.Name, e.Value, e.Stack)
}

// Group is a set of goroutines. The first that returns an error, nil not counted,
// cancels the context of all.
type Group struct {
	errs *errgroup.Group
	ctx  context.Context
}

// New returns an empty group and the context for its goroutines.
func New(ctx context.Context) (*Group, context.Context) {
	errs, ctx := errgroup.WithContext(ctx)
	return &Group{errs: errs, ctx: ctx}, ctx
}

// Go runs f in a goroutine with the group's context.
func (g *Group) Go(name string, f func(context.Context) error) {
	g.errs.Go(func() error { return Call(name, func() error { return f(g.ctx) }) })
}

// Wait waits for all goroutines and returns the first error.
func (g *Group) Wait() error { return g.errs.Wait() }

// Call calls f and returns its error, or its panic as a [PanicError].
func Call(name string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Name: name, Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
