package gateway

import (
	"net/http"
	"time"
)

const defaultLease = 30 * time.Second

// lease leases jobs, and waits for the first.
func (g *Gateway) lease(w http.ResponseWriter, r *http.Request) error {
	l, err := laneOf(r)
	if err != nil {
		return err
	}
	ask := struct {
		MaxJobs int  `json:"max_jobs"`
		Lease   span `json:"lease"`
		Wait    span `json:"wait"`
	}{MaxJobs: 1, Lease: span(defaultLease)}
	if err := decode(w, r, &ask); err != nil {
		return err
	}
	wait, lease := time.Duration(ask.Wait), time.Duration(ask.Lease)
	switch {
	case ask.MaxJobs < 1 || ask.MaxJobs > maxJobs:
		return badRequest("max_jobs is from 1 to %d.", maxJobs)
	case wait < 0 || wait > g.cfg.MaxWait:
		return badRequest("wait is from 0s to %s.", g.cfg.MaxWait)
	}
	if err := g.checkLease(lease); err != nil {
		return err
	}
	if wait == 0 {
		return g.leaseNow(w, r, l, ask.MaxJobs, lease)
	}
	if !g.workers.begin(g.cfg.MaxWorkers) {
		return tooManyWorkers(g.cfg.MaxWorkers)
	}
	defer g.workers.end()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	waiter, err := g.dispatch.enter(l, ask.MaxJobs, lease)
	if err != nil {
		return err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case got := <-waiter.given:
		if got.err == errDraining {
			w.Header().Set("Connection", "close")
			return nothing(w)
		}
		if got.err != nil {
			return got.err
		}
		return g.deliver(w, r, l, got)
	case <-timer.C:
	case <-r.Context().Done():
	}
	if jobs := g.dispatch.leave(waiter); len(jobs) > 0 {
		return g.deliver(w, r, l, delivery{jobs: jobs})
	}
	return nothing(w)
}

// leaseNow leases what is there.
func (g *Gateway) leaseNow(w http.ResponseWriter, r *http.Request, l lane, most int, lease time.Duration) error {
	if err := g.dispatch.ready(); err != nil {
		return err
	}
	ctx, cancel := g.detached(r)
	defer cancel()
	jobs, err := g.store.lease(ctx, l, lease, most)
	if err != nil {
		return err
	}
	if len(jobs) == 0 {
		return nothing(w)
	}
	g.metrics.leased.WithLabelValues(l.flow, l.transition).Add(float64(len(jobs)))
	return g.deliver(w, r, l, delivery{jobs: jobs})
}

// deliver answers with jobs. If nobody is there to have them, they are released.
func (g *Gateway) deliver(w http.ResponseWriter, r *http.Request, l lane, got delivery) error {
	err := r.Context().Err()
	if err == nil && !g.isStill(grantOf(r), l) {
		err = tokenEnded()
	}
	if err == nil {
		err = writeJSON(w, struct {
			Jobs []*Job `json:"jobs"`
		}{got.jobs})
	}
	if err != nil {
		ctx, cancel := g.detached(r)
		defer cancel()
		g.dispatch.release(ctx, l, got.jobs)
		return err
	}
	if !got.notified.IsZero() {
		g.metrics.dispatch.Observe(time.Since(got.notified).Seconds())
	}
	return nil
}

func nothing(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
