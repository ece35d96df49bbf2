// Package faultpoint names the points of the engine at which tests let it die. Without the build tag faultpoint
// [Hit] is nothing, and the compiler leaves nothing of it.
package faultpoint

// Names of points.
const (
	// The follower begins.
	SlotDropped   = "slot dropped"   // the old one; the new one is not made yet
	SlotCreated   = "slot created"   // its position is not stored yet
	PositionSaved = "position saved" // nothing is streamed yet
	TakenOver     = "taken over"     // from an engine before
	StreamStarted = "stream started"

	// A batch.
	CommitDecoded  = "commit decoded"  // it is in no batch yet
	BatchTaken     = "batch taken"     // nothing is written yet
	BatchPrepared  = "batch prepared"  // and about to be sent
	BatchSent      = "batch sent"      // the server works on it
	TraceWritten   = "trace written"   // in the middle of it
	JobsWritten    = "jobs written"    // before the notifications
	Notified       = "notified"        // in the transaction; nothing is committed
	BatchCommitted = "batch committed" // and not acknowledged
	Acknowledging  = "acknowledging"
	Acknowledged   = "acknowledged"

	// A flow is not followed, and is healed.
	FlowUnfollowed = "flow unfollowed"
	PageRead       = "page read"     // of instances whose states are to be healed
	ChunkHealed    = "chunk healed"  // some are
	HandingOver    = "handing over"  // the last are; the flow is not followed yet
	FlowFollowed   = "flow followed" // again

	// The sweeper.
	Sweeping     = "sweeping"      // before it fires delays, or claims what else is due
	Swept        = "swept"         // after that
	TimerClaimed = "timer claimed" // before it is done
	TimerDone    = "timer done"
	Overdue      = "overdue" // before transactions are ended
	OverdueEnded = "overdue ended"
	CountingLost = "counting lost" // before failed attempts are counted
	LostCounted  = "lost counted"
)

// Points are all of them.
func Points() []string {
	return []string{
		SlotDropped, SlotCreated, PositionSaved, TakenOver, StreamStarted,
		CommitDecoded, BatchTaken, BatchPrepared, BatchSent, TraceWritten, JobsWritten, Notified, BatchCommitted, Acknowledging, Acknowledged,
		FlowUnfollowed, PageRead, ChunkHealed, HandingOver, FlowFollowed,
		Sweeping, Swept, TimerClaimed, TimerDone, Overdue, OverdueEnded, CountingLost, LostCounted,
	}
}

// File has the point that is armed, in the directory where the process is, which for the engine is that of the data.
// Its lines are the point, what happens there, and how many times it is passed before.
const File = "wed_sql.faultpoint"

// What happens at a point.
const (
	Kill  = "kill" // SIGKILL
	Stop  = "stop" // SIGSTOP
	Panic = "panic"
)
