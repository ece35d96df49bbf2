package definition

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rules makes rules of "name/transition: condition", the name may be missing; "final: ..."
// is the final condition.
func rules(list ...string) []Rule {
	var all []Rule
	for i, s := range list {
		head, cpred, _ := strings.Cut(s, ": ")
		r := Rule{ID: i + 1, Condition: cpred, Enabled: true}
		name, transition, named := strings.Cut(head, "/")
		switch {
		case named:
			r.Name, r.Transition = &name, &transition
		case head == "final":
			r.Final = true
		default:
			r.Transition = &head
		}
		all = append(all, r)
	}
	return all
}

func TestRulesAreKnownAgain(t *testing.T) {
	for name, c := range map[string]struct {
		old, desired []Rule
		want         []string // old -> new: columns that differ
	}{
		"nothing":               {rules("a: x", "b: y"), rules("a: x", "b: y"), nil},
		"another order":         {rules("a: x", "b: y"), rules("b: y", "a: x"), nil},
		"by name":               {rules("n/a: x", "m/a: y"), rules("m/a: z", "n/b: w"), []string{"0 -> 1: trname cpred", "1 -> 0: cpred"}},
		"the only one":          {rules("a: x", "b: y"), rules("a: z", "b: y"), []string{"0 -> 0: cpred"}},
		"one of two":            {rules("a: x", "a: y"), rules("a: x", "a: z"), []string{"1 -> 1: cpred"}},
		"ambiguous":             {rules("a: x", "a: y"), rules("a: z", "a: w"), []string{"0 -> -1: ", "1 -> -1: ", "-1 -> 0: ", "-1 -> 1: "}},
		"another name":          {rules("n/a: x"), rules("m/a: y"), []string{"0 -> -1: ", "-1 -> 0: "}},
		"a name is given":       {rules("a: x"), rules("m/a: x"), []string{"0 -> 0: tgname"}},
		"twice the same":        {rules("a: x", "a: x"), rules("a: x"), []string{"1 -> -1: "}},
		"final stays final":     {rules("final: x"), rules("a: x", "final: y"), []string{"0 -> 1: cpred", "-1 -> 0: "}},
		"final is no other":     {rules("n/a: x"), rules("final: x"), []string{"0 -> -1: ", "-1 -> 0: "}},
		"another transition":    {rules("a: x"), rules("b: x"), []string{"0 -> -1: ", "-1 -> 0: "}},
		"names that are no use": {rules("n/a: x", "n/b: y"), rules("n/b: y", "n/a: x"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, ch := range compareRules(c.old, c.desired) {
				var columns []string
				for _, col := range ch.Columns {
					columns = append(columns, col.Name)
				}
				got = append(got, fmt.Sprintf("%d -> %d: %s", ch.Old, ch.New, strings.Join(columns, " ")))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestGrantsThatAreNotWantedAreNoDifference(t *testing.T) {
	p := Compare(&Definition{Workers: []Worker{{"a", "x"}, {"b", "x"}}}, &Definition{Workers: []Worker{{"b", "x"}}})
	if !p.Empty() || !slices.Equal(p.Revokes, []Worker{{"a", "x"}}) {
		t.Errorf("%+v", p)
	}
}

func TestAnExportIsALineForEachRow(t *testing.T) {
	x, hour, none := "it's\n$$", "01:00:00", "00:00:00"
	d := Definition{
		Attributes: []Attribute{{"a", nil, "pg_catalog.text"}, {"Weird 'name'", &x, "integer"}},
		Rules:      rules("n/charge: a = 'x'", "ship: a = 'a much longer one'", "final: a is null"),
		Settings:   Settings{Consistent: &x},
		Workers:    []Worker{{"charge", "till"}},
	}
	for i := range d.Rules {
		d.Rules[i].Timeout, d.Rules[i].Backoff, d.Rules[i].MaxBackoff = &hour, &none, &hour
	}
	want := `insert into wed_attr (aname, atype, adv) values
    ('a',              'text',       null),
    ($$Weird 'name'$$, 'integer',    $sql$it's
$$$sql$);

insert into wed_trig (tgname, trname, cpred, cfinal) values
    ('n',  'charge', $$a = 'x'$$,                  false),
    (null, 'ship',   $$a = 'a much longer one'$$,  false),
    (null, null,     'a is null',                  true);

select wed_sql.alter_flow(current_schema(), consistent => $sql$it's
$$$sql$);

select wed_sql.grant_worker(current_schema(), 'charge', 'till');
`
	if diff := cmp.Diff(want, d.SQL(true)); diff != "" {
		t.Error(diff)
	}
	if _, err := ParseFile("export", d.SQL(true)); err != nil {
		t.Error(err)
	}
}
