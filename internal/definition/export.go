package definition

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// SQL writes a definition as a file that `flow apply` and psql read: the same for the same
// definition, a line for each row, without what has its default.
func (d *Definition) SQL(grants bool) string {
	var b strings.Builder
	if len(d.Attributes) > 0 {
		t := table{columns: []tableColumn{{"aname", ""}, {"atype", "'text'"}, {"adv", "null"}}}
		for _, a := range d.Attributes {
			typ := strings.TrimPrefix(a.Type, "pg_catalog.")
			t.add(sqllex.QuoteString(a.Name), sqllex.QuoteString(typ), constantOf(a.Default))
		}
		b.WriteString(t.insert("wed_attr"))
	}
	if len(d.Rules) > 0 {
		t := table{columns: []tableColumn{
			{"tgname", "null"}, {"trname", ""}, {"cname", "null"}, {"cpred", ""}, {"cfinal", "false"}, {"enabled", "true"}, {"timeout", "default"},
			{"delay", "null"}, {"action", "null"}, {"withdrawable", "false"}, {"priority", "0"}, {"max_attempts", "null"},
			{"backoff", "default"}, {"max_backoff", "default"}, {"undo", "null"},
		}}
		for _, r := range d.Rules {
			t.add(r.constants()...)
		}
		separate(&b)
		b.WriteString(t.insert("wed_trig"))
	}
	if d.Settings != (Settings{}) {
		separate(&b)
		b.WriteString("select wed_sql.alter_flow(current_schema()")
		if c := d.Settings.Consistent; c != nil {
			b.WriteString(", consistent => " + sqllex.QuoteString(*c))
		}
		if m := d.Settings.MaxStates; m != nil {
			fmt.Fprintf(&b, ", max_states => %d", *m)
		}
		b.WriteString(");\n")
	}
	if grants && len(d.Workers) > 0 {
		separate(&b)
		for _, w := range d.Workers {
			fmt.Fprintf(&b, "select wed_sql.grant_worker(current_schema(), %s, %s);\n", sqllex.QuoteString(w.Transition), sqllex.QuoteString(w.Role))
		}
	}
	return b.String()
}

func separate(b *strings.Builder) {
	if b.Len() > 0 {
		b.WriteString("\n")
	}
}

func constantOf(s *string) string {
	if s == nil {
		return "null"
	}
	return sqllex.QuoteString(*s)
}

// The defaults of wed_trig that are not null, false or 0, as the database writes them.
const (
	defaultTimeout    = "01:00:00"
	defaultBackoff    = "00:00:00"
	defaultMaxBackoff = "01:00:00"
)

func (r Rule) constants() []string {
	unless := func(s *string, usual string) string {
		if s != nil && *s == usual {
			return "default"
		}
		return constantOf(s)
	}
	attempts := "null"
	if r.MaxAttempts != nil {
		attempts = strconv.Itoa(*r.MaxAttempts)
	}
	return []string{
		constantOf(r.Name), constantOf(r.Transition), constantOf(r.CName), sqllex.QuoteString(r.Condition), strconv.FormatBool(r.Final),
		strconv.FormatBool(r.Enabled), unless(r.Timeout, defaultTimeout), constantOf(r.Delay), constantOf(r.Action),
		strconv.FormatBool(r.Withdrawable), strconv.Itoa(r.Priority), attempts,
		unless(r.Backoff, defaultBackoff), unless(r.MaxBackoff, defaultMaxBackoff), constantOf(r.Undo),
	}
}

// table is what an INSERT has: columns in which every row has what is usual are left out.
type table struct {
	columns []tableColumn
	rows    [][]string
}

type tableColumn struct{ name, usual string }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) insert(name string) string {
	var used []int
	for i, c := range t.columns {
		for _, r := range t.rows {
			if r[i] != c.usual || c.usual == "" {
				used = append(used, i)
				break
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "insert into %s (", name)
	for n, i := range used {
		if n > 0 {
			b.WriteString(", ")
		}
		b.WriteString(t.columns[i].name)
	}
	b.WriteString(") values\n")
	for n, r := range t.rows {
		b.WriteString("    (")
		for m, i := range used {
			b.WriteString(r[i])
			if m == len(used)-1 {
				break
			}
			b.WriteString(", ")
			if !strings.Contains(r[i], "\n") {
				b.WriteString(strings.Repeat(" ", max(t.width(i)-utf8.RuneCountInString(r[i]), 0)))
			}
		}
		b.WriteString(")")
		if n < len(t.rows)-1 {
			b.WriteString(",")
		}
		b.WriteString("\n")
	}
	text := b.String()
	return strings.TrimSuffix(text, "\n") + ";\n"
}

// width is that of a column. It grows in steps, so that a row that is a little wider does
// not move all the others; what is very wide does not count.
func (t *table) width(i int) int {
	const step, most = 4, 60
	width := 0
	for _, r := range t.rows {
		if n := utf8.RuneCountInString(r[i]); n <= most && !strings.Contains(r[i], "\n") {
			width = max(width, n)
		}
	}
	return (width + step - 1) / step * step
}
