#!/bin/sh
# Transition close_trip: both bookings are there, the customer gets the tickets.
set -eu
. "$(dirname "$0")/job.sh"

pause
echo '{"trip": "confirmed"}'
