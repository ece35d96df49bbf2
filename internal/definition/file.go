package definition

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// File is a file that defines a flow, as SQL.
type File struct {
	Name string
	Text string

	// Flow is the name that the file gives its flow, by create_flow or search_path; ""
	// if it does not.
	Flow     string
	Settings Settings
	Workers  []Worker

	rows   []sqllex.Statement // that define attributes and rules
	grants []grant
}

type grant struct {
	Worker
	at int
}

const hintStatements = "a flow's file has: insert into wed_attr ..., insert into wed_trig ..., select wed_sql.alter_flow(...), select wed_sql.grant_worker(...)"

// ParseFile reads a file, and refuses what defines no flow. The error is *Problems.
func ParseFile(name, text string) (*File, error) {
	f := &File{Name: name, Text: strings.TrimPrefix(text, "\ufeff")}
	statements, err := sqllex.Statements(f.Text)
	if e, ok := errors.AsType[*sqllex.Error](err); ok {
		p := &Problem{At: e.At, Message: e.Msg}
		if strings.HasPrefix(f.Text[e.At:], `\`) {
			p.Hint = "leave it out: " + hintStatements
		}
		return f, &Problems{File: f, List: []*Problem{p}}
	}
	problems := &Problems{File: f}
	for _, s := range statements {
		if p := f.classify(s); p != nil {
			problems.List = append(problems.List, p)
		}
	}
	if len(problems.List) > 0 {
		return f, problems
	}
	return f, nil
}

// classify takes a statement for what it is.
func (f *File) classify(s sqllex.Statement) *Problem {
	first := s.Tokens[0]
	second := sqllex.Token{}
	if len(s.Tokens) > 1 {
		second = s.Tokens[1]
	}
	refuse := func(message, hint string) *Problem {
		return &Problem{At: s.Start, Message: message, Hint: hint}
	}
	switch {
	case first.Is("begin"), first.Is("commit"), first.Is("end"), first.Is("start"):
		return nil // all is done in one transaction anyway
	case first.Is("rollback"), first.Is("abort"), first.Is("savepoint"), first.Is("release"), first.Is("prepare"):
		return refuse(fmt.Sprintf("%s: the file is applied as a whole", strings.ToUpper(first.Value)),
			"leave it out; `flow apply --dry-run` tries a file and changes nothing")
	case first.Is("set"):
		return f.set(s)
	case first.Is("select") && second.Kind != 0:
		return f.call(s)
	case first.Is("insert"), first.Is("update"), first.Is("delete"), first.Is("with"):
		return f.change(s)
	}
	return refuse(fmt.Sprintf("%s defines nothing of a flow", strings.ToUpper(first.Text)), hintStatements)
}

// set reads SET search_path, which may name the flow; other settings are refused.
func (f *File) set(s sqllex.Statement) *Problem {
	rest := s.Tokens[1:]
	if len(rest) > 0 && (rest[0].Is("local") || rest[0].Is("session")) {
		rest = rest[1:]
	}
	if len(rest) < 3 || !rest[0].Is("search_path") {
		return &Problem{At: s.Start, Message: "SET of anything but search_path changes how the file is read", Hint: "leave it out"}
	}
	if name := rest[2]; name.Kind != sqllex.Op && name.Value != "wed_sql" {
		return f.names(name.Value, name.Start)
	}
	return nil
}

// names notes the name of the flow that a file says it is about.
func (f *File) names(flow string, at int) *Problem {
	if f.Flow != "" && f.Flow != flow {
		return &Problem{At: at, Message: fmt.Sprintf("the file is about flow %q, and here about %q", f.Flow, flow), Hint: "give each flow a file of its own"}
	}
	f.Flow = flow
	return nil
}

// change accepts what changes rows of wed_attr and wed_trig, and nothing else.
func (f *File) change(s sqllex.Statement) *Problem {
	for i, t := range s.Tokens {
		target := i > 0 && (s.Tokens[i-1].Is("into") || s.Tokens[i-1].Is("update") || s.Tokens[i-1].Is("from") && i > 1 && s.Tokens[i-2].Is("delete"))
		if !target || t.Kind != sqllex.Ident && t.Kind != sqllex.Quoted || t.Is("set") || t.Is("nothing") {
			continue
		}
		if i+2 < len(s.Tokens) && s.Tokens[i+1].Is(".") {
			if p := f.names(t.Value, t.Start); p != nil {
				return p
			}
			return &Problem{
				At: t.Start, Message: fmt.Sprintf("the file names the schema of %s", s.Tokens[i+2].Text),
				Hint: fmt.Sprintf("write %s alone: which flow it is, is said when it is applied", s.Tokens[i+2].Text),
			}
		}
		if t.Value != "wed_attr" && t.Value != "wed_trig" {
			return &Problem{At: t.Start, Message: fmt.Sprintf("%s is no part of a flow's definition", t.Text), Hint: hintStatements}
		}
	}
	f.rows = append(f.rows, s)
	return nil
}

// argument is one of a call: its name, or "", and its value, nil for null.
type argument struct {
	name  string
	value *string
	here  bool // it is the flow that the file is applied to
	at    int
}

// call reads the calls of wed_sql's functions that define something. They are not
// executed: their arguments have to be constants.
func (f *File) call(s sqllex.Statement) *Problem {
	tokens := s.Tokens[1:]
	if len(tokens) > 2 && tokens[0].Is("wed_sql") && tokens[1].Is(".") {
		tokens = tokens[2:]
	}
	name := tokens[0].Value
	known := slices.Contains([]string{"create_flow", "alter_flow", "grant_worker"}, name)
	if !known || len(tokens) < 3 || !tokens[1].Is("(") || !tokens[len(tokens)-1].Is(")") {
		p := &Problem{At: s.Start, Message: "SELECT of anything but alter_flow and grant_worker defines nothing of a flow", Hint: hintStatements}
		if name == "revoke_worker" {
			p.Message, p.Hint = "what a file does not grant need not be revoked", "leave it out; `flow apply --revoke` takes away what the file does not grant"
		}
		return p
	}
	args, p := arguments(tokens[2 : len(tokens)-1])
	if p != nil {
		return p
	}
	if len(args) == 0 || args[0].name != "" && args[0].name != "flow" && args[0].name != "name" || args[0].value == nil && !args[0].here {
		return &Problem{At: tokens[0].Start, Message: fmt.Sprintf("%s needs the name of the flow", name), Hint: "current_schema() stands for the flow that the file is applied to"}
	}
	if !args[0].here {
		if p := f.names(*args[0].value, args[0].at); p != nil {
			return p
		}
	}
	switch name {
	case "alter_flow":
		return f.alter(args[1:])
	case "grant_worker":
		return f.grant(tokens[0].Start, args[1:])
	}
	return nil
}

// arguments parses constants between commas.
func arguments(tokens []sqllex.Token) ([]argument, *Problem) {
	var args []argument
	for len(tokens) > 0 {
		n := slices.IndexFunc(tokens, func(t sqllex.Token) bool { return t.Is(",") })
		one, rest := tokens, []sqllex.Token(nil)
		if n >= 0 {
			one, rest = tokens[:n], tokens[n+1:]
		}
		if len(one) == 0 {
			return nil, &Problem{At: tokens[0].Start, Message: "an argument is missing"}
		}
		a := argument{at: one[0].Start}
		if len(one) > 2 && (one[1].Is("=>") || one[1].Is(":=")) {
			a.name = one[0].Value
			one = one[2:]
		}
		sign := ""
		if len(one) == 2 && one[0].Is("-") {
			sign, one = "-", one[1:]
		}
		switch {
		case one[0].Is("current_schema") && (len(one) == 1 || len(one) == 3 && one[1].Is("(") && one[2].Is(")")):
			a.here = true
		case len(one) == 1 && one[0].Is("null"):
		case len(one) == 1 && (one[0].Kind == sqllex.String && sign == "" || one[0].Kind == sqllex.Number):
			value := sign + one[0].Value
			a.value = &value
		default:
			return nil, &Problem{At: one[0].Start, Message: "only constants are understood here", Hint: "and current_schema(), the flow that the file is applied to; current_schema without parentheses will do, too"}
		}
		args = append(args, a)
		tokens = rest
	}
	return args, nil
}

func (f *File) alter(args []argument) *Problem {
	for i, a := range args {
		name := a.name
		if name == "" && i < 2 {
			name = []string{"consistent", "max_states"}[i]
		}
		if a.value == nil {
			continue // stays as it is
		}
		switch name {
		case "consistent":
			f.Settings.Consistent = a.value
			if *a.value == "" {
				f.Settings.Consistent = nil
			}
		case "max_states":
			n, err := strconv.ParseInt(*a.value, 10, 64)
			if err != nil || n < -1 {
				return &Problem{At: a.at, Message: fmt.Sprintf("max_states is a number, not %q", *a.value), Hint: "0 is no limit; -1 has wed_sql.max_states decide"}
			}
			f.Settings.MaxStates = &n
			if n == -1 {
				f.Settings.MaxStates = nil
			}
		default:
			return &Problem{At: a.at, Message: fmt.Sprintf("alter_flow has no argument %q", a.name), Hint: "it has consistent and max_states"}
		}
	}
	return nil
}

func (f *File) grant(at int, args []argument) *Problem {
	if len(args) != 2 || args[0].value == nil || args[1].value == nil || args[0].here || args[1].here {
		return &Problem{At: at, Message: "grant_worker needs the flow, a transition and a role"}
	}
	transition, role := args[0], args[1]
	if transition.name == "role" || role.name == "transition" {
		transition, role = role, transition
	}
	w := Worker{Transition: *transition.value, Role: *role.value}
	if !slices.Contains(f.Workers, w) {
		f.Workers = append(f.Workers, w)
		f.grants = append(f.grants, grant{w, at})
	}
	return nil
}

// placeOfString returns where the first constant of this value is; -1 if there is none.
func (f *File) placeOfString(value string) int {
	tokens, err := sqllex.Tokens(f.Text)
	if err != nil {
		return -1
	}
	for _, t := range tokens {
		if t.Kind == sqllex.String && t.Value == value {
			return t.Start
		}
	}
	return -1
}

// insideAt returns where a byte of the value of a constant is that is written at a place.
func (f *File) insideAt(at, inside int) int {
	tokens, err := sqllex.Tokens(f.Text[at:])
	if err != nil && len(tokens) == 0 {
		return at
	}
	return at + insideString(tokens[0], inside)
}

func (f *File) placeOfGrant(w Worker) int {
	for _, g := range f.grants {
		if g.Worker == w {
			return g.at
		}
	}
	return -1
}

func byteOf(text string, character int) int { return sqllex.ByteOf(text, character) }

// indexAfterSet returns where the action begins in the statement in which PostgreSQL is
// given it: update only FLOW set ACTION; -1 if it is another one.
func indexAfterSet(query string) int {
	if !strings.HasPrefix(query, "update only ") {
		return -1
	}
	tokens, _ := sqllex.Tokens(query)
	for _, t := range tokens {
		if t.Is("set") {
			return t.End() + 1
		}
	}
	return -1
}
