package engine

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wed-sql/wed_sql/bench/internal/report"
	"github.com/wed-sql/wed_sql/bench/internal/server"
)

// rest looks at the engine while nothing happens.
func rest(ctx context.Context, db *server.Database, conn *pgx.Conn, r *report.Report, z Sizes) error {
	var pid int
	if err := conn.QueryRow(ctx, "select engine_pid from wed_sql.status limit 1").Scan(&pid); err != nil {
		return err
	}
	if err := db.Settle(ctx); err != nil {
		return err
	}
	before, err := cpuTime(pid)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(z.Rest):
	}
	after, err := cpuTime(pid)
	if err != nil {
		return err
	}
	resident, err := residentKB(pid)
	if err != nil {
		return err
	}
	add(r, "the engine at rest", report.CPU, 100*(after-before).Seconds()/z.Rest.Seconds())
	add(r, "the engine at rest", report.Resident, float64(resident)/1024)
	return nil
}

const clockTick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go runs on

// cpuTime of a process so far, user and system.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * clockTick, err
}

func residentKB(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.Atoi(strings.Fields(kb)[0])
		}
	}
	return 0, fmt.Errorf("no VmRSS of process %d", pid)
}
