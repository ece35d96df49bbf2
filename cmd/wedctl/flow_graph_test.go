package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/wed-sql/wed_sql/internal/flowgraph"
)

func TestAGraphHasTheFormatThatSuitsWhereItGoes(t *testing.T) {
	g := flowgraph.New("f", nil, nil, flowgraph.NewHistory(nil), flowgraph.Extent{}, flowgraph.Options{})
	for _, c := range []struct {
		format, out string
		terminal    bool
		begins      string
	}{
		{"", "", false, "<svg "}, {"", "", true, "flowchart "}, {"dot", "", true, "digraph "}, {"svg", "", true, "<svg "},
		{"", "a.svg", true, "<svg "}, {"", "a.DOT", false, "digraph "}, {"", "a.gv", false, "digraph "}, {"", "a.mmd", false, "flowchart "},
		{"", "a.md", false, "flowchart "}, {"", "picture", true, "<svg "}, {"mermaid", "a.svg", false, "flowchart "},
	} {
		draw, err := graphFormat(c.format, c.out, c.terminal)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if got, err := draw(g); err != nil || !bytes.HasPrefix(got, []byte(c.begins)) {
			t.Errorf("%+v: %.20s", c, got)
		}
	}
}

func TestAGraphIsNotCalledWhatItIsNot(t *testing.T) {
	if _, err := graphFormat("", "a.png", false); err == nil || !strings.Contains(err.Error(), "a.png") {
		t.Errorf("it is: %v", err)
	}
	if _, err := graphFormat("svg", "a.png", false); err != nil {
		t.Error(err)
	}
}

func TestAGraphThatNobodyCouldReadIsNotDrawn(t *testing.T) {
	g := &flowgraph.Graph{Flow: "f", Arrows: make([]flowgraph.Arrow, mostArrows+1)}
	_, err := drawGraph(g)
	if err == nil || !strings.Contains(explain(err).hint, "--format dot") {
		t.Errorf("it is: %v", err)
	}
}

func TestATimelineIsNotWrittenToATerminal(t *testing.T) {
	var out, err bytes.Buffer
	con := &console{in: strings.NewReader(""), out: &out, err: &err, shown: true}
	status := run(t.Context(), []string{"wedctl", "instance", "trace", "1", "-f", "f", "--svg"}, con)
	if status != exitUsage || !strings.Contains(err.String(), "--out FILE") {
		t.Errorf("exit status %d: %s", status, err.String())
	}
}
