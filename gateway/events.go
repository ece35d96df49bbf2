package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	beat       = 15 * time.Second // between two comments on a stream that is silent
	retryAfter = time.Second      // before a client opens a stream again
)

// events sends jobs as they are leased, as long as the worker has credit: no more of
// them are out at a time. Credit comes back when a job is completed, failed or
// released, and when its lease has ended.
func (g *Gateway) events(w http.ResponseWriter, r *http.Request) error {
	l, err := laneOf(r)
	if err != nil {
		return err
	}
	lease, credit, err := g.streamOptions(r.URL.Query())
	if err != nil {
		return err
	}
	if !g.workers.begin(g.cfg.MaxWorkers) {
		return tooManyWorkers(g.cfg.MaxWorkers)
	}
	defer g.workers.end()
	if err := g.dispatch.ready(); err != nil {
		return err
	}
	s := &eventStream{g: g, w: w, r: r, lane: l, lease: lease, credit: credit, ctl: http.NewResponseController(w), account: newStream()}
	_ = s.ctl.SetReadDeadline(time.Time{})
	g.metrics.streams.Inc()
	defer g.metrics.streams.Dec()
	defer g.streams.end(s.account)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // of nginx: what it buffers nobody sees
	if err := s.write(fmt.Sprintf("retry: %d\n: transition %s\n\n", retryAfter.Milliseconds(), url.PathEscape(l.transition))); err != nil {
		return err
	}
	return s.run()
}

func (g *Gateway) streamOptions(query url.Values) (lease time.Duration, credit int, err error) {
	lease, credit = defaultLease, 1
	for name, values := range query {
		switch name {
		case "lease":
			if lease, err = parseSpan(values[0]); err != nil {
				return 0, 0, badRequest("lease: %s.", err)
			}
		case "credit":
			if credit, err = strconv.Atoi(values[0]); err != nil || credit < 1 || credit > maxJobs {
				return 0, 0, badRequest("credit is from 1 to %d.", maxJobs)
			}
		default:
			return 0, 0, badRequest("There is no parameter %q; there are lease and credit.", name)
		}
	}
	return lease, credit, g.checkLease(lease)
}

// eventStream is one that is being served.
type eventStream struct {
	g       *Gateway
	w       http.ResponseWriter
	r       *http.Request
	ctl     *http.ResponseController
	lane    lane
	lease   time.Duration
	credit  int
	account *stream
}

// run serves until the client goes away, or is sent away.
func (s *eventStream) run() error {
	tick := time.NewTimer(beat)
	defer tick.Stop()
	for {
		out, first := s.g.streams.open(s.account, time.Now())
		if out >= s.credit {
			if err := s.waitForCredit(tick, first); err != nil {
				return err
			}
			continue
		}
		waiter, err := s.g.dispatch.enter(s.lane, s.credit-out, s.lease)
		if err != nil {
			return s.end(err)
		}
		got, err := s.waitForJobs(tick, waiter)
		if err != nil {
			s.giveBack(s.g.dispatch.leave(waiter))
			return err
		}
		if got.err != nil {
			return s.end(got.err)
		}
		if err := s.send(got); err != nil {
			return err
		}
	}
}

// waitForCredit waits until a job may be settled.
func (s *eventStream) waitForCredit(tick *time.Timer, first time.Time) error {
	expiry := time.NewTimer(time.Until(first))
	defer expiry.Stop()
	for {
		select {
		case <-s.account.settled:
			return nil
		case <-expiry.C:
			return nil
		case <-s.g.dispatch.ending:
			return s.end(errDraining)
		case <-tick.C:
			if err := s.beat(tick); err != nil {
				return err
			}
		case <-s.r.Context().Done():
			return s.r.Context().Err()
		}
	}
}

func (s *eventStream) waitForJobs(tick *time.Timer, waiter *waiter) (delivery, error) {
	for {
		select {
		case got := <-waiter.given:
			return got, nil
		case <-tick.C:
			if err := s.beat(tick); err != nil {
				return delivery{}, err
			}
		case <-s.r.Context().Done():
			return delivery{}, s.r.Context().Err()
		}
	}
}

// beat shows both sides that the other is there, and the token valid.
func (s *eventStream) beat(tick *time.Timer) error {
	tick.Reset(beat)
	if !s.g.isStill(grantOf(s.r), s.lane) {
		return s.end(tokenEnded())
	}
	return s.write(": waiting\n\n")
}

func tokenEnded() *problem {
	return &problem{Status: http.StatusUnauthorized, Title: "The token is not valid any more"}
}

// send sends jobs. What could not be written is released.
func (s *eventStream) send(got delivery) error {
	err := s.r.Context().Err()
	if err == nil && !s.g.isStill(grantOf(s.r), s.lane) {
		err = s.end(tokenEnded())
	}
	if err == nil {
		s.g.streams.delivered(s.account, got.jobs, time.Now().Add(s.lease))
		err = s.write(jobEvents(got.jobs))
	}
	if err != nil {
		s.giveBack(got.jobs)
		return err
	}
	if !got.notified.IsZero() {
		s.g.metrics.dispatch.Observe(time.Since(got.notified).Seconds())
	}
	return nil
}

// jobEvents writes jobs as events.
func jobEvents(jobs []*Job) string {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	for _, j := range jobs {
		fmt.Fprintf(&text, "event: job\nid: %s\ndata: ", j.Lckid)
		_ = enc.Encode(j) // one line; it was read from JSON
		text.WriteByte('\n')
	}
	return text.String()
}

func (s *eventStream) giveBack(jobs []*Job) {
	ctx, cancel := s.g.detached(s.r)
	defer cancel()
	s.g.dispatch.release(ctx, s.lane, jobs)
}

// end tells the client why the stream ends.
func (s *eventStream) end(reason error) error {
	p := problemOf(reason)
	text, _ := json.Marshal(p)
	if err := s.write(fmt.Sprintf("event: end\ndata: %s\n\n", text)); err != nil {
		return errors.Join(reason, err)
	}
	return reason
}

func (s *eventStream) write(text string) error {
	_ = s.ctl.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	if err := s.ctl.Flush(); err != nil {
		return err
	}
	return s.ctl.SetWriteDeadline(time.Time{})
}
