/*-------------------------------------------------------------------------
 *
 * judgement.h
 *		What follows from a state, for those who say what the next one is: a
 *		transition (guard.c), or an intervention.
 *
 *-------------------------------------------------------------------------
 */
#ifndef WED_SQL_JUDGEMENT_H
#define WED_SQL_JUDGEMENT_H

#include "wed_sql.h"

/* judgement.c */
extern WedRule wed_last_rule(const WedFlow *flow, int32 tgid);
extern bool wed_is_withdrawable(const WedFlow *flow, int32 tgid);
extern int	wed_compare_tgids(const void *a, const void *b);
extern void wed_withdraw(const WedFlow *flow, int64 wid, const WedPending *before, WedStamp *stamp);
extern void wed_start_clocks(const WedFlow *flow, const int32 *due, int ndue, WedStamp *stamp);
extern void wed_check_nothing_else_pends(const WedFlow *flow, int64 wid, const WedStamp *stamp);
extern void wed_judge_state(WedFlow *flow, TupleTableSlot *state, WedStamp *stamp);
extern void wed_judge_after_undoing(WedFlow *flow, TupleTableSlot *state, const WedStamp *before, WedStamp *stamp);
extern void wed_refuse_final(const WedFlow *flow, int64 wid);
extern void wed_refuse_suspended(const WedFlow *flow, int64 wid);

/* intervention.c */
extern void wed_next_by_operation(WedFlow *flow, TupleTableSlot *state, int64 wid, const WedStamp *before,
								  const WedOperation *operation, WedStamp *stamp);

#endif							/* WED_SQL_JUDGEMENT_H */
