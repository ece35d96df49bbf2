package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Handler performs a transition for one job. It returns the attributes to set, or
// nil when there is nothing to do yet; after nil, and after an error, what it did
// in the job's transaction is rolled back and the job is tried again later. A
// panic counts as an error.
//
// ctx ends when the job's timeout has passed, when its lease is lost, and when
// the worker is aborted. It carries the span of the transaction.
type Handler func(ctx context.Context, job *Job) (State, error)

// BatchHandler performs a transition for several jobs, of different instances, in
// one transaction: Job.DB is the same for all. It returns one state for each, in
// their order; a job with a nil state is left pending. After an error everything
// is rolled back, and each of the jobs is tried again alone.
//
// ctx ends when the shortest of the jobs' timeouts has passed.
type BatchHandler func(ctx context.Context, jobs []*Job) ([]State, error)

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

	// Timeout limits the job's transaction; 0 means that there is no limit, as
	// for a leased job.
	Timeout time.Duration

	// Attempts is how many have failed before, as far as they were reported.
	Attempts int

	// Payload is the state that fired the transition, a JSON object with every
	// attribute by name. Transitions that run in parallel may have written the
	// instance since: rely only on attributes that the rule's condition names.
	Payload json.RawMessage

	interval string // the timeout as PostgreSQL writes it
	version  int64  // of the state that fired it
	token    string // of its lease
	session  *session
	last     []func(context.Context, Querier) error
}

// DB returns the job's transaction. It is valid until the handler returns and
// must not be used by several goroutines at once. A leased job has none while its
// handler runs: whatever is asked of it fails.
func (j *Job) DB() Querier { return j.session }

// ID is the same each time the job is performed, and of no other job: a key for
// services that are to do once what they are asked for twice.
func (j *Job) ID() string {
	return fmt.Sprintf("%s/%d/%d/%d", j.Flow, j.WID, j.TGID, j.FiredAt.UnixMicro())
}

// BeforeCommit has f called in the transaction that completes the job, before it
// commits: an error of f rolls it back. It is the way of a leased job to write
// its business rows together with the state, and works for others, too. f is
// called only if the handler returns a state, but may be called more than once,
// for a transaction that loses a race is redone. Several are called in turn.
func (j *Job) BeforeCommit(f func(ctx context.Context, db Querier) error) {
	j.last = append(j.last, f)
}

// beforeCommit does what is to be done in the transaction that completes the job.
func (j *Job) beforeCommit(ctx context.Context, db Querier) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError(p)
		}
	}()
	for _, f := range j.last {
		if err := f(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

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
