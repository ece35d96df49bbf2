package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/wed-sql/wed_sql/worker"
)

// A worker of the transition book_hotel of the flow travel. The reservation and
// the new state are written in one transaction.
func Example() {
	bookHotel := func(ctx context.Context, job *worker.Job) (worker.State, error) {
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

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	w, err := worker.New(worker.Config{Flow: "travel", Transition: "book_hotel", Handler: bookHotel, Concurrency: 4})
	if err == nil {
		err = w.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
