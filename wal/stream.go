package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// statusInterval is how often the server hears of a reader that waits for room. It
// must be well below wal_sender_timeout, which the connection sets to a minute.
const statusInterval = 10 * time.Second

// writeTimeout bounds the writing of a status: a server that does not take 39 bytes
// is not there any more.
const writeTimeout = 30 * time.Second

// stream is a replication connection in copy mode. One goroutine may receive while
// others report.
type stream struct {
	conn  net.Conn
	front *pgproto3.Frontend
	mu    sync.Mutex // of writing
}

// start begins streaming from a slot and takes the connection over.
func start(ctx context.Context, repl *pgconn.PgConn, slot string, from LSN) (*stream, error) {
	err := whileInUse(ctx, func() error {
		return pglogrepl.StartReplication(ctx, repl, slot, from, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names '" + Publication + "'"}})
	})
	if err != nil {
		return nil, fmt.Errorf("start replication of slot %s at %s: %w", slot, from, err)
	}
	h, err := repl.Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the replication connection: %w", err)
	}
	return &stream{conn: h.Conn, front: h.Frontend}, nil
}

// receive returns the next message, a [pglogrepl.PrimaryKeepaliveMessage] or the
// bytes of a message of pgoutput, which are valid until the next call.
func (s *stream) receive() (*pglogrepl.PrimaryKeepaliveMessage, []byte, error) {
	for {
		m, err := s.front.Receive()
		if err != nil {
			return nil, nil, fmt.Errorf("read the replication stream: %w", err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			return nil, nil, fmt.Errorf("read the replication stream: %w", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.CopyDone, *pgproto3.CommandComplete:
			return nil, nil, errors.New("the server ended the replication stream")
		case *pgproto3.CopyData:
			if len(m.Data) == 0 {
				continue
			}
			switch m.Data[0] {
			case pglogrepl.PrimaryKeepaliveMessageByteID:
				k, err := pglogrepl.ParsePrimaryKeepaliveMessage(m.Data[1:])
				if err != nil {
					return nil, nil, fmt.Errorf("read the replication stream: %w", err)
				}
				return &k, nil, nil
			case pglogrepl.XLogDataByteID:
				x, err := pglogrepl.ParseXLogData(m.Data[1:])
				if err != nil {
					return nil, nil, fmt.Errorf("read the replication stream: %w", err)
				}
				return nil, x.WALData, nil
			}
		}
	}
}

// report sends a standby status update. pglogrepl would do, but copies the written
// position into the flushed one if that is zero.
func (s *stream) report(written, flushed, applied LSN) error {
	const size = 1 + 3*8 + 8 + 1
	b := make([]byte, 0, 5+size)
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, 4+size)
	b = append(b, pglogrepl.StandbyStatusUpdateByteID)
	b = binary.BigEndian.AppendUint64(b, uint64(written))
	b = binary.BigEndian.AppendUint64(b, uint64(flushed))
	b = binary.BigEndian.AppendUint64(b, uint64(applied))
	const postgresEpoch = 946_684_800_000_000 // microseconds from 1970 to 2000
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMicro()-postgresEpoch))
	b = append(b, 0) // no reply wanted

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("report to the replication stream: %w", err)
	}
	if _, err := s.conn.Write(b); err != nil {
		return fmt.Errorf("report to the replication stream: %w", err)
	}
	return nil
}

func (s *stream) close() error { return s.conn.Close() }
