package predicate

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// ErrFails is wrapped by the errors that PostgreSQL raises, too, when it evaluates the expression.
var ErrFails = errors.New("the expression fails")

// Holds says whether a condition is true on a state, as WHERE asks.
func (n *Node) Holds(s State) (bool, error) {
	v, err := n.Eval(s)
	return v == true, err
}

// Eval is the value of n on a state. AND, OR, CASE and COALESCE evaluate no more than they need, from left to right.
func (n *Node) Eval(s State) (Value, error) {
	switch n.Op {
	case Attribute:
		v, ok := s[n.Name]
		if !ok {
			return nil, fmt.Errorf("no attribute %q", n.Name)
		}
		return v, nil
	case Constant:
		if n.Text == nil {
			return nil, nil
		}
		return Parse(n.Type, *n.Text)
	case And:
		return n.connect(s, false)
	case Or:
		return n.connect(s, true)
	case Coalesce:
		for _, a := range n.Args {
			if v, err := a.Eval(s); err != nil || !isNull(v) {
				return v, err
			}
		}
		return nil, nil
	case Case:
		holds, err := n.Args[0].Holds(s)
		if err != nil {
			return nil, err
		}
		if holds {
			return n.Args[1].Eval(s)
		}
		return n.Args[2].Eval(s)
	case Between:
		return New(And, New(GreaterEqual, n.Args[0], n.Args[1]), New(LessEqual, n.Args[0], n.Args[2])).Eval(s)
	}

	args := make([]Value, len(n.Args))
	for i, a := range n.Args {
		var err error
		if args[i], err = a.Eval(s); err != nil {
			return nil, err
		}
	}
	if v, done := n.evalOnNulls(args); done {
		return v, nil
	}
	for _, a := range args {
		if isNull(a) {
			return nil, nil // all others are strict
		}
	}
	switch n.Op {
	case Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual:
		return relates(n.Op, compare(args[0], args[1])), nil
	case Like:
		return like(args[0].(string), args[1].(string)), nil
	case AnyOf:
		return anyOf(args[0].(string), args[1].([]*string)), nil
	case Contains:
		return contains(args[0], args[1]), nil
	case HasKey:
		object, _ := args[0].(Document).Root.(map[string]any)
		_, has := object[args[1].(string)]
		return has, nil
	}
	return n.evalStrict(args)
}

// connect is AND (until is false) or OR (until is true).
func (n *Node) connect(s State, until bool) (Value, error) {
	unknown := false
	for _, a := range n.Args {
		v, err := a.Eval(s)
		switch {
		case err != nil:
			return nil, err
		case isNull(v):
			unknown = true
		case v == until:
			return until, nil
		}
	}
	if unknown {
		return nil, nil
	}
	return !until, nil
}

// evalOnNulls evaluates what says something of nulls.
func (n *Node) evalOnNulls(args []Value) (v Value, done bool) {
	switch n.Op {
	case IsNull, IsUnknown:
		return isNull(args[0]), true
	case IsNotNull:
		return !isNull(args[0]), true
	case IsTrue:
		return args[0] == true, true
	case IsNotTrue:
		return args[0] != true, true
	case IsFalse:
		return args[0] == false, true
	case Not:
		if b, ok := args[0].(bool); ok {
			return !b, true
		}
		return nil, true
	case Distinct:
		return !Same(args[0], args[1]), true
	case NotDistinct:
		return Same(args[0], args[1]), true
	case NullIf:
		if !isNull(args[0]) && !isNull(args[1]) && compare(args[0], args[1]) == 0 {
			return nil, true
		}
		return args[0], true
	case In, NotIn:
		return in(args, n.Op == In), true
	}
	return nil, false
}

func in(args []Value, positive bool) Value {
	if isNull(args[0]) {
		return nil
	}
	unknown := false
	for _, a := range args[1:] {
		switch {
		case isNull(a):
			unknown = true
		case compare(args[0], a) == 0:
			return positive
		}
	}
	if unknown {
		return nil
	}
	return !positive
}

func relates(op Op, order int) bool {
	switch op {
	case Equal:
		return order == 0
	case NotEqual:
		return order != 0
	case Less:
		return order < 0
	case LessEqual:
		return order <= 0
	case Greater:
		return order > 0
	}
	return order >= 0
}

// like knows patterns whose only special characters are % at the ends.
func like(s, pattern string) bool {
	rest, begins := strings.CutPrefix(pattern, "%")
	core, ends := strings.CutSuffix(rest, "%")
	switch {
	case begins && ends:
		return strings.Contains(s, core)
	case begins:
		return strings.HasSuffix(s, core)
	case ends:
		return strings.HasPrefix(s, core)
	}
	return s == pattern
}

func anyOf(s string, elements []*string) Value {
	unknown := false
	for _, e := range elements {
		switch {
		case e == nil:
			unknown = true
		case *e == s:
			return true
		}
	}
	if unknown {
		return nil
	}
	return false
}

// contains is @> of arrays, and of objects whose right side has scalars only.
func contains(a, b Value) bool {
	if x, ok := a.([]*string); ok {
		for _, e := range b.([]*string) {
			if e == nil || anyOf(*e, x) != true {
				return false
			}
		}
		return true
	}
	x, isObject := a.(Document).Root.(map[string]any)
	y, wantsObject := b.(Document).Root.(map[string]any)
	if !isObject || !wantsObject {
		return isObject == wantsObject && sameDocument(a.(Document).Root, b.(Document).Root)
	}
	for k, w := range y {
		v, has := x[k]
		if !has || !sameDocument(v, w) {
			return false
		}
	}
	return true
}

// evalStrict evaluates functions whose arguments are not null.
func (n *Node) evalStrict(args []Value) (Value, error) {
	switch n.Op {
	case Add, Subtract, Multiply, Divide, Modulo:
		return n.arithmetic(args[0], args[1])
	case ToInteger:
		return toInteger(args[0].(string))
	case Length:
		return int64(len([]rune(args[0].(string)))), nil
	case Upper:
		return strings.ToUpper(args[0].(string)), nil
	case Abs:
		if i, ok := args[0].(int64); ok {
			return integer(max(i, -i))
		}
		return new(big.Rat).Abs(args[0].(*big.Rat)), nil
	case Field:
		return field(args[0].(Document).Root, args[1].(string)), nil
	case Cardinality:
		return int64(len(args[0].([]*string))), nil
	case Year:
		return int64(args[0].(time.Time).UTC().Year()), nil
	}
	return nil, fmt.Errorf("operator %q", n.Op)
}

func (n *Node) arithmetic(a, b Value) (Value, error) {
	x, integers := a.(int64)
	y, both := b.(int64)
	if !integers || !both {
		return n.rational(rat(a), rat(b))
	}
	switch n.Op {
	case Add:
		return integer(x + y)
	case Subtract:
		return integer(x - y)
	case Multiply:
		return integer(x * y)
	}
	if y == 0 {
		return nil, fmt.Errorf("%w: division by zero", ErrFails)
	}
	if n.Op == Divide {
		return integer(x / y)
	}
	return x % y, nil
}

func rat(v Value) *big.Rat {
	if i, ok := v.(int64); ok {
		return new(big.Rat).SetInt64(i)
	}
	return v.(*big.Rat)
}

func (n *Node) rational(x, y *big.Rat) (Value, error) {
	switch n.Op {
	case Add:
		return new(big.Rat).Add(x, y), nil
	case Subtract:
		return new(big.Rat).Sub(x, y), nil
	case Multiply:
		return new(big.Rat).Mul(x, y), nil
	}
	return nil, fmt.Errorf("operator %q of numerics", n.Op)
}

func integer(i int64) (Value, error) {
	if i < math.MinInt32 || i > math.MaxInt32 {
		return nil, fmt.Errorf("%w: integer out of range", ErrFails)
	}
	return i, nil
}

func toInteger(s string) (Value, error) {
	i, err := strconv.ParseInt(strings.Trim(s, " \t\n\r\v\f"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is no integer", ErrFails, s)
	}
	return i, nil
}

// field is ->> of a key whose value is a scalar or missing.
func field(root any, key string) Value {
	object, _ := root.(map[string]any)
	switch v := object[key].(type) {
	case nil:
		return nil
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}
