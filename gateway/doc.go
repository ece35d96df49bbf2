// Package gateway stands between any number of workers, who speak HTTP, and a
// database, which pays a process for each connection.
//
// A [Gateway] holds one connection that listens and a few that work. Through it
// a worker leases jobs, waiting for them as long as it likes (a long poll, or a
// stream of server-sent events), extends, completes, fails and releases them. It
// is an http.Handler; [Gateway.Run] has to run meanwhile, and [Gateway.Serve] is
// both, behind a server whose time limits fit.
//
//	g, err := gateway.New(gateway.Config{Tokens: tokens})
//	if err != nil { ... }
//	err = g.Serve(ctx, listener, nil) // until ctx ends; what runs then is finished first
//
// # What is promised
//
// A gateway keeps nothing that matters: a lease is in the database, and so is its
// end. One that is killed loses nothing; two of them share the work. A new state
// is written once, for wed_sql.complete() writes it only under a lease that lasts.
//
// A worker has the rights that its token names: some transitions, and, if it says
// so, a role of the database. It sends no SQL, only values.
package gateway
