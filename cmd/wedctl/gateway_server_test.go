package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// selfSigned writes a certificate for this machine, and its key.
func selfSigned(t *testing.T, serial int64) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAGatewayIsReloadedAndDrained(t *testing.T) {
	dsn := testDatabase(t)
	if _, stderr, status := wedctl(t.Context(), "gateway", "--insecure-no-tokens", "--listen", "127.0.0.1:0", "-d", dsn); status != exitNotFound || !strings.Contains(stderr, "create extension") {
		t.Errorf("without the extension: exit status %d, %s", status, stderr)
	}
	execute(t, dsn, "create extension wed_sql", "select wed_sql.create_flow('f')",
		"insert into f.wed_attr (aname, atype) values ('v', 'integer')",
		"insert into f.wed_trig (trname, cpred) values ('work', 'v is null')", "insert into f.wed_trig (cpred, cfinal) values ('v is not null', true)")
	dir := t.TempDir()
	tokens, cert, key := filepath.Join(dir, "tokens"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	newCert := func(serial int64) {
		c, k := selfSigned(t, serial)
		writeFile(t, cert, c)
		writeFile(t, key, k)
	}
	newToken := func(name string) string {
		out, stderr, status := wedctl(t.Context(), "gateway", "token", name, "--allow", "f/work", "--append", tokens)
		if status != exitOK {
			t.Fatal(stderr)
		}
		return strings.TrimSpace(out)
	}
	newCert(1)
	first := newToken("first")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "gateway", "--tokens", tokens, "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "-d", dsn)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	log := bufio.NewScanner(pipe)
	var said strings.Builder
	until := func(text string) string {
		for log.Scan() {
			said.WriteString(log.Text() + "\n")
			if strings.Contains(log.Text(), text) {
				return log.Text()
			}
		}
		t.Fatalf("the gateway does not say %q:\n%s", text, said.String())
		return ""
	}
	address := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(until("msg=listening"))[1]
	until("gateway started")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
	lease := func(token, body string) (status int, serial int64, proto string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/v1/flows/f/transitions/work/lease", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.TLS.PeerCertificates[0].SerialNumber.Int64(), resp.Proto
	}
	for status := 0; status != http.StatusNoContent; { // until it listens
		var serial int64
		var proto string
		status, serial, proto = lease(first, `{}`)
		if serial != 1 || proto != "HTTP/2.0" || status != http.StatusNoContent && status != http.StatusServiceUnavailable {
			t.Fatalf("%d, certificate %d, %s", status, serial, proto)
		}
	}

	second := newToken("second")
	newCert(2)
	_ = cmd.Process.Signal(syscall.SIGHUP)
	until("tokens were read again")
	until("certificate was read again")
	if status, serial, _ := lease(second, `{}`); status != http.StatusNoContent || serial != 2 {
		t.Errorf("after SIGHUP: %d, certificate %d", status, serial)
	}
	writeFile(t, tokens, "nonsense")
	writeFile(t, cert, "nonsense")
	_ = cmd.Process.Signal(syscall.SIGHUP)
	until("tokens stay as they were")
	until("certificate stays as it was")
	if status, serial, _ := lease(second, `{}`); status != http.StatusNoContent || serial != 2 {
		t.Errorf("after a mistake: %d, certificate %d", status, serial)
	}

	_ = cmd.Process.Signal(syscall.SIGTERM)
	until("gateway stopped")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	for _, token := range []string{first, second} {
		if strings.Contains(said.String(), token) {
			t.Errorf("the log has a token:\n%s", said.String())
		}
	}
}
