package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func nothing(context.Context, *Job) (State, error) { return nil, nil }

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, cfg := range map[string]Config{
		"Connections": {Connections: -1},
		"Wakeup":      {Wakeup: -1},
		"RetryAfter":  {RetryAfter: -1},
		"connection":  {DSN: "port=many"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: New returns %v", name, err)
		}
	}
}

func TestHandleRefusesWhatCannotWork(t *testing.T) {
	w, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	together := func(context.Context, []*Job) ([]State, error) { return nil, nil }
	for name, handle := range map[string]func() error{
		"flow":          func() error { return w.Handle("", "t", nothing, Options{}) },
		"transition":    func() error { return w.Handle("f", "", nothing, Options{}) },
		"Handler":       func() error { return w.Handle("f", "t", nil, Options{}) },
		"BatchHandler":  func() error { return w.HandleBatch("f", "t", nil, Options{}) },
		"Concurrency":   func() error { return w.Handle("f", "t", nothing, Options{Concurrency: -1}) },
		"Batch":         func() error { return w.Handle("f", "t", nothing, Options{Batch: -1}) },
		"Options.Batch": func() error { return w.Handle("f", "t", nothing, Options{Batch: maxBatch + 1}) },
		"Lease":         func() error { return w.Handle("f", "t", nothing, Options{Lease: time.Millisecond}) },
		"exclude":       func() error { return w.Handle("f", "t", nothing, Options{Lease: time.Minute, Batch: 2}) },
		"each other":    func() error { return w.HandleBatch("f", "t", together, Options{Lease: time.Minute}) },
	} {
		if err := handle(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Handle returns %v", name, err)
		}
	}
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "handler") {
		t.Errorf("Run without a handler returns %v", err)
	}
	if err := w.Handle("f", "t", nothing, Options{}); err != nil {
		t.Error(err)
	}
	if err := w.Handle("f", "t", nothing, Options{}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("the second handler of a transition: %v", err)
	}
}

func TestSessionsSayWhoseTheyAre(t *testing.T) {
	one, two, other := &duty{flow: "f", transition: "t"}, &duty{flow: "f", transition: "u"}, &duty{flow: "g", transition: "t"}
	for want, duties := range map[string][]*duty{
		"wed_sql worker f.t": {one}, "wed_sql worker f": {one, two}, "wed_sql worker": {one, other},
	} {
		if got := applicationName(duties); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestJobHasTheFormOfItsNotification(t *testing.T) {
	job := &Job{
		Flow: "travel", WID: 1, TGID: 2, TrName: "tr_a2", Timeout: 90 * time.Hour, interval: "3 days 18:00:00",
		Payload: json.RawMessage(`{"a1": "ready"}`),
	}
	got, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"flow":"travel","wid":1,"tgid":2,"trname":"tr_a2","timeout":"3 days 18:00:00","payload":{"a1":"ready"}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestIntervalsAreWrittenAsPostgresReadsThem(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour:                      "01:00:00",
		90*time.Hour + time.Second:     "90:00:01",
		1500 * time.Millisecond:        "00:00:01.500000",
		59*time.Minute + 3*time.Second: "00:59:03",
	} {
		if got := formatInterval(d); got != want {
			t.Errorf("%s is written %q, want %q", d, got, want)
		}
	}
	if d := duration(1e300); d != math.MaxInt64 {
		t.Errorf("an endless timeout became %s", d)
	}
	if d := duration(1.5); d != 1500*time.Millisecond {
		t.Errorf("1.5 seconds became %s", d)
	}
}

func TestNotificationsArePassedToTheirTransition(t *testing.T) {
	w, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, transition := range []string{"book", "pay"} {
		for _, flow := range []string{"travel", "shop"} {
			if err := w.Handle(flow, transition, nothing, Options{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for payload, want := range map[string]bool{
		`{"flow":"travel","wid":9007199254740993,"tgid":2,"trname":"t","payload":{}}`: true,
		`{"flow":"other","wid":1,"tgid":2}`:                                           false,
		`{"flow":"travel","wid":1}`:                                                   false,
		`{"flow":"travel","wid":"1","tgid":2}`:                                        false,
		`travel`:                                                                      false,
		``:                                                                            false,
	} {
		w.notified(&pgconn.Notification{Channel: "pay", Payload: payload})
		for _, d := range w.duties {
			ready := d.queue.ready
			d.queue.ready = nil
			want := want && d.flow == "travel" && d.transition == "pay"
			if (len(ready) == 1) != want || want && ready[0] != (key{9007199254740993, 2}) {
				t.Errorf("%s: %s.%s has got %v", payload, d.flow, d.transition, ready)
			}
		}
	}
	if got := w.channels(); !slices.Equal(got, []string{"book", "pay"}) {
		t.Errorf("it listens to %v", got)
	}
}

func TestNamesAreQuoted(t *testing.T) {
	got := newPool(`tra"vel`, "t").page
	if want := `from "tra""vel"."job_pool"`; !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

func TestErrorsDecideWhetherAJobIsRedone(t *testing.T) {
	for code, want := range map[string]outcome{
		"WED03": gone, "WED08": gone, "WED16": gone, "WED17": gone,
		"WED07": soon, "40001": soon, "40P01": soon, "55P03": soon,
		"WED02": failed, "23505": failed, "42703": failed,
	} {
		err := fmt.Errorf("write: %w", &pgconn.PgError{Code: code})
		if got := judge(err); got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
	if got := judge(errors.New("handler")); got != failed {
		t.Errorf("a handler's error: %v, want %v", got, failed)
	}
}

func TestPanicOfAHandlerIsAnError(t *testing.T) {
	ouch := func() { panic("ouch") }
	for name, call := range map[string]func() error{
		"Handler": func() error {
			d := &duty{handler: func(context.Context, *Job) (State, error) { ouch(); return nil, nil }}
			_, err := d.call(t.Context(), &Job{}, nil)
			return err
		},
		"BatchHandler": func() error {
			d := &duty{together: func(context.Context, []*Job) ([]State, error) { ouch(); return nil, nil }}
			_, err := d.callTogether(t.Context(), nil)
			return err
		},
		"BeforeCommit": func() error {
			job := &Job{}
			job.BeforeCommit(func(context.Context, Querier) error { ouch(); return nil })
			return job.beforeCommit(t.Context(), nil)
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "ouch") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestNoStateMeansRollBack(t *testing.T) {
	d := &duty{handler: nothing}
	if _, err := d.call(t.Context(), &Job{}, nil); !errors.Is(err, errNothing) {
		t.Errorf("got %v", err)
	}
	d.handler = func(context.Context, *Job) (State, error) { return State{}, nil }
	if _, err := d.call(t.Context(), &Job{}, nil); err != nil {
		t.Errorf("an empty state: %v", err)
	}
}

func TestBatchHandlerReturnsAStateForEachJob(t *testing.T) {
	d := &duty{together: func(context.Context, []*Job) ([]State, error) { return []State{{}}, nil }}
	if _, err := d.callTogether(t.Context(), []*Job{{}, {}}); err == nil || !strings.Contains(err.Error(), "1 states for 2 jobs") {
		t.Errorf("got %v", err)
	}
}

func TestTransactionIsNotToBeHadOutsideOfIt(t *testing.T) {
	for want, db := range map[error]Querier{errLeased: closedSession(errLeased), errHandlerReturned: func() Querier {
		s := newSession(nil)
		s.close()
		return s
	}()} {
		ctx := t.Context()
		_, execErr := db.Exec(ctx, "")
		_, queryErr := db.Query(ctx, "")
		_, copyErr := db.CopyFrom(ctx, nil, nil, nil)
		batch := db.SendBatch(ctx, nil)
		_, batchExecErr := batch.Exec()
		_, batchQueryErr := batch.Query()
		for i, err := range []error{execErr, queryErr, copyErr, db.QueryRow(ctx, "").Scan(), batchExecErr, batchQueryErr,
			batch.QueryRow().Scan(), batch.Close()} {
			if !errors.Is(err, want) {
				t.Errorf("%d: got %v, want %v", i, err, want)
			}
		}
	}
}

func TestShortestTimeoutIsThatOfTheBatch(t *testing.T) {
	for _, c := range []struct {
		of   []time.Duration
		want time.Duration
	}{
		{[]time.Duration{0}, 0}, {[]time.Duration{0, time.Hour}, time.Hour}, {[]time.Duration{time.Hour, 0, time.Minute}, time.Minute},
	} {
		tx := &transaction{}
		for _, d := range c.of {
			tx.jobs = append(tx.jobs, &Job{Timeout: d})
		}
		if got := tx.timeout(); got != c.want {
			t.Errorf("%v: %s, want %s", c.of, got, c.want)
		}
	}
}

func TestJobsIDTellsItFromTheNextOneOfItsRule(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	job := &Job{Flow: "travel", WID: 1, TGID: 2, FiredAt: at}
	if got, want := job.ID(), "travel/1/2/1767323045000006"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if same := (&Job{Flow: "travel", WID: 1, TGID: 2, FiredAt: at.In(time.FixedZone("", 3600))}); same.ID() != job.ID() {
		t.Error("another time zone makes it another job")
	}
	if next := (&Job{Flow: "travel", WID: 1, TGID: 2, FiredAt: at.Add(time.Microsecond)}); next.ID() == job.ID() {
		t.Error("fired anew it has the same ID")
	}
}

func TestConnectionThatCannotBeHadTakesNobodysPlace(t *testing.T) {
	want := errors.New("away")
	c := newConns(func(context.Context) (*pgx.Conn, error) { return nil, want }, 1)
	for range 3 {
		if _, err := c.get(t.Context()); !errors.Is(err, want) {
			t.Errorf("got %v", err)
		}
	}
	if n := c.count(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
}
