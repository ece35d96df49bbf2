package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/wed-sql/wed_sql/worker"
)

func job() *worker.Job {
	return &worker.Job{
		Flow: "travel", WID: 9007199254740993, TGID: 3, TrName: "book_hotel",
		Payload: json.RawMessage(`{"destination": "<Rome> & Zürich"}`),
	}
}

// shell returns a command that performs a transition by a shell script.
func shell(t *testing.T, script string, args ...string) (*command, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c, err := newCommand(append([]string{"sh", "-c", script, "sh"}, args...), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c, &log
}

func TestCommandReadsTheJobAndPrintsTheState(t *testing.T) {
	c, _ := shell(t, `read -r job; printf '{"job": %s, "env": "%s"}' "$job" "$WED_FLOW $WED_WID $WED_TGID $WED_TRANSITION"`)
	state, err := c.perform(t.Context(), job())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"job": `{"flow":"travel","wid":9007199254740993,"tgid":3,"trname":"book_hotel","timeout":null,` +
			`"payload":{"destination":"<Rome> & Zürich"}}`,
		"env": `"travel 9007199254740993 3 book_hotel"`,
	} {
		if got := fmt.Sprintf("%s", state[name]); got != want {
			t.Errorf("%s is %s\nwant %s", name, got, want)
		}
	}
}

func TestNumbersAreNotChanged(t *testing.T) {
	const number = "12345678901234567890.123456789"
	c, _ := shell(t, "echo '{\"a\": "+number+", \"b\": null}'")
	state, err := c.perform(t.Context(), job())
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(state)
	if want := `{"a":` + number + `,"b":null}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestNoOutputMeansRollBack(t *testing.T) {
	for _, script := range []string{"true", "echo", "echo null", "cat >/dev/null"} {
		c, _ := shell(t, script)
		if state, err := c.perform(t.Context(), job()); state != nil || err != nil {
			t.Errorf("%s: %v, %v", script, state, err)
		}
	}
	c, _ := shell(t, "echo '{}'")
	if state, err := c.perform(t.Context(), job()); state == nil || len(state) > 0 || err != nil {
		t.Errorf("{}: %v, %v", state, err)
	}
}

func TestFailingCommandIsAnError(t *testing.T) {
	for script, says := range map[string]string{
		`echo '{"a": 1}'; exit 3`: "exit status 3",
		`kill -9 $$`:              "killed",
		`echo done`:               `"done"`,
		`echo '[1]'`:              "JSON object",
		`echo '{"a": 1} x'`:       "JSON object",
		`sleep 1000 &`:            "keeps its output open",
	} {
		c, _ := shell(t, script)
		if _, err := c.perform(t.Context(), job()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want something of %s", script, err, says)
		}
	}
}

func TestStandardErrorIsLogged(t *testing.T) {
	c, log := shell(t, "echo one >&2; echo; printf two >&2")
	if _, err := c.perform(t.Context(), job()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"stderr=one", "stderr=two", "wid=9007199254740993"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
}

func TestLongLineOfStandardErrorIsLoggedInParts(t *testing.T) {
	c, log := shell(t, "head -c 20000 /dev/zero | tr '\\0' x >&2")
	if _, err := c.perform(t.Context(), job()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log.String(), "x"); got < 20000 {
		t.Errorf("%d of 20000 bytes were logged", got)
	}
}

// A command that has to go takes with it what it has started.
func TestTimeoutKillsAllThatTheCommandStarted(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := shell(t, `sh -c 'trap "" TERM HUP INT; exec 3>"$1"; echo started >&3; sleep 1000' sh "$1" & wait`, fifo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group errgroup.Group
	group.Go(func() error {
		f, err := os.Open(fifo)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.ReadFull(f, make([]byte, len("started\n"))); err != nil {
			return err
		}
		cancel()
		_, err = io.Copy(io.Discard, f) // until the last process has closed it
		return err
	})
	if _, err := c.perform(ctx, job()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("perform returns %v", err)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestTooMuchOutputIsAnError(t *testing.T) {
	b := &limitedBuffer{limit: 10}
	for range 3 {
		if n, err := b.Write([]byte("12345")); n != 5 || err != nil {
			t.Fatalf("Write returns %d, %v", n, err)
		}
	}
	if !b.exceeded || b.Len() != 10 {
		t.Errorf("kept %d bytes, exceeded: %t", b.Len(), b.exceeded)
	}
}
