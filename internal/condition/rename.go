package condition

// Rename returns an expression with other names for attributes. What is opaque stays
// as it is, for it is not known to come to the same twice anyway.
func Rename(e Expr, names map[string]string) Expr {
	again := func(e Expr) Expr { return Rename(e, names) }
	all := func(list []Expr) []Expr {
		renamed := make([]Expr, len(list))
		for i, e := range list {
			renamed[i] = again(e)
		}
		return renamed
	}
	switch e := e.(type) {
	case *Column:
		if to, ok := names[e.Name]; ok {
			return &Column{Name: to, At: e.At}
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
		renamed := &Like{X: again(e.X), Not: e.Not, Op: e.Op, Pattern: again(e.Pattern)}
		if e.Escape != nil {
			renamed.Escape = again(e.Escape)
		}
		return renamed
	case *Operate:
		renamed := &Operate{Op: e.Op, R: again(e.R)}
		if e.L != nil {
			renamed.L = again(e.L)
		}
		return renamed
	case *Collate:
		return &Collate{X: again(e.X), Name: e.Name}
	case *Call:
		return &Call{Name: e.Name, Args: all(e.Args), Bare: e.Bare, At: e.At}
	}
	return e
}
