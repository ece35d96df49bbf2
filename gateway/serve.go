package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	spareSockets  = 1000 // connections beside those of workers that wait
)

// Serve runs the gateway behind an HTTP server, until ctx ends: HTTP/1.1 and HTTP/2,
// with TLS if there is a configuration for it. It closes the listener.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener, secure *tls.Config) error {
	server := g.server(secure)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, _ := group.New(context.Background())
	parts.Go("server", func(context.Context) error {
		defer cancel()
		listener := netutil.LimitListener(listener, g.cfg.MaxWorkers+spareSockets)
		var err error
		if secure != nil {
			err = server.ServeTLS(listener, "", "")
		} else {
			err = server.Serve(listener)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	})
	parts.Go("gateway", func(context.Context) error {
		defer func() { _ = server.Close() }()
		return g.Run(ctx)
	})
	parts.Go("closer", func(context.Context) error {
		<-ctx.Done()
		// New connections are refused, those that are idle closed; Run waits for the others.
		ending, stop := context.WithTimeout(g.aborted, g.cfg.Drain)
		defer stop()
		_ = server.Shutdown(ending)
		return nil
	})
	return parts.Wait()
}

func (g *Gateway) server(secure *tls.Config) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(secure != nil)
	protocols.SetUnencryptedHTTP2(secure == nil)
	g.alone = true
	return &http.Server{
		Handler:           g,
		TLSConfig:         secure,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      30 * time.Second, // a worker that has vanished is noticed
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     writeTimeout,
		},
		// Whatever strangers do wrong is not worth a line in the log.
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
}

// isOwnName reports whether a request was meant for this machine. A page from
// elsewhere may have the name of its own host lead here: then the browser says
// nothing of where it is from, and lets it read the answer.
func isOwnName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "" || host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// Listen opens a listener that notices clients that have vanished.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	return config.Listen(ctx, "tcp", address)
}
