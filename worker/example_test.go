package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wed-sql/wed_sql/worker"
)

// A program that performs three transitions of the flow travel. The first signal
// lets it finish what it has begun, the second one ends it.
func Example() {
	err := run(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	w, err := worker.New(worker.Config{}) // PGHOST and its like say where
	if err != nil {
		return err
	}
	if err := w.Handle("travel", "book_hotel", bookHotel, worker.Options{Concurrency: 4}); err != nil {
		return err
	}
	// Short work: up to a hundred jobs with one commit.
	if err := w.Handle("travel", "check_customer", checkCustomer, worker.Options{Batch: 100}); err != nil {
		return err
	}
	// Long work: no transaction is open meanwhile.
	if err := w.Handle("travel", "print_ticket", printTicket, worker.Options{Lease: time.Minute}); err != nil {
		return err
	}
	return worker.RunUntilSignal(ctx, w)
}

// bookHotel writes the reservation and the new state in one transaction.
func bookHotel(ctx context.Context, job *worker.Job) (worker.State, error) {
	var trip struct{ Destination string }
	if err := job.Decode(&trip); err != nil {
		return nil, err
	}
	var hotel string
	err := job.DB().QueryRow(ctx, "update hotels set rooms = rooms - 1 where city = $1 and rooms > 0 returning name",
		trip.Destination).Scan(&hotel)
	if err != nil {
		return nil, fmt.Errorf("reserve a room in %s: %w", trip.Destination, err)
	}
	return worker.State{"hotel": hotel, "hotel_status": "booked"}, nil
}

func checkCustomer(_ context.Context, job *worker.Job) (worker.State, error) {
	var trip struct{ Customer string }
	if err := job.Decode(&trip); err != nil {
		return nil, err
	}
	return worker.State{"customer_known": trip.Customer != ""}, nil
}

// printTicket takes its time. What it writes in the end commits with the state.
func printTicket(ctx context.Context, job *worker.Job) (worker.State, error) {
	select { // the printer
	case <-time.After(2 * time.Minute):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	job.BeforeCommit(func(ctx context.Context, db worker.Querier) error {
		_, err := db.Exec(ctx, "insert into tickets (wid) values ($1)", job.WID)
		return err
	})
	return worker.State{"ticket": "printed"}, nil
}

// A BatchHandler gets all jobs of a transaction at once, here to read with one
// query what it needs for them.
func ExampleWorker_HandleBatch() {
	quote := func(ctx context.Context, jobs []*worker.Job) ([]worker.State, error) {
		wids := make([]int64, len(jobs))
		for i, job := range jobs {
			wids[i] = job.WID
		}
		rows, err := jobs[0].DB().Query(ctx, "select wid, price from offers where wid = any ($1)", wids)
		if err != nil {
			return nil, err
		}
		prices := make(map[int64]json.Number)
		var (
			wid   int64
			price string
		)
		if _, err := pgx.ForEachRow(rows, []any{&wid, &price}, func() error {
			prices[wid] = json.Number(price)
			return nil
		}); err != nil {
			return nil, err
		}
		states := make([]worker.State, len(jobs))
		for i, job := range jobs {
			if p, ok := prices[job.WID]; ok {
				states[i] = worker.State{"price": p}
			} // else it is left pending
		}
		return states, nil
	}

	w, err := worker.New(worker.Config{})
	if err == nil {
		err = w.HandleBatch("travel", "quote", quote, worker.Options{Batch: 500})
	}
	if err == nil {
		err = worker.RunUntilSignal(context.Background(), w)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// The metrics of a worker, where Prometheus finds them.
func ExampleWorker_Collector() {
	w, err := worker.New(worker.Config{})
	if err == nil {
		err = w.Handle("travel", "book_hotel", bookHotel, worker.Options{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.Collector())
	families, err := registry.Gather() // promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) serves them
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	for _, f := range families {
		fmt.Println(f.GetName())
	}
	// Output:
	// wed_sql_worker_concurrency
	// wed_sql_worker_connections
	// wed_sql_worker_handler_seconds
	// wed_sql_worker_jobs_running
	// wed_sql_worker_jobs_total
	// wed_sql_worker_jobs_waiting
	// wed_sql_worker_listening
}

// Work off what is pending now, as a job of cron might.
func ExampleConfig_once() {
	w, err := worker.New(worker.Config{Once: true})
	if err == nil {
		err = w.Handle("travel", "book_hotel", bookHotel, worker.Options{Concurrency: 4})
	}
	if err == nil {
		err = w.Run(context.Background())
	}
	fmt.Println(err)
}

// A call to a service that counts requests by their key: the handler may run
// more than once for a job, and the key is the same each time.
func ExampleJob_ID() {
	charge := func(ctx context.Context, job *worker.Job) (worker.State, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost:8080/charges", nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Idempotency-Key", job.ID())
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("charge: %s", answer.Status)
		}
		return worker.State{"paid": true}, nil
	}

	w, err := worker.New(worker.Config{})
	if err == nil {
		err = w.Handle("shop", "charge", charge, worker.Options{Concurrency: 16})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
