package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// recorder is a TracerProvider that keeps what it is told.
type recorder struct {
	embedded.TracerProvider
	mu    sync.Mutex
	spans []*recorded
}

type recorded struct {
	noop.Span
	recorder *recorder
	name     string
	kind     trace.SpanKind
	parent   *recorded
	status   codes.Code
	attrs    []attribute.KeyValue
	ended    bool
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{recorder: r} }

type tracer struct {
	embedded.Tracer
	recorder *recorder
}

func (t tracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(o...)
	s := &recorded{recorder: t.recorder, name: name, kind: config.SpanKind(), attrs: config.Attributes()}
	s.parent, _ = trace.SpanFromContext(ctx).(*recorded)
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.recorder.spans = append(t.recorder.spans, s)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *recorded) IsRecording() bool { return true }
func (s *recorded) SetStatus(c codes.Code, _ string) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.status = c
}

func (s *recorded) SetAttributes(kv ...attribute.KeyValue) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.attrs = append(s.attrs, kv...)
}

func (s *recorded) End(...trace.SpanEndOption) {
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	s.ended = true
}

func (s *recorded) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.kind, s.name)
	if s.parent != nil {
		b.WriteString(" in " + s.parent.name)
	}
	if !s.ended {
		b.WriteString(" not ended")
	}
	if s.status == codes.Error {
		b.WriteString(" failed")
	}
	for _, a := range s.attrs {
		switch a.Key {
		case "messaging.batch.message_count", "messaging.message.conversation_id", "error.type":
			fmt.Fprintf(&b, " %s=%v", a.Key[strings.LastIndexByte(string(a.Key), '.')+1:], a.Value.AsInterface())
		}
	}
	return b.String()
}

func TestSpansAndMetricsTellWhatHappens(t *testing.T) {
	s := newNamedServer(t, "observed", oneStep)
	s.insert(2, "insert into wed_flow (note) select case n when 2 then 'bad' end from generate_series(1, $1) n")
	for _, c := range []struct {
		options Options
		spans   []string
		metrics string
	}{
		{Options{Batch: 2}, []string{
			`consumer process observed.work message_count=2`,
			`internal process observed.work in process observed.work conversation_id=1`,
			`internal process observed.work in process observed.work failed conversation_id=2 type=_OTHER`,
		}, `
			wed_sql_worker_jobs_total{flow="observed",outcome="completed",transition="work"} 1
			wed_sql_worker_jobs_total{flow="observed",outcome="failed",transition="work"} 1
			wed_sql_worker_jobs_total{flow="observed",outcome="gone",transition="work"} 0
			wed_sql_worker_jobs_total{flow="observed",outcome="redone",transition="work"} 0
`},
		{Options{}, []string{
			`consumer process observed.work failed conversation_id=2 type=_OTHER`,
		}, `
			wed_sql_worker_jobs_total{flow="observed",outcome="completed",transition="work"} 0
			wed_sql_worker_jobs_total{flow="observed",outcome="failed",transition="work"} 1
			wed_sql_worker_jobs_total{flow="observed",outcome="gone",transition="work"} 0
			wed_sql_worker_jobs_total{flow="observed",outcome="redone",transition="work"} 0
`},
		{Options{Lease: minLease}, []string{
			`consumer process observed.work failed conversation_id=2 type=_OTHER`,
		}, `
			wed_sql_worker_jobs_total{flow="observed",outcome="completed",transition="work"} 0
			wed_sql_worker_jobs_total{flow="observed",outcome="failed",transition="work"} 1
			wed_sql_worker_jobs_total{flow="observed",outcome="gone",transition="work"} 0
			wed_sql_worker_jobs_total{flow="observed",outcome="redone",transition="work"} 0
`},
	} {
		r := &recorder{}
		of := s.worker("work", func(ctx context.Context, job *Job) (State, error) {
			if !trace.SpanFromContext(ctx).IsRecording() {
				t.Error("the handler's context has no span")
			}
			if strings.Contains(string(job.Payload), "bad") {
				return nil, errors.New("no")
			}
			return State{"v": 1}, nil
		})
		of.Options, of.Once, of.TracerProvider = c.options, true, r
		w := s.new(of)
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(w.Collector()); err != nil {
			t.Fatal(err)
		}
		if err := w.Run(s.ctx); !errors.Is(err, ErrFailed) {
			t.Errorf("Run returns %v", err)
		}
		var got []string
		for _, span := range r.spans {
			got = append(got, span.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, c.spans) {
			t.Errorf("%+v: the spans are\n%s\nwant\n%s", c.options, strings.Join(got, "\n"), strings.Join(c.spans, "\n"))
		}
		want := "# HELP wed_sql_worker_jobs_total Jobs that were taken, by what became of them.\n# TYPE wed_sql_worker_jobs_total counter" +
			strings.ReplaceAll(c.metrics, "\t", "")
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "wed_sql_worker_jobs_total"); err != nil {
			t.Errorf("%+v: %v", c.options, err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("Prometheus does not like %v: %v", problems, err)
		}
		s.exec("select wed_sql.sync('30 s')")
	}
}
