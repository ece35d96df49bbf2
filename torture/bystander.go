package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// bystander works in a database that has nothing to do with wed_sql, on a server that does. What befalls the engine, its
// sessions and its clients is nothing to it: none of its transactions fails but when the whole server does, and none of
// those that were committed is lost.
type bystander struct {
	*world
	name      string
	committed int64 // and it was told so
	unsure    int64 // it may have been, when the connection broke
	next      int64
}

// outages counts the faults that may take the whole server down.
type outages struct {
	begun, ended atomic.Int64
}

func (o *outages) begin() (end func()) {
	o.begun.Add(1)
	return func() { o.ended.Add(1) }
}

// noneSince tells whether none was under way at a moment, nor since, of which it is told how many had begun.
func (o *outages) noneSince(begun int64) bool {
	return o.ended.Load() == begun && o.begun.Load() == begun
}

func newBystander(w *world) *bystander { return &bystander{world: w, name: "bystander"} }

func (b *bystander) prepare(ctx context.Context) error {
	if err := b.createDatabase(ctx, b.name); err != nil {
		return err
	}
	return b.with(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create table work (n bigint primary key)")
		return err
	})
}

func (b *bystander) with(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := b.cluster.Connect(ctx, b.name)
	if err != nil {
		return fmt.Errorf("connect the bystander: %w", err)
	}
	err = f(conn)
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(bye) // it ends in any case
	return err
}

// run has it work, on one connection as long as that holds.
func (b *bystander) run(ctx context.Context) error {
	for ctx.Err() == nil {
		begun := b.outages.begun.Load()
		// There may be no connection to be had; one that it has is to last.
		err := b.with(ctx, func(conn *pgx.Conn) error {
			for ctx.Err() == nil {
				if err := b.work(ctx, conn); err != nil {
					if ctx.Err() == nil && b.outages.noneSince(begun) {
						b.report.violation("a transaction in a database without wed_sql has failed: %v", err)
					}
					return nil
				}
				if !pause(ctx, 20*time.Millisecond) {
					return nil
				}
			}
			return nil
		})
		if err != nil && !pause(ctx, 100*time.Millisecond) {
			return nil
		}
	}
	return nil
}

// work is one transaction.
func (b *bystander) work(ctx context.Context, conn *pgx.Conn) error {
	b.next++
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "insert into work values ($1)", b.next); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		b.unsure++
		return err
	}
	b.committed++
	return nil
}

// check compares what is there in the end with what it was told.
func (b *bystander) check(ctx context.Context) error {
	var there int64
	err := b.with(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select count(*) from work").Scan(&there)
	})
	if err != nil {
		return err
	}
	b.report.add("transactions in a database without wed_sql", b.committed)
	if there < b.committed || there > b.committed+b.unsure {
		b.report.violation("of %d transactions in a database without wed_sql, and %d of which it was not told, %d are there", b.committed, b.unsure, there)
	}
	return nil
}
