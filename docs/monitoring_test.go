package docs

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/metrics"
)

//go:embed monitoring.md
var monitoring string

func TestTheMetricsAreThoseThatAreExported(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, d := range metrics.Descriptions() {
		labels := ""
		if len(d.Labels) > 0 {
			labels = "`" + strings.Join(d.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Type, labels, strings.TrimSuffix(d.Help, "."))
	}
	const header = "| metric | type | labels | |\n|---|---|---|---|\n"
	_, documented, ok := strings.Cut(monitoring, header)
	if !ok {
		t.Fatalf("monitoring.md has no table %q", header)
	}
	if diff := cmp.Diff(documented, b.String()); diff != "" {
		t.Errorf("monitoring.md differs from what is exported (-monitoring.md +exported):\n%s\nit should be\n%s", diff, b.String())
	}
}
