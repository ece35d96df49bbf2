package gateway

import (
	"context"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wed-sql/wed_sql/internal/group"
)

func TestTheMetricsAreThoseThatAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/gateway.md")
	if os.IsNotExist(err) {
		return // a server's user has no sources; the unit tests have
	}
	if err != nil {
		t.Fatal(err)
	}
	db, err := newDatabase(Config{DSN: "host=/nowhere", Connections: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	g := newGateway(Config{Logger: discard()}, db)
	g.metrics.watch(g, db.pool)
	var documented, exported []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(wed_gateway_\\w+)` \\| \\w+ \\| [^|]*\\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1]+": "+m[2]+".")
	}
	descs := make(chan *prometheus.Desc)
	parts, _ := group.New(t.Context())
	parts.Go("describe", func(context.Context) error {
		defer close(descs)
		g.metrics.registry.Describe(descs)
		return nil
	})
	name := regexp.MustCompile(`fqName: "(wed_gateway_\w+)", help: "(.*?)"`)
	for d := range descs {
		if m := name.FindStringSubmatch(d.String()); m != nil {
			exported = append(exported, m[1]+": "+m[2])
		}
	}
	slices.Sort(documented)
	slices.Sort(exported)
	if !slices.Equal(documented, exported) {
		t.Errorf("documented:\n%q\nexported:\n%q", documented, exported)
	}
}
