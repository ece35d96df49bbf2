#!/usr/bin/env bash
# worker.sh COMMAND [ARGUMENT...]: performs the transition $TRANSITION of the flow
# $FLOW, with nothing but bash and curl. COMMAND reads the state from its standard
# input, a JSON object, and prints the attributes to set, another one. $GATEWAYS are
# the URLs of one or several gateways, $TOKEN is the worker's, $LEASE how many seconds
# its leases last; they are extended while COMMAND runs.
set -uo pipefail
read -ra gateways <<<"${GATEWAYS:-http://127.0.0.1:8420}"
: "${FLOW:?}" "${TRANSITION:?}" "${1:?}"
lease=${LEASE:-30} at=0 stopping=
trap 'stopping=1' INT TERM

# post PATH BODY: leaves the status in $status, 000 if there was none, and the answer
# in $answer. The token is not on a command line, where others could read it.
post() {
	answer=$(curl --silent --max-time 60 --write-out '%{http_code}' --json @- \
		--config <(printf 'header = "Authorization: Bearer %s"\n' "${TOKEN:-}") \
		"${gateways[at % ${#gateways[@]}]}/v1/flows/$FLOW/$1" <<<"$2")
	status=${answer: -3} answer=${answer%???} answer=${answer%$'\n'}
}

# settle WHAT BODY: says what became of the job, to whichever gateway is there.
# 409: it was said already, or the lease has ended.
settle() {
	while post "$job/$1" "{\"lckid\":\"$lckid\"$2}"; [[ $status == 000 || $status == 503 || $status == 423 ]]; do
		((at += 1))
		sleep 0.5
	done
	[[ $status == 2?? || $status == 409 ]]
}

# fail TEXT
fail() {
	local text=${1//\\/\\\\}
	text=${text//\"/\\\"}
	printf '%s: %s\n' "$job" "$1" >&2
	settle fail ",\"error\":\"$(tr '\000-\037' ' ' <<<"$text")\""
}

while [[ -z $stopping ]]; do
	post "transitions/$TRANSITION/lease" "{\"wait\":\"20s\",\"lease\":$lease}"
	case $status in
	200) ;;
	204) continue ;;
	000 | 503)
		((at += 1))
		sleep 0.5
		continue
		;;
	*)
		printf '%s\n' "$answer" >&2
		exit 1
		;;
	esac
	# Each job begins with these three, and ends with the state.
	[[ $answer =~ ^\{\"jobs\":\[\{\"wid\":([0-9]+),\"tgid\":([0-9]+),\"lckid\":\"([^\"]+)\" ]] || exit 1
	job=jobs/${BASH_REMATCH[1]}/${BASH_REMATCH[2]} lckid=${BASH_REMATCH[3]}
	payload=${answer#*,\"payload\":} payload=${payload%\}]\}}

	# The heartbeat ends with this process, also if that is killed.
	(
		trap 'kill "$nap"; exit' TERM
		while sleep $((lease / 3 + 1)) & nap=$!; wait "$nap"; kill -0 "$$"; do
			post "$job/extend" "{\"lckid\":\"$lckid\",\"lease\":$lease}"
		done
	) 2>/dev/null &
	heartbeat=$!
	if state=$("$@" <<<"$payload") && [[ -n $state ]]; then
		settle complete ",\"state\":$state" || fail "$answer"
	else
		fail "$1 failed, or printed nothing"
	fi
	kill "$heartbeat"
	wait "$heartbeat" 2>/dev/null
done
