package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func nothing(context.Context, *Job) (State, error) { return nil, nil }

func TestNewRefusesWhatCannotWork(t *testing.T) {
	for name, cfg := range map[string]Config{
		"Flow":        {Transition: "t", Handler: nothing},
		"Transition":  {Flow: "f", Handler: nothing},
		"Handler":     {Flow: "f", Transition: "t"},
		"Concurrency": {Flow: "f", Transition: "t", Handler: nothing, Concurrency: -1},
		"Wakeup":      {Flow: "f", Transition: "t", Handler: nothing, Wakeup: -1},
		"RetryAfter":  {Flow: "f", Transition: "t", Handler: nothing, RetryAfter: -1},
		"connection":  {Flow: "f", Transition: "t", Handler: nothing, DSN: "port=many"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: New returns %v", name, err)
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

func TestOnlyNotificationsOfThisFlowAreTaken(t *testing.T) {
	for payload, want := range map[string]bool{
		`{"flow":"travel","wid":9007199254740993,"tgid":2,"trname":"t","payload":{}}`: true,
		`{"flow":"other","wid":1,"tgid":2}`:                                           false,
		`{"flow":"travel","wid":1}`:                                                   false,
		`{"flow":"travel","wid":"1","tgid":2}`:                                        false,
		`travel`:                                                                      false,
		``:                                                                            false,
	} {
		k, ok := parseNotification(payload, "travel")
		if ok != want {
			t.Errorf("%s: taken %t, want %t", payload, ok, want)
		}
		if ok && k != (key{9007199254740993, 2}) {
			t.Errorf("%s: got %v", payload, k)
		}
	}
}

func TestNamesAreQuoted(t *testing.T) {
	p := newPool(`tra"vel`, "t")
	got := p.update([]string{`a"; drop table x; --`, "Größe"})
	for _, want := range []string{
		`update "tra""vel"."wed_flow" f`,
		`set ("a""; drop table x; --", "Größe") =`,
		`select x."a""; drop table x; --", x."Größe" from`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
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
	_, err := handle(t.Context(), func(context.Context, *Job) (State, error) { panic("ouch") }, &Job{})
	if err == nil || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v", err)
	}
}

func TestNoStateMeansRollBack(t *testing.T) {
	if _, err := handle(t.Context(), nothing, &Job{}); !errors.Is(err, errNothing) {
		t.Errorf("got %v", err)
	}
	empty := func(context.Context, *Job) (State, error) { return State{}, nil }
	if _, err := handle(t.Context(), empty, &Job{}); err != nil {
		t.Errorf("an empty state: %v", err)
	}
}
