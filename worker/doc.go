// Package worker performs one transition of a WED-flow.
//
// A worker asks the database for pending jobs of its transition, takes each one
// in a transaction of its own, hands it to a [Handler], writes the attributes
// that the handler returns, and commits: that commit is the instance's next
// state. Several jobs run side by side, each on a connection of its own.
//
//	w, err := worker.New(worker.Config{
//		Flow:       "travel",
//		Transition: "book_hotel",
//		Handler: func(ctx context.Context, job *worker.Job) (worker.State, error) {
//			return worker.State{"hotel": "Grand", "hotel_status": "booked"}, nil
//		},
//	})
//	if err != nil { ... }
//	err = w.Run(ctx) // until ctx ends; what runs then is finished first
//
// # What is promised
//
// The new state is written exactly once: it commits together with the
// completion of the job, or not at all. The handler itself may run more than
// once for a job (its connection may break, its transaction may lose a race,
// the process may be killed), so an effect outside the database has to bear
// repetition. Effects inside the database belong in the job's own transaction,
// see [Job.DB].
//
// Notifications are taken as hints. A job is never missed because one got lost:
// the job pool is read when the worker starts, after every lost connection, and
// every [Config.Wakeup].
package worker
