package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wed-sql/wed_sql/fold"
	"github.com/wed-sql/wed_sql/internal/faultpoint"
)

// database is the session that the applier writes with: a pgx.Conn.
type database interface {
	querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error)
	DeallocateAll(ctx context.Context) error
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// SQLSTATEs that the applier knows an answer to.
const (
	divisionByZero     = "22012"
	uniqueViolation    = "23505"
	invalidSchemaName  = "3F000"
	undefinedTable     = "42P01"
	undefinedColumn    = "42703"
	cachedPlanChanged  = "0A000"
	programLimit       = "54000"
	undefinedObject    = "42704"
	undefinedFunction  = "42883"
	objectInUse        = "55006"
	undefinedFile      = "58P01"
	queryCanceled      = "57014"
	invalidCatalogName = "3D000"
)

// errFenced says that another engine has taken over the database.
var errFenced = errors.New("another engine follows this database now")

// positions of the server's log, as a round trip found them when it began.
type positions struct{ insert, flush LSN }

// receipt is what is known once a batch is written.
type receipt struct {
	positions
	woken int // sessions, by its notifications
}

// rememberedInstances bounds the memory of the last trace line's time, which saves
// a look-up per state.
const rememberedInstances = 8192

// applier writes batches of commits: their trace lines, their jobs, the position up
// to which they go, and the notifications, in one transaction and one round trip.
type applier struct {
	db       database
	log      *slog.Logger
	epoch    int64
	catalog  *catalog
	clock    *clock
	prepared map[int32]statements // by flow
	stale    bool                 // they may name tables that were renamed
	// dedupe: the next versions may have been written before a restart.
	dedupe bool
	// heals: it writes what was read from tables, of flows that are not followed.
	heals bool
	// again takes a signal when a flow is not followed any more.
	again chan struct{}

	// mu is held while the stream's batch is written, and by the healer while it hands
	// a flow over to the stream.
	mu sync.Mutex
	// missed are the instances, by flow, whose states were discarded while it heals them.
	missed map[int32]map[int64]struct{}

	// sweeper may be nil.
	sweeper Sweeper
	signals signalled
	// meter may be nil.
	meter Meter

	muted *limiter
	// waypoint is where the log got its last point to begin decoding from.
	waypoint LSN
}

type statements struct{ trace, jobs string }

func newApplier(db database, log *slog.Logger, epoch int64) *applier {
	return &applier{
		db: db, log: log, epoch: epoch,
		catalog:  newCatalog(),
		clock:    newClock(rememberedInstances),
		prepared: make(map[int32]statements),
		dedupe:   true,
		again:    make(chan struct{}, 1),
		missed:   make(map[int32]map[int64]struct{}),
		muted:    newLimiter(time.Minute),
	}
}

// way says how a batch is to be written, when the straight way failed.
type way struct {
	mute bool // leave the notifications away
	keep bool // keep jobs that are there
}

// apply writes a batch and, if upto is not 0, the position up to which everything
// is applied with it. It returns the positions from the beginning of its last round
// trip.
//
// What goes wrong with one flow or one state is put right here, or written down in
// the instance's trace, if it can be; and else the flow is left to the healer: it must
// not stop the others.
func (a *applier) apply(ctx context.Context, batch []Commit, upto LSN) (receipt, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.write(ctx, batch, upto)
}

func (a *applier) write(ctx context.Context, batch []Commit, upto LSN) (receipt, error) {
	const maxTries = 8 // besides those that end with a flow less
	var how way
	reloaded := map[int32]bool{}
	for try := 1; ; try++ {
		w, at, err := a.try(ctx, batch, upto, how)
		if err == nil {
			a.clock.settle()
			a.tellOfJobs(w)
			if upto != 0 {
				a.dedupe = false
			}
			return at, nil
		}
		a.clock.forget()
		var server *pgconn.PgError
		var f *failure
		if try >= maxTries || ctx.Err() != nil || !errors.As(err, &server) || !errors.As(err, &f) {
			return at, err
		}
		switch code := server.Code; {
		case f.step == stepFence && code == divisionByZero:
			return at, errFenced
		case !how.mute && (f.step == stepNotify || f.step == stepCommit && code == programLimit):
			// The queue is full, because a listener does not read; or a channel or payload
			// is too long in the server's encoding. Workers find the jobs by scanning.
			how.mute = true
			if a.muted.allow(time.Now()) {
				a.log.Warn("jobs are written without notifications", "err", err,
					"hint", "A session that listens may have been in a transaction for too long; see pg_notification_queue_usage().")
			}
		case f.step == stepTrace && code == uniqueViolation && !a.dedupe:
			a.log.Warn("states were read that have a trace line already; these are kept", "err", err)
			a.dedupe = true
		case f.step == stepJobs && code == uniqueViolation && !how.keep:
			a.log.Warn("jobs are fired that are pending already; these are kept", "err", err)
			how.keep = true
		case f.flow != nil && isName(code) && !reloaded[f.flow.id]:
			reloaded[f.flow.id] = true
			a.forget()
		case f.flow != nil && f.step != stepState && isData(code):
			return a.divide(ctx, batch, upto, err)
		case f.flow != nil && !a.heals && isFlows(code):
			if err := a.unfollow(ctx, f.flow, server.Message); err != nil {
				return at, err
			}
			try = 0
		default:
			return at, err
		}
	}
}

// unfollow leaves a flow to the healer. Until it is done, the stream's states of it are
// discarded.
func (a *applier) unfollow(ctx context.Context, f *flow, why string) error {
	a.log.Warn("a WED-flow is not followed for now", "flow", f.name, "reason", why,
		"hint", "It is healed from its tables as soon as they can be read. wed_sql.warnings() says what is in the way.")
	tag, err := a.db.Exec(ctx, sqlUnfollow, f.id, why)
	if err != nil {
		return fmt.Errorf("stop following flow %s: %w", f.name, err)
	}
	faultpoint.Hit(faultpoint.FlowUnfollowed)
	a.catalog.forget()
	if tag.RowsAffected() > 0 { // it has not been dropped meanwhile
		signal(a.again)
	}
	return nil
}

// isName tells errors about a name that has changed since it was looked up.
func isName(code string) bool {
	switch code {
	case undefinedTable, undefinedColumn, invalidSchemaName, cachedPlanChanged:
		return true
	}
	return false
}

// isData tells errors about a value that would come again with every try.
func isData(code string) bool {
	class := code[:min(2, len(code))]
	return class == "22" || class == "23" || class == "54"
}

// isFlows tells errors that may be of one flow's making from those of the server.
func isFlows(code string) bool {
	switch code[:min(2, len(code))] {
	case "08", "40", "53", "58", "F0", "XX":
		return false
	case "57":
		return code == queryCanceled // its time was up
	}
	return true
}

func (a *applier) forget() {
	a.catalog.forget()
	a.stale = true
}

// divide writes a batch that a value of one of its states keeps from being written
// in smaller pieces, until that state is alone. Its line then says what happened in
// the place of the value.
func (a *applier) divide(ctx context.Context, batch []Commit, upto LSN, cause error) (receipt, error) {
	if len(batch) > 1 {
		half := len(batch) / 2
		if at, err := a.write(ctx, batch[:half], batch[half-1].End); err != nil {
			return at, err
		}
		return a.write(ctx, batch[half:], upto)
	}
	c := batch[0]
	if n := len(c.Versions); n > 1 {
		first, second := c, c
		first.End, first.Versions, second.Versions = 0, c.Versions[:n/2], c.Versions[n/2:]
		if at, err := a.write(ctx, []Commit{first}, 0); err != nil {
			return at, err
		}
		return a.write(ctx, []Commit{second}, upto)
	}
	v := &c.Versions[0]
	const substitute = "null"
	if v.State == substitute {
		// It is no value, then: the flow must not stop the others.
		var f *failure
		if errors.As(cause, &f) && f.flow != nil && !a.heals {
			if err := a.unfollow(ctx, f.flow, cause.Error()); err != nil {
				return receipt{}, err
			}
			return a.write(ctx, batch, upto)
		}
		return receipt{}, cause
	}
	a.log.Warn("a state cannot be recorded; its trace line has null instead", "instance", v.Wid,
		"version", v.Stamp.Version, "err", cause)
	v.State, v.Parts = substitute, nil
	if !v.Stamp.Failed {
		// Told in the column error, though it makes no exception of the instance.
		v.note = "the state could not be recorded: " + cause.Error()
	}
	return a.write(ctx, batch, upto)
}

func (a *applier) try(ctx context.Context, batch []Commit, upto LSN, how way) (*work, receipt, error) {
	w, err := a.prepare(ctx, batch, upto)
	if err != nil {
		return nil, receipt{}, err
	}
	if how.mute {
		w.mute = true
	}
	w.keep = how.keep
	at, err := a.send(ctx, w)
	return w, at, err
}

// tellOfJobs tells the sweeper of the jobs that were written.
func (a *applier) tellOfJobs(w *work) {
	if a.sweeper == nil {
		return
	}
	var shortest time.Duration
	for _, l := range w.flows {
		if l.shortest > 0 && (shortest == 0 || l.shortest < shortest) {
			shortest = l.shortest
		}
	}
	if shortest > 0 {
		a.sweeper.Jobs(shortest)
	}
}

// signalled are flows for which signals were kept since the follower started.
type signalled struct {
	mu    sync.Mutex
	flows map[int32]bool
}

// keepSignals has the jobs of flows that are fired from now on looked at for signals.
func (a *applier) keepSignals(flows []int32) {
	a.signals.mu.Lock()
	defer a.signals.mu.Unlock()
	for _, id := range flows {
		if a.signals.flows == nil {
			a.signals.flows = make(map[int32]bool)
		}
		a.signals.flows[id] = true
	}
}

func (a *applier) hasSignals(f *flow) bool {
	a.signals.mu.Lock()
	defer a.signals.mu.Unlock()
	return f.signalled || a.signals.flows[f.id]
}

// versions iterates over the states of a batch.
func versions(batch []Commit) func(func(*Version) bool) {
	return func(yield func(*Version) bool) {
		for i := range batch {
			for j := range batch[i].Versions {
				if !yield(&batch[i].Versions[j]) {
					return
				}
			}
		}
	}
}

// prepare folds the batch and collects what is to be written.
func (a *applier) prepare(ctx context.Context, batch []Commit, upto LSN) (*work, error) {
	w := &work{upto: upto}
	known := true
	for i := range batch {
		if x := batch[i].XID; x != 0 && (i == 0 || batch[i-1].XID != x) {
			w.xids = append(w.xids, x)
		}
	}
	missing := false
	for v := range versions(batch) {
		known = known && a.catalog.knows(v)
		missing = missing || v.Parts != nil
	}
	if !known {
		if err := a.await(ctx, w.xids); err != nil {
			return nil, err
		}
		if err := a.catalog.load(ctx, a.db, versions(batch)); err != nil {
			return nil, err
		}
	}
	for _, f := range a.catalog.flows {
		if f.followed && f.damaged() && !a.heals {
			if err := a.unfollow(ctx, f, "its wed_trace or its job_pool is missing"); err != nil {
				return nil, err
			}
			return a.prepare(ctx, batch, upto)
		}
	}
	if missing {
		if err := a.complete(ctx, batch); err != nil {
			return nil, err
		}
	}
	written, err := a.writtenLines(ctx, batch)
	if err != nil {
		return nil, err
	}
	byFlow := make(map[int32]*lines)
	strangers := 0
	for i := range batch {
		for j := range batch[i].Versions {
			v := &batch[i].Versions[j]
			f := a.catalog.flows[v.Relation]
			if f == nil || !a.writes(f) {
				strangers++
				if f != nil && a.missed[f.id] != nil {
					a.missed[f.id][v.Wid] = struct{}{}
				}
				continue
			}
			if last, ok := written[instance{f.id, v.Wid}]; ok && v.Stamp.Version <= last {
				if a.deduped(f, &batch[i]) {
					continue
				}
			}
			l := byFlow[f.id]
			if l == nil {
				l = &lines{flow: f, signalled: a.hasSignals(f)}
				byFlow[f.id] = l
				w.flows = append(w.flows, l)
			}
			rules := a.catalog.rules[ruleKey{f.id, v.Stamp.Rules}]
			out := outcome(v, f)
			at := a.clock.next(instance{f.id, v.Wid}, v.Stamp.Version, batch[i].Time)
			if v.heal == nil {
				l.addState(v, out, rules, at, false)
				l.withdraw(v.Wid, v.Stamp.Withdrawn, v.Stamp.Version)
				l.addJobs(v, out.Fired, func(fold.Rule) int64 { return v.Stamp.Version }, rules, at.time)
				a.measure(w, f, v, out.Status, out.Fired, rules, batch[i].Time)
				continue
			}
			// All that pend and are not in the pool, fired by whatever state that is lost.
			if len(rules) == 0 {
				return nil, &failure{err: errNoRules, step: stepState, flow: f}
			}
			l.addState(v, out, rules, at, v.heal.missing)
			there, stale := v.heal.compare(out.Pending, &v.Stamp)
			for _, f := range stale {
				l.withdraw(v.Wid, []fold.Rule{f.rule}, f.version+1)
			}
			l.addJobs(v, without(out.Pending, there), v.Stamp.since, rules, at.time)
			a.measure(w, f, v, out.Status, without(out.Pending, there), rules, batch[i].Time)
		}
	}
	if strangers > 0 {
		a.log.Debug("states of flows that are not followed are discarded", "states", strangers)
	}
	for _, l := range w.flows {
		if err := a.prepareFlow(ctx, l.flow); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// errNoRules is seen while a backup is restored.
var errNoRules = errors.New("its rules are not there")

// writes tells whether a flow's states are to be written here.
func (a *applier) writes(f *flow) bool { return f.followed != a.heals && !f.damaged() }

// deduped tells whether the states of a commit may have been written already.
func (a *applier) deduped(f *flow, c *Commit) bool { return a.dedupe || c.At < f.since }

// writtenLines returns the last version in the trace of those instances of the batch
// whose states may have been written.
func (a *applier) writtenLines(ctx context.Context, batch []Commit) (map[instance]int64, error) {
	asked := make(map[*flow][]int64)
	for i := range batch {
		for j := range batch[i].Versions {
			v := &batch[i].Versions[j]
			f := a.catalog.flows[v.Relation]
			if f != nil && a.writes(f) && a.deduped(f, &batch[i]) {
				asked[f] = append(asked[f], v.Wid)
			}
		}
	}
	written := make(map[instance]int64)
	for f, wids := range asked {
		rows, err := a.db.Query(ctx, `
select i.wid, t.version from unnest($1::bigint[]) i(wid),
       lateral (select t.version from `+f.trace+` t where t.wid = i.wid order by t.version desc limit 1) t`, wids)
		if err != nil {
			return nil, &failure{err: err, step: stepTrace, flow: f}
		}
		var wid, version int64
		if _, err := pgx.ForEachRow(rows, []any{&wid, &version}, func() error {
			written[instance{f.id, wid}] = version
			return nil
		}); err != nil {
			return nil, &failure{err: err, step: stepTrace, flow: f}
		}
	}
	return written, nil
}

// compare tells the rules whose jobs are in the pool as they pend from what is there of
// states that were overtaken.
func (g *gap) compare(pending []fold.Rule, s *Stamp) (there []fold.Rule, stale []fire) {
	for _, f := range g.fired {
		switch {
		case !slices.Contains(pending, f.rule) || f.version != s.since(f.rule):
			stale = append(stale, f)
		case f.pooled || slices.Contains(s.Clocks, f.rule): // its job, or its clock
			there = append(there, f.rule)
		}
	}
	return there, stale
}

// without returns the rules that are not among the others.
func without(rules, others []fold.Rule) []fold.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r fold.Rule) bool { return slices.Contains(others, r) })
}

// limiter lets something happen once in an interval.
type limiter struct {
	interval time.Duration
	next     time.Time
}

func newLimiter(interval time.Duration) *limiter { return &limiter{interval: interval} }

func (l *limiter) allow(now time.Time) bool {
	if now.Before(l.next) {
		return false
	}
	l.next = now.Add(l.interval)
	return true
}
