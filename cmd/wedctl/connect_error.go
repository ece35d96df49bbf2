package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// explainConnect says why there is no connection, and what to do about it.
func explainConnect(err *pgconn.ConnectError) *failure {
	f := &failure{code: exitConnect, message: "could not connect: " + oneLine(unwrapped(err)), hint: hintConnect}
	config := err.Config
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.message = fmt.Sprintf("the server at %s refuses the connection: %s", address(config), e.Message)
		switch e.Code {
		case "3D000": // no such database
			f.hint = "`psql -l` lists the databases; PGDATABASE or --dsn \"dbname=...\" names one"
		case "28P01": // wrong password
			f.hint = "the password is in PGPASSWORD, in ~/.pgpass (mode 0600, or another file: PGPASSFILE), or in --dsn"
		case "28000": // no such role, or pg_hba.conf does not let it in
			f.hint = "PGUSER or --dsn \"user=...\" names the role; pg_hba.conf of the server says who may connect from where"
		case "53300": // too many connections
			f.hint = "end some of them, or raise max_connections; `wedctl gateway` serves many workers by a few"
		case "57P03": // starting up, or shutting down
			f.hint = "the server is busy starting or ending: try again in a moment"
		case "42501":
			f.hint = "it takes the right to connect: grant connect on database ... to ..."
		default:
			f.hint = e.Hint
		}
		return f
	}
	switch _, dns := errors.AsType[*net.DNSError](err); {
	case dns:
		f.message = fmt.Sprintf("could not connect: there is no host %q", config.Host)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		f.message = "no server listens at " + address(config)
		f.hint = "is it running? Or " + hintConnect
	case errors.Is(err, syscall.EACCES):
		f.message = fmt.Sprintf("the socket of the server at %s may not be used by this user", address(config))
	}
	return f
}

// address is where a server was looked for: a socket's directory, or a host.
func address(c *pgconn.Config) string {
	if strings.HasPrefix(c.Host, "/") || strings.HasPrefix(c.Host, "@") {
		return fmt.Sprintf("%s, port %d", c.Host, c.Port)
	}
	return net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
}

// unwrapped leaves out what pgx says of the user and the database, which the user
// has just said.
func unwrapped(err *pgconn.ConnectError) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// distinct leaves out lines that say the same once more: pgx tries with and
// without TLS.
func distinct(lines []string) []string {
	var list []string
	for _, l := range lines {
		if !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	return list
}
