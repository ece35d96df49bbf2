package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// measureLatency waits for the notification of each instance that it starts, one after the other.
func measureLatency(ctx context.Context, conn *pgx.Conn, o options) error {
	listener, err := connect(ctx)
	if err != nil {
		return err
	}
	defer listener.Close(context.WithoutCancel(ctx))
	if _, err := listener.Exec(ctx, "listen tr_a2"); err != nil {
		return err
	}

	var fromCommit, fromStart []time.Duration
	for i := range o.samples + 50 {
		arrived := make(chan time.Time, 1)
		go func() {
			if _, err := listener.WaitForNotification(ctx); err != nil {
				close(arrived)
				return
			}
			arrived <- time.Now()
		}()
		started := time.Now()
		if _, err := conn.Exec(ctx, "insert into paper.wed_flow default values"); err != nil {
			return err
		}
		committed := time.Now()
		at, ok := <-arrived
		if !ok {
			return fmt.Errorf("no notification of instance %d", i)
		}
		if i >= 50 { // the first ones warm up
			fromCommit = append(fromCommit, max(at.Sub(committed), 0))
			fromStart = append(fromStart, at.Sub(started))
		}
	}
	report("commit of a state to notification of its job (p50, p99)", "%s  %s", ms(quantile(fromCommit, .5)), ms(quantile(fromCommit, .99)))
	report("start of the insert to notification (p50, p99)", "%s  %s", ms(quantile(fromStart, .5)), ms(quantile(fromStart, .99)))
	return nil
}
