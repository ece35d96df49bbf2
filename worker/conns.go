package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	idleTrusted = time.Second // so long a connection is not asked whether it still is one
	idleLimit   = time.Minute // so long it is kept
)

// conns keeps the connections that nobody uses just now. The one that was used
// last is used next, so that the others can be given up.
type conns struct {
	dial   func(context.Context) (*pgx.Conn, error)
	tokens chan struct{} // one for each connection that may be in use; nil: no limit

	waiting atomic.Int64 // for a token

	mu     sync.Mutex
	idle   []idleConn
	inUse  int
	closed bool
}

type idleConn struct {
	conn  *pgx.Conn
	since time.Time
}

// newConns returns a store of up to so many connections; 0 means no limit.
func newConns(dial func(context.Context) (*pgx.Conn, error), most int) *conns {
	c := &conns{dial: dial}
	if most > 0 {
		c.tokens = make(chan struct{}, most)
	}
	return c
}

// get returns a connection that seems to work. It is given back by put.
func (c *conns) get(ctx context.Context) (*pgx.Conn, error) {
	if c.tokens != nil {
		c.waiting.Add(1)
		select {
		case c.tokens <- struct{}{}:
			c.waiting.Add(-1)
		case <-ctx.Done():
			c.waiting.Add(-1)
			return nil, ctx.Err()
		}
	}
	for {
		conn, since := c.pop()
		if conn == nil {
			break
		}
		if time.Since(since) < idleTrusted || ping(ctx, conn) == nil {
			return conn, nil
		}
		hangUp(conn)
		c.leave()
	}
	conn, err := c.dial(ctx)
	if err != nil {
		c.free()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inUse++
	return conn, nil
}

// wanted reports whether somebody waits for a connection.
func (c *conns) wanted() bool { return c.waiting.Load() > 0 }

func (c *conns) pop() (*pgx.Conn, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		return nil, time.Time{}
	}
	i := c.idle[last]
	c.idle = c.idle[:last]
	c.inUse++
	return i.conn, i.since
}

func (c *conns) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inUse--
}

func (c *conns) free() {
	if c.tokens != nil {
		<-c.tokens
	}
}

// put takes a connection back, which may be broken: then the idle ones are not
// trusted any more either. What has been idle for long is closed.
func (c *conns) put(conn *pgx.Conn) {
	defer c.free()
	c.mu.Lock()
	c.inUse--
	var stale []idleConn
	switch {
	case conn.IsClosed():
		stale, c.idle = c.idle, nil
	case c.closed:
		stale = []idleConn{{conn: conn}}
	default:
		c.idle = append(c.idle, idleConn{conn, time.Now()})
		n := 0
		for n < len(c.idle) && time.Since(c.idle[n].since) > idleLimit {
			n++
		}
		stale, c.idle = c.idle[:n:n], c.idle[n:]
	}
	c.mu.Unlock()
	for _, i := range stale {
		hangUp(i.conn)
	}
}

// distrust gives up the connections that are idle: the server may have ended them.
func (c *conns) distrust() {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, i := range idle {
		hangUp(i.conn)
	}
}

// count returns how many connections are open.
func (c *conns) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inUse + len(c.idle)
}

// close closes those that are idle; the others when they are put back.
func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.distrust()
}
