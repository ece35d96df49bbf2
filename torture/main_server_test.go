package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The program is started again as its own workers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == workCommand {
		if err := app().Run(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// faultsOfCheck are those that take no time to heal.
const faultsOfCheck = "engine killed,worker killed,client's backend terminated,engine's backend terminated,walsender terminated," +
	"savepoints and rollbacks,slot dropped,postmaster killed"

func TestRandomFlowsUnderFire(t *testing.T) {
	if os.Getenv("WED_SQL_TEST_CONN") == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN") // it starts its own, as the server's user
	}
	faults, err := chosen(faultsOfCheck)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(t.TempDir(), "evidence")
	var out bytes.Buffer
	p := plan{seed: 20260301, duration: 10 * time.Second, faults: faults, pause: 200 * time.Millisecond, kills: time.Second, patience: 2 * time.Minute,
		databases: 1, flows: 2, most: 40, changes: true, keep: keep, self: self, out: &out,
		again: "scripts/torture --seed 20260301 --duration 10s --databases 1 --flows 2 --most 40 --faults '" + faultsOfCheck + "'"}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	err = campaign(ctx, p)
	t.Log(out.String())
	if err != nil {
		evidence, _ := os.ReadFile(filepath.Join(keep, "violations.txt"))
		t.Fatalf("%v\n%.20000s", err, evidence)
	}
	if !strings.Contains(out.String(), "faults survived") || strings.Contains(out.String(), " 0 faults survived") {
		t.Error("no fault was injected")
	}
}

func TestFaultsAreNamed(t *testing.T) {
	t.Parallel()
	if _, err := chosen("engine killed,no such fault"); err == nil || !strings.Contains(err.Error(), `"no such fault"`) {
		t.Errorf("a fault that does not exist: %v", err)
	}
	if all, err := chosen("all"); err != nil || len(all) < 30 {
		t.Errorf("all faults: %d, %v", len(all), err)
	}
	if none, err := chosen("none"); err != nil || len(none) != 0 {
		t.Errorf("none: %d, %v", len(none), err)
	}
}
