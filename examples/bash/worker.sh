#!/usr/bin/env bash
# Performs a transition of a WED-flow, with bash and one psql that stays connected.
#
#   worker.sh -f FLOW -t TRANSITION [-l SECONDS] [-s SQL] [-w SECONDS] [-d DSN] [-v] -- COMMAND [ARGUMENT...]
#
#   -l  lease each job for so long, instead of performing it in a transaction; the lease is extended while COMMAND runs
#   -s  a statement to be run together with the new state, or not at all. It may use :'job_flow', :job_wid, :job_tgid,
#       :job_version, :'job_payload' (the state that fired the job) and :'job_state' (what COMMAND has printed)
#   -w  look for jobs so often, in seconds (default 1): psql tells of notifications only when it is asked something
#   -d  connection string; what it leaves out comes from PGHOST and the like
#   -v  say what is done, too
#
# COMMAND gets the job as a line of JSON on its standard input, as `wedctl worker run` gives it. It prints the attributes
# to set, as a JSON object, and exits with 0. If it prints nothing, the job is tried again later; if it exits with another
# status, the failure is reported, with what it has printed as the reason. SIGTERM and SIGINT let COMMAND finish; the
# second one ends it. docs/protocol.md explains the protocol.
set -uo pipefail

flow='' transition='' lease='' statement='' wakeup=1 dsn='' verbose=

usage() {
	sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2
	exit 2
}

while getopts 'f:t:l:s:w:d:v' option; do
	case $option in
	f) flow=$OPTARG ;;
	t) transition=$OPTARG ;;
	l) lease=$OPTARG ;;
	s) statement=$OPTARG ;;
	w) wakeup=$OPTARG ;;
	d) dsn=$OPTARG ;;
	v) verbose=1 ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[[ -n $flow && -n $transition && $# -gt 0 ]] || usage
is_seconds() { [[ $1 =~ ^[0-9]+(\.[0-9]+)?$ && ! $1 =~ ^[0.]+$ ]]; }
is_seconds "$wakeup" && { [[ -z $lease ]] || is_seconds "$lease"; } || usage
command=("$@")

# Logging and quoting.

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
chat() { [[ -z $verbose ]] || say "$@"; }

# literal TEXT, name TEXT: as SQL. The session has standard_conforming_strings on; psql replaces no variables in quotes.
q="'" qq='"'
literal() { printf "'%s'" "${1//$q/$q$q}"; }
name() { printf '"%s"' "${1//$qq/$qq$qq}"; }

pool=$(name "$flow").job_pool
table=$(name "$flow").wed_flow
flow_text=$(literal "$flow")
transition_text=$(literal "$transition")

# Signals. A pipe that nobody closes wakes up whoever waits in read.

exec {events}<> <(:)
signals=0 running=

on_signal() {
	signals=$((signals + 1))
	printf '\n' >&"$events"
	((signals < 2)) || kill -TERM "${running:-$psql_pid}" 2>/dev/null
}
trap on_signal TERM INT
trap : PIPE # psql may be gone: then a write fails, and does not end us

# pause SECONDS: ends early when a signal comes.
pause() { ((signals > 0)) || read -r -t "$1" -u "$events" || true; }

# The connection.

to='' from='' psql_pid='' nonce='' news='' sqlstate='' problem='' answer=''

# connect: starts psql, in a session of its own so that Ctrl-C in a terminal is not for it. What it says when it cannot
# connect is shown; what it says of statements is asked for. Settings: a job may take long between two statements.
connect() {
	nonce=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	coproc PSQL { exec setsid env PGCLIENTENCODING=UTF8 PGAPPNAME="${PGAPPNAME:-worker.sh $transition}" \
		psql -XAtq -P pager=off --no-password "$dsn" 2> >(exec grep --line-buffered '^psql: error'  >&2); }
	psql_pid=$PSQL_PID
	# in variables that outlive it, and nowhere else: psql ends when its standard input does
	local in=${PSQL[1]} out=${PSQL[0]}
	exec {to}>&"$in" {from}<&"$out" {in}>&- {out}<&-
	ask "set standard_conforming_strings = on; set idle_in_transaction_session_timeout = 0; listen $(name "$transition");"
}

hang_up() {
	[[ -n $to ]] || return 0
	exec {to}>&- {from}<&-
	to='' from=''
	wait "$psql_pid" 2>/dev/null
}

# ask STATEMENTS [VARIABLE...]: 0 if the last statement succeeded; the psql variables are in $answer then. 1 if it failed:
# $sqlstate and $problem say why. 2 if the connection is lost. Each line of ours begins with a word that nobody else
# knows; any other one is a notification.
ask() {
	local line what rest variables
	answer='' sqlstate='' problem=''
	[[ -n $to ]] || return 2
	printf -v variables ' :%s' "${@:2}"
	(($# > 1)) || variables=
	printf '%s\n' "$1" '\if :ERROR' "\\echo $nonce problem :LAST_ERROR_MESSAGE" '\else' "\\echo $nonce answer$variables" \
		'\endif' "\\echo $nonce sqlstate :SQLSTATE" 2>/dev/null >&"$to"
	while IFS= read -r -u "$from" line; do
		[[ $line == "$nonce "* ]] || {
			news=1
			continue
		}
		line=${line#"$nonce "}
		what=${line%% *} rest=${line#"${line%% *}"}
		case $what in
		problem) problem=${rest# } ;;
		answer) answer=${rest# } ;;
		sqlstate)
			sqlstate=${rest# }
			[[ $sqlstate == 00000 ]]
			return
			;;
		esac
	done
	hang_up
	return 2
}

# Jobs. Those that are put off are not looked at again before the next wake-up.

put_off='' put_off_at=$SECONDS

candidates() {
	printf '%s' "select j.wid, j.tgid from $pool j
		where j.trname = $transition_text and j.lckid is null
		  and (j.available_at is null or j.available_at <= clock_timestamp())
		  ${put_off:+and (j.wid, j.tgid) not in ($put_off)}
		order by j.priority desc, j.fired_at, j.wid, j.tgid offset 0"
}

# read_job: its row, under its lock or lease, into psql variables job_*; job_json is what COMMAND gets.
read_job() {
	ask "select count(*) as found, $flow_text as flow, $wid as wid, $tgid as tgid, max(j.version) as version,
			max(j.payload::text) as payload, coalesce(max(extract(epoch from j.timeout)), 0) as seconds,
			max(json_build_object('flow', $flow_text, 'wid', j.wid, 'tgid', j.tgid, 'trname', j.trname,
				'timeout', j.timeout::text, 'version', j.version, 'attempts', j.attempts, 'payload', j.payload)::text) as json
		from (select * from $pool where wid = $wid and tgid = $tgid and trname = $transition_text
			${lease:+and lckid = '$lckid'} order by version desc limit 1) j \\gset job_" job_found job_seconds job_json
}

# take: the first job that is pending and that nobody else has; 1 if there is none, or for $problem; 2 if the connection is
# lost. They are tried one by one, and the limit ends it: no lock is taken but the one of that job.
take() {
	local found
	if [[ -z $lease ]]; then
		ask "begin isolation level read committed read write;
			select count(*) as found, coalesce(min(wid), 0) as wid, coalesce(min(tgid), 0) as tgid, '' as lckid
			  from (select c.wid, c.tgid from ($(candidates)) c where wed_sql.try_lock(c.wid, c.tgid) limit 1) l \\gset job_" \
			job_found job_wid job_tgid job_lckid
	else
		ask "select count(*) as found, coalesce(min(wid), 0) as wid, coalesce(min(tgid), 0) as tgid, coalesce(min(lckid), '') as lckid
			  from (select l.* from ($(candidates)) c,
			               lateral wed_sql.lease_job($flow_text, c.wid, c.tgid, interval '$lease s') l limit 1) l \\gset job_" \
			job_found job_wid job_tgid job_lckid
	fi || return
	read -r found wid tgid lckid <<<"$answer"
	((found == 1)) || return 1
	[[ -n $lckid ]] && in_transaction='' || in_transaction=1
	# Until the lock was taken the job may have been completed, and fired anew: what counts is a look under it.
	read_job || return
	read -r found seconds json <<<"$answer"
	((found == 1))
}

# token: the arguments of the functions that deal with a leased job.
token() { printf '%s' "$flow_text, $wid, $tgid, '$lckid'"; }

# write: the new state, by the type of each attribute, on the row as it then is. An empty object sets one attribute to
# itself: that completes the job, too.
write() {
	if [[ -n $lease ]]; then
		ask "select wed_sql.complete($(token), :'job_state'::jsonb) \\gset ignored_"
		return
	fi
	ask "select format('with written as (
				update $table f set (%s) = (select %s from jsonb_populate_record(f, %L) x) where f.wid = $wid returning f.wid)
			select case when count(*) <> 1 then (count(*) || '' instances written instead of 1'')::integer end from written',
			string_agg(quote_ident(k), ', '), string_agg('x.' || quote_ident(k), ', '), :'job_state')
		from (select jsonb_object_keys(:'job_state'::jsonb) as k
			union all
			(select attname from pg_catalog.pg_attribute
			  where :'job_state'::jsonb = '{}' and attrelid = $(literal "$table")::regclass and attnum > 0
			    and not attisdropped and attname not in ('wid', '_stamp') limit 1)) keys \\gexec"
}

# beat: extends the lease, on a new connection if the old one is lost.
beat() {
	[[ -n $to ]] || { connect && read_job; }
	ask "select wed_sql.extend($(token), interval '$lease s') \\gset ignored_" ||
		say "wid $wid, tgid $tgid: the lease was not extended: ${problem:-lost the connection}"
}

# perform: runs COMMAND for the job that was taken. Its output is in $output, its status is returned. Nothing of it may keep
# psql's standard input open: if we are killed, psql has to notice.
perform() {
	local out chunk status seen every=600
	# shellcheck disable=SC2094
	exec {out}< <(exec timeout --kill-after=5 "$([[ -z $lease ]] && printf '%s' "$seconds" || printf 0)" \
		"${command[@]}" <<<"$json" {to}>&- {from}<&- {events}>&-)
	running=$!
	[[ -z $lease ]] || every=$(awk -v s="$lease" 'BEGIN { print s / 3 }')
	output=
	while :; do
		IFS= read -r -d '' -t "$every" -u "$out" chunk
		status=$?
		output+=$chunk
		((status > 128)) || break
		[[ -z $lease ]] || beat
	done
	exec {out}<&-
	while # a signal interrupts wait
		seen=$signals
		wait "$running"
		status=$?
		((signals != seen))
	do :; done
	running=
	return "$status"
}

# complete: the new state, the statement, and the commit. What is no object is refused by a division by zero.
complete() {
	local state
	state=$(literal "$output")
	[[ -z $lease || -n $to ]] || { connect && read_job; } || return
	[[ -z $lease ]] || { in_transaction=1 && ask 'begin isolation level read committed read write;'; } || return
	ask "select $state::jsonb::text as state, 1 / (jsonb_typeof($state::jsonb) = 'object')::integer as ignored \\gset job_" ||
		return
	write || return
	[[ -z $statement ]] || ask "$statement;" || return
	ask 'commit;'
}

# settle STATUS: what becomes of a job that was not completed.
settle() {
	local status=$1
	if ((status == 2)); then
		say "wid $wid, tgid $tgid: lost the connection, will look at it again"
		return
	fi
	[[ -z $in_transaction ]] || ask 'rollback;'
	put_off="${put_off:+$put_off, }($wid, $tgid)"
}

# fail REASON: has the failure counted, in a transaction of its own.
fail() {
	say "wid $wid, tgid $tgid: $1"
	ask "select wed_sql.fail($flow_text, $wid, $tgid, $(literal "$1"), nullif('$lckid', '')) \\gset ignored_" ||
		say "wid $wid, tgid $tgid: the failure is not counted: $problem"
}

give_back() { [[ -z $lease ]] || ask "select wed_sql.release($(token)) \\gset ignored_"; }

work() {
	local status why
	perform
	status=$?
	if ((signals > 1)); then
		settle 1
		give_back
	elif ((status != 0)); then
		settle 1
		why=${output:-the command has exited with $status}
		((status != 124)) || [[ -n $lease ]] || why="the job's time is up"
		fail "$why"
	elif [[ -z ${output//[[:space:]]/} ]]; then
		chat "wid $wid, tgid $tgid: aborted, nothing printed"
		settle 1
		give_back
	elif complete || { (($? == 2)) && [[ -n $lease ]] && complete; }; then
		# under a lease it can be tried on a new connection, for it is done once
		chat "wid $wid, tgid $tgid: done"
	else
		status=$? why=$problem
		local state=$sqlstate
		settle "$status"
		((status == 1)) || return
		case $state in
		WED03 | WED08 | WED16 | WED17) chat "wid $wid, tgid $tgid: not to be had any more: $why" ;;
		WED07 | 40001 | 40P01 | 55P03)
			chat "wid $wid, tgid $tgid: lost a race, will redo it: $why"
			give_back
			;;
		22012) fail 'the command has not printed a JSON object' ;;
		*) fail "$why" ;;
		esac
	fi
}

# check: whether there is something to work for.
check() {
	ask "select coalesce(to_regclass($(literal "$pool")) is not null, false) as there \\gset flow_" flow_there || return
	[[ $answer == t ]] || {
		problem="there is no flow $flow in this database"
		return 1
	}
	# A worker role does not see the rules, but knows its own transitions.
	ask "select v is not null as granted, coalesce($transition_text = any (v), false) as mine
		from wed_sql.visible_transitions($(literal "$table")::regclass) v \\gset flow_" flow_granted flow_mine || return
	[[ $answer != 't f' ]] || {
		problem="this role may not perform $transition in flow $flow: see wed_sql.grant_worker"
		return 1
	}
	[[ $answer != f* || $transition == _EXCPT ]] || {
		ask "select exists (select from $(name "$flow").wed_trig where trname = $transition_text) as fires \\gset flow_" flow_fires || return
		[[ $answer == t ]] || {
			problem="no rule of flow $flow fires $transition"
			return 1
		}
	}
}

connect && check || {
	say "error: ${problem:-could not connect}"
	hang_up
	exit 1
}
chat "worker for $transition of $flow started"
failures=0
while ((signals == 0)); do
	((SECONDS - put_off_at < 10#${wakeup%.*} + 1)) || put_off='' put_off_at=$SECONDS
	news=
	take
	case $? in
	0)
		failures=0
		work
		;;
	1)
		failures=0
		why=$problem
		[[ -n $lease ]] || ask 'rollback;'
		[[ -z $why ]] || say "could not take a job: $why"
		# a notification that came meanwhile is a reason to look again at once
		[[ -n $news && -z $why ]] || pause "$wakeup"
		;;
	2)
		# 0.1 s, doubled with each failure up to 12.8 s, and never quite the same
		milliseconds=$(((100 << (failures < 7 ? failures : 7)) * (50 + RANDOM % 51) / 100))
		failures=$((failures + 1))
		printf -v seconds '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000))
		say "lost the connection, will connect again in $seconds s"
		pause "$seconds"
		((signals > 0)) || connect
		;;
	esac
done
hang_up
chat "worker for $transition of $flow stopped"
((signals < 2)) || exit 143
