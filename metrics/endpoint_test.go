package metrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func runtimeVersion() string { return runtime.Version() }

// lines takes what is logged.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

// expect waits for a line.
func (l lines) expect(t *testing.T, part string) string {
	t.Helper()
	for {
		select {
		case line := <-l:
			if strings.Contains(line, part) {
				return line
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("nobody has logged %q", part)
		}
	}
}

func startEndpoint(t *testing.T) (*Endpoint, lines) {
	t.Helper()
	log := make(lines, 100)
	d := New("1")
	d.patience = 10 * time.Millisecond
	d.Database(1, "shop").Up(true)
	e := NewEndpoint(d.Registry(), slog.New(slog.NewTextHandler(log, nil)))
	e.retry = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = e.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return e, log
}

// address returns where metrics are served, as a line of the log says.
func address(line string) string {
	_, rest, _ := strings.Cut(line, "address=")
	return strings.Fields(rest)[0]
}

func get(t *testing.T, client *http.Client, url, user, password string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		request.SetBasicAuth(user, password)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestWithoutAHostOnlyThisMachineIsServed(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		":9187": "127.0.0.1:9187", "9187": "127.0.0.1:9187", "[]:9187": "127.0.0.1:9187",
		"localhost:9187": "localhost:9187", "0.0.0.0:9187": "0.0.0.0:9187", "[::]:9187": "[::]:9187", "[::1]:9187": "[::1]:9187",
	} {
		if got, err := listenAddress(address); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", address, got, err, want)
		}
	}
	for _, address := range []string{"localhost:", "a:b:c", ":"} {
		if got, err := listenAddress(address); err == nil {
			t.Errorf("%s: %s, want an error", address, got)
		}
	}
}

func TestTheEndpointServesAsItIsTold(t *testing.T) {
	t.Parallel()
	e, log := startEndpoint(t)
	e.Set(Settings{Address: ":0"})
	at := "http://" + address(log.expect(t, "metrics are served"))
	for path, want := range map[string]string{"/metrics": "wed_sql_up{database=\"shop\"} 1", "/-/healthy": "runs", "/": "<a href=\"/metrics\">"} {
		if status, body := get(t, http.DefaultClient, at+path, "", ""); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _ := get(t, http.DefaultClient, at+"/debug/pprof/", "", ""); status != http.StatusNotFound {
		t.Errorf("something is served that was not asked for: %d", status)
	}
	e.Set(Settings{Address: ":0"}) // the same: nothing happens
	e.Set(Settings{})
	deadline := time.Now().Add(10 * time.Second)
	for {
		status, _ := get(t, http.DefaultClient, at+"/-/healthy", "", "")
		if status == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it goes on when it is told to end")
		}
	}
}

func TestAPortThatIsTakenIsTriedAgain(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e, log := startEndpoint(t)
	e.Set(Settings{Address: other.Addr().String()})
	log.expect(t, "metrics are not served, will try again")
	time.Sleep(5 * e.retry)
	if len(log) > 0 {
		t.Errorf("it is told again: %s", <-log)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	at := address(log.expect(t, "metrics are served"))
	if status, _ := get(t, http.DefaultClient, "http://"+at+"/metrics", "", ""); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}

// certificate writes a certificate for this machine's loopback, and its key.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, filepath.Join(dir, "cert.pem"), string(cert))
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsAreProtectedAsTheFileSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	e, log := startEndpoint(t)
	e.Set(Settings{Address: ":0", ConfigFile: file})
	log.expect(t, "metrics are not served") // rather than without protection
	pool := certificate(t, dir)
	// the password is secret
	write(t, file, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: $2a$04$fB29Ex8uz.GFqKEMR6dT0.zr7.82oSC0QKRNcMUvs4JkRXXSLQ6hK}\n")
	at := address(log.expect(t, "metrics are served"))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	for _, tt := range []struct {
		scheme, user, password string
		status                 int
	}{
		{"https", "prometheus", "secret", http.StatusOK},
		{"https", "prometheus", "wrong", http.StatusUnauthorized},
		{"https", "", "", http.StatusUnauthorized},
		{"http", "prometheus", "secret", http.StatusBadRequest},
	} {
		if status, body := get(t, client, tt.scheme+"://"+at+"/metrics", tt.user, tt.password); status != tt.status {
			t.Errorf("%+v: %d %s", tt, status, body)
		}
	}
	// A mistake in the file does not end what works.
	write(t, file, "tls_server_config: {cert_file: nowhere}\n")
	e.Set(Settings{Address: ":0", ConfigFile: file})
	log.expect(t, "metrics are served as before")
}
