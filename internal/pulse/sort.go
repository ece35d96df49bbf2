package pulse

import (
	"cmp"
	"slices"
)

// Order is what rows are sorted by.
type Order string

// By name; by what most needs a look; by what is most busy.
const (
	ByName    Order = "name"
	ByOldest  Order = "oldest"
	ByWaiting Order = "waiting"
	ByDone    Order = "done"
	ByFailed  Order = "failed"
)

// Orders are all of them.
var Orders = []Order{ByName, ByOldest, ByWaiting, ByDone, ByFailed}

// Next is the order after this one.
func (o Order) Next() Order { return Orders[(slices.Index(Orders, o)+1)%len(Orders)] }

// Sort sorts rows: what is largest first, names in their order.
func Sort(rows []Row, order Order) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		by := 0
		switch order {
		case ByOldest:
			by = descending(a.OldestSeconds, b.OldestSeconds)
		case ByWaiting:
			by = descending(a.Waiting, b.Waiting)
		case ByDone:
			by = descending(a.DonePerSecond, b.DonePerSecond)
		case ByFailed:
			by = cmp.Or(cmp.Compare(b.FailedLately, a.FailedLately), cmp.Compare(b.Failed, a.Failed))
		}
		return cmp.Or(by, cmp.Compare(a.Flow, b.Flow), cmp.Compare(a.Transition, b.Transition))
	})
}

// descending has what is not known at the end.
func descending[T int64 | float64](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}
