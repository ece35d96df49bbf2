# The engine, killed by any signal, disturbs no session, is back within seconds
# and goes on where it was.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WedSql;

my $node = new_server('killed');
watch_machine();
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);
my $started = $node->safe_psql('postgres', 'select pg_postmaster_start_time()');

my $session = $node->background_psql('postgres');
$session->query_safe('create temporary table witness as select pg_backend_pid() as pid');

# it shares nothing with the server that it could damage
my $maps = slurp_file("/proc/$engine/maps");
unlike($maps, qr{/dev/zero|/SYSV|/dev/shm/PostgreSQL}, 'the engine has no shared memory of the server');
like($maps, qr{/wed_sql_engine\.so}, '... and is the one that runs the library');

my $wid;
foreach my $signal (qw(KILL SEGV TERM ABRT BUS ILL FPE INT QUIT HUP PIPE USR1 USR2 KILL))
{
	# one state matched before, one in flight, one written while it is away
	$wid = $session->query_safe('insert into travel.wed_flow default values returning wid');
	my $first = job_tgid($node, $wid, 'tr_a2');
	my $second = job_tgid($node, $wid, 'tr_a3');
	$session->query_safe("begin; select wed_sql.try_lock($wid, $first); update travel.wed_flow set a2 = 'x' where wid = $wid");

	my $when = time;
	kill $signal, $engine;
	$session->query_safe("commit");
	$session->query_safe("begin; select wed_sql.try_lock($wid, $second); update travel.wed_flow set a3 = 'y' where wid = $wid; commit");

	perform($node, $wid, 'tr_final', "a1 = 'done'");
	is(trace($node, $wid), figure2_trace('tr_a2', 'tr_a3'), "SIG$signal: the history is exact");
	cmp_ok(time - $when, '<', patience(20), "SIG$signal: it went on within seconds");
	$engine = wait_for_engine($node);
}
is($session->query_safe('select count(*) from witness where pid = pg_backend_pid()'), '1', 'the session has not noticed');
is($node->safe_psql('postgres', 'select pg_postmaster_start_time()'), $started, 'nor has the server');
is(jobs($node), '', 'no job is left');
is($node->safe_psql('postgres', 'select count(*) from travel.wed_trace'), 4 * $session->query_safe('select count(*) from travel.wed_flow'), 'every state has one line');

# the background worker may be terminated, too; the engine is its child
my $stat = slurp_file("/proc/$engine/stat");
my ($worker) = $stat =~ /^\d+ \(.*\) \w (\d+)/s;
kill 'TERM', $worker;
ok(wait_until_gone($engine), 'the engine goes with the background worker');
isnt(wait_for_engine($node, $engine), $engine, '... and comes with the next');
is($node->safe_psql('postgres', 'select pg_postmaster_start_time()'), $started, '... while the server stays');
$wid = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
is(jobs($node), "$wid tr_a2\n$wid tr_a3", '... and flows go on');

# its log lines are the server's own
my $log = slurp_file($node->logfile);
like($log, qr/^\S+ \S+ \S+ \[\d+\] wed_sql LOG:  wed_sql engine \(PID \d+\) was terminated by signal 9: Killed$/m, 'the log says what happened');
# (but for a session of an engine that is no more)
unlike($log, qr/ PANIC: | FATAL: (?! connection to client lost)|server process .* was terminated|all server processes terminated/, 'and nothing worse');
unlike($log, qr/ wed_sql (WARNING|ERROR): /, 'without a warning');

my ($resident) = slurp_file("/proc/" . wait_for_engine($node) . "/status") =~ /^VmRSS:\s+(\d+) kB/m;
cmp_ok($resident, '<', 64 * 1024, 'it is smaller than 64 MiB');

$session->quit;
$node->stop;
done_testing();
