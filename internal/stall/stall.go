// Package stall lets tests tell what a program did late from what the machine did: a
// promise of a quarter of a second cannot be kept, nor broken, by a program that was
// given neither a CPU nor a disk for two.
package stall

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// pause is the time between two looks.
const pause = 10 * time.Millisecond

// Meter measures how long the machine lets a short sleep and a small durable write
// take. It ends with its test.
type Meter struct {
	mu      sync.Mutex
	began   time.Time // of the look that is under way
	longest time.Duration
}

// Watch begins to measure.
func Watch(t testing.TB) *Meter {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stall"))
	if err != nil {
		t.Fatal(err)
	}
	m := &Meter{began: time.Now()}
	end := make(chan struct{})
	var looks sync.WaitGroup
	looks.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(pause):
			}
			_, err := file.WriteAt([]byte{1}, 0)
			if err == nil {
				err = file.Sync()
			}
			if err != nil {
				t.Errorf("measuring the machine: %v", err)
				return
			}
			m.look()
		}
	})
	t.Cleanup(func() {
		close(end)
		looks.Wait()
		_ = file.Close()
	})
	return m
}

func (m *Meter) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.longest = max(m.longest, now.Sub(m.began)-pause)
	m.began = now
}

// Longest returns how long the longest look has taken so far, without its pause.
func (m *Meter) Longest() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.longest, time.Since(m.began)-pause)
}

// Patience returns d, and what has to be added on this machine: what is promised takes
// a few steps, each of which may meet such a stall.
func (m *Meter) Patience(d time.Duration) time.Duration { return d + 4*m.Longest() }
