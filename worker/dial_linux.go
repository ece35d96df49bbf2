package worker

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundSilence has what was sent to a server that has vanished fail in a minute,
// and not when the kernel gives up.
func boundSilence(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}
