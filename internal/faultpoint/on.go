//go:build faultpoint

package faultpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// passed counts for a process, which is what tests arm points in: there is no other place for it.
var passed struct {
	sync.Mutex
	armed string // what the file said
	times int
}

// Hit lets happen what is armed for a point, once.
func Hit(point string) {
	if action := passes(point); action != "" {
		act(action)
	}
}

// passes counts, and takes the file away when it is time.
func passes(point string) (action string) {
	passed.Lock()
	defer passed.Unlock()
	text, err := os.ReadFile(File)
	if err != nil {
		return ""
	}
	if passed.armed != string(text) {
		passed.armed, passed.times = string(text), 0
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 3 || lines[0] != point {
		return ""
	}
	before, err := strconv.Atoi(lines[2])
	if err != nil || passed.times < before {
		passed.times++
		return ""
	}
	if os.Remove(File) != nil {
		return "" // disarmed meanwhile
	}
	return lines[1]
}

func act(action string) {
	switch action {
	case Kill:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	case Stop:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	case Panic:
		panic("fault point")
	}
}
