package engine

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/internal/group"
	"github.com/wed-sql/wed_sql/internal/link"
	"github.com/wed-sql/wed_sql/metrics"
)

// endpointSettings says where metrics are to be served.
func (c Config) endpointSettings() metrics.Settings {
	return metrics.Settings{Address: c.MetricsAddress, ConfigFile: c.MetricsConfigFile}
}

// serve follows the database, and keeps its statistics meanwhile.
func (m *member) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, _ := group.New(ctx)
	g.Go("statistics", func(ctx context.Context) error {
		for ctx.Err() == nil { // after a panic, too
			if err := group.Call("statistics", func() error { m.numbers.Keep(ctx, m.statisticsSession, m.log); return nil }); err != nil {
				m.log.Warn("statistics have failed", "err", err)
				select {
				case <-time.After(lastPause):
				case <-ctx.Done():
				}
			}
		}
		return nil
	})
	g.Go("follower", func(context.Context) error {
		defer cancel()
		if m.previous != nil {
			<-m.previous
		}
		m.run(ctx)
		return nil
	})
	_ = g.Wait()
}

// statisticsSession opens the session that statistics are written with.
func (m *member) statisticsSession(ctx context.Context) (*pgx.Conn, error) {
	config, err := m.server.config.connConfig(m.entry.name)
	if err != nil {
		return nil, err
	}
	maps.Copy(config.RuntimeParams, map[string]string{
		"client_encoding":    "UTF8",
		"synchronous_commit": "off", // a crash may cost the last second of it
		"statement_timeout":  "2s",
		"lock_timeout":       "1s",
		"jit":                "off",
		// neither depends on what a role or a database has set
		"default_transaction_isolation": "read committed",
		"default_transaction_read_only": "off",
		"idle_session_timeout":          "0",
	})
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := admit(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// report passes a status on, to the worker and to whoever scrapes.
func (m *member) report(s link.Status) {
	m.link.Status(s)
	if s.Phase == link.Gone {
		m.numbers.Gone()
		return
	}
	m.numbers.Up(s.Phase == link.Streaming)
}
