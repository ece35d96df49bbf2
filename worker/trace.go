package worker

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const tracerName = "github.com/wed-sql/wed_sql/worker"

// spans makes the spans of a transition, by the semantic conventions for
// messaging: a job is a message, its instance the conversation.
type spans struct {
	tracer trace.Tracer
	name   string
	common []attribute.KeyValue
}

func newSpans(tracer trace.Tracer, flow, transition string) spans {
	destination := flow + "." + transition
	return spans{
		tracer: tracer,
		name:   "process " + destination,
		common: []attribute.KeyValue{
			attribute.String("messaging.system", "wed_sql"),
			attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", destination),
		},
	}
}

// transaction begins the span of what is committed together.
func (s spans) transaction(ctx context.Context, jobs []*Job, begin time.Time) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, s.name, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(begin),
		trace.WithAttributes(s.common...))
	if !span.IsRecording() {
		return ctx, span
	}
	if len(jobs) == 1 {
		span.SetAttributes(message(jobs[0])...)
	} else {
		span.SetAttributes(attribute.Int("messaging.batch.message_count", len(jobs)))
	}
	return ctx, span
}

// job begins the span of a handler, if it is not the only one of its transaction.
func (s spans) job(ctx context.Context, job *Job, several bool) (context.Context, trace.Span) {
	if !several {
		return ctx, trace.SpanFromContext(context.Background()) // none
	}
	ctx, span := s.tracer.Start(ctx, s.name, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(s.common...))
	if span.IsRecording() {
		span.SetAttributes(message(job)...)
	}
	return ctx, span
}

func message(job *Job) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.message.id", job.ID()),
		attribute.String("messaging.message.conversation_id", strconv.FormatInt(job.WID, 10)),
	}
}

// failSpan says that what a span is about has failed, if it has.
func failSpan(span trace.Span, err error) {
	if err != nil {
		span.SetAttributes(attribute.String("error.type", errorType(err)))
		span.SetStatus(codes.Error, err.Error())
	}
}

// errorType is one of few words for an error.
func errorType(err error) string {
	switch {
	case errors.Is(err, errTimeout):
		return "timeout"
	case errors.Is(err, errAborted):
		return "aborted"
	case errors.Is(err, ErrLeaseLost):
		return "lease_lost"
	case errors.Is(err, errNothing):
		return "no_state"
	}
	if s := sqlState(err); s != "" {
		return s
	}
	return "_OTHER"
}
