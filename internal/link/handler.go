package link

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// An error that is longer than this goes into the detail of the log line.
const shortError = 160

// Handler makes slog records lines of the server's log. The attributes follow the
// message as key=value; two keys are special, "detail" and "hint", which become
// the fields of that name; and an error of the server brings its own.
type Handler struct {
	link  *Link
	level slog.Leveler
	attrs []slog.Attr // of With, with their group's name before their key
	group string
}

// Handler returns a handler for records of the level and above.
func (l *Link) Handler(level slog.Leveler) *Handler { return &Handler{link: l, level: level} }

// Enabled implements [slog.Handler].
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append([]slog.Attr(nil), h.attrs...)
	for _, a := range attrs {
		a.Key = h.group + a.Key
		c.attrs = append(c.attrs, a)
	}
	return &c
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.group += name + "."
	}
	return &c
}

// Handle implements [slog.Handler]. It never blocks and never fails.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	f := fields{}
	f.message.WriteString(r.Message)
	for _, a := range h.attrs {
		f.add("", a)
	}
	r.Attrs(func(a slog.Attr) bool {
		f.add(h.group, a)
		return true
	})
	level := byte('D')
	switch {
	case r.Level >= slog.LevelError:
		level = 'E'
	case r.Level >= slog.LevelWarn:
		level = 'W'
	case r.Level >= slog.LevelInfo:
		level = 'I'
	}
	h.link.Log(level, f.message.String(), f.detail.String(), f.hint.String())
	return nil
}

type fields struct{ message, detail, hint strings.Builder }

func (f *fields) add(group string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, inner := range v.Group() {
			f.add(group, inner)
		}
		return
	}
	switch key := group + a.Key; key {
	case "":
	case "detail":
		sentence(&f.detail, v.String())
	case "hint":
		sentence(&f.hint, v.String())
	default:
		err, isError := v.Any().(error)
		if !isError {
			f.message.WriteString(" " + key + "=" + quote(v.String()))
			return
		}
		text := err.Error()
		if len(text) <= shortError && !strings.Contains(text, "\n") {
			f.message.WriteString(": " + text)
		} else {
			sentence(&f.detail, text)
		}
		var server *pgconn.PgError
		if errors.As(err, &server) {
			sentence(&f.detail, server.Detail)
			sentence(&f.hint, server.Hint)
		}
	}
}

func sentence(b *strings.Builder, s string) {
	if s == "" {
		return
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	b.WriteString(s)
}

// quote quotes a value that would be hard to tell from the next attribute.
func quote(s string) string {
	if s != "" && !strings.ContainsAny(s, " \"=\n\t") {
		return s
	}
	return `"` + strings.NewReplacer(`"`, `\"`, "\n", `\n`, "\t", " ").Replace(s) + `"`
}
