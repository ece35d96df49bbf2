// Package flowgraph draws a flow as a graph of its transitions. No flow has such
// a graph: it is inferred, from its rules and from the states in its history.
// What nothing is known about is not guessed.
package flowgraph

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Rule is a rule of the flow.
type Rule struct {
	TGID         int32
	Name         string   // of the rule, may be empty
	Condition    string   // name of the condition, may be empty
	Transition   string   // empty: this is the final condition
	Predicate    string   // the condition itself
	Reads        []string // attributes that the condition reads
	Valid        bool     // whether it is known what the condition reads
	Enabled      bool
	Action       string   // what the engine sets, empty: a worker performs it
	Sets         []string // attributes that the action sets
	Delay        time.Duration
	Timeout      time.Duration
	MaxAttempts  int // 0: no limit
	Withdrawable bool
	Undo         string // transition that undoes it
}

// Stat is what has become of a transition, by the statistics.
type Stat struct {
	Done, Failed      int64
	Waiting, Working  int64
	MeanWait, MeanRun time.Duration
	Timed             bool // whether the means are known
}

// Kind says what a node is.
type Kind int

const (
	Start      Kind = iota // instances begin
	Transition             //
	Exception              // _EXCPT, the recovery of exceptions
	Operator               // interventions
	Final                  // the final condition holds
)

// Key names a node.
type Key struct {
	Kind Kind
	Name string // of a transition
}

// Node is a node of the graph.
type Node struct {
	Key
	Rules    []Rule
	Stat     *Stat            // nil: not known
	Seen     int64            // states that it has written, in the history that was read; of Final: that are final
	Unknown  []string         // attributes that its conditions read, and nobody is known to write
	Invalid  bool             // a condition of it is not valid any more
	Operated map[string]int64 // of Operator: how often which intervention
}

// Sort says how an arrow is known.
type Sort int

const (
	// Fired: a state that the one has written has fired the other.
	Fired Sort = iota
	// Led: when the other was fired, by a state of somebody else, the one was the
	// last to have written an attribute that the condition reads. So it is with joins.
	Led
	// Possible: the one writes an attribute that the other's condition reads; that
	// it led to anything was not seen.
	Possible
)

// Arrow leads from one node to another.
type Arrow struct {
	From, To   Key
	Sort       Sort
	Count      int64         // how often, if it was seen
	Failed     int64         // of these: because the one had failed
	Clocked    int64         // of these: began the delay of the other
	Mean       time.Duration // from then until the other was committed
	Timed      int64         // how many the mean is of
	Attributes []string      // by which the one leads to the other

	mean float64 // Mean, as it is summed up
}

// Graph is a flow as it is drawn.
type Graph struct {
	Flow    string
	Nodes   []Node
	Arrows  []Arrow
	Hidden  int // arrows that are known and not drawn
	Read    Extent
	NoStats bool // the statistics could not be read
}

// Extent says what of the history was read.
type Extent struct {
	States, Instances int64
	From, To          time.Time
	Partly            bool   // there is more
	Since             string // how far back; empty: all the way
}

// Options say what is drawn.
type Options struct {
	// All draws every arrow that is known: also what an indirect way leads to,
	// and what is possible by data and was never seen although both ends were.
	All bool
}

// New infers the graph of a flow. Statistics are by transition; nil: they are not known.
func New(flow string, rules []Rule, stats map[string]Stat, h *History, read Extent, options Options) *Graph {
	read.States, read.Instances, read.From, read.To = h.states, h.instances, h.from, h.to
	g := &Graph{Flow: flow, Read: read, NoStats: stats == nil}
	g.addNodes(rules, stats, h)
	g.addSeen(h)
	if !options.All {
		g.hideImplied()
	}
	g.addPossible(h, options.All)
	return g
}

// addNodes adds the transitions in the order of their rules, between what begins and what ends.
func (g *Graph) addNodes(rules []Rule, stats map[string]Stat, h *History) {
	add := func(k Key, of []Rule) {
		n := Node{Key: k, Rules: of, Seen: h.written[k]}
		if s, ok := stats[k.Name]; ok && (k.Kind == Transition || k.Kind == Exception) {
			n.Stat = &s
		}
		if k.Kind == Operator {
			n.Operated = h.operated
		}
		for _, r := range of {
			n.Invalid = n.Invalid || !r.Valid
		}
		g.Nodes = append(g.Nodes, n)
	}
	if h.written[Key{Kind: Start}] > 0 {
		add(Key{Kind: Start}, nil)
	}
	byName := make(map[string][]Rule)
	var names []string
	var final []Rule
	for _, r := range rules {
		switch {
		case r.Transition == "":
			final = append(final, r)
		default:
			if byName[r.Transition] == nil {
				names = append(names, r.Transition)
			}
			byName[r.Transition] = append(byName[r.Transition], r)
		}
	}
	for _, k := range h.keys() { // those whose rules are gone
		if k.Kind == Transition && byName[k.Name] == nil {
			names = append(names, k.Name)
			byName[k.Name] = []Rule{}
		}
	}
	for _, name := range names {
		add(Key{Transition, name}, byName[name])
	}
	if h.seen(Key{Exception, exceptionName}) {
		add(Key{Exception, exceptionName}, nil)
	}
	if h.seen(Key{Kind: Operator}) {
		add(Key{Kind: Operator}, nil)
	}
	if len(final) > 0 || h.written[Key{Kind: Final}] > 0 {
		add(Key{Kind: Final}, final)
	}
}

// place returns where a node is among the nodes, -1 if it is not.
func (g *Graph) place(k Key) int {
	return slices.IndexFunc(g.Nodes, func(n Node) bool { return n.Key == k })
}

// addSeen adds the arrows that the history shows.
func (g *Graph) addSeen(h *History) {
	for _, ends := range slices.SortedFunc(maps.Keys(h.arrows), compareEnds) {
		a := *h.arrows[ends]
		a.Mean = time.Duration(a.mean)
		a.Attributes = slices.Sorted(maps.Keys(h.by[ends]))
		if a.Count == 0 {
			a.Sort, a.Count = Led, h.led[ends]
		}
		if g.place(a.From) >= 0 && g.place(a.To) >= 0 {
			g.Arrows = append(g.Arrows, a)
		}
	}
}

func compareEnds(a, b [2]Key) int {
	return cmp.Or(compareKeys(a[0], b[0]), compareKeys(a[1], b[1]))
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
}

// hideImplied removes the arrows of what has only led to something where arrows
// of what has fired something lead there, too, by other transitions.
func (g *Graph) hideImplied() {
	next := make(map[Key][]Key)
	for _, a := range g.Arrows {
		if a.Sort == Fired && a.From.Kind == Transition && a.To.Kind != Exception {
			next[a.From] = append(next[a.From], a.To)
		}
	}
	n := len(g.Arrows)
	g.Arrows = slices.DeleteFunc(g.Arrows, func(a Arrow) bool {
		return a.Sort == Led && reaches(next, a.From, a.To)
	})
	g.Hidden += n - len(g.Arrows)
}

// reaches reports whether there is a way from one node to another.
func reaches(next map[Key][]Key, from, to Key) bool {
	seen := map[Key]bool{from: true}
	list := []Key{from}
	for len(list) > 0 {
		k := list[0]
		list = list[1:]
		for _, n := range next[k] {
			if n == to {
				return true
			}
			if !seen[n] {
				seen[n] = true
				list = append(list, n)
			}
		}
	}
	return false
}

// addPossible adds the arrows that are possible by data, and notes what nobody
// is known to write.
func (g *Graph) addPossible(h *History, all bool) {
	known, hidden := make(map[[2]Key]bool), make(map[[2]Key]bool)
	for ends := range h.arrows {
		known[ends] = true
	}
	for i := range g.Nodes {
		to := &g.Nodes[i]
		if to.Kind != Transition && to.Kind != Final {
			continue
		}
		fired := h.fired[to.Key]
		for _, attribute := range to.reads() {
			found := false
			for _, from := range g.Nodes {
				if !h.wrote[from.Key][attribute] && !from.sets(attribute) {
					continue
				}
				if from.Kind == Start || from.Kind == Operator {
					continue
				}
				if from.Key == to.Key { // it has to make its own condition untrue
					continue
				}
				found = true
				ends := [2]Key{from.Key, to.Key}
				switch {
				case known[ends]:
					continue
				case !all && fired && h.written[from.Key] > 0:
					hidden[ends] = true
					continue
				}
				g.addAttribute(from.Key, to.Key, attribute)
			}
			if !found && !fired && attribute != "wid" {
				to.Unknown = append(to.Unknown, attribute)
			}
		}
	}
	g.Hidden += len(hidden)
}

// addAttribute adds an attribute to the possible arrow between two nodes.
func (g *Graph) addAttribute(from, to Key, attribute string) {
	i := slices.IndexFunc(g.Arrows, func(a Arrow) bool { return a.From == from && a.To == to })
	if i < 0 {
		g.Arrows = append(g.Arrows, Arrow{From: from, To: to, Sort: Possible})
		i = len(g.Arrows) - 1
	}
	g.Arrows[i].Attributes = append(g.Arrows[i].Attributes, attribute)
}

// reads returns the attributes that the conditions of a node read.
func (n *Node) reads() []string {
	set := make(map[string]bool)
	for _, r := range n.Rules {
		for _, a := range r.Reads {
			set[a] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// sets reports whether an action of a node sets an attribute.
func (n *Node) sets(attribute string) bool {
	return slices.ContainsFunc(n.Rules, func(r Rule) bool { return slices.Contains(r.Sets, attribute) })
}
