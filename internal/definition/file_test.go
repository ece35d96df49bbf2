package definition

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAFileSaysWhatBelongsToAFlow(t *testing.T) {
	f, err := ParseFile("f.sql", "\ufeff"+`-- comments; and all
begin;
select wed_sql.create_flow('Orders');
set search_path = "Orders", wed_sql;
insert into wed_attr (aname) values ('a;b');
update wed_trig set timeout = '1 day' where trname = 'x';
with t as (select 'y') insert into wed_trig (trname, cpred) select *, 'true' from t on conflict do nothing;
select wed_sql.alter_flow(current_schema, consistent => $$a = 'it''s'$$, max_states => -1);
select alter_flow(current_schema(), max_states => 7);
select wed_sql.grant_worker('Orders', 'pay', 'till'), -- no: not two at once
       1;
commit;`)
	problems, ok := errors.AsType[*Problems](err)
	if !ok || len(problems.List) != 1 || !strings.Contains(problems.Error(), "f.sql:10:1: SELECT of anything but") {
		t.Fatalf("%v", err)
	}
	if f.Flow != "Orders" || len(f.rows) != 3 || *f.Settings.MaxStates != 7 || *f.Settings.Consistent != "a = 'it''s'" {
		t.Errorf("%+v", f)
	}
	f, err = ParseFile("f.sql", `select wed_sql.grant_worker(role => 'till', flow => 'o', transition => 'pay');`)
	if err == nil {
		t.Errorf("the flow is not the first argument: %+v", f)
	}
	f, err = ParseFile("f.sql", `select wed_sql.grant_worker(flow => 'o', role => 'till', transition => 'pay');`)
	if d := cmp.Diff([]Worker{{"pay", "till"}}, f.Workers); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}

func TestWhatDefinesNoFlowIsRefusedWhereItStands(t *testing.T) {
	for sql, want := range map[string]string{
		"insert into wed_flow default values":         "f:1:13: wed_flow is no part of",
		"insert into o.wed_attr (aname) values ('a')": "f:1:13: the file names the schema",
		"\n  rollback":                    "f:2:3: ROLLBACK: the file is applied as a whole",
		"create table x ()":               "f:1:1: CREATE defines nothing",
		"set role x":                      "f:1:1: SET of anything but search_path",
		"\\i x":                           "f:1:1: a backslash begins a command of psql",
		"insert into wed_attr values ('a": "f:1:30: unterminated quoted string",
		"select 1":                        "f:1:1: SELECT of anything",
		"select create_flow('a'); select create_flow('b')":                    `f:1:45: the file is about flow "a", and here about "b"`,
		"select alter_flow(current_schema, 'a', max_states => 'many')":        "f:1:40: max_states is a number",
		"select alter_flow(current_schema, speed => 3)":                       `f:1:35: alter_flow has no argument "speed"`,
		"select grant_worker(current_schema, upper('a'), 'b')":                "f:1:37: only constants",
		"select grant_worker(current_schema, 'a')":                            "f:1:8: grant_worker needs",
		"select revoke_worker('o', 'a', 'b')":                                 "f:1:1: what a file does not grant",
		"with x as (delete from wed_trace returning *) select from x":         "f:1:24: wed_trace is no part of",
		"insert into wed_attr (aname) values ('é'); delete from \"wed_Trig\"": `f:1:56: "wed_Trig" is no part of`,
	} {
		_, err := ParseFile("f", sql)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
}

func TestAPlaceInAConstantIsFoundAsItIsWritten(t *testing.T) {
	for _, c := range []struct {
		sql string
		row int
		at  int
		ch  string // that stands there
	}{
		{"insert into wed_trig (cpred) values ($$a = 1$$), ('a = 1')", 1, 4, "1$$"},
		{"insert into wed_trig (cpred) values ($$a = 1$$), ('a = 1')", 2, 4, "1')"},
		{"insert into wed_trig (cpred) values ('s = ''x''' /* ( */), ('s = ''x''')", 2, 5, "x''')"},
		{"insert into wed_trig (cpred) values (E's = \\'x\\'')", 1, 5, "s ="},
		{"insert into wed_trig (cpred) select 'a = 1'", 1, 4, "1'"},
	} {
		f, err := ParseFile("f", c.sql)
		if err != nil {
			t.Fatal(err)
		}
		condition := "a = 1"
		if strings.Contains(c.sql, "x") {
			condition = "s = 'x'"
		}
		l := &Loaded{File: f, Definition: Definition{Rules: []Rule{{Condition: condition}}}, rules: []origin{{0, c.row}}}
		at := l.PlaceInCondition(0, c.at)
		if got := c.sql[at:]; !strings.HasPrefix(got, c.ch) && !strings.HasPrefix(got, "E'"+c.ch) {
			t.Errorf("%s: %s, want %s", c.sql, got, c.ch)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	for _, s := range []string{
		ordersLike, "select alter_flow(", "select grant_worker(,)", "set search_path", "insert into", "select wed_sql.", "with", "update wed_trig",
		"select alter_flow(current_schema, - 1)", "delete from", "insert into wed_attr values (((", "set local search_path to x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := ParseFile("f", text)
		if err != nil && err.Error() == "" {
			t.Fatal("an error that says nothing")
		}
		for i := range file.rows {
			l := &Loaded{File: file, Definition: Definition{Rules: []Rule{{Condition: "x"}}}, rules: []origin{{i, 1}}}
			if at := l.PlaceInCondition(0, 1); at < 0 || at > len(file.Text) {
				t.Fatalf("place %d of %d", at, len(file.Text))
			}
		}
	})
}

const ordersLike = `begin; insert into wed_attr (aname) values ('a'); select wed_sql.alter_flow('o', max_states => 5); commit;`
