package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A postmaster's lock file, by lines: 1 its pid, 7 key and id of its System V shared memory.

func (s *server) lockPath() string { return filepath.Join(s.data, "postmaster.pid") }

// lockFile is the last number in a line of the lock file.
func (s *server) lockFile(line int) (int, bool) {
	file, err := os.ReadFile(s.lockPath())
	if err != nil {
		return 0, false
	}
	lines := strings.Split(string(file), "\n")
	if len(lines) < line {
		return 0, false
	}
	words := strings.Fields(lines[line-1])
	if len(words) == 0 {
		return 0, false
	}
	n, err := strconv.Atoi(words[len(words)-1])
	return n, err == nil
}

// removeSharedMemory removes what a killed postmaster has left. Its lock file is there only then.
func (s *server) removeSharedMemory() error {
	id, ok := s.lockFile(7)
	if !ok {
		return nil
	}
	_, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EIDRM) {
		return nil
	}
	return err
}
