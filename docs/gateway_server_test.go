package docs

import (
	"context"
	_ "embed"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed gateway.md
var gatewayDocs string

// blocks returns what stands between ```kind and ``` in a text.
func blocks(text, kind string) (list []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

func TestTheSessionOfTheGatewaysDocsRuns(t *testing.T) {
	server := os.Getenv("WED_SQL_TEST_CONN")
	if server == "" {
		t.Skip("needs a server: make check sets WED_SQL_TEST_CONN")
	}
	const database = "docs_gateway"
	execute(t, server, "drop database if exists "+database, "drop role if exists gateway", "drop role if exists sender", "create database "+database)
	t.Cleanup(func() {
		dropDatabase(t, server, database)
		execute(t, server, "drop role gateway", "drop role sender")
	})
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := listener.Addr().String()
	_ = listener.Close()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "worker.sh"), []byte(blocks(gatewayDocs, "sh")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	script := "set -e\n" + strings.ReplaceAll(strings.Join(blocks(gatewayDocs, "bash"), "\n"), "127.0.0.1:8420", free)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "PGHOST="+config.Host, "PGPORT="+strconv.Itoa(int(config.Port)), "PGUSER="+config.User, "PGDATABASE="+database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		`{"jobs":[{"wid":1,`, `"leased_until":`, `"status":409`, `"sqlstate":"WED16"`, "The gateway is ready.",
		`wed_gateway_settled_total{flow="parcels",outcome="completed"} 1`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", script, out)
	}
}

// execute executes statements.
func execute(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// dropDatabase waits for the engine to leave a database, and drops it.
func dropDatabase(t *testing.T, server, name string) {
	t.Helper()
	execute(t, server+" dbname="+name, "drop extension if exists wed_sql cascade", "drop schema if exists parcels cascade")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for streaming := true; streaming; {
		err := conn.QueryRow(ctx, "select exists (select from pg_replication_slots where active and database = $1)", name).Scan(&streaming)
		if err != nil {
			t.Fatalf("the engine does not leave database %s: %v", name, err)
		}
	}
	if _, err := conn.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
		t.Errorf("drop database %s: %v", name, err)
	}
}
