/*-------------------------------------------------------------------------
 *
 * holder.h
 *		Transactions that hold the locks of jobs, for the files that watch over
 *		them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WED_SQL_HOLDER_H
#define WED_SQL_HOLDER_H

#include "wed_sql.h"

#include "storage/lock.h"
#include "storage/proc.h"

/* joblock.c */
extern void wed_set_job_locktag(LOCKTAG *tag, int64 wid, int32 tgid);
extern bool wed_job_of_locktag(const LOCKTAG *tag, int64 *wid, int32 *tgid);

/* holder.c */
typedef bool (*WedProcLockVisitor) (const PROCLOCK *proclock, void *arg);
extern bool wed_visit_proclocks(PGPROC *proc, int partition, WedProcLockVisitor visit, void *arg);
extern bool wed_is_ended_for_timeout(void);
extern Size wed_holders_size(void);
extern void wed_holders_create(void);
extern void wed_holders_install(void);

/* lost.c */
extern Size wed_lost_size(void);
extern void wed_lost_create(void);
extern void wed_lost_watch(void);
extern void wed_lost_end_xact(bool committed);

#endif							/* WED_SQL_HOLDER_H */
