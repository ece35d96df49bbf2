#!/bin/sh
# Transition _EXCPT: leads a trip back that no rule applies to. Whatever it
# writes is the next state: one that a rule applies to, or an end.
set -eu
. "$(dirname "$0")/job.sh"

pause
customer=$(attribute customer_status)
flight=$(attribute flight_status)
hotel=$(attribute hotel_status)
choice=$(attribute hotel_choice)

if [ "$customer" = valid ] && [ "$flight" = booked ] && [ "$hotel" = full ] && [ "$choice" -lt 2 ]; then
    # Another hotel. The rule of book_hotel holds again.
    printf '{"hotel_status": null, "hotel_choice": %d}\n' "$((choice + 1))"
    exit
fi

# No way to travel: undo what was booked, and end the trip.
cancelled='"trip": "cancelled"'
[ "$flight" != booked ] || cancelled="$cancelled, \"flight_status\": \"cancelled\""
[ "$hotel" != booked ] || cancelled="$cancelled, \"hotel_status\": \"cancelled\""
echo "{$cancelled}"
