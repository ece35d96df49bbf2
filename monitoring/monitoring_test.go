package monitoring

import (
	_ "embed"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/wed-sql/wed_sql/metrics"
)

//go:embed grafana/wed_sql.json
var dashboard string

//go:embed prometheus/alerts.yml
var alerts string

// exported returns the names of all series that the engine exports.
func exported() map[string]bool {
	names := make(map[string]bool)
	for _, d := range metrics.Descriptions() {
		if d.Type != "histogram" {
			names[d.Name] = true
			continue
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			names[d.Name+suffix] = true
		}
	}
	return names
}

var metric = regexp.MustCompile(`wed_sql_[a-z_]+`)

func TestOnlyExportedMetricsAreUsed(t *testing.T) {
	t.Parallel()
	names := exported()
	used := make(map[string]bool)
	for file, text := range map[string]string{"grafana/wed_sql.json": dashboard, "prometheus/alerts.yml": alerts} {
		for _, name := range metric.FindAllString(text, -1) {
			used[name] = true
			if !names[name] {
				t.Errorf("%s uses %s, which is not exported", file, name)
			}
		}
	}
	if len(used) < 20 {
		t.Errorf("only %d metrics are used: %v", len(used), used)
	}
}

func TestTheDashboardIsOne(t *testing.T) {
	t.Parallel()
	var board struct {
		Title      string
		Panels     []struct{ ID int }
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(dashboard), &board); err != nil {
		t.Fatal(err)
	}
	var variables []string
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
	}
	if !slices.Equal(variables, []string{"datasource", "database", "flow"}) {
		t.Errorf("its variables are %v", variables)
	}
	ids := make(map[int]bool)
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels are number %d", p.ID)
		}
		ids[p.ID] = true
	}
}

func TestEveryAlertHasItsPlaceInTheRunbook(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/runbook.md")
	if os.IsNotExist(err) {
		t.Skip("not in the repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(alerts, -1)
	links := regexp.MustCompile(`runbook_url: \S+/docs/runbook\.md#(\w+)`).FindAllStringSubmatch(alerts, -1)
	sections := regexp.MustCompile(`(?m)^## (WedSql\w+)$`).FindAllStringSubmatch(string(raw), -1)
	if len(names) == 0 || len(names) != len(links) || len(names) != len(sections) {
		t.Fatalf("%d alerts, %d links, %d sections", len(names), len(links), len(sections))
	}
	for i := range names {
		if links[i][1] != strings.ToLower(names[i][1]) || sections[i][1] != names[i][1] {
			t.Errorf("alert %s: link %s, section %s", names[i][1], links[i][1], sections[i][1])
		}
	}
}
