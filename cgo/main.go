// Command cgo is built with -buildmode=c-shared: it is the library that the
// background worker's child process loads, and the door between C and Go.
package main

/*
#include <stddef.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/wed-sql/wed_sql/engine"
	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/link"
)

// Exit statuses of the process.
const (
	exitOrderly = 0 // the worker is gone
	exitFailure = 1
	exitPanic   = 2
)

// wed_sql_engine_run runs the engine until the worker at the other end of the
// socket fd closes it, and returns the exit status for the process. config points to
// n bytes of JSON, which are copied.
//
//export wed_sql_engine_run
func wed_sql_engine_run(fd C.int, config *C.char, n C.int) (status C.int) {
	defer func() { // of this goroutine; the others have their own
		if v := recover(); v != nil {
			status = exitPanic
		}
	}()
	settings := C.GoBytes(unsafe.Pointer(config), n)
	err := group.Call("engine", func() error { return run(int(fd), settings) })
	return C.int(exitStatus(err))
}

func run(fd int, settings []byte) error {
	l, err := link.New(fd)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	return engine.Run(context.Background(), settings, l)
}

// exitStatus tells on standard error, which is the server's log, what the link could
// not carry any more.
func exitStatus(err error) int {
	if err == nil {
		return exitOrderly
	}
	fmt.Fprintln(os.Stderr, "wed_sql engine:", err)
	if p := (*group.PanicError)(nil); errors.As(err, &p) {
		return exitPanic
	}
	return exitFailure
}

func main() {} // never called: c-shared wants it
