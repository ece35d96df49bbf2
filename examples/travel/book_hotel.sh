#!/bin/sh
# Transition book_hotel: asks a hotel of the destination, the first one or
# another, as hotel_choice says.
set -eu
. "$(dirname "$0")/job.sh"

pause
case $(attribute destination)/$(attribute hotel_choice) in
    Rome/1) echo '{"hotel_status": "full"}' ;;
    */1) echo '{"hotel_status": "booked", "hotel": "Grand Hotel"}' ;;
    *) echo '{"hotel_status": "booked", "hotel": "Station Inn"}' ;;
esac
