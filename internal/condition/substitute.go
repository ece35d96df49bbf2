package condition

// Substitute returns an expression with others in the place of attributes. What is
// opaque stays as it is, for it is not known to come to the same twice anyway.
func Substitute(e Expr, attributes map[string]Expr) Expr {
	again := func(e Expr) Expr { return Substitute(e, attributes) }
	all := func(list []Expr) []Expr {
		changed := make([]Expr, len(list))
		for i, e := range list {
			changed[i] = again(e)
		}
		return changed
	}
	switch e := e.(type) {
	case *Column:
		if value, ok := attributes[e.Name]; ok {
			return value
		}
		return e
	case *Cast:
		return &Cast{X: again(e.X), Type: e.Type}
	case *And:
		return &And{List: all(e.List)}
	case *Or:
		return &Or{List: all(e.List)}
	case *Not:
		return &Not{X: again(e.X)}
	case *Is:
		return &Is{X: again(e.X), Not: e.Not, What: e.What}
	case *Compare:
		return &Compare{Op: e.Op, L: again(e.L), R: again(e.R), At: e.At}
	case *Distinct:
		return &Distinct{L: again(e.L), R: again(e.R), Not: e.Not}
	case *In:
		return &In{X: again(e.X), Not: e.Not, List: all(e.List)}
	case *Between:
		return &Between{X: again(e.X), Not: e.Not, Symmetric: e.Symmetric, Low: again(e.Low), High: again(e.High)}
	case *Like:
		changed := &Like{X: again(e.X), Not: e.Not, Op: e.Op, Pattern: again(e.Pattern)}
		if e.Escape != nil {
			changed.Escape = again(e.Escape)
		}
		return changed
	case *Operate:
		changed := &Operate{Op: e.Op, R: again(e.R), performed: e.performed}
		if e.L != nil {
			changed.L = again(e.L)
		}
		return changed
	case *Collate:
		return &Collate{X: again(e.X), Name: e.Name}
	case *Call:
		return &Call{Name: e.Name, Args: all(e.Args), Bare: e.Bare, At: e.At}
	}
	return e
}
