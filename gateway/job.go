package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// handleOf returns the job that a request is about, if its token allows it.
func (g *Gateway) handleOf(r *http.Request, lckid string) (handle, error) {
	who := grantOf(r)
	h := handle{flow: r.PathValue("flow"), lckid: lckid, role: who.role}
	wid, err := strconv.ParseInt(r.PathValue("wid"), 10, 64)
	if err != nil {
		return h, badRequest("wid is a number.")
	}
	tgid, err := strconv.ParseInt(r.PathValue("tgid"), 10, 32)
	if err != nil {
		return h, badRequest("tgid is a number.")
	}
	h.wid, h.tgid = wid, int32(tgid)
	switch {
	case !isName(h.flow):
		return h, badRequest("A name of a flow has 1 to %d bytes of UTF-8.", maxName)
	case lckid == "" || clean(lckid) != lckid:
		return h, badRequest("lckid, the token of the lease, is needed.")
	}
	some, all := who.allowsSome(h.flow)
	if !some {
		return h, notAllowed(fmt.Sprintf("any transition of flow %q", h.flow))
	}
	if all {
		return h, nil
	}
	// Of which transition the job is, its row says.
	ctx, cancel := g.detached(r)
	defer cancel()
	transition, err := g.store.transition(ctx, h)
	switch {
	case err != nil:
		return h, err
	case transition == "":
		return h, gone("It is not leased under this lckid.")
	case !who.allows(h.flow, transition):
		return h, notAllowed(fmt.Sprintf("transition %q of flow %q", transition, h.flow))
	}
	return h, nil
}

// gone is what is said of a job that is not the worker's.
func gone(detail string) *problem {
	status, title := judge(stateLeased)
	return &problem{Status: status, Title: title, SQLState: stateLeased, Detail: detail, Hint: "Lease another job; extend a lease before it runs out."}
}

// extend has a lease last longer.
func (g *Gateway) extend(w http.ResponseWriter, r *http.Request) error {
	ask := struct {
		Lckid string `json:"lckid"`
		Lease span   `json:"lease"`
	}{Lease: span(defaultLease)}
	if err := decode(w, r, &ask); err != nil {
		return err
	}
	if err := g.checkLease(time.Duration(ask.Lease)); err != nil {
		return err
	}
	h, err := g.handleOf(r, ask.Lckid)
	if err != nil {
		return g.forget(ask.Lckid, err)
	}
	ctx, cancel := g.detached(r)
	defer cancel()
	until, err := g.store.extend(ctx, h, time.Duration(ask.Lease))
	if err != nil {
		return g.forget(ask.Lckid, err)
	}
	g.streams.extend(ask.Lckid, time.Now().Add(time.Duration(ask.Lease)))
	return writeJSON(w, struct {
		LeasedUntil time.Time `json:"leased_until"`
	}{until})
}

// complete writes the next state.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		Lckid string          `json:"lckid"`
		State json.RawMessage `json:"state"`
	}
	if err := decode(w, r, &ask); err != nil {
		return err
	}
	if !bytes.HasPrefix(ask.State, []byte("{")) {
		return badRequest("state is a JSON object: the attributes to set, and their values.")
	}
	return g.settle(w, r, ask.Lckid, "completed", func(ctx context.Context, h handle) error {
		return g.store.complete(ctx, h, ask.State)
	})
}

// fail counts a failed attempt.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		Lckid string `json:"lckid"`
		Error string `json:"error"`
	}
	if err := decode(w, r, &ask); err != nil {
		return err
	}
	return g.settle(w, r, ask.Lckid, "failed", func(ctx context.Context, h handle) error {
		noted, err := g.store.fail(ctx, h, clean(ask.Error))
		if err == nil && !noted {
			return gone("Another session has the job, or it is not pending any more.")
		}
		return err
	})
}

// release gives a job back, undone.
func (g *Gateway) release(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		Lckid string `json:"lckid"`
	}
	if err := decode(w, r, &ask); err != nil {
		return err
	}
	return g.settle(w, r, ask.Lckid, "released", func(ctx context.Context, h handle) error {
		n, err := g.store.release(ctx, lane{flow: h.flow, role: h.role}, []*Job{{WID: h.wid, TGID: h.tgid, Lckid: h.lckid}})
		if err == nil && n == 0 {
			return gone("It is not leased under this lckid.")
		}
		return err
	})
}

// settle ends a lease, by telling the database what became of the job.
func (g *Gateway) settle(
	w http.ResponseWriter, r *http.Request, lckid, outcome string, tell func(context.Context, handle) error,
) error {
	h, err := g.handleOf(r, lckid)
	if err != nil {
		return g.forget(lckid, err)
	}
	ctx, cancel := g.detached(r)
	defer cancel()
	if err := tell(ctx, h); err != nil {
		return g.forget(lckid, err)
	}
	g.streams.settle(h.lckid)
	g.metrics.settled.WithLabelValues(h.flow, outcome).Inc()
	return nothing(w)
}

// forget takes a job off its stream's account that has turned out to be gone.
func (g *Gateway) forget(lckid string, err error) error {
	if problemOf(err).Status == http.StatusConflict {
		g.streams.settle(lckid)
	}
	return err
}
