// Package predicate has SQL conditions as trees that can be printed as SQL and evaluated in Go, three-valued and with SQL's
// errors: what PostgreSQL answers can be known without asking it.
package predicate

import (
	"fmt"
	"slices"
	"strings"
)

// Type is that of an attribute, or of a part of a condition.
type Type string

// The types that attributes can have.
const (
	Boolean   Type = "boolean"
	Integer   Type = "integer"
	Numeric   Type = "numeric"
	Text      Type = "text"
	Timestamp Type = "timestamp with time zone"
	JSON      Type = "jsonb"
	TextArray Type = "text[]"
)

// Types are all of them.
var Types = []Type{Boolean, Integer, Numeric, Text, Timestamp, JSON, TextArray}

// Op is what a Node does with its arguments.
type Op string

// Conditions.
const (
	And          Op = "and"
	Or           Op = "or"
	Not          Op = "not"
	IsNull       Op = "is null"
	IsNotNull    Op = "is not null"
	IsTrue       Op = "is true"
	IsNotTrue    Op = "is not true"
	IsFalse      Op = "is false"
	IsUnknown    Op = "is unknown"
	Equal        Op = "="
	NotEqual     Op = "<>"
	Less         Op = "<"
	LessEqual    Op = "<="
	Greater      Op = ">"
	GreaterEqual Op = ">="
	Distinct     Op = "is distinct from"
	NotDistinct  Op = "is not distinct from"
	Between      Op = "between"
	In           Op = "in"
	NotIn        Op = "not in"
	Like         Op = "like"
	AnyOf        Op = "= any"
	Contains     Op = "@>"
	HasKey       Op = "?"
)

// Values.
const (
	Attribute   Op = "attribute"
	Constant    Op = "constant"
	Add         Op = "+"
	Subtract    Op = "-"
	Multiply    Op = "*"
	Divide      Op = "/"
	Modulo      Op = "%"
	ToInteger   Op = "::integer"
	Length      Op = "length"
	Upper       Op = "upper"
	Abs         Op = "abs"
	Coalesce    Op = "coalesce"
	NullIf      Op = "nullif"
	Field       Op = "->>"
	Cardinality Op = "cardinality"
	Year        Op = "year"
	Case        Op = "case"
)

// Node is an expression: an operator and its arguments. Its JSON is its whole being.
type Node struct {
	Op   Op      `json:"op"`
	Args []*Node `json:"args,omitempty"`
	Name string  `json:"name,omitempty"` // of an attribute
	Type Type    `json:"type,omitempty"` // of an attribute or a constant
	Text *string `json:"text,omitempty"` // of a constant, as PostgreSQL reads it; nil is null
}

// New is a Node of an operator with arguments.
func New(op Op, args ...*Node) *Node { return &Node{Op: op, Args: args} }

// Attr is the value of an attribute.
func Attr(name string, t Type) *Node { return &Node{Op: Attribute, Name: name, Type: t} }

// Const is a constant, by its text.
func Const(t Type, text string) *Node { return &Node{Op: Constant, Type: t, Text: &text} }

// Null is the constant null.
func Null(t Type) *Node { return &Node{Op: Constant, Type: t} }

// Attributes are the names of the attributes in n.
func (n *Node) Attributes() []string {
	var names []string
	var walk func(n *Node)
	walk = func(n *Node) {
		if n.Op == Attribute && !slices.Contains(names, n.Name) {
			names = append(names, n.Name)
		}
		for _, a := range n.Args {
			walk(a)
		}
	}
	walk(n)
	return names
}

// QuoteIdent is a name as SQL has it.
func QuoteIdent(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// QuoteLiteral is a string as SQL has it.
func QuoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// SQL prints n.
func (n *Node) SQL() string {
	arg := func(i int) string { return n.Args[i].SQL() }
	list := func(args []*Node, separator string) string {
		texts := make([]string, len(args))
		for i, a := range args {
			texts[i] = a.SQL()
		}
		return strings.Join(texts, separator)
	}
	switch n.Op {
	case Attribute:
		return QuoteIdent(n.Name)
	case Constant:
		return n.literal()
	case And, Or:
		return "(" + list(n.Args, " "+string(n.Op)+" ") + ")"
	case Not:
		return "(not " + arg(0) + ")"
	case IsNull, IsNotNull, IsTrue, IsNotTrue, IsFalse, IsUnknown:
		return "(" + arg(0) + " " + string(n.Op) + ")"
	case Between:
		return "(" + arg(0) + " between " + arg(1) + " and " + arg(2) + ")"
	case In, NotIn:
		return "(" + arg(0) + " " + string(n.Op) + " (" + list(n.Args[1:], ", ") + "))"
	case AnyOf:
		return "(" + arg(0) + " = any (" + arg(1) + "))"
	case ToInteger:
		return "(" + arg(0) + ")::integer"
	case Length, Upper, Abs, Coalesce, NullIf, Cardinality:
		return string(n.Op) + "(" + list(n.Args, ", ") + ")"
	case Year:
		return "extract(year from " + arg(0) + " at time zone 'UTC')::integer"
	case Case:
		return "case when " + arg(0) + " then " + arg(1) + " else " + arg(2) + " end"
	default:
		return "(" + arg(0) + " " + string(n.Op) + " " + arg(1) + ")"
	}
}

func (n *Node) literal() string {
	if n.Text == nil {
		return "null::" + string(n.Type)
	}
	switch n.Type {
	case Boolean, Integer:
		return "(" + *n.Text + ")"
	case Text:
		return QuoteLiteral(*n.Text)
	}
	return fmt.Sprintf("%s::%s", QuoteLiteral(*n.Text), n.Type)
}
