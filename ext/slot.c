/*-------------------------------------------------------------------------
 *
 * slot.c
 *		The replication slots of the followers, as the server knows them: also
 *		with the engine off, dead or hung.
 *
 *-------------------------------------------------------------------------
 */
#include "shared.h"

#include "access/xlog.h"
#include "replication/slot.h"
#include "storage/spin.h"
#include "utils/hsearch.h"

/* A warning is repeated when so much time has passed, or twice as much is kept back. */
#define WARNING_INTERVAL_MS (3600 * 1000)

/* What the log was told of a slot. */
typedef struct Told
{
	Oid			datid;			/* hash key */
	uint64		bytes;
	TimestampTz at;
	bool		seen;
} Told;

static HTAB *told = NULL;

static void
slot_name(Oid datid, NameData *name)
{
	snprintf(NameStr(*name), NAMEDATALEN, "wed_sql_%u", datid);
}

/*
 * The slots of all followers, in the caller's memory context. Returns their
 * number.
 */
int
wed_own_slots(WedSlot **slots)
{
	int			n = 0;

	*slots = palloc(mul_size(Max(max_replication_slots, 1), sizeof(WedSlot)));
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];
		NameData	name;

		if (!slot->in_use)
			continue;
		/* name and database do not change while the slot is there */
		slot_name(slot->data.database, &name);
		if (!OidIsValid(slot->data.database) || strcmp(NameStr(name), NameStr(slot->data.name)) != 0)
			continue;
		(*slots)[n].datid = slot->data.database;
		SpinLockAcquire(&slot->mutex);
		(*slots)[n].restart_lsn = slot->data.restart_lsn;
		SpinLockRelease(&slot->mutex);
		n++;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return n;
}

/* Whether a database has a slot of ours, and whether somebody reads from it. */
bool
wed_own_slot_exists(Oid datid, bool *active)
{
	NameData	name;
	ReplicationSlot *slot;

	slot_name(datid, &name);
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	slot = SearchNamedReplicationSlot(NameStr(name), false);
	if (slot != NULL)
	{
		SpinLockAcquire(&slot->mutex);
		*active = slot->active_pid != 0;
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return slot != NULL;
}

/* Why a slot keeps back what it does, as far as we know. */
static char *
describe_reason(Oid datid, XLogRecPtr end, uint64 bytes)
{
	WedDatabase *database;
	char	   *name;
	char	   *reason;

	LWLockAcquire(wed_shared->lock, LW_SHARED);
	database = wed_find_database(datid);
	name = database ? psprintf("database \"%s\"", NameStr(database->datname)) :
		psprintf("the database with OID %u", datid);
	if (!wed_enabled)
		reason = psprintf("The engine does not follow %s, because wed_sql.enabled is off.", name);
	else if (wed_shared->engine_pid == 0)
		reason = psprintf("The engine does not follow %s, because it is not running.", name);
	else if (database == NULL)
		reason = psprintf("The engine does not follow %s.", name);
	else if (database->state == WED_DB_BACKING_OFF || database->state == WED_DB_LEFT_ALONE)
		reason = psprintf("The engine does not follow %s: %s", name, database->error);
	else if (database->flushed_lsn != InvalidXLogRecPtr && end - database->flushed_lsn < bytes / 2)
		reason = psprintf("The engine follows %s, but a transaction is open since then.", name);
	else
		reason = psprintf("The engine is behind in %s, or does not answer.", name);
	LWLockRelease(wed_shared->lock);
	return reason;
}

static void
warn_of_slot(Oid datid, uint64 bytes, XLogRecPtr end)
{
	NameData	name;

	slot_name(datid, &name);
	ereport(WARNING,
			(errmsg("replication slot \"%s\" keeps back %llu MB of WAL", NameStr(name),
					(unsigned long long) (bytes >> 20)),
			 errdetail_internal("%s", describe_reason(datid, end, bytes)),
			 errhint("See wed_sql.status. The setting max_slot_wal_keep_size limits what a slot may keep back; what it then lacks is made up for from the tables.")));
}

/* Forgets the slots that no longer keep back too much. */
static void
forget_unseen(void)
{
	HASH_SEQ_STATUS scan;
	Told	   *entry;

	hash_seq_init(&scan, told);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (!entry->seen)
			hash_search(told, &entry->datid, HASH_REMOVE, NULL);
		else
			entry->seen = false;
	}
}

/*
 * Warns of slots that keep back more than wed_sql.wal_warning, but not every
 * time.
 */
void
wed_warn_of_retained_wal(void)
{
	WedSlot    *slots;
	int			nslots = wed_wal_warning > 0 ? wed_own_slots(&slots) : 0;
	XLogRecPtr	end = GetXLogWriteRecPtr();
	TimestampTz now = GetCurrentTimestamp();

	if (told == NULL)
	{
		HASHCTL		info = {.keysize = sizeof(Oid), .entrysize = sizeof(Told)};

		told = hash_create("wed_sql warnings of WAL", 16, &info, HASH_ELEM | HASH_BLOBS);
	}
	for (int i = 0; i < nslots; i++)
	{
		XLogRecPtr	restart_lsn = slots[i].restart_lsn;
		uint64		bytes = restart_lsn != InvalidXLogRecPtr && restart_lsn < end ? end - restart_lsn : 0;
		Told	   *entry;
		bool		found;

		if (bytes < (uint64) wed_wal_warning << 20)
			continue;
		entry = hash_search(told, &slots[i].datid, HASH_ENTER, &found);
		entry->seen = true;
		if (found && bytes < 2 * entry->bytes &&
			!TimestampDifferenceExceeds(entry->at, now, WARNING_INTERVAL_MS))
			continue;
		entry->bytes = bytes;
		entry->at = now;
		warn_of_slot(slots[i].datid, bytes, end);
	}
	forget_unseen();
}
