package metrics

import (
	"net"
	"testing"
)

// Where metrics are served is a host and a port, this machine alone if no host is named, or an error.
func FuzzAnAddressHasAHost(f *testing.F) {
	for _, s := range []string{"9187", ":9187", "localhost:http", "[::1]:1", "::1", "a:b:c", "", ":", "[::]:0", "x]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		listen, err := listenAddress(address)
		if err != nil {
			return
		}
		host, port, err := net.SplitHostPort(listen)
		if err != nil || host == "" || port == "" {
			t.Fatalf("%q is %q: %v", address, listen, err)
		}
	})
}
