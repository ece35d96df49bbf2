package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// asWedctl makes the test binary be wedctl: the demo starts its workers by
// running its own program.
const asWedctl = "WEDCTL_TEST_AS_WEDCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asWedctl) != "" {
		main()
	}
	os.Exit(m.Run())
}

// wedctl runs a command line and returns what it wrote, and its exit status.
func wedctl(ctx context.Context, args ...string) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	con := &console{in: strings.NewReader(""), out: &out, err: &err}
	status = run(ctx, append([]string{"wedctl"}, args...), con)
	return out.String(), err.String(), status
}

func TestExitStatusTellsUsageFromConnection(t *testing.T) {
	nowhere := "host=" + t.TempDir()
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"version"}, exitOK, ""},
		{[]string{"--help"}, exitOK, ""},
		{[]string{"help", "instance", "trace"}, exitOK, ""},
		{[]string{"help", "frob"}, exitUsage, `"frob"`},
		{[]string{"worker", "run", "--help"}, exitOK, ""},
		{[]string{"frob"}, exitUsage, `"frob"`},
		{[]string{"worker", "frob"}, exitUsage, `"frob"`},
		{[]string{"status", "--frob"}, exitUsage, "frob"},
		{[]string{"status", "-o", "xml"}, exitUsage, `"xml"`},
		{[]string{"status", "-d", "port=many"}, exitUsage, "port"},
		{[]string{"instance", "trace", "1", "-d", nowhere}, exitConnect, "PGHOST"},
		{[]string{"instance", "trace", "--flow", "travel"}, exitUsage, "WID"},
		{[]string{"instance", "trace", "one", "--flow", "travel"}, exitUsage, `"one"`},
		{[]string{"flow", "apply"}, exitUsage, "FILE"},
		{[]string{"flow", "apply", "-", "--exit-code"}, exitUsage, "--dry-run"},
		{[]string{"flow", "apply", "/no/such/file", "-n"}, exitNotFound, "/no/such/file"},
		{[]string{"flow", "check"}, exitUsage, "FILE"},
		{[]string{"flow", "check", "./no/such/file"}, exitNotFound, "./no/such/file"},
		{[]string{"flow", "export", "f", "-o", "table"}, exitUsage, `"table"`},
		{[]string{"flow", "show"}, exitUsage, "NAME"},
		{[]string{"flow", "drop", "f"}, exitUsage, "--yes"},
		{[]string{"flow", "show", "f", "-d", nowhere}, exitConnect, ""},
		{[]string{"worker", "run", "-f", "f", "-t", "t"}, exitUsage, "--"},
		{[]string{"worker", "run", "-f", "f", "--", "true"}, exitUsage, "--transition"},
		{[]string{"worker", "run", "-f", "f", "-t", "t", "-c", "0", "--", "true"}, exitUsage, "--concurrency"},
		{[]string{"worker", "run", "-f", "f", "-t", "t", "--lease", "1ms", "--", "true"}, exitUsage, "--lease"},
		{[]string{"worker", "run", "-f", "f", "-t", "t", "--", "/no/such/command"}, exitUsage, "/no/such/command"},
		{[]string{"flow", "graph", "a", "b"}, exitUsage, "one flow"},
		{[]string{"flow", "graph", "a", "--format", "png"}, exitUsage, `"png"`},
		{[]string{"flow", "graph", "a", "--states", "-1"}, exitUsage, "--states"},
		{[]string{"flow", "graph", "a", "-d", nowhere}, exitConnect, "PGHOST"},
		{[]string{"instance", "trace", "1", "-f", "f", "--out", "x.svg"}, exitUsage, "--svg"},
		{[]string{"instance", "trace", "1", "-f", "f", "--svg", "-o", "json"}, exitUsage, "--output"},
		{[]string{"demo", "now"}, exitUsage, "arguments"},
		{[]string{"status", "-d", nowhere}, exitConnect, "PGHOST"},
		{[]string{"-d", nowhere, "status"}, exitConnect, "PGHOST"},
		{[]string{"instance", "trace", "1", "--flow", "travel", "-d", nowhere}, exitConnect, "PGHOST"},
		{[]string{"demo", "-d", nowhere}, exitConnect, "PGHOST"},
		{[]string{"worker", "run", "-d", nowhere, "-f", "f", "-t", "t", "--", "true"}, exitConnect, "PGHOST"},
	} {
		_, stderr, status := wedctl(t.Context(), c.args...)
		if status != c.status || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: exit status %d, want %d; says %q, want something of %q", c.args, status, c.status, stderr, c.says)
		}
		if (status == exitOK) != (stderr == "") {
			t.Errorf("%v: exit status %d, but standard error is %q", c.args, status, stderr)
		}
	}
}

func TestFlagsMayFollowArguments(t *testing.T) {
	app := newApp(&console{})
	for in, want := range map[string]string{
		"wedctl instance trace 2 --flow travel":                "wedctl instance trace --flow travel 2",
		"wedctl instance trace 2 --full -f travel":             "wedctl instance trace --full -f travel 2",
		"wedctl instance trace 2 --flow=travel":                "wedctl instance trace --flow=travel 2",
		"wedctl -d dbname=x instance trace 2 -f f":             "wedctl -d dbname=x instance trace -f f 2",
		"wedctl worker run -f f -t t -- cmd --flag -- x":       "wedctl worker run -f f -t t -- cmd --flag -- x",
		"wedctl worker run --once -f worker -t run -- cmd":     "wedctl worker run --once -f worker -t run -- cmd",
		"wedctl instance trace demo --flow f":                  "wedctl instance trace --flow f demo",
		"wedctl":                                               "wedctl",
		"wedctl instance trace --flow":                         "wedctl instance trace --flow",
		"wedctl instance trace 2 -f f --help x":                "wedctl instance trace --help",
		"wedctl status":                                        "wedctl status",
		"wedctl worker run -f f -t t -d host=/x -- cmd -d y z": "wedctl worker run -f f -t t -d host=/x -- cmd -d y z",
	} {
		if got := strings.Join(flagsFirst(app, strings.Fields(in)), " "); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", in, got, want)
		}
	}
}

func TestVersionIsTheExtensions(t *testing.T) {
	control, err := os.ReadFile("../../wed_sql.control")
	if os.IsNotExist(err) {
		return // the tests run without their sources
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := "default_version = '" + version + "'"; !strings.Contains(string(control), want) {
		t.Errorf("wed_sql.control does not say %s", want)
	}
}
