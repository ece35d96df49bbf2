# A transaction that holds the lock of a pending job for longer than the job's timeout is ended: a hundred of a hundred,
# within 250 ms and never early, while fifty honest workers lose no transaction. Whoever comes in time is left alone, and
# so is what the same session does next.
use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('timeouts');
$node->append_conf('postgresql.conf', <<'CONF');
max_connections = 250
max_prepared_transactions = 5
fsync = off
CONF
watch_machine();
$node->start;
$node->safe_psql('postgres', 'create extension wed_sql');
wait_for_engine($node);

# How many sessions the engine has in the database: a follower has two.
my $sessions = "select count(*) from pg_stat_activity where application_name = 'wed_sql engine' and datname = 'postgres'";

$node->safe_psql('postgres', <<'SQL');
create role worker login;
select wed_sql.create_flow('f');
set search_path = f, wed_sql;
insert into wed_attr (aname, atype, adv) values ('n', 'int', '0'), ('kind', 'text', 'hung');
insert into wed_trig (trname, cpred, timeout) values ('go', 'kind = ''hung''', '1 second');
insert into wed_trig (trname, cpred, timeout) values ('honest', 'kind = ''honest''', '10 seconds');
insert into wed_trig (trname, cpred, timeout) values ('slow', 'kind = ''slow''', '1 hour');
grant usage on schema f to worker;
grant select on f.job_pool to worker;
grant select, update on f.wed_flow to worker;
create table f.done (client int, step int);
grant insert on f.done to worker;
SQL
$node->poll_query_until('postgres', $sessions, '2') or die;
pass('while nothing is pending there is no session for timeouts');

# Instances of a kind; returns the first wid and the tgid of their jobs.
sub instances
{
	my ($kind, $count) = @_;
	my ($wid, $tgid) = split /\|/, $node->safe_psql('postgres', <<SQL);
with i as (insert into f.wed_flow (kind) select '$kind' from generate_series(1, $count) returning wid) select min(wid) from i \\gset
select wed_sql.sync() \\g /dev/null
select :min, tgid from f.job_pool where wid = :min
SQL
	return ($wid, $tgid);
}

# Starts pgbench with a script of its own; its output is in $out.
sub pgbench
{
	my ($script, $out, @args) = @_;
	my ($file, $fh) = ($node->basedir . '/script' . int(rand(1e9)));
	open($fh, '>', $file) or die;
	print $fh $script;
	close($fh) or die;
	return IPC::Run::start([ 'pgbench', '-n', '-f', $file, @args, $node->connstr('postgres') ],
		'>', $out, '2>', $out, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

sub events
{
	my ($where) = @_;
	return $node->safe_psql('postgres', "select count(*) from f.wed_event where $where");
}

#
# A hundred that hang, and fifty that work
#

my ($first, $go) = instances('hung', 100);
my ($honest_first, $honest_go) = instances('honest', 50);
my $listener = $node->background_psql('postgres');
$listener->query_safe('listen go');

my $honest_out = '';
my $honest = pgbench(<<SQL, \$honest_out, '-c', 50, '-j', 2, '-T', 16);
\\set wid :client_id + $honest_first
begin;
select count(*) as mine from f.job_pool where wid = :wid and tgid = $honest_go and wed_sql.try_lock(wid, tgid) \\gset
\\if :mine
update f.wed_flow set n = n + 1 where wid = :wid;
\\endif
commit;
\\sleep 100 ms
SQL
$node->poll_query_until('postgres', 'select count(*) > 100 from f.wed_flow, generate_series(1, n)') or die 'nobody works';

# Half of them are at work, half are idle in their transaction, for longer than any machine stands still; some are superusers.
my $log = -s $node->logfile;
my ($role, @hung) = (0);
foreach my $how (("select pg_sleep(30);", "\\sleep 8000 ms\nselect 1;") x 5)
{
	my $wid = $first + 10 * @hung;
	my $out = '';
	my $script = "\\set wid $wid + :client_id\nbegin;\nupdate f.wed_flow set n = 0 where false;\n"
	  . "select 1 / pg_try_advisory_xact_lock(:wid::int, $go)::int;\ninsert into f.done values (-1, :wid);\n$how\ncommit;\n";
	push @hung, pgbench($script, \$out, '-c', 10, '-t', 1, $role++ % 2 ? ('-U', 'worker') : ());
	# they begin at times of their own
	$node->poll_query_until('postgres', "select exists (select from pg_locks where locktype = 'advisory' and objsubid = 2 and classid = $wid)
		or exists (select from f.wed_event where wid = $wid)");
}
$_->finish foreach @hung;
$node->poll_query_until('postgres', "select count(*) >= 100 from f.wed_event where event = 'timed out'")
  or diag $node->safe_psql('postgres', 'select * from f.wed_event');

is(events("event = 'timed out'"), '100', 'each of a hundred that hang is ended');
is(events("held < interval '1 second'"), '0', '... none of them early');
my $bound = patience(0.25);
is(events("held > (1 + $bound) * interval '1 second'"), '0', '... none of them more than 250 ms late');
note 'held: ' . $node->safe_psql('postgres', "select min(held) || ' to ' || max(held) || ', on average ' || avg(held) from f.wed_event");
is(events("tgid = $go and trname = 'go' and version = 0 and pid > 0 and detail like '%the timeout is 00:00:01'"), '100',
	'... and the history says which job it was, and whose session');
is($node->safe_psql('postgres', "select role, count(*) from f.wed_event group by role order by 1 desc"),
	'worker|50' . "\n" . $node->safe_psql('postgres', 'select current_user') . '|50', '... superusers no less than others');
is($node->safe_psql('postgres', "select count(*), sum(attempts), min(left(last_error, 24)) from f.job_pool where trname = 'go'"),
	'100|100|its transaction was open', 'every job is pending again, with one attempt that failed');
is($node->safe_psql('postgres', 'select count(*) from f.done where client = -1'), '0', 'their work is rolled back');
my @lines = log_lines($node, 'LOG: .*session \d+ of role "\w+" is terminated: its transaction holds the lock of job "go" of instance \d+ of WED-flow "f" for longer than its timeout', $log);
is(scalar @lines, 100, "the server's log says who was ended");
is(scalar log_lines($node, 'DETAIL: .*for 00:00:0\d\.\d+; the timeout is 00:00:01. Application: "\S+"', $log), 100, '... when, and why');
cmp_ok(scalar log_lines($node, 'DETAIL: .*The transaction has held the lock of a pending job', $log), '>=', 100, '... and so are they told');
my $heard = () = $listener->query_safe('select 1') =~ /Asynchronous notification "go" with payload "\{"flow":"f","wid":\d+,"tgid":$go,"trname":"go","timeout":"00:00:01","payload":\{/g;
is($heard, 100, 'the other workers are notified of each');

$honest->finish;
like($honest_out, qr/number of failed transactions: 0 /, 'fifty honest workers have lost no transaction') or diag $honest_out;
unlike($honest_out, qr/aborted/, '... nor a session');
is($node->safe_psql('postgres', "select count(*) from f.wed_event where trname = 'honest'"), '0', '... nor an attempt');

#
# One that is too old before it takes a lock
#

my ($old, $old_go) = instances('hung', 1);
my $latecomer = $node->background_psql('postgres', on_error_stop => 0);
$latecomer->query_safe('begin; select pg_sleep(1.5)');
my $locked = $latecomer->query_safe("select extract(epoch from clock_timestamp()) where pg_try_advisory_xact_lock($old, $old_go)");
$node->poll_query_until('postgres', "select count(*) = 1 from f.wed_event where wid = $old and event = 'timed out'") or die;
$bound = patience(0.5);
is(events("wid = $old and extract(epoch from at) - $locked > $bound"), '0', 'an old transaction that takes a lock is ended at once')
  or diag $node->safe_psql('postgres', "select at, extract(epoch from at) - $locked from f.wed_event where wid = $old");

# whoever locks the jobs of a flow holds nobody up
my $locker = $node->background_psql('postgres');
$locker->query_safe('begin; lock table f.job_pool');
is($node->safe_psql('postgres', 'select ended, complete from wed_sql.end_overdue(true)'), '0|f', 'a flow whose jobs somebody has locked is left out');
$locker->query_safe('rollback');
is($node->safe_psql('postgres', 'select ended, complete from wed_sql.end_overdue(true)'), '0|t', '... until he is done');

#
# At the very moment that it commits
#

my ($racers, $racers_go) = instances('hung', 40);
$node->safe_psql('postgres', 'truncate f.done');
my $race_out = '';
my $race = pgbench(<<SQL, \$race_out, '-c', 40, '-j', 2, '-t', 4);
\\set wid :client_id + $racers
\\set step random(1, 1000000000)
\\set pause random(500, 1300)
begin;
select pg_try_advisory_xact_lock(:wid::int, $racers_go);
insert into f.done values (1, :step);
\\sleep :pause ms
commit;
begin;
insert into f.done values (2, :step);
select pg_sleep(0.3);
commit;
SQL
$race->finish;
my ($came, $went, $torn) = split /\|/, $node->safe_psql('postgres', <<SQL);
select count(*) filter (where client = 1), (select count(*) from f.wed_event where event = 'timed out' and wid >= $racers),
       count(*) filter (where client = 1) - count(*) filter (where client = 2) from f.done
SQL
note "in time: $came, too late: $went";
cmp_ok($came, '>', 0, 'some commit in time');
cmp_ok($went, '>', 0, '... some do not');
is($torn, '0', '... and of those who do, nobody is ended in what he does next');
is(events("event = 'timed out' and held < interval '1 second'"), '0', '... and nobody early');

# a commit that waits for a standby is one
my ($late, $late_go) = instances('hung', 1);
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
my $committer = $node->background_psql('postgres', on_error_stop => 0);
$committer->query_until(qr/begun/, "begin;\nselect pg_try_advisory_xact_lock($late, $late_go);\ninsert into f.done values (3, 0);\n\\echo begun\ncommit;\n\\echo committed\n");
$node->poll_query_until('postgres', "select count(*) = 1 from pg_stat_activity where wait_event = 'SyncRep' and clock_timestamp() > xact_start + interval '2 seconds'") or die;
is($node->safe_psql('postgres', "select ended from wed_sql.end_overdue(true)"), '0', 'a transaction that is being committed is not ended');
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$committer->query_until(qr/committed/, '');
is($committer->query_safe('select count(*) from f.done where client = 3'), '1', '... nor its session');
$committer->quit;

#
# One step
#

my ($wid, $tgid) = instances('slow', 1);
my $holder = $node->background_psql('postgres', on_error_stop => 0);
my $holder_pid = $holder->query_safe('select pg_backend_pid()');
$holder->query_safe("begin; select pg_try_advisory_xact_lock($wid, $tgid)");
sub lxid { return $node->safe_psql('postgres', "select lxid from wed_sql.lock_holders() where pid = $holder_pid") }
sub end_holder
{
	my ($lxid, $deadline, $other_wid) = @_;
	return $node->safe_psql('postgres', "select wed_sql.end_holder(" . ($other_wid // $wid) . ", $tgid, $holder_pid, $lxid, $deadline)");
}
my $lxid = lxid();
is(end_holder($lxid, "clock_timestamp() + interval '1 minute'"), 'f', 'nobody is ended before the deadline');
is(end_holder($lxid + 1, 'clock_timestamp()'), 'f', '... nor one who is in another transaction');
is(end_holder($lxid, 'clock_timestamp()', $wid + 1), 'f', '... nor one who does not hold the lock');
$holder->query_safe('commit');
is(end_holder($lxid, 'clock_timestamp()'), 'f', '... nor one who has committed');
$holder->query_safe("begin; select pg_try_advisory_xact_lock($wid, $tgid)");
is(end_holder($lxid, 'clock_timestamp()'), 'f', '... and now is in his next transaction');
$holder->query_safe("rollback; select pg_try_advisory_lock($wid, $tgid)");
is($node->safe_psql('postgres', "select count(*) from wed_sql.lock_holders() where pid = $holder_pid"), '0', 'a lock of a session is not that of a transaction');
$holder->query_safe('begin');
is(end_holder($lxid, 'clock_timestamp()'), 'f', '... a transaction that it has since is another one');
is($holder->query_safe('select 1'), '1', 'so he lives on');
is(end_holder(lxid(), 'clock_timestamp()'), 't', 'the right one is ended');
$node->poll_query_until('postgres', "select count(*) = 1 from f.wed_event where wid = $wid and event = 'timed out'") or die;
pass('... and that is written down');

#
# Lost connections
#

$log = -s $node->logfile;
$listener->query_safe('listen slow; select 1');
$holder = $node->background_psql('postgres');
$holder->query_safe("begin; select wed_sql.try_lock($wid, $tgid)");
$holder->query_safe('rollback');
$holder->query_safe("begin; select wed_sql.try_lock($wid, $tgid)");
$holder->{run}->kill_kill;
$node->poll_query_until('postgres', "select count(*) = 1 from f.wed_event where wid = $wid and event = 'connection lost'") or die;
pass('a connection that is lost is written down, a rollback is not');
is($node->safe_psql('postgres', "select attempts from f.job_pool where wid = $wid"), '2', '... it is an attempt that failed');
like($listener->query_safe('select 1'), qr/notification "slow" with payload "\{"flow":"f","wid":$wid,/, '... and the others are notified');

# whoever may not perform a job can lock it, as anybody can, but does not fail at it
$node->safe_psql('postgres', 'create role stranger login');
$holder = $node->background_psql('postgres', extra_params => [ '-U', 'stranger' ]);
$holder->query_safe("begin; select pg_try_advisory_xact_lock($wid, $tgid)");
$holder->{run}->kill_kill;
my $notified = 0;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if $notified = $listener->query_safe('select pg_sleep(0.1)') =~ /notification "slow" with payload "\{"flow":"f","wid":$wid,/;
}
ok($notified, 'the workers are notified when a stranger lets go of a job');
is($node->safe_psql('postgres', "select attempts from f.job_pool where wid = $wid"), '2', '... but no attempt has failed');
is(events("wid = $wid"), '2', '... and nothing is written down');

# a session that ends when it is done is no loss
$node->safe_psql('postgres', "begin; select wed_sql.try_lock($wid, $tgid); update f.wed_flow set n = 1 where wid = $wid; commit");
$node->safe_psql('postgres', 'select wed_sql.sync()');
is(events("wid = $wid"), '2', 'a session that has committed has lost nothing');

# However many are lost while the engine does not count them: a database has its share, and the log tells once each time
my $stopped = engine_pid($node);
kill 'STOP', $stopped;
foreach my $time (1, 2)
{
	$log = -s $node->logfile;
	foreach my $session (1 .. 5)
	{
		$holder = $node->background_psql('postgres', extra_params => [ '-U', 'stranger' ]);
		$holder->query_safe("begin; select count(*) from generate_series(1, 64) i where pg_try_advisory_xact_lock(i, 1000000 + $session)");
		$holder->{run}->kill_kill;
		$node->poll_query_until('postgres', "select count(*) = 0 from pg_stat_activity where usename = 'stranger'") or die;
		$node->poll_query_until('postgres', "select count(*) = 0 from pg_locks where locktype = 'advisory' and objid = 1000000 + $session") or die;
	}
	my $told;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $told = log_lines($node, 'LOG: .*too many jobs were given up by sessions that have ended', $log);
		$node->safe_psql('postgres', 'select pg_sleep(0.1)');
	}
	is($told, 1, "too many lost jobs are told of once, time $time");
	is($node->safe_psql('postgres', 'select count(*) from wed_sql.take_lost_jobs()'), '256', '... and a database has no more than its share');
}
kill 'CONT', $stopped;

#
# The engine may be killed at any time
#

my ($killed, $killed_go) = instances('hung', 1);
my $engine = engine_pid($node);
$holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe("begin; select pg_try_advisory_xact_lock($killed, $killed_go)");
kill 'KILL', $engine;
$node->poll_query_until('postgres', "select count(*) = 1 from f.wed_event where wid = $killed and event = 'timed out' and held >= interval '1 second'") or die;
pass('a transaction is ended and counted though the engine was killed');
wait_for_engine($node, $engine);

#
# What cannot be ended is told
#

my ($prepared, $prepared_go) = instances('hung', 1);
$node->safe_psql('postgres', "begin; select pg_try_advisory_xact_lock($prepared, $prepared_go); insert into f.done values (4, 4); prepare transaction 'p'");
$node->poll_query_until('postgres', q(select count(*) = 1 from wed_sql.warnings() w where w like 'prepared transaction "p" has held the lock of a job "go" of instance %')) or die;
pass('a prepared transaction that holds a job for too long is in the warnings');
$node->safe_psql('postgres', "rollback prepared 'p'");
is($node->safe_psql('postgres', 'select count(*) from wed_sql.warnings()'), '0', '... until it is gone');

$listener->quit;
$node->stop;
$node->start;
wait_for_engine($node);
$node->safe_psql('postgres', "select wed_sql.drop_flow('f')");
$node->poll_query_until('postgres', "select datname is not null from wed_sql.status limit 1") or die;
stop_clean($node);
done_testing();
