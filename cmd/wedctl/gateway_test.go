package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAGatewayDoesNotStartUnprotected(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "tokens"), filepath.Join(dir, "empty")
	for path, text := range map[string]string{file: "secret\n", empty: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"", exitUsage, "--tokens"},
		{"run", exitUsage, `"run"`},
		{"--tokens " + dir + "/none", exitUsage, dir + "/none"},
		{"--tokens " + file, exitUsage, "line 1"},
		{"--tokens " + empty + " --insecure-no-tokens", exitUsage, "exclude"},
		{"--insecure-no-tokens --listen :8420", exitUsage, "127.0.0.1"},
		{"--insecure-no-tokens --listen 0.0.0.0:8420", exitUsage, "127.0.0.1"},
		{"--insecure-no-tokens --listen example.org:8420", exitUsage, "127.0.0.1"},
		{"--insecure-no-tokens --tls-cert c", exitUsage, "--tls-key"},
		{"--insecure-no-tokens --tls-cert " + dir + "/c --tls-key " + dir + "/k", exitUsage, dir + "/c"},
		{"--insecure-no-tokens --connections 0", exitUsage, "--connections"},
		{"--insecure-no-tokens --max-workers 0", exitUsage, "--max-workers"},
		{"--insecure-no-tokens --wakeup 0", exitUsage, "--wakeup"},
		{"--insecure-no-tokens --listen 127.0.0.1:0 -d host=" + dir, exitConnect, "PGHOST"},
		{"--insecure-no-tokens --listen 127.0.0.1:99999", exitFailure, "99999"},
		{"token", exitUsage, "NAME"},
		{"token a b", exitUsage, "NAME"},
		{"token a", exitUsage, "--allow"},
		{"token a --allow b", exitUsage, "FLOW/TRANSITION"},
		{"token a --allow b/c --append " + dir, exitFailure, dir},
		{"token a --allow b/c --append " + file, exitFailure, "line 1"},
	} {
		out, stderr, status := wedctl(t.Context(), append([]string{"gateway"}, strings.Fields(c.args)...)...)
		if status != c.status || !strings.Contains(stderr, c.says) || out != "" {
			t.Errorf("%s: exit status %d, want %d; says %q, want something of %q; %s", c.args, status, c.status, stderr, c.says, out)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "secret\n" {
		t.Errorf("%v: the file of tokens has become %q", err, text)
	}
}

func TestATokenIsPrintedAndItsHashIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	var all string
	for _, name := range []string{"a", "b"} {
		out, stderr, status := wedctl(t.Context(), "gateway", "token", name, "--allow", "f/t", "--allow", "f/u", "--append", file)
		if status != exitOK || stderr != "" || !strings.HasPrefix(out, "wedgw_") || strings.Count(out, "\n") != 1 {
			t.Fatalf("exit status %d: %s%s", status, out, stderr)
		}
		all += out
	}
	if _, stderr, status := wedctl(t.Context(), "gateway", "token", "a", "--allow", "f/t", "--append", file); status != exitFailure || !strings.Contains(stderr, `"a"`) {
		t.Errorf("the same name again: exit status %d, %s", status, stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 2 || !strings.Contains(string(text), `"allow":["f/t","f/u"]`) {
		t.Errorf("%v: %s", err, text)
	}
	for token := range strings.FieldsSeq(all) {
		if strings.Contains(string(text), token[6:]) {
			t.Errorf("the file has the token %s", token)
		}
	}
	out, _, _ := wedctl(t.Context(), "gateway", "token", "c", "--metrics", "--role", "r")
	if !strings.Contains(out, `"role":"r","metrics":true}`) {
		t.Errorf("%s", out)
	}
}
