#!/bin/sh
# Transition check_customer: do we know this customer?
set -eu
. "$(dirname "$0")/job.sh"

pause
case $(attribute customer) in
    Ada | Alan | Barbara | Edsger | Grace) echo '{"customer_status": "valid"}' ;;
    *) echo '{"customer_status": "unknown"}' ;; # no rule for that: an exception
esac
