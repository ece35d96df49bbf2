# Read by the transitions: gives them the job that they are to do.
#
# wedctl starts a transition with the job on its standard input, one line of JSON:
#
#   {"flow":"travel","wid":2,"tgid":3,"trname":"book_hotel","timeout":"00:00:30",
#    "payload":{"customer":"Grace","destination":"Rome",...}}
#
# and with WED_FLOW, WED_WID, WED_TGID and WED_TRANSITION in its environment. The
# transition prints the attributes that it sets, as JSON, and exits with 0. With
# any other exit status nothing has happened, and the job is tried again later.

job=$(cat)

# attribute NAME prints the value of an attribute in the state that fired the job.
# It will do for plain values; a real transition would use jq, or a language that
# knows JSON.
attribute() {
    printf '%s\n' "$job" |
        sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\)"\{0,1\}[,}].*/\1/p'
}

# pause stands for the time that others need: the airline, the hotel, a person.
pause() {
    sleep "${TRAVEL_PACE:-0}"
}
