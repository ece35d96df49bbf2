#!/bin/sh
# Transition book_flight: asks the airline.
#
# A job may be done twice: the machine may fail between the booking and the new
# state. So a real transition tells the airline which booking it is, for example
# "$WED_FLOW/$WED_WID/$WED_TGID", and a repeated one is the same booking.
set -eu
. "$(dirname "$0")/job.sh"

pause
case $(attribute destination) in
    Reykjavik) echo '{"flight_status": "none"}' ;;
    *) printf '{"flight_status": "booked", "flight": "WD%d"}\n' "$((400 + WED_WID))" ;;
esac
