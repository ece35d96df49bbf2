// Package worker performs transitions of WED-flows.
//
// A transition is performed by a function from a job to the next state. A
// [Worker] asks the database for pending jobs of its transitions, takes each one
// in a transaction, hands it to the [Handler], writes the attributes that the
// handler returns, and commits: that commit is the instance's next state.
//
//	w, err := worker.New(worker.Config{})
//	if err != nil { ... }
//	err = w.Handle("travel", "book_hotel", func(ctx context.Context, job *worker.Job) (worker.State, error) {
//		return worker.State{"hotel": "Grand", "hotel_status": "booked"}, nil
//	}, worker.Options{Concurrency: 4})
//	if err != nil { ... }
//	err = worker.RunUntilSignal(ctx, w) // what runs then is finished first
//
// # How jobs are taken
//
// By default each in a transaction of its own, several side by side
// (Options.Concurrency). [Job.DB] is that transaction: what the handler writes
// with it commits together with the new state, or not at all.
//
// In batches (Options.Batch): one transaction takes and completes many jobs.
// Short work is limited by commits, and done several times as fast so. The
// handler is called for one after the other, or a [BatchHandler] once for all.
// The transaction is as old as the first of them: the shortest of their timeouts
// counts, and when half of it has passed no other one is begun. If one fails, the
// others are done all the same: with it, if it has not used Job.DB, and else one
// by one. Write business rows that handlers share in one order, for locks last
// until all is committed.
//
// By lease (Options.Lease): for work that takes minutes or days no transaction
// stays open. The job is taken for a time, which is extended while the handler
// runs, and completed in a transaction of a moment; [Job.BeforeCommit] has
// business rows written there. When the lease cannot be kept, the handler's
// context ends with [ErrLeaseLost], and nothing is written.
//
// # What is promised
//
// The new state is written exactly once: it commits together with the
// completion of the job, or not at all. The handler itself may run more than
// once for a job (its connection may break, its transaction may lose a race,
// another job of its batch may fail, the process may be killed), so an effect
// outside the database has to bear repetition. Effects inside the database belong
// in the job's own transaction.
//
// A handler that returns an error, or panics, is a failed attempt: the server
// counts it, with the reason, and says when the job may be tried again. The
// handler's context ends with the job's timeout.
//
// Notifications are taken as hints. A job is never missed because one got lost:
// the job pool is read when the worker starts, after every lost connection, and
// every Config.Wakeup. One connection listens for all transitions of a Worker;
// those on which transactions run are shared, and opened when they are needed. So
// a handler leaves no session settings behind: SET LOCAL, not SET.
//
// When Run's context ends, what runs is finished and nothing is begun. [Worker.Abort]
// ends what runs: transactions are rolled back, leased jobs given back.
// [RunUntilSignal] does the one on the first signal, and the other on the second.
//
// # What is told
//
// Each transaction, and each leased job, is a span of OpenTelemetry, by the
// semantic conventions for messaging: "process travel.book_hotel", with the
// instance as messaging.message.conversation_id; in a batch each job has one
// within it. The handler's context carries it. [Worker.Collector] has metrics for
// Prometheus, Config.Logger gets what happens.
package worker
