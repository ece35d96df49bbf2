// Package travel holds the example process of wed_sql, a travel agency: its
// rules, its transitions as shell scripts, and some customers.
package travel

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed *.sql *.sh
var files embed.FS

// Rules is the definition of the flow: one transaction.
func Rules() string { return read("travel.sql") }

// Trips starts the instances.
func Trips() string { return read("trips.sql") }

// Transition is a transition and the script that performs it.
type Transition struct {
	Name   string
	Script string // its file name
}

// Transitions lists the flow's transitions in the order in which a trip meets them.
func Transitions() []Transition {
	return []Transition{
		{"check_customer", "check_customer.sh"},
		{"book_flight", "book_flight.sh"},
		{"book_hotel", "book_hotel.sh"},
		{"close_trip", "close_trip.sh"},
		{"_EXCPT", "recover.sh"},
	}
}

// Extract writes the example's files into a directory, which must exist. It
// does not overwrite a file.
func Extract(dir string) error {
	entries, err := files.ReadDir(".")
	if err != nil {
		return fmt.Errorf("list the example's files: %w", err)
	}
	for _, e := range entries {
		mode := os.FileMode(0o644)
		if filepath.Ext(e.Name()) == ".sh" {
			mode = 0o755
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return fmt.Errorf("write the example: %w", err)
		}
		_, err = f.WriteString(read(e.Name()))
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			return fmt.Errorf("write the example: %w", err)
		}
	}
	return nil
}

// read returns a file that is known to be embedded.
func read(name string) string {
	b, err := files.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(b)
}
