package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

// soon is how long something may take before a person wants to know that it goes on.
const soon = 2 * time.Second

// busy does something that may take long. A person is shown that it goes on; an
// interrupt has the server give it up.
func (con *console) busy(ctx context.Context, what string, work func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	g, groupCtx := group.New(ctx)
	done := make(chan struct{})
	g.Go(what, func(ctx context.Context) error {
		defer close(done)
		return work(ctx)
	})
	if con.watched {
		g.Go("progress", func(ctx context.Context) error { return con.tellTime(what, done) })
	}
	err := g.Wait()
	if err != nil && ctx.Err() != nil && groupCtx.Err() != nil {
		return &failure{
			code: exitFailure, message: "interrupted: the server takes it all back, unless it was just done",
			hint: "`wedctl instance list` shows how it is",
		}
	}
	return err
}

// tellTime shows how long something has taken, until it is done.
func (con *console) tellTime(what string, done <-chan struct{}) error {
	began := time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			if time.Since(began) > soon {
				fmt.Fprint(con.err, "\r"+clearLine)
			}
			return nil
		case <-tick.C:
			if d := time.Since(began); d > soon {
				fmt.Fprintf(con.err, "\r%s%s: %.0f s ...", clearLine, what, d.Seconds())
			}
		}
	}
}
