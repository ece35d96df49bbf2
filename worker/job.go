package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Handler performs a transition. It returns the attributes to set, or nil when
// there is nothing to do yet; after nil, and after an error, the transaction is
// rolled back and the job is tried again later.
//
// ctx ends when the job's timeout has passed.
type Handler func(ctx context.Context, job *Job) (State, error)

// State is a set of attributes and their new values. A value is anything that
// encoding/json can marshal; the attribute's own type decides how it is read.
// nil sets an attribute to null. An empty State writes the instance as it is,
// which completes the job all the same.
type State map[string]any

// Job is one fired transition of one instance.
type Job struct {
	Flow    string // name of the flow
	WID     int64  // the instance
	TGID    int32  // the rule that fired
	TrName  string // the transition
	FiredAt time.Time

	// Timeout limits the job's transaction; 0 means that there is no limit.
	Timeout time.Duration

	// Payload is the state that fired the transition, a JSON object with every
	// attribute by name. Transitions that run in parallel may have written the
	// instance since: rely only on attributes that the rule's condition names.
	Payload json.RawMessage

	interval string // the timeout as PostgreSQL writes it
	db       Querier
}

// Querier runs SQL in a job's transaction. Whatever it writes commits together
// with the new state. It cannot end the transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
}

// DB returns the job's transaction. It is valid until the handler returns and
// must not be used by several goroutines at once.
func (j *Job) DB() Querier { return j.db }

func (j *Job) key() key { return key{j.WID, j.TGID} }

// Decode unmarshals the state that fired the transition into v.
func (j *Job) Decode(v any) error {
	if err := json.Unmarshal(j.Payload, v); err != nil {
		return fmt.Errorf("decode the payload of instance %d: %w", j.WID, err)
	}
	return nil
}

// MarshalJSON gives the job the same form as its notification has:
//
//	{"flow":"travel","wid":1,"tgid":2,"trname":"book_hotel","timeout":"00:00:30","payload":{...}}
func (j *Job) MarshalJSON() ([]byte, error) {
	timeout := j.interval
	if timeout == "" && j.Timeout > 0 {
		timeout = formatInterval(j.Timeout)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // the caller's encoder decides that
	err := enc.Encode(struct {
		Flow    string          `json:"flow"`
		WID     int64           `json:"wid"`
		TGID    int32           `json:"tgid"`
		TrName  string          `json:"trname"`
		Timeout *string         `json:"timeout"`
		Payload json.RawMessage `json:"payload"`
	}{j.Flow, j.WID, j.TGID, j.TrName, nullable(timeout), j.Payload})
	return b.Bytes(), err
}

// formatInterval writes d as PostgreSQL's interval type reads it.
func formatInterval(d time.Duration) string {
	s := fmt.Sprintf("%02d:%02d:%02d", int64(d.Hours()), int64(d.Minutes())%60, int64(d.Seconds())%60)
	if micro := d.Microseconds() % 1e6; micro != 0 {
		s += fmt.Sprintf(".%06d", micro)
	}
	return s
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
