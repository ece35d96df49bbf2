package gateway

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wed-sql/wed_sql/internal/group"
)

// patient is a response that may take as long as it likes.
type patient struct{ *httptest.ResponseRecorder }

func (patient) SetReadDeadline(time.Time) error  { return nil }
func (patient) SetWriteDeadline(time.Time) error { return nil }

// The server's clock is behind ours by more than a lease, or ahead.
func TestCreditIsCountedByOneClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		f := newFakeStore()
		f.ahead = ahead
		f.add(5)
		dispatching(t, f, func(t *testing.T, d *dispatcher) {
			g := newGateway(Config{Logger: discard(), MaxLease: time.Hour, MaxWorkers: 1, MaxBody: 1}, f)
			g.dispatch = d
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, "GET", "/v1/flows/f/transitions/work/events?lease=30s&credit=2", nil)
			answer := patient{httptest.NewRecorder()}
			parts, _ := group.New(ctx)
			parts.Go("stream", func(context.Context) error { g.ServeHTTP(answer, r); return nil })
			jobs := func() int {
				synctest.Wait()
				return f.seen().leased
			}
			if n := jobs(); n != 2 {
				t.Errorf("with a clock that is %s ahead, %d jobs are out, want 2", ahead, n)
			}
			time.Sleep(31 * time.Second)
			if n := jobs(); n != 4 {
				t.Errorf("with a clock that is %s ahead, %d jobs were out after the leases, want 4", ahead, n)
			}
			cancel()
			_ = parts.Wait()
			text, _ := io.ReadAll(answer.Result().Body)
			if n := strings.Count(string(text), "event: job"); n != 4 {
				t.Errorf("%d events", n)
			}
		})
	}
}
