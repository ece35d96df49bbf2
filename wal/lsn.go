package wal

import (
	"fmt"

	"github.com/jackc/pglogrepl"
)

func parseLSN(text string) (LSN, error) {
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("position %q: %w", text, err)
	}
	return lsn, nil
}
