package fault

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed preload/preload.c
var preload []byte

// Equipment is what a server must be started with to have all faults.
type Equipment struct {
	Settings []string // for [cluster.Config].Settings
	Env      []string // and Env
}

// Equip prepares the directory of a cluster that is not started yet. Without a C compiler the server's disk is never full,
// and its clock always right.
func Equip(ctx context.Context, dir, bindir string) (Equipment, error) {
	e := Equipment{Settings: []string{"max_prepared_transactions = 10"}}
	if bindir != "" {
		bindir += "/"
	}
	version, err := exec.CommandContext(ctx, bindir+"postgres", "--version").Output()
	if err != nil {
		return e, fmt.Errorf("ask for the server's version: %w", err)
	}
	major := 0
	if i := strings.LastIndex(string(version), "(PostgreSQL) "); i >= 0 {
		_, _ = fmt.Sscan(string(version)[i+len("(PostgreSQL) "):], &major) // 17.2, 18beta1: what is read of it is the number
	}
	if major >= 17 {
		e.Settings = append(e.Settings, fmt.Sprintf("max_notify_queue_pages = %d", smallQueue))
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return e, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return e, fmt.Errorf("equip a cluster: %w", err)
	}
	library, source := filepath.Join(dir, "preload.so"), filepath.Join(dir, "preload.c")
	if err := os.WriteFile(source, preload, 0o600); err != nil {
		return e, fmt.Errorf("equip a cluster: %w", err)
	}
	compile := exec.CommandContext(ctx, compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl")
	if out, err := compile.CombinedOutput(); err != nil {
		return e, fmt.Errorf("compile what is loaded before all others: %w\n%s", err, out)
	}
	if err := os.WriteFile(switchesPath(dir), make([]byte, 3*8), 0o600); err != nil {
		return e, fmt.Errorf("equip a cluster: %w", err)
	}
	e.Env = []string{"LD_PRELOAD=" + library, "WED_SQL_SWITCHES=" + switchesPath(dir)}
	return e, nil
}

func switchesPath(dir string) string { return filepath.Join(dir, "switches") }

// switches is the file by which the library is told what to do: three numbers.
type switches struct{ path string }

func switchesOf(w World) (switches, error) {
	s := switches{switchesPath(w.Cluster().Dir())}
	if _, err := os.Stat(s.path); err != nil {
		return s, skipped("the server was not equipped for it")
	}
	return s, nil
}

// ahead sets the server's clock.
func (s switches) ahead(d time.Duration) error { return s.set(0, d.Microseconds()) }

// full has the disk be full.
func (s switches) full(full bool) error {
	if full {
		return s.set(1, 1)
	}
	return s.set(1, 0)
}

// refused is how many times a file could not grow.
func (s switches) refused() (int64, error) {
	all, err := os.ReadFile(s.path)
	if err != nil || len(all) != 3*8 {
		return 0, fmt.Errorf("read the switches: %d bytes, %w", len(all), err)
	}
	return int64(binary.NativeEndian.Uint64(all[2*8:])), nil
}

func (s switches) set(n int, value int64) error {
	f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set a switch: %w", err)
	}
	defer func() { _ = f.Close() }()
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(value))
	if _, err := f.WriteAt(b[:], int64(8*n)); err != nil {
		return fmt.Errorf("set a switch: %w", err)
	}
	return nil
}
