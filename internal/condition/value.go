package condition

import (
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// class says how the constants of a type compare.
type class int

const (
	opaqueClass class = iota // not known: its comparisons are not looked into
	textClass                // equal or not; their order is the collation's
	boolClass
	integerClass
	numericClass
	dateClass      // in days
	timestampClass // in seconds
	zonedClass     // in seconds, too; conditions are evaluated in UTC
)

// domain is what a type allows.
type domain struct {
	class    class
	min, max *big.Rat // of integers
	exact    bool     // every value between two others can be had
	row      bool     // may be a row, which can be neither null nor not null
}

// domainOf knows the types that can be reasoned about, as SQL or the catalogs write
// them.
func domainOf(typ string) domain {
	base, modifier, _ := strings.Cut(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(typ)), "pg_catalog."), "(")
	base = strings.TrimSpace(base)
	if i := strings.LastIndexByte(modifier, ')'); i >= 0 {
		base += modifier[i+1:]
	}
	bounds := func(bits uint) domain {
		limit := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return domain{
			class: integerClass, exact: true,
			min: new(big.Rat).SetInt(new(big.Int).Neg(limit)),
			max: new(big.Rat).SetInt(new(big.Int).Sub(limit, big.NewInt(1))),
		}
	}
	plain := modifier == ""
	switch base {
	case "text":
		return domain{class: textClass, exact: true}
	case "character varying", "varchar":
		return domain{class: textClass, exact: plain}
	case "boolean", "bool":
		return domain{class: boolClass, exact: true}
	case "smallint", "int2":
		return bounds(16)
	case "integer", "int", "int4":
		return bounds(32)
	case "bigint", "int8":
		return bounds(64)
	case "numeric", "decimal":
		return domain{class: numericClass, exact: plain}
	case "date":
		return domain{class: dateClass, exact: true}
	case "timestamp", "timestamp without time zone":
		return domain{class: timestampClass, exact: plain}
	case "timestamptz", "timestamp with time zone":
		return domain{class: zonedClass, exact: plain}
	}
	return domain{row: mayBeRow(typ)}
}

// mayBeRow reports whether a type is not known to be none of rows. Those that somebody
// has made may be.
func mayBeRow(typ string) bool {
	own, system := strings.CutPrefix(typ, "pg_catalog.")
	return !strings.HasSuffix(typ, "[]") && (!system && strings.Contains(typ, ".") || strings.HasPrefix(own, "pg_"))
}

func (d domain) ordered() bool {
	return d.class == integerClass || d.class == numericClass || d.class == dateClass || d.class == timestampClass || d.class == zonedClass
}

// value is one of a domain: text or a number, which stands for days and seconds, too.
type value struct {
	text  string
	truth bool
	num   *big.Rat
	// other is any value that is none of those that are named
	other bool
}

func (v value) equal(w value) bool {
	if v.other || w.other {
		return false
	}
	if v.num != nil && w.num != nil {
		return v.num.Cmp(w.num) == 0
	}
	return v.text == w.text && v.truth == w.truth && (v.num == nil) == (w.num == nil)
}

var (
	integerText = regexp.MustCompile(`^[-+]?[0-9]+$`)
	numericText = regexp.MustCompile(`^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?$`)
)

// timeLayouts are those of constants whose meaning no setting changes.
var timeLayouts = []string{"2006-01-02", "2006-01-02 15:04", "2006-01-02 15:04:05"}

// parse reads a constant as a value of the domain. Not ok: its meaning is not known.
func (d domain) parse(c *Const) (value, bool) {
	switch {
	case d.class == textClass && c.Kind == String:
		return value{text: c.Text}, true
	case d.class == boolClass && c.Kind == Bool:
		return value{truth: c.Text == "true"}, true
	case d.class == boolClass && c.Kind == String && (c.Text == "true" || c.Text == "false"):
		return value{truth: c.Text == "true"}, true
	case d.class == integerClass && c.Kind == String && !integerText.MatchString(c.Text):
		return value{}, false
	case (d.class == integerClass || d.class == numericClass) && (c.Kind == Number || c.Kind == String):
		return number(c.Text)
	case c.Kind == String && d.class == dateClass:
		return moment(c.Text, timeLayouts[:1], 24*60*60)
	case c.Kind == String && (d.class == timestampClass || d.class == zonedClass):
		return moment(c.Text, timeLayouts, 1)
	}
	return value{}, false
}

func number(text string) (value, bool) {
	if !numericText.MatchString(text) {
		return value{}, false
	}
	r, ok := new(big.Rat).SetString(text)
	return value{num: r}, ok
}

func moment(text string, layouts []string, unit int64) (value, bool) {
	for _, layout := range layouts {
		// Parse takes fractions of a second, too, which PostgreSQL rounds.
		if t, err := time.Parse(layout, text); err == nil && t.Year() > 0 && t.Nanosecond() == 0 {
			return value{num: big.NewRat(t.Unix(), unit)}, true
		}
	}
	return value{}, false
}

// write shows a value as a constant.
func (d domain) write(v value) string {
	switch {
	case d.class == textClass:
		return "'" + strings.ReplaceAll(v.text, "'", "''") + "'"
	case d.class == boolClass:
		return strconv.FormatBool(v.truth)
	case d.class == dateClass && v.num.IsInt():
		return "'" + time.Unix(v.num.Num().Int64()*24*60*60, 0).UTC().Format(time.DateOnly) + "'"
	case (d.class == timestampClass || d.class == zonedClass) && v.num.IsInt():
		return "'" + time.Unix(v.num.Num().Int64(), 0).UTC().Format(time.DateTime) + "'"
	case v.num.IsInt():
		return v.num.Num().String()
	}
	s, _ := v.num.Float64()
	return strconv.FormatFloat(s, 'f', -1, 64)
}

// representatives returns values such that each of the domain compares with the
// constants as one of them does.
func (d domain) representatives(constants []value) []value {
	switch {
	case d.class == boolClass:
		return []value{{truth: true}, {truth: false}}
	case !d.ordered():
		return append(slices.Clone(constants), value{other: true})
	}
	points := make([]*big.Rat, 0, len(constants))
	for _, c := range constants {
		points = append(points, c.num)
		switch {
		case d.min == nil:
		case c.num.Cmp(d.min) < 0:
			points = append(points, d.min) // what is next to the constant is beyond what the type holds
		case c.num.Cmp(d.max) > 0:
			points = append(points, d.max)
		}
	}
	slices.SortFunc(points, (*big.Rat).Cmp)
	points = slices.CompactFunc(points, func(a, b *big.Rat) bool { return a.Cmp(b) == 0 })
	one := big.NewRat(1, 1)
	if len(points) == 0 {
		return []value{{num: new(big.Rat)}}
	}
	whole := d.class == integerClass || d.class == dateClass
	var all []value
	add := func(r *big.Rat) {
		if whole && !r.IsInt() || d.min != nil && (r.Cmp(d.min) < 0 || r.Cmp(d.max) > 0) {
			return
		}
		all = append(all, value{num: r})
	}
	add(floor(new(big.Rat).Sub(points[0], one)))
	for i, p := range points {
		add(p)
		switch next := i + 1; {
		case next == len(points):
			add(floor(new(big.Rat).Add(p, one)))
		case whole:
			if between := floor(new(big.Rat).Add(p, one)); between.Cmp(points[next]) < 0 {
				add(between)
			}
		default:
			sum := new(big.Rat).Add(p, points[next])
			add(sum.Mul(sum, big.NewRat(1, 2)))
		}
	}
	return all
}

func floor(r *big.Rat) *big.Rat {
	q := new(big.Int).Div(r.Num(), r.Denom()) // rounds down, for denominators are positive
	return new(big.Rat).SetInt(q)
}
