package flowcheck

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wed-sql/wed_sql/internal/definition"
)

// flow is a definition to be checked, as short as a test can say it.
type flow struct {
	attributes string // name type default, between commas
	rules      []string
	final      string
}

// A rule is "transition: condition -> action", and the action may be missing; "delayed"
// before it gives it a delay.
func (f flow) definition() *definition.Definition {
	d := &definition.Definition{}
	for _, a := range strings.Split(f.attributes, ",") {
		fields := strings.Fields(a)
		attribute := definition.Attribute{Name: fields[0], Type: "pg_catalog.text"}
		if len(fields) > 1 {
			attribute.Type = fields[1]
		}
		if len(fields) > 2 {
			attribute.Default = &fields[2]
		}
		d.Attributes = append(d.Attributes, attribute)
	}
	for _, r := range f.rules {
		transition, rest, _ := strings.Cut(r, ": ")
		cpred, action, performed := strings.Cut(rest, " -> ")
		rule := definition.Rule{Enabled: true, Condition: cpred}
		if name, ok := strings.CutPrefix(transition, "delayed "); ok {
			delay := "3 days"
			transition, rule.Delay = name, &delay
		}
		rule.Transition = &transition
		if performed {
			attempts := 3
			rule.Action, rule.MaxAttempts = &action, &attempts
		}
		d.Rules = append(d.Rules, rule)
	}
	if f.final != "" {
		d.Rules = append(d.Rules, definition.Rule{Enabled: true, Final: true, Condition: f.final})
	}
	return d
}

func found(findings []Finding, least Severity) []string {
	var list []string
	for _, f := range findings {
		if f.Severity.rank() <= least.rank() {
			list = append(list, f.Check)
		}
	}
	slices.Sort(list)
	return list
}

func TestWhatIsWrongIsFoundAndNothingElse(t *testing.T) {
	const orders = "status text new, total numeric"
	good := []string{"charge: status = 'new'", "ship: status = 'paid'"}
	for name, c := range map[string]struct {
		flow flow
		want []string // warnings and worse
	}{
		"nothing is wrong":         {flow{orders, good, "status in ('shipped', 'refused')"}, nil},
		"no final condition":       {flow{orders, good, ""}, []string{"no-final"}},
		"no rules":                 {flow{orders, nil, "status = 'x'"}, []string{"no-rules"}},
		"never":                    {flow{orders, append(good, "audit: status = 'paid' and total > 5 and total < 3"), "status = 'done'"}, []string{"never-holds"}},
		"null":                     {flow{orders, append(good, "audit: total = null"), "status = 'done'"}, []string{"null-comparison"}},
		"null in a list":           {flow{orders, append(good, "audit: status not in ('a', null) and total = 1"), "status = 'done'"}, []string{"null-comparison"}},
		"always":                   {flow{orders, append(good, "audit: total is null or total is not null"), "status = 'done'"}, []string{"always-holds"}},
		"ends at once":             {flow{orders, good, "true"}, []string{"always-holds"}},
		"never ends":               {flow{orders, good, "status = 'done' and status = 'over'"}, []string{"never-holds"}},
		"shadowed":                 {flow{orders, good, "status in ('paid', 'shipped')"}, []string{"shadowed"}},
		"same condition":           {flow{orders, append(good, "ship: 'paid' = status"), "status = 'done'"}, []string{"same-condition"}},
		"implied":                  {flow{orders, append(good, "ship: status = 'paid' and total > 3"), "status = 'done'"}, []string{"implied"}},
		"parallel branches":        {flow{orders, append(good, "bill: status = 'paid'"), "status = 'done'"}, nil},
		"depends on the moment":    {flow{"status text new, due timestamptz", append(good, "remind: due < now()"), "status = 'done'"}, []string{"moment"}},
		"text as numbers":          {flow{"status text new, total text", append(good, "audit: total > '100'"), "status = 'done'"}, []string{"text-order"}},
		"similar names":            {flow{orders, append(good, "Ship: status = 'packed'"), "status = 'done'"}, []string{"similar-names"}},
		"similar values":           {flow{orders, append(good, "pack: status = 'Paid'"), "status = 'done'"}, []string{"similar-values"}},
		"a loop":                   {flow{orders, append(good, "count: status = 'paid' -> total = total + 1"), "status = 'done'"}, []string{"loop"}},
		"a loop of two":            {flow{orders, append(good, "up: total = 1 -> total = 2", "down: total = 2 -> total = 1"), "status = 'done'"}, []string{"loop"}},
		"a reminder":               {flow{orders, append(good, "delayed remind: status = 'paid' -> total = total + 1"), "status = 'done'"}, nil},
		"a loop that ends":         {flow{orders, append(good, "close: status = 'paid' -> status = 'done'"), "status = 'done'"}, nil},
		"no loop: a constant":      {flow{orders, append(good, "count: total = 1 -> total = 2", "next: total = 2"), "status = 'done'"}, nil},
		"may be rounded":           {flow{"status text new, n integer", append(good, "round: n = 1 -> n = 1.4"), "status = 'done'"}, nil},
		"counting ends":            {flow{"status text new, n integer", append(good, "count: status = 'paid' and n < 3 -> n = n + 1", "next: n >= 3"), "status = 'done'"}, nil},
		"counting on":              {flow{"status text new, n integer", append(good, "count: status = 'paid' and n > 3 -> n = n + 1"), "status = 'done'"}, []string{"loop"}},
		"a dead end":               {flow{orders, append(good, "refuse: status = 'odd' -> status = 'refuse'"), "status = 'refused'"}, []string{"dead-end"}},
		"an end":                   {flow{orders, append(good, "refuse: status = 'odd' -> status = 'refused'"), "status = 'refused'"}, nil},
		"an unread SQL":            {flow{orders, append(good, "x: status = 'n' and interval '1' day > '2'"), "status = 'done'"}, nil},
		"an unread final":          {flow{orders, append(good, "count: status = 'paid' -> total = 1"), "interval '1' day > '2'"}, nil},
		"a default that is a mess": {flow{"n integer abc", []string{"a: n = 1 -> n = default"}, "n = 2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, found(Check(c.flow.definition(), nil), Warning)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWhatIsNotKnownIsSaid(t *testing.T) {
	d := flow{"status text new", []string{"charge: status = 'new'", "odd: interval '1' day > '2'", "set: status = 'x' -> (status, n) = (1, 2)"}, "status = 'done'"}.definition()
	var got []string
	for _, f := range Check(d, nil) {
		if f.Severity == Unknown {
			got = append(got, f.Message)
		}
	}
	want := []string{"what the condition of odd means is not known", "what the action of set does is not known", "what the workers of charge, odd write"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnInstanceThatCannotStartIsFound(t *testing.T) {
	for attributes, want := range map[string]bool{
		"status text":          true,
		"status text other":    true,
		"status text new":      false,
		"status text, n jsonb": true,
	} {
		findings := Check(flow{attributes, []string{"charge: status = 'new'"}, "status = 'done'"}.definition(), nil)
		if got := slices.Contains(found(findings, Note), "initial-state"); got != want {
			t.Errorf("%s: %v", attributes, got)
		}
	}
}

func TestATransitionThatOnlyUndoesMayNeverHold(t *testing.T) {
	d := flow{"status text new", []string{"book: status = 'new'", "unbook: false"}, "status = 'done'"}.definition()
	d.Rules[0].Undo = d.Rules[1].Transition
	if got := found(Check(d, nil), Note); slices.Contains(got, "never-holds") {
		t.Error(got)
	}
}

func TestAStateWithNoWayOnIsNamed(t *testing.T) {
	d := flow{"status text new, n integer 0", []string{"charge: status = 'new'", "count: status = 'paid' and n < 3 -> n = n + 1"}, "status = 'done'"}.definition()
	findings := Check(d, nil)
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == "dead-end" })
	if i < 0 || !strings.HasPrefix(findings[i].Why, "if before it n = 2 and status = 'paid';") {
		t.Errorf("%+v", findings)
	}
	d = flow{"status text new, n integer 0", []string{"charge: status = 'new'", "count: status = 'paid' and n < 3 -> n = abs(n)"}, "status = 'done'"}.definition()
	if got := found(Check(d, nil), Note); slices.Contains(got, "dead-end") {
		t.Error("what the action writes is not known")
	}
}

func TestTheHistoryIsEvidence(t *testing.T) {
	d := flow{"status text new, note text", []string{"charge: status = 'new'"}, "status = 'done'"}.definition()
	for _, c := range []struct {
		seen Seen
		want string
	}{
		{Seen{"charge", 5, 5, []string{"note"}}, "fires-again"},
		{Seen{"charge", 5, 1, []string{"note"}}, "writes-nothing-read"},
		{Seen{"charge", 5, 1, []string{"note", "status"}}, ""},
		{Seen{"charge", 0, 0, nil}, "workers"},
	} {
		got := found(Check(d, []Seen{c.seen}), Unknown)
		got = slices.DeleteFunc(got, func(s string) bool { return s == "not-read" })
		if c.want == "" && len(got) > 0 || c.want != "" && !slices.Equal(got, []string{c.want}) {
			t.Errorf("%+v: %v", c.seen, got)
		}
	}
}

func TestTransitionsWithoutAWorkerRoleAreFound(t *testing.T) {
	d := flow{"status text new", []string{"charge: status = 'new'", "ship: status = 'paid'"}, "status = 'done'"}.definition()
	d.Workers = []definition.Worker{{Transition: "charge", Role: "till"}, {Transition: "chrage", Role: "till"}, {Transition: "_EXCPT", Role: "ops"}}
	got := found(Check(d, nil), Note)
	if !slices.Equal(got, []string{"no-such-transition", "no-worker-role"}) {
		t.Error(got)
	}
}
