package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	writeTimeout = 15 * time.Second // for a client to take a response, or an event
	bodyTimeout  = 15 * time.Second // for a client to send a request's body
	maxName      = 63               // bytes, of a flow and a transition
	maxJobs      = maxBatch         // of one request
)

// unlimited is the grant of everybody where there are no tokens.
var unlimited = &grant{name: "-", allow: []pattern{{anyFlow: true, anyTransition: true}}, metrics: true}

func (g *Gateway) routes() http.Handler {
	mux := http.NewServeMux()
	scrape := g.metrics.handler()
	route := func(pattern, name string, serve func(http.ResponseWriter, *http.Request) error) {
		mux.Handle(pattern, g.serve(name, serve))
	}
	route("POST /v1/flows/{flow}/transitions/{transition}/lease", "lease", g.authorized(g.lease))
	route("GET /v1/flows/{flow}/transitions/{transition}/events", "events", g.authorized(g.events))
	route("POST /v1/flows/{flow}/jobs/{wid}/{tgid}/extend", "extend", g.authorized(g.extend))
	route("POST /v1/flows/{flow}/jobs/{wid}/{tgid}/complete", "complete", g.authorized(g.complete))
	route("POST /v1/flows/{flow}/jobs/{wid}/{tgid}/fail", "fail", g.authorized(g.fail))
	route("POST /v1/flows/{flow}/jobs/{wid}/{tgid}/release", "release", g.authorized(g.release))
	route("GET /metrics", "metrics", g.authorized(func(w http.ResponseWriter, r *http.Request) error {
		if !grantOf(r).metrics {
			return notAllowed("metrics")
		}
		scrape.ServeHTTP(w, r)
		return nil
	}))
	route("GET /healthz", "healthz", func(w http.ResponseWriter, _ *http.Request) error {
		_, err := fmt.Fprintln(w, "The gateway runs.")
		return err
	})
	route("GET /readyz", "readyz", func(w http.ResponseWriter, _ *http.Request) error {
		if err := g.dispatch.ready(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, "The gateway is ready.")
		return err
	})
	route("/", "other", func(_ http.ResponseWriter, r *http.Request) error {
		return &problem{Status: http.StatusNotFound, Title: "There is nothing here",
			Detail: fmt.Sprintf("%s %s is nothing that the gateway serves.", r.Method, r.URL.Path)}
	})
	return mux
}

// serve counts a request, bounds it, and answers with a problem if it fails.
func (g *Gateway) serve(name string, serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.requests.begin()
		defer g.requests.end()
		rec := &recorder{ResponseWriter: w}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(callTimeout + writeTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBody)
		err := group.Call(name, func() error { return serve(rec, r) })
		if err != nil {
			if _, panicked := errors.AsType[*group.PanicError](err); panicked {
				g.log.Error("a request failed", attrsAny(r, err)...)
				err = &problem{Status: http.StatusInternalServerError, Title: "The gateway has failed"}
			}
			if rec.status == 0 {
				g.refuse(rec, r, err)
			}
		}
		g.metrics.requests.WithLabelValues(name, rec.code()).Inc()
	})
}

func attrsAny(r *http.Request, err error) []any {
	var list []any
	for _, a := range attrs(r, http.StatusInternalServerError, err) {
		list = append(list, a)
	}
	return list
}

// authorized lets those in who have a token.
func (g *Gateway) authorized(serve func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		who := unlimited
		if g.cfg.Tokens == nil && (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") {
			// Whatever page a browser on this machine shows could send requests here.
			return &problem{Status: http.StatusForbidden, Title: "A browser needs a token", Detail: "The gateway runs without tokens."}
		}
		if g.cfg.Tokens == nil && g.alone && !isOwnName(r.Host) {
			return &problem{Status: http.StatusForbidden, Title: "There is no such host here",
				Detail: "The gateway runs without tokens: ask 127.0.0.1 or localhost."}
		}
		if g.cfg.Tokens != nil {
			scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return &problem{Status: http.StatusUnauthorized, Title: "A token is needed", Detail: "Send the header Authorization: Bearer TOKEN."}
			}
			if who = g.cfg.Tokens.bearer(strings.TrimSpace(token)); who == nil {
				return &problem{Status: http.StatusUnauthorized, Title: "The token is not valid"}
			}
		}
		return serve(w, withGrant(r, who))
	}
}

// isStill reports whether the bearer may still perform a transition.
func (g *Gateway) isStill(who *grant, l lane) bool {
	if g.cfg.Tokens == nil {
		return true
	}
	now := g.cfg.Tokens.still(who)
	return now != nil && now.role == l.role && now.allows(l.flow, l.transition)
}

func notAllowed(what string) *problem {
	return &problem{Status: http.StatusForbidden, Title: "The token does not allow this",
		Detail: fmt.Sprintf("It does not allow %s.", what)}
}

// laneOf returns the lane that a request names, if its token allows it.
func laneOf(r *http.Request) (lane, error) {
	who := grantOf(r)
	l := lane{flow: r.PathValue("flow"), transition: r.PathValue("transition"), role: who.role}
	if !isName(l.flow) || !isName(l.transition) {
		return l, badRequest("A name of a flow or a transition has 1 to %d bytes of UTF-8.", maxName)
	}
	if !who.allows(l.flow, l.transition) {
		return l, notAllowed(fmt.Sprintf("transition %q of flow %q", l.transition, l.flow))
	}
	return l, nil
}

func isName(s string) bool { return s != "" && len(s) <= maxName && clean(s) == s }

// span is a duration as clients write it: "1m30s", or a number of seconds.
type span time.Duration

func (s *span) UnmarshalJSON(text []byte) error {
	var str string
	if json.Unmarshal(text, &str) != nil {
		str = string(text)
	}
	d, err := parseSpan(str)
	*s = span(d)
	return err
}

func parseSpan(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(seconds) < 1e9 {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf(`%q is no duration: "30s", "1h30m" or a number of seconds`, s)
	}
	return d, nil
}

// decode reads the body of a request, a JSON object or nothing.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		// curl says so of everything that it is not told the kind of
		media, _, err := mime.ParseMediaType(kind)
		if err != nil || media != "application/json" && media != "application/x-www-form-urlencoded" {
			return &problem{Status: http.StatusUnsupportedMediaType, Title: "The request is not JSON", Detail: "Send Content-Type: application/json."}
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return tooLarge
		}
		return badRequest("The request did not arrive as a whole.")
	}
	// From now on reading means to notice that the client has gone.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return badRequest("The body is not what is expected: %s.", strings.TrimPrefix(err.Error(), "json: "))
	}
	if dec.More() {
		return badRequest("The body has more than one JSON object.")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	ctl := http.NewResponseController(w)
	_ = ctl.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := w.Write(text.Bytes()); err != nil {
		return err
	}
	if err := ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// checkLease refuses leases that the gateway does not give.
func (g *Gateway) checkLease(d time.Duration) error {
	if d < time.Millisecond || d > g.cfg.MaxLease {
		return badRequest("A lease lasts from 1ms to %s.", g.cfg.MaxLease)
	}
	return nil
}

// detached is a context for what goes on though the client has gone.
func (g *Gateway) detached(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(g.aborted, cancel)
	return ctx, func() { stop(); cancel() }
}
