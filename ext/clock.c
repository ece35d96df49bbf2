/*-------------------------------------------------------------------------
 *
 * clock.c
 *		The time that passes, whatever the server's clock is set to.
 *
 *-------------------------------------------------------------------------
 */
#include "wed_sql.h"

#include "portability/instr_time.h"

/* Milliseconds since some moment that is the same for all processes of the server. */
int64
wed_monotonic_ms(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MILLISEC(now);
}
