package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/wed-sql/wed_sql/gateway"
	"github.com/wed-sql/wed_sql/internal/group"
)

const (
	gatewayAddress = "127.0.0.1:8420"
)

func gatewayCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "gateway",
		Usage:     "let any number of workers lease jobs over HTTP",
		UsageText: "wedctl gateway [OPTION...]",
		Description: `Thousands of workers share a few connections: docs/gateway.md is their API.
SIGHUP reads its files again; SIGTERM lets requests finish, a second ends them.

Example: wedctl gateway --tokens tokens.jsonl`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "listen", Value: gatewayAddress, Usage: "host:`PORT` for workers"},
			&cli.StringFlag{Name: "tokens", Usage: "`FILE` of the tokens of workers"},
			&cli.BoolFlag{Name: "insecure-no-tokens", DisableDefaultText: true, Usage: "anybody on this machine may do anything"},
			&cli.StringFlag{Name: "tls-cert", Usage: "`FILE` of the certificate; without one, no TLS"},
			&cli.StringFlag{Name: "tls-key", Usage: "`FILE` of its key"},
			&cli.IntFlag{Name: "connections", Value: gateway.DefaultConnections, Usage: "`N` work, one more listens"},
			&cli.IntFlag{Name: "max-workers", Value: gateway.DefaultMaxWorkers, Usage: "`N` may wait at a time"},
			&cli.DurationFlag{Name: "wakeup", Hidden: true, Value: gateway.DefaultWakeup, Usage: "look for jobs at least so often"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, DisableDefaultText: true, Usage: "log only what goes wrong"},
			dsnFlag(),
		},
		Subcommands: []*cli.Command{gatewayTokenCommand(con)},
		Action:      func(c *cli.Context) error { return runGateway(c, con) },
	}
}

func gatewayTokenCommand(con *console) *cli.Command {
	return &cli.Command{
		Name:      "token",
		Usage:     "make a token for a worker",
		ArgsUsage: "NAME",
		Description: `Prints the token, which is for the worker and is not kept anywhere, and the line
for the gateway's file of tokens, which has only its hash. With --append it adds
the line to the file itself. TRANSITION and FLOW may be *; names are written as
in a URL. With --role the worker has the rights of that role of the database, of
which the gateway's own has to be a member.

Example: wedctl gateway token hotel-1 --allow travel/book_hotel --append t.jsonl`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "allow", Usage: "`WHAT` it may perform, FLOW/TRANSITION"},
			&cli.StringFlag{Name: "role", Usage: "`ROLE` of the database to act as"},
			&cli.BoolFlag{Name: "metrics", DisableDefaultText: true, Usage: "/metrics may be read"},
			&cli.StringFlag{Name: "append", Usage: "`FILE` to add the line to"},
		},
		Action: func(c *cli.Context) error { return makeToken(c, con) },
	}
}

func makeToken(c *cli.Context, con *console) error {
	if c.NArg() != 1 {
		return usagef("%s needs the NAME of the worker, and nothing else", c.Command.HelpName)
	}
	token, line, err := gateway.NewToken(c.Args().First(), c.StringSlice("allow"), c.String("role"), c.Bool("metrics"))
	if err != nil {
		return usagef("%s: see --allow and --metrics", err)
	}
	file := c.String("append")
	if file == "" {
		_, err := fmt.Fprintf(con.out, "token: %s\nline:  %s\n", token, line)
		return err
	}
	if err := appendLine(file, line); err != nil {
		return fmt.Errorf("add the token: %w", err)
	}
	_, err = fmt.Fprintln(con.out, token)
	return err
}

// appendLine adds a line to a file, which stays as it was if its lines would
// contradict each other then.
func appendLine(path, line string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size := info.Size(); size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = "\n" + line
		}
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		return err
	}
	if _, err := gateway.OpenTokens(path); err != nil {
		return errors.Join(err, f.Truncate(info.Size()))
	}
	return nil
}

func runGateway(c *cli.Context, con *console) error {
	if c.Args().Present() {
		return usagef("there is no command %q: see %s --help", c.Args().First(), c.Command.HelpName)
	}
	tokens, err := gatewayTokens(c)
	if err != nil {
		return err
	}
	switch {
	case c.Int("connections") < 1:
		return usagef("--connections is at least 1")
	case c.Int("max-workers") < 1:
		return usagef("--max-workers is at least 1")
	case c.Duration("wakeup") < time.Millisecond:
		return usagef("--wakeup is at least 1ms")
	case (c.String("tls-cert") == "") != (c.String("tls-key") == ""):
		return usagef("--tls-cert and --tls-key go together")
	}
	level := slog.LevelInfo
	if c.Bool("quiet") {
		level = slog.LevelWarn
	}
	log := slog.New(slog.NewTextHandler(con.err, &slog.HandlerOptions{Level: level}))
	var cert *certificate
	if c.String("tls-cert") != "" {
		cert = &certificate{certFile: c.String("tls-cert"), keyFile: c.String("tls-key")}
		if err := cert.load(); err != nil {
			return usagef("%s", err)
		}
	}
	g, err := gateway.New(gateway.Config{
		DSN: dsn(c), Tokens: tokens, Connections: c.Int("connections"), MaxWorkers: c.Int("max-workers"),
		Wakeup: c.Duration("wakeup"), Logger: log,
	})
	if err != nil {
		return err
	}
	listener, err := gateway.Listen(c.Context, c.String("listen"))
	if err != nil {
		return fmt.Errorf("listen for workers: %w", err)
	}
	log.Info("listening", "address", listener.Addr().String(), "tls", cert != nil, "tokens", tokens != nil)
	if cert == nil && !isLoopback(c.String("listen")) {
		log.Warn("tokens and states go over the network unencrypted: use --tls-cert and --tls-key, or something in front that does TLS")
	}
	return serveUntilTold(c.Context, g, listener, cert, tokens, log)
}

// gatewayTokens reads the tokens. Without any, the gateway is for this machine only.
func gatewayTokens(c *cli.Context) (*gateway.Tokens, error) {
	file, none := c.String("tokens"), c.Bool("insecure-no-tokens")
	switch {
	case file != "" && none:
		return nil, usagef("--tokens and --insecure-no-tokens exclude each other")
	case file == "" && !none:
		return nil, usagef("%s needs --tokens FILE, or, to try things out, --insecure-no-tokens", c.Command.HelpName)
	case none && !isLoopback(c.String("listen")):
		return nil, usagef("with --insecure-no-tokens, --listen has to be an address of this machine alone, like %s", gatewayAddress)
	case none:
		return nil, nil
	}
	tokens, err := gateway.OpenTokens(file)
	if err != nil {
		return nil, usagef("%s", err)
	}
	return tokens, nil
}

// isLoopback reports whether an address is this machine's alone.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// serveUntilTold serves until a signal comes. A second one has it end at once.
func serveUntilTold(ctx context.Context, g *gateway.Gateway, listener net.Listener, cert *certificate, tokens *gateway.Tokens, log *slog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	ended := make(chan struct{})
	parts, _ := group.New(context.Background())
	parts.Go("signals", func(context.Context) error {
		for told := false; ; {
			select {
			case s := <-signals:
				switch {
				case s == syscall.SIGHUP:
					reload(cert, tokens, log)
				case told:
					g.Abort()
				default:
					told = true
					drain()
				}
			case <-ended:
				return nil
			}
		}
	})
	err := g.Serve(ctx, listener, cert.config())
	close(ended)
	if errors.Is(err, gateway.ErrNoExtension) {
		err = notFound(hintExtension, "%s", err)
	}
	return errors.Join(err, parts.Wait())
}

// reload reads the files again. A mistake in one of them must not end what works.
func reload(cert *certificate, tokens *gateway.Tokens, log *slog.Logger) {
	if tokens != nil {
		if err := tokens.Reload(); err != nil {
			log.Error("the tokens stay as they were", "error", err)
		} else {
			log.Info("the tokens were read again", "tokens", tokens.Len())
		}
	}
	if cert != nil {
		if err := cert.load(); err != nil {
			log.Error("the certificate stays as it was", "error", err)
		} else {
			log.Info("the certificate was read again")
		}
	}
}

// certificate is one that can be exchanged while it is used.
type certificate struct {
	certFile, keyFile string
	pair              atomic.Pointer[tls.Certificate]
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	c.pair.Store(&pair)
	return nil
}

// config returns how to serve TLS, nil for not at all.
func (c *certificate) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
}
