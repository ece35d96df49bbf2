# shellcheck shell=bash
# What the scripts share: a private installation of PostgreSQL with wed_sql, a
# private cluster in it, and the promise to leave nothing behind.
# Sourced, never run.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$repo/build/log

say() { printf '%s\n' "$*"; }
fail() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# as_root command...: the only place that gains privileges.
as_root() {
	if ((EUID == 0)); then
		env DEBIAN_FRONTEND=noninteractive "$@"
	else
		sudo env DEBIAN_FRONTEND=noninteractive "$@"
	fi
}

# The server refuses to run as root; root runs it as Debian's user for it.
server_user() { if ((EUID == 0)); then say postgres; else id -un; fi; }

# in_memory: where directories lie in memory, if this machine has plenty of it. The
# servers of tests do not wait for a disk there, whose stalls of seconds would be
# taken for theirs; what a crash leaves of a file is the same.
in_memory() {
	local gib=$((1024 * 1024)) shm=/dev/shm available
	available=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
	((available >= 12 * gib)) || return 1
	awk -v at=$shm '$2 == at && $3 == "tmpfs" && $4 !~ /noexec/ { found = 1 } END { exit !found }' /proc/mounts || return 1
	(($(df --output=avail -k $shm | tail -n 1) >= 8 * gib)) || return 1
	[[ -w $shm ]] && say $shm
}

# open_stage [directory]: makes the directory $stage, which the server's user can read and
# write wherever the repository lies, and has it removed on every way out. TMPDIR says where, then
# the argument.
open_stage() {
	local base=${TMPDIR:-${1:-/tmp}} bindir
	# A Unix socket's path has to fit into 107 bytes.
	((${#base} <= 40)) || base=/tmp
	pg_config=$("$repo/scripts/pg-config") || fail "no pg_config with server headers; make deps installs one"
	bindir=$("$pg_config" --bindir)
	trap clean_stage EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	stage=$(mktemp -d "$base/wed_sql.XXXXXX")
	mkdir "$stage/socket" "$stage/tmp" "$stage/home"
	chmod 755 "$stage"
	chmod 700 "$stage/socket"
	chown -R "$(server_user)" "$stage"
	stage_pg_config=$stage/root$bindir/pg_config

	# What is run as the server's user has the private installation first in
	# PATH, the private cluster as its default, and nothing else of the caller's.
	as_server=(env -i -C "$stage" HOME="$stage/home" TMPDIR="$stage/tmp" LC_ALL=C.UTF-8 TERM="${TERM:-dumb}"
		PATH="$stage/root$bindir:/usr/local/bin:/usr/bin:/bin"
		PGHOST="$stage/socket" PGPORT=5432 PGUSER=postgres PGDATABASE=postgres)
	if ((EUID == 0)); then
		as_server=(setpriv --reuid="$(server_user)" --regid="$(server_user)" --init-groups -- "${as_server[@]}")
	fi
}

clean_stage() {
	trap '' HUP INT TERM
	[[ -n ${stage:-} ]] || return 0
	stop_running
	stop_cluster || true
	kill_leftovers
	rm -rf "$stage"
}

# quietly log command...: runs it with its output in log, and shows the end of
# that only when it fails.
quietly() {
	local log=$1 status=0
	mkdir -p "${log%/*}"
	in_background "$@" || status=$?
	((status == 0)) || tail -n 60 "$log"
	return "$status"
}

# A make of our own, not one of the jobs of the make that may have called us.
make=(env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u DESTDIR make -C "$repo" --no-print-directory)

# build: brings everything that make builds up to date.
build() { quietly "$log/build.log" "${make[@]}" -j2 all PG_CONFIG="$pg_config"; }

# in_background log command...: runs it in a process group of its own, so that
# close_stage can end all of it, and returns its status.
in_background() {
	local log=$1
	shift
	setsid -- "$@" >"$log" 2>&1 </dev/null &
	running=$!
	local status=0
	wait "$running" || status=$?
	running=
	return "$status"
}

stop_running() {
	[[ -n ${running:-} ]] || return 0
	kill -TERM -- "-$running" 2>/dev/null || return 0
	for _ in {1..50}; do
		kill -0 -- "-$running" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL -- "-$running" 2>/dev/null || true
}

# leftovers: the processes that run out of the stage, one "pid command" a line.
leftovers() {
	local proc exe cwd
	for proc in /proc/[0-9]*; do
		exe=$(readlink "$proc/exe" 2>/dev/null) || continue
		cwd=$(readlink "$proc/cwd" 2>/dev/null) || cwd=
		[[ $exe == "$stage"/* || $cwd == "$stage" || $cwd == "$stage"/* ]] || continue
		say "${proc#/proc/} $(tr '\0' ' ' <"$proc/cmdline" 2>/dev/null || true)"
	done
}

# wait_for_leftovers: what is still running after the server has stopped; its
# children have a moment to notice.
wait_for_leftovers() {
	for _ in {1..50}; do
		[[ -n $(leftovers) ]] || return 0
		sleep 0.1
	done
	leftovers
}

kill_leftovers() {
	local pid
	while read -r pid _; do
		kill -KILL "$pid" 2>/dev/null || true
	done < <(leftovers)
}

# mirror directory: under $stage/root, a directory of links to its entries.
mirror() {
	mkdir -p "$stage/root$1"
	find "$1" -mindepth 1 -maxdepth 1 -exec ln -s -t "$stage/root$1" {} +
}

# open_link directory: turns a link that mirror made into a directory of links.
open_link() {
	[[ -L $stage/root$1 ]] || return 0
	rm "$stage/root$1"
	mirror "$1"
}

# private_install: an installation in $stage/root with wed_sql in it. PostgreSQL
# finds its files relative to where its executables really are, so those that
# look for files are copied and all the rest are links to the system's.
private_install() {
	local bin share pkglib program dir
	bin=$("$pg_config" --bindir)
	share=$("$pg_config" --sharedir)
	pkglib=$("$pg_config" --pkglibdir)
	mirror "$bin"
	mirror "$share"
	open_link "$share/extension"
	mirror "$pkglib"
	open_link "$pkglib/bitcode"
	for program in postgres initdb pg_ctl pg_config psql pgbench; do
		rm -f "$stage/root$bin/$program"
		cp "$bin/$program" "$stage/root$bin/"
	done
	for dir in includedir includedir-server libdir; do
		dir=$("$pg_config" "--$dir")
		[[ -e $stage/root$dir ]] || {
			mkdir -p "$stage/root${dir%/*}"
			ln -s "$dir" "$stage/root$dir"
		}
	done
	quietly "$log/install.log" "${make[@]}" install PG_CONFIG="$stage_pg_config"
	[[ -z ${WED_SQL_AFTER_INSTALL:-} ]] || . "$WED_SQL_AFTER_INSTALL"
	chmod -R a+rX "$stage/root"
	# tests add versions of the extension
	chown "$(server_user)" "$stage/root$share/extension"
}

# faultpoint_install: a copy of the private installation in $stage/faultpoint, with the engine that can be told to die at
# named points; faultpoint_bindir leads to it.
faultpoint_install() {
	[[ ! -e $stage/faultpoint ]] || return 0
	quietly "$log/faultpoint.log" "${make[@]}" faultpoint PG_CONFIG="$pg_config"
	cp -a "$stage/root" "$stage/faultpoint"
	cp "$repo/build/faultpoint/wed_sql_engine.so" "$stage/faultpoint$("$pg_config" --pkglibdir)/"
	faultpoint_bindir=$stage/faultpoint$("$pg_config" --bindir)
}

# also_install pg_config: a second installation beside the first, of another
# version of PostgreSQL.
also_install() {
	local pg_config=$1 stage_pg_config
	stage_pg_config=$stage/root$("$pg_config" --bindir)/pg_config
	build
	private_install
}

# Further lines for the cluster's postgresql.conf.
server_settings=()

# start_cluster: a cluster with wed_sql preloaded, reached through
# a socket in $stage only.
start_cluster() {
	"${as_server[@]}" initdb --pgdata=data --username=postgres --auth=trust --encoding=UTF8 \
		--locale=C.UTF-8 >"$stage/initdb.log" 2>&1 || {
		cat "$stage/initdb.log"
		return 1
	}
	{
		say "listen_addresses = ''"
		say "unix_socket_directories = '$stage/socket'"
		say "shared_preload_libraries = 'wed_sql'"
		say "wal_level = logical"
		say "log_line_prefix = '%m [%p] %b %q%u@%d %a '"
		# whoever the server runs as, its superuser is postgres here
		say "wed_sql.conninfo = 'user=postgres'"
		((${#server_settings[@]} == 0)) || printf '%s\n' "${server_settings[@]}"
	} >>"$stage/data/postgresql.conf"
	"${as_server[@]}" pg_ctl --pgdata=data --log=server.log --wait start >"$stage/start.log" 2>&1 || {
		cat "$stage/start.log" "$stage/server.log"
		return 1
	}
}

stop_cluster() {
	[[ -e $stage/data/postmaster.pid ]] || return 0
	"${as_server[@]}" pg_ctl --pgdata=data --mode=fast --timeout=20 --wait stop >"$stage/stop.log" 2>&1 ||
		"${as_server[@]}" pg_ctl --pgdata=data --mode=immediate --wait stop >>"$stage/stop.log" 2>&1
}

# run_with_cluster command...: in a private cluster, as the server's user, in the
# foreground, and then, if there is one, the function that $keep_results names, with
# the command's status; exits with that, and not with 0 if anything that it or the
# server started is left.
run_with_cluster() {
	local status=0 left
	say "starting a private cluster in $stage"
	start_cluster
	"${as_server[@]}" "$@" || status=$?
	[[ -z ${keep_results:-} ]] || "$keep_results" "$status" || status=1
	stop_cluster
	left=$(wait_for_leftovers)
	if [[ -n $left ]]; then
		say "still running, and ended now:" "$left"
		status=1
	fi
	exit "$status"
}
