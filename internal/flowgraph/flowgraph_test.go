package flowgraph

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the pictures that are expected anew")

var (
	begin     = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	start     = Key{Kind: Start}
	final     = Key{Kind: Final}
	exception = Key{Exception, exceptionName}
	operator  = Key{Kind: Operator}
)

func transition(name string) Key { return Key{Transition, name} }

func after(d time.Duration) time.Time { return begin.Add(d) }

// figure2 is the flow of the paper's Figure 2: two transitions in parallel, and a third that waits for both.
func figure2() []Rule {
	return []Rule{
		{TGID: 1, Transition: "tr_a2", Predicate: "a1 = 'ready' and a2 is null", Reads: []string{"a1", "a2"}, Valid: true, Enabled: true},
		{TGID: 2, Transition: "tr_a3", Predicate: "a1 = 'ready' and a3 is null", Reads: []string{"a1", "a3"}, Valid: true, Enabled: true},
		{TGID: 3, Transition: "tr_final", Predicate: "a1 = 'ready' and a2 is not null and a3 is not null", Reads: []string{"a1", "a2", "a3"}, Valid: true, Enabled: true},
		{TGID: 4, Predicate: "a1 <> 'ready'", Reads: []string{"a1"}, Valid: true, Enabled: true},
	}
}

// run adds states of one instance to a history: numbered, and with what is known before.
func run(h *History, wid int64, states ...State) {
	for i, s := range states {
		s.WID, s.Version, s.Known = wid, int64(i), true
		h.Add(s)
	}
}

func figure2Instance(first, second string) []State {
	attribute := map[string]string{"tr_a2": "a2", "tr_a3": "a3"}
	return []State{
		{Fired: []string{"tr_a2", "tr_a3"}, Status: "R", At: after(0), Changed: []string{"a1"}},
		{Writer: first, Status: "R", At: after(time.Second), Changed: []string{attribute[first]}},
		{Writer: second, Fired: []string{"tr_final"}, Status: "R", At: after(4 * time.Second), Changed: []string{attribute[second]}},
		{Writer: "tr_final", Status: "F", At: after(5 * time.Second), Changed: []string{"a1"}},
	}
}

func arrows(g *Graph) []Arrow { return g.Arrows }

var sameArrows = cmp.Options{
	cmpopts.IgnoreUnexported(Arrow{}), cmpopts.EquateEmpty(),
	cmpopts.SortSlices(func(a, b Arrow) bool { return compareEnds([2]Key{a.From, a.To}, [2]Key{b.From, b.To}) < 0 }),
}

func TestArrowsAreWhatTheHistorySays(t *testing.T) {
	rules := figure2()
	h := NewHistory(rules)
	run(h, 1, figure2Instance("tr_a2", "tr_a3")...)
	g := New("paper", rules, nil, h, Extent{}, Options{})
	want := []Arrow{
		{From: start, To: transition("tr_a2"), Sort: Fired, Count: 1, Mean: time.Second, Timed: 1, Attributes: []string{"a1"}},
		{From: start, To: transition("tr_a3"), Sort: Fired, Count: 1, Mean: 4 * time.Second, Timed: 1, Attributes: []string{"a1"}},
		{From: transition("tr_a2"), To: transition("tr_final"), Sort: Led, Count: 1, Attributes: []string{"a2"}},
		{From: transition("tr_a3"), To: transition("tr_final"), Sort: Fired, Count: 1, Mean: time.Second, Timed: 1, Attributes: []string{"a3"}},
		{From: transition("tr_final"), To: final, Sort: Fired, Count: 1, Attributes: []string{"a1"}},
	}
	if diff := cmp.Diff(want, arrows(g), sameArrows); diff != "" {
		t.Error(diff)
	}

	// the other way round, once more: both have fired it
	run(h, 2, figure2Instance("tr_a3", "tr_a2")...)
	run(h, 3, figure2Instance("tr_a3", "tr_a2")...)
	for _, a := range New("paper", rules, nil, h, Extent{}, Options{}).Arrows {
		count := map[[2]Key]int64{
			{start, transition("tr_a2")}: 3, {start, transition("tr_a3")}: 3, {transition("tr_final"), final}: 3,
			{transition("tr_a2"), transition("tr_final")}: 2, {transition("tr_a3"), transition("tr_final")}: 1,
		}[[2]Key{a.From, a.To}]
		if a.Sort != Fired || a.Count != count {
			t.Errorf("%v → %v: %v, %d times, want %d", a.From, a.To, a.Sort, a.Count, count)
		}
	}
}

func TestWhatIsOnlyPossibleIsDrawnWhereNothingBetterIsKnown(t *testing.T) {
	rules := figure2()
	rules[0].Action, rules[0].Sets = "a2 = 'done'", []string{"a2"}
	g := New("paper", rules, nil, NewHistory(rules), Extent{}, Options{})
	want := []Arrow{{From: transition("tr_a2"), To: transition("tr_final"), Sort: Possible, Attributes: []string{"a2"}}}
	if diff := cmp.Diff(want, arrows(g), sameArrows); diff != "" {
		t.Error(diff)
	}
	for _, n := range g.Nodes {
		unknown := map[Key][]string{ // who makes its own condition untrue is not known to make it true
			transition("tr_a2"): {"a1", "a2"}, transition("tr_a3"): {"a1", "a3"}, transition("tr_final"): {"a1", "a3"}, final: {"a1"},
		}[n.Key]
		if diff := cmp.Diff(unknown, n.Unknown, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v: nobody is known to write: %s", n.Key, diff)
		}
	}

	// with a history in which tr_final writes a1, which all read: only when asked for
	h := NewHistory(rules)
	run(h, 1, figure2Instance("tr_a2", "tr_a3")...)
	g = New("paper", rules, nil, h, Extent{}, Options{})
	if slices.ContainsFunc(g.Arrows, func(a Arrow) bool { return a.Sort == Possible }) || g.Hidden != 2 {
		t.Errorf("hidden %d: %v", g.Hidden, g.Arrows)
	}
	g = New("paper", rules, nil, h, Extent{}, Options{All: true})
	for _, to := range []string{"tr_a2", "tr_a3"} {
		want := Arrow{From: transition("tr_final"), To: transition(to), Sort: Possible, Attributes: []string{"a1"}}
		if !slices.ContainsFunc(g.Arrows, func(a Arrow) bool { return cmp.Equal(a, want, sameArrows) }) {
			t.Errorf("no arrow from tr_final to %s: %v", to, g.Arrows)
		}
	}
	if g.Hidden != 0 {
		t.Errorf("%d arrows are hidden", g.Hidden)
	}
}

func TestExceptionsFailuresAndInterventionsHaveArrows(t *testing.T) {
	rules := figure2()
	h := NewHistory(rules)
	run(h, 1,
		State{Fired: []string{"tr_a2", "tr_a3"}, Pending: []int32{1, 2}, Status: "R", At: after(0)},
		State{Writer: "_FAIL", Fired: []string{"_EXCPT"}, Pending: []int32{2, 9}, Status: "E", At: after(1)},
		State{Writer: "_RETRY", Fired: []string{"tr_a2"}, Pending: []int32{1, 2}, Status: "R", At: after(2)},
		State{Writer: "tr_a2", Pending: []int32{2}, Status: "R", At: after(3), Changed: []string{"a2"}},
		State{Writer: "tr_a3", Fired: []string{"_EXCPT"}, Pending: []int32{9}, Status: "E", At: after(4)},
		State{Writer: "_EXCPT", Fired: []string{"tr_final"}, Pending: []int32{3}, Status: "R", At: after(5), Changed: []string{"a3"}},
	)
	g := New("paper", rules, nil, h, Extent{}, Options{})
	want := []Arrow{
		{From: start, To: transition("tr_a2"), Count: 1},
		{From: start, To: transition("tr_a3"), Count: 1, Mean: 4, Timed: 1},
		{From: transition("tr_a2"), To: transition("tr_final"), Sort: Led, Count: 1, Attributes: []string{"a2"}},
		{From: transition("tr_a2"), To: exception, Count: 1, Failed: 1},
		{From: transition("tr_a3"), To: exception, Count: 1, Mean: 1, Timed: 1},
		{From: exception, To: transition("tr_final"), Count: 1, Attributes: []string{"a3"}},
		{From: operator, To: transition("tr_a2"), Count: 1, Mean: 1, Timed: 1},
	}
	seen := slices.DeleteFunc(arrows(g), func(a Arrow) bool { return a.Sort == Possible })
	if diff := cmp.Diff(want, seen, sameArrows); diff != "" {
		t.Error(diff)
	}
}

func TestADelayBeginsWithAState(t *testing.T) {
	rules := []Rule{
		{TGID: 1, Transition: "ask", Reads: []string{"asked"}, Valid: true, Enabled: true},
		{TGID: 2, Transition: "remind", Reads: []string{"asked"}, Valid: true, Enabled: true, Delay: time.Hour},
	}
	h := NewHistory(rules)
	run(h, 1,
		State{Fired: []string{"ask"}, Pending: []int32{1}, Status: "R", At: after(0)},
		State{Writer: "ask", Pending: []int32{2}, Status: "R", At: after(time.Second), Changed: []string{"asked"}},
		State{Writer: "remind", Pending: []int32{2}, Status: "R", At: after(time.Hour + time.Second)},
	)
	want := []Arrow{
		{From: start, To: transition("ask"), Count: 1, Mean: time.Second, Timed: 1},
		{From: transition("ask"), To: transition("remind"), Count: 1, Clocked: 1, Mean: time.Hour, Timed: 1, Attributes: []string{"asked"}},
		{From: transition("remind"), To: transition("remind"), Count: 1, Clocked: 1},
	}
	if diff := cmp.Diff(want, arrows(New("f", rules, nil, h, Extent{}, Options{})), sameArrows); diff != "" {
		t.Error(diff)
	}
}

func TestNothingIsConcludedAcrossAGap(t *testing.T) {
	rules := figure2()
	h := NewHistory(rules)
	states := figure2Instance("tr_a2", "tr_a3")
	states[2].WID, states[2].Version = 1, 2 // the states before were not read
	h.Add(states[2])
	want := []Arrow{{From: transition("tr_a3"), To: transition("tr_final"), Count: 1}}
	got := slices.DeleteFunc(New("paper", rules, nil, h, Extent{}, Options{}).Arrows, func(a Arrow) bool { return a.Sort != Fired })
	if diff := cmp.Diff(want, got, sameArrows); diff != "" {
		t.Error(diff)
	}
}

func TestAnAttributeMayHaveBeenWrittenInAGap(t *testing.T) {
	rules := []Rule{{TGID: 1, Transition: "a", Valid: true}, {TGID: 2, Transition: "b", Valid: true}, {TGID: 3, Transition: "c", Reads: []string{"x"}, Valid: true}}
	h := NewHistory(rules)
	for _, s := range []State{
		{Version: 0, Fired: []string{"a"}, Status: "R", Known: true, At: after(0)},
		{Version: 1, Writer: "a", Fired: []string{"b"}, Status: "R", Known: true, Changed: []string{"x"}, At: after(1)},
		{Version: 5, Writer: "b", Fired: []string{"c"}, Status: "R", At: after(2)},
	} {
		s.WID = 1
		h.Add(s)
	}
	want := []Arrow{{From: start, To: transition("a"), Count: 1, Mean: 1, Timed: 1}, {From: transition("a"), To: transition("b"), Count: 1},
		{From: transition("b"), To: transition("c"), Count: 1}}
	got := slices.DeleteFunc(New("f", rules, nil, h, Extent{}, Options{}).Arrows, func(a Arrow) bool { return a.Sort == Possible })
	if diff := cmp.Diff(want, got, sameArrows); diff != "" {
		t.Error(diff)
	}
}

func TestWhatWasFiredOnceIsTimedOnce(t *testing.T) {
	rules := []Rule{{TGID: 1, Transition: "a", Valid: true}, {TGID: 2, Transition: "a", Valid: true}}
	h := NewHistory(rules)
	run(h, 1,
		State{Fired: []string{"a"}, Pending: []int32{1, 2}, Status: "R", At: after(0)},
		State{Writer: "a", Pending: []int32{2}, Status: "R", At: after(time.Second)},
		State{Writer: "a", Status: "E", Fired: []string{"_EXCPT"}, At: after(time.Hour)},
	)
	want := []Arrow{{From: start, To: transition("a"), Count: 1, Mean: time.Second, Timed: 1}, {From: transition("a"), To: exception, Count: 1}}
	if diff := cmp.Diff(want, arrows(New("f", rules, nil, h, Extent{}, Options{})), sameArrows); diff != "" {
		t.Error(diff)
	}
}

func TestAWayOverOthersNeedsNoArrowOfItsOwn(t *testing.T) {
	rules := []Rule{
		{TGID: 1, Transition: "a", Reads: []string{"x"}, Valid: true}, {TGID: 2, Transition: "b", Reads: []string{"x"}, Valid: true},
		{TGID: 3, Transition: "c", Reads: []string{"x", "y"}, Valid: true},
	}
	h := NewHistory(rules)
	run(h, 1,
		State{Fired: []string{"a"}, Status: "R"},
		State{Writer: "a", Fired: []string{"b"}, Status: "R", Changed: []string{"x"}},
		State{Writer: "b", Fired: []string{"c"}, Status: "R", Changed: []string{"y"}},
	)
	ends := func(o Options) (list []string) {
		for _, a := range New("f", rules, nil, h, Extent{}, o).Arrows {
			list = append(list, a.From.Name+"→"+a.To.Name)
		}
		return list
	}
	if diff := cmp.Diff([]string{"→a", "a→b", "b→c"}, ends(Options{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"→a", "a→b", "a→c", "b→c"}, ends(Options{All: true})); diff != "" {
		t.Error(diff)
	}
}

// hostileGraph is one whose every text is what the generator says.
func hostileGraph(text func() string) *Graph {
	names := []string{text() + "1", text() + "2", text() + "3"}
	attributes := []string{text(), text()}
	var rules []Rule
	for i, n := range names {
		rules = append(rules, Rule{
			TGID: int32(i), Transition: n, Name: text(), Condition: text(), Predicate: text(), Reads: attributes, Valid: true, Enabled: i > 0,
			Action: text(), Sets: attributes[:1], Undo: text(), Delay: time.Duration(i), MaxAttempts: i, Withdrawable: true,
		})
	}
	rules = append(rules, Rule{TGID: 9, Predicate: text(), Reads: attributes, Valid: true, Enabled: true})
	h := NewHistory(rules)
	run(h, 1,
		State{Fired: names[:1], Status: "R", At: after(0)},
		State{Writer: names[0], Fired: names[1:2], Status: "R", At: after(1), Changed: attributes},
		State{Writer: names[1], Fired: []string{names[1], "_EXCPT"}, Status: "E", At: after(2), Changed: attributes[:1]},
	)
	return New(text(), rules, map[string]Stat{names[0]: {Done: 5, Timed: true}}, h, Extent{}, Options{All: true})
}

func TestAnyTextMakesAWellFormedPicture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		g := hostileGraph(func() string { n++; return rapid.String().Draw(t, fmt.Sprint("text ", n)) })
		picture := g.SVG()
		d := xml.NewDecoder(bytes.NewReader(picture))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("not well-formed: %v\n%s", err, picture)
			}
			if e, ok := token.(xml.StartElement); ok {
				allowed := []string{"svg", "title", "desc", "style", "g", "rect", "circle", "line", "path", "text"}
				if !slices.Contains(allowed, e.Name.Local) {
					t.Fatalf("an element %s", e.Name.Local)
				}
			}
		}
		if again := g.SVG(); !bytes.Equal(picture, again) {
			t.Fatal("the second picture is another")
		}
	})
}

// readDOT reads what a DOT string says, as Graphviz does: the quotes of the
// language, then the escapes and entities of a label.
func readDOT(s string) (text, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		return "", "", fmt.Errorf("no string: %.30s", s)
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return html.UnescapeString(b.String()), s[i+1:], nil
		case s[i] == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case '"', '\\':
				b.WriteByte(s[i])
			default:
				return "", "", fmt.Errorf("an escape that means something else: \\%c", s[i])
			}
		case s[i] == '\n':
			return "", "", errors.New("the string goes over a line")
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", errors.New("the string does not end")
}

func TestDOTSaysTheNamesAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		got, rest, err := readDOT(dotString(text) + ";")
		want := strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return []rune(asLabel(r))[0]
		}, text)
		if err != nil || rest != ";" || got != want {
			t.Fatalf("%q is read as %q, %q, %v", text, got, rest, err)
		}
	})
	for _, text := range []string{`a"b`, `back\slash`, `\N`, `\`, `"`, `&lt;`, `<b>`, "two\nlines", "-->", "; }"} {
		if got, _, err := readDOT(dotString(text)); err != nil || got != text {
			t.Errorf("%q is read as %q, %v", text, got, err)
		}
	}
}

func TestDOTHasALineForEachNodeAndArrow(t *testing.T) {
	node := regexp.MustCompile(`^\tn\d+ \[label="(?:[^"\\]|\\.)*", tooltip="(?:[^"\\]|\\.)*"(?:, \w+=(?:\w+|"[\w#,]+"))*\];$`)
	edge := regexp.MustCompile(`^\tn\d+ -> n\d+ \[label="(?:[^"\\]|\\.)*", tooltip="(?:[^"\\]|\\.)*"(?:, \w+=\w+)*\];$`)
	rapid.Check(t, func(t *rapid.T) {
		g := hostileGraph(func() string { return rapid.StringN(0, 12, -1).Draw(t, "text") })
		lines := strings.Split(strings.TrimSuffix(string(g.DOT()), "\n"), "\n")
		nodes, edges := 0, 0
		for _, l := range lines[4 : len(lines)-1] {
			switch {
			case node.MatchString(l):
				nodes++
			case edge.MatchString(l):
				edges++
			default:
				t.Fatalf("neither a node nor an arrow: %s", l)
			}
		}
		if nodes != len(g.Nodes) || edges != len(g.Arrows) || lines[len(lines)-1] != "}" {
			t.Fatalf("%d of %d nodes, %d of %d arrows", nodes, len(g.Nodes), edges, len(g.Arrows))
		}
	})
}

// asLabel is a character as it is shown.
func asLabel(r rune) string {
	text, _, _ := readDOT(dotString(string(r)))
	return text
}

func TestMermaidHasNothingInALabelThatMeansSomething(t *testing.T) {
	number := regexp.MustCompile(`#(\d+);`)
	line := regexp.MustCompile(`^  n\d+(\(\[".*"\]\)|\(".*"\)|\(\(\(".*"\)\)\)| (-->|--o|-\.->)(\|".*"\|)? n\d+)$|^  style n\d+ [a-z-]+:[#\w]+$`)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		quoted := mermaidString(text)
		inner := quoted[1 : len(quoted)-1]
		if strings.ContainsAny(number.ReplaceAllString(inner, ""), "\"#;:<>&`\\|[](){}%\n*~-/") {
			t.Fatalf("%q is written %s", text, quoted)
		}
		read := number.ReplaceAllStringFunc(inner, func(s string) string {
			n, _ := strconv.Atoi(s[1 : len(s)-1])
			return string(rune(n))
		})
		if !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f }) && read != text {
			t.Fatalf("%q is read as %q", text, read)
		}
		g := hostileGraph(func() string { return rapid.StringN(0, 12, -1).Draw(t, "text") })
		for i, l := range strings.Split(strings.TrimSuffix(string(g.Mermaid()), "\n"), "\n") {
			if i > 0 && !line.MatchString(l) {
				t.Fatalf("line %d: %s", i, l)
			}
		}
	})
}

func TestThePicture(t *testing.T) {
	rules := figure2()
	rules[1].Delay, rules[1].Action, rules[1].Sets = 3*24*time.Hour, "a3 = 'done'", []string{"a3"}
	rules[0].Timeout, rules[0].MaxAttempts = 30*time.Second, 5
	h := NewHistory(rules)
	run(h, 1, figure2Instance("tr_a2", "tr_a3")...)
	run(h, 2, State{Fired: []string{"tr_a2"}, Status: "R", At: after(0)},
		State{Writer: "tr_a2", Fired: []string{"_EXCPT"}, Status: "E", At: after(1)},
		State{Writer: "_EXCPT", Fired: []string{"tr_a2"}, Status: "R", At: after(2)})
	stats := map[string]Stat{"tr_a2": {Done: 2, Waiting: 1, Failed: 1, Timed: true, MeanWait: 40 * time.Millisecond, MeanRun: time.Second}}
	picture := New("paper", rules, stats, h, Extent{}, Options{}).SVG()
	file := filepath.Join("testdata", "figure2.svg")
	if *update {
		if err := os.WriteFile(file, picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, picture) {
		t.Error("the picture is another: go test -update writes it; look at it then")
	}
}

func TestALargeFlowIsDrawnSoon(t *testing.T) {
	var rules []Rule
	var states []State
	const n = 60
	for i := range n {
		name := fmt.Sprint("transition ", i)
		rules = append(rules, Rule{TGID: int32(i), Transition: name, Reads: []string{fmt.Sprint("a", i/2), fmt.Sprint("a", i/3)}, Valid: true, Enabled: true})
		states = append(states, State{Writer: name, Changed: []string{fmt.Sprint("a", i)}, Status: "R", At: after(time.Duration(i)),
			Fired: []string{fmt.Sprint("transition ", (2*i+1)%n), fmt.Sprint("transition ", (2*i+2)%n)}})
	}
	h := NewHistory(rules)
	states[0].Writer = ""
	run(h, 1, states...)
	began := time.Now()
	New("large", rules, nil, h, Extent{}, Options{}).SVG()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
