package wal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/wed-sql/wed_sql/internal/faultpoint"
)

// source is where the reader reads: a stream.
type source interface {
	receive() (*pglogrepl.PrimaryKeepaliveMessage, []byte, error)
}

// reporter is whom positions are reported to: a stream.
type reporter interface {
	report(written, flushed, applied LSN) error
}

// feedback is what the server is told of our progress, by the reader when it is
// asked and by the applier when there is something to acknowledge.
//
// A server that has sent everything says how far it is whenever its log has grown,
// without being asked, as long as the position that it was told is behind. So nothing
// is reported for its own sake: an unanswered keepalive costs less than an answer.
type feedback struct {
	to reporter

	mu                        sync.Mutex
	received, acked, appliedP LSN
}

func (f *feedback) receive(lsn LSN) {
	f.mu.Lock()
	f.received = max(f.received, lsn)
	f.mu.Unlock()
}

// acknowledge reports that the server needs to keep nothing from below lsn.
func (f *feedback) acknowledge(lsn LSN) error {
	f.mu.Lock()
	f.acked = max(f.acked, lsn)
	f.mu.Unlock()
	return f.send()
}

func (f *feedback) applied(lsn LSN) {
	f.mu.Lock()
	f.appliedP = max(f.appliedP, lsn)
	f.mu.Unlock()
}

func (f *feedback) send() error {
	f.mu.Lock()
	received, acked, applied := f.received, f.acked, f.appliedP
	f.mu.Unlock()
	// A position that is not known is reported as the acknowledged one: zero would
	// be taken for the written position by some servers.
	return f.to.report(max(received, acked), acked, max(applied, acked))
}

// reader decodes the stream into the queue. It answers the server at all times, also
// while the queue is full.
type reader struct {
	from     source
	decode   *decoder
	queue    *queue
	feedback *feedback
	// batchSize bounds the states in a commit that is put.
	batchSize func() int
}

// run ends with an error, never without.
func (r *reader) run(ctx context.Context) error {
	for {
		k, message, err := r.from.receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		case k != nil:
			r.feedback.receive(k.ServerWALEnd)
			if !r.decode.inTransaction() {
				r.queue.advance(k.ServerWALEnd)
			}
			if k.ReplyRequested {
				if err := r.feedback.send(); err != nil {
					return err
				}
			}
			continue
		}
		c, err := r.decode.decode(message, r.batchSize())
		if err != nil {
			return fmt.Errorf("decode the replication stream: %w", err)
		}
		if c == nil {
			continue
		}
		r.feedback.receive(c.End)
		if len(c.Versions) == 0 { // nothing for us in it, or it was put in parts
			r.queue.advance(c.End)
			continue
		}
		faultpoint.Hit(faultpoint.CommitDecoded)
		if err := r.put(ctx, *c); err != nil {
			return err
		}
	}
}

func (r *reader) put(ctx context.Context, c Commit) error {
	if r.queue.put(c) {
		return nil
	}
	ticker := time.NewTicker(statusInterval)
	defer ticker.Stop()
	for !r.queue.put(c) {
		select {
		case <-r.queue.room:
		case <-ticker.C:
			if err := r.feedback.send(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
