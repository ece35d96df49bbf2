package condition

import (
	"strings"

	"github.com/wed-sql/wed_sql/internal/sqllex"
)

// Print writes an expression in one form, with no more parentheses than it needs.
func Print(e Expr) string {
	var p printer
	e.print(&p)
	return p.String()
}

type printer struct{ strings.Builder }

func (p *printer) write(parts ...string) {
	for _, s := range parts {
		p.WriteString(s)
	}
}

// operand writes what must bind at least as tightly as a level.
func (p *printer) operand(e Expr, level int) {
	if e.level() >= level {
		e.print(p)
		return
	}
	p.write("(")
	e.print(p)
	p.write(")")
}

func (p *printer) list(list []Expr, separator string, level int) {
	for i, e := range list {
		if i > 0 {
			p.write(separator)
		}
		p.operand(e, level)
	}
}

func not(is bool) string {
	if is {
		return "not "
	}
	return ""
}

func (e *Column) print(p *printer) { p.write(sqllex.QuoteName(e.Name)) }
func (e *Opaque) print(p *printer) { p.write(e.Text) }
func (e *And) print(p *printer)    { p.list(e.List, " and ", levelNot) }
func (e *Or) print(p *printer)     { p.list(e.List, " or ", levelAnd) }

func (e *Const) print(p *printer) {
	switch e.Kind {
	case Null:
		p.write("null")
	case String:
		p.write("'", strings.ReplaceAll(e.Text, "'", "''"), "'")
	default:
		p.write(e.Text)
	}
}

func (e *Cast) print(p *printer) {
	p.operand(e.X, levelCast)
	p.write("::", e.Type)
}

func (e *Not) print(p *printer) {
	p.write("not ")
	p.operand(e.X, levelNot)
}

func (e *Is) print(p *printer) {
	p.operand(e.X, levelIs+1)
	p.write(" is ", not(e.Not), e.What)
}

func (e *Compare) print(p *printer) {
	p.operand(e.L, levelCompare+1)
	p.write(" ", e.Op, " ")
	p.operand(e.R, levelCompare+1)
}

func (e *Distinct) print(p *printer) {
	p.operand(e.L, levelIs+1)
	p.write(" is ", not(e.Not), "distinct from ")
	p.operand(e.R, levelIs+1)
}

func (e *In) print(p *printer) {
	p.operand(e.X, levelBetween+1)
	p.write(" ", not(e.Not), "in (")
	p.list(e.List, ", ", levelOr)
	p.write(")")
}

func (e *Between) print(p *printer) {
	p.operand(e.X, levelBetween+1)
	p.write(" ", not(e.Not), "between ")
	if e.Symmetric {
		p.write("symmetric ")
	}
	p.operand(e.Low, levelBetween+1)
	p.write(" and ")
	p.operand(e.High, levelBetween+1)
}

func (e *Like) print(p *printer) {
	p.operand(e.X, levelBetween+1)
	p.write(" ", not(e.Not), e.Op, " ")
	p.operand(e.Pattern, levelBetween+1)
	if e.Escape != nil {
		p.write(" escape ")
		p.operand(e.Escape, levelBetween+1)
	}
}

func (e *Operate) print(p *printer) {
	level := e.level()
	if e.L == nil {
		p.write(e.Op, " ")
		p.operand(e.R, level+1)
		return
	}
	p.operand(e.L, level)
	p.write(" ", e.Op, " ")
	p.operand(e.R, level+1)
}

func (e *Collate) print(p *printer) {
	p.operand(e.X, levelCollate)
	p.write(" collate ", e.Name)
}

func (e *Call) print(p *printer) {
	p.write(e.Name)
	if e.Bare {
		return
	}
	p.write("(")
	p.list(e.Args, ", ", levelOr)
	p.write(")")
}
