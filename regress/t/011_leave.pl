# A command that needs a database for itself is not hindered by the engine,
# whatever that is doing, and costs a database without wed_sql next to nothing.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WedSql;

my $rounds = 6;

my $node = new_server('leave');
$node->append_conf('postgresql.conf', "wed_sql.discovery_interval = 1h\nmax_connections = 50\nfsync = off");
watch_machine();
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);
$node->safe_psql('postgres', 'create database original');
create_figure2($node, 'original');
jobs($node, 'original');

# Executes a command; returns its error and the seconds that it took.
sub timed
{
	my ($sql) = @_;
	my $start = time;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	return ($err, time - $start);
}

# a busy flow, whose clients work until they are cut off
my $script = $node->basedir . '/work.sql';
append_to_file($script, <<'SQL');
insert into travel.wed_flow default values;
do $$
declare
	job record;
begin
	for job in select wid, tgid from travel.job_pool where trname = 'tr_a2' limit 5 loop
		if wed_sql.try_lock(job.wid, job.tgid) then
			update travel.wed_flow set a2 = 'x' where wid = job.wid;
			exit;
		end if;
	end loop;
exception when others then	-- somebody else was faster
end
$$;
SQL
my ($slowest, @failed) = (0);
foreach my $round (1 .. $rounds)
{
	my $force = $round % 2 ? ' with (force)' : '';
	$node->safe_psql('postgres', 'create database busy template original');
	my $out = '';
	my $clients = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '4', '-T', '60', '-f', $script, '-h', $node->host, '-p', $node->port, 'busy' ],
		'<', \undef, '>', \$out, '2>', \$out);
	$node->poll_query_until('busy', 'select count(*) > 20 from travel.wed_trace') or die "no work was done: $out";
	if (!$force)
	{
		# they go, just before
		$node->safe_psql('postgres', "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = 'busy' and application_name <> 'wed_sql engine'");
	}
	my ($err, $seconds) = timed("drop database busy$force");
	push @failed, "$err, after $seconds s" if $err ne '' || $seconds > patience(5);
	$slowest = $seconds if $seconds > $slowest;
	$clients->kill_kill;
}
is(join("\n", @failed), '', sprintf('DROP DATABASE of a busy flow: %d of %d, the slowest took %.2f s', $rounds - @failed, $rounds, $slowest));

# one that was made a moment ago, which the engine may be about to enter
@failed = ();
foreach my $round (1 .. $rounds)
{
	$node->safe_psql('postgres', 'create database fresh');
	$node->safe_psql('fresh', 'create extension wed_sql');
	my ($err, $seconds) = timed('drop database fresh');
	push @failed, "$err, after $seconds s" if $err ne '' || $seconds > patience(5);
}
is(join("\n", @failed), '', 'DROP DATABASE right after CREATE EXTENSION');
is($node->safe_psql('postgres', "select count(*) from pg_replication_slots where database is distinct from 'postgres' and database <> 'original'"),
	'0', '... and no slot is left');

# what it costs a database without wed_sql
sub cost
{
	my @seconds;
	foreach (1 .. 7)
	{
		$node->safe_psql('postgres', 'create database plain');
		push @seconds, (timed('drop database plain'))[1];
	}
	return (sort { $a <=> $b } @seconds)[3];
}
sub cost_with_and_without
{
	my $with = cost();
	$node->append_conf('postgresql.conf', 'wed_sql.enabled = off');
	$node->reload;
	$node->poll_query_until('postgres', "select count(*) = 0 from pg_stat_activity where application_name = 'wed_sql engine'");
	my $without = cost();
	$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
	$node->reload;
	wait_for_engine($node);
	return ($with, $without);
}
my ($with, $without);
for (1 .. 5)
{
	# whatever else keeps the machine busy may do so in one of the two
	($with, $without) = cost_with_and_without();
	last if $with < $without * 1.5 + 0.25;
}
my $ratio = $with / $without;
note sprintf('DROP DATABASE of a database without wed_sql: %.0f ms, with wed_sql.enabled = off %.0f ms, ratio %.2f', 1000 * $with, 1000 * $without, $ratio);
cmp_ok($with, '<', $without * 1.5 + 0.25, 'DROP DATABASE of a database without wed_sql is as fast as ever');
$engine = wait_for_engine($node);

# an engine that does not answer
$node->safe_psql('postgres', 'create database plain');
kill 'STOP', $engine;
my ($err, $seconds) = timed('drop database plain');
is($err, '', 'the engine does not answer: DROP DATABASE of a database without wed_sql');
cmp_ok($seconds, '<', patience($without + 1), sprintf('... takes a moment (%.2f s)', $seconds));
($err, $seconds) = timed('drop database original');
is($err, '', 'the engine does not answer: DROP DATABASE of one with wed_sql');
cmp_ok($seconds, '<', patience(8), sprintf('... takes a few seconds (%.2f s)', $seconds));
like(slurp_file($node->logfile), qr/LOG:  wed_sql engine \(PID $engine\) does not answer and is terminated/, '... because another engine comes');
isnt(wait_for_engine($node, $engine), $engine, '... which goes on');
is(jobs($node), '', '... where it is not in the way');

# an engine that is not there, and comes in the middle
$node->safe_psql('postgres', 'create database original');
create_figure2($node, 'original');
$engine = wait_for_engine($node);
foreach my $round (1 .. 3)
{
	my $before = engine_pid($node);
	kill 'KILL', $before;
	($err, $seconds) = timed("create database copy$round template original");
	is($err, '', 'the engine is killed: CREATE DATABASE ... TEMPLATE');
	($err, $seconds) = timed("drop database copy$round");
	is($err, '', '... and DROP DATABASE');
	wait_for_engine($node, $before);
}

# a command that fails, is cancelled, or whose session is ended, gives the database back
my $session = $node->background_psql('original');
($err, $seconds) = timed("set statement_timeout = '500ms'; drop database original");
like($err, qr/canceling statement due to statement timeout|is being accessed/, 'DROP DATABASE, cancelled');
$node->safe_psql('original', 'insert into travel.wed_flow default values');
is(jobs($node, 'original'), "1 tr_a2\n1 tr_a3", '... and the flow goes on');
my $dropper = $node->background_psql('postgres', on_error_die => 0, on_error_stop => 0);
my $pid = $dropper->query_safe('select pg_backend_pid()');
$dropper->{stdin} .= "drop database original;\n";
$dropper->{run}->pump_nb;
$node->poll_query_until('postgres', "select count(*) = 1 from pg_stat_activity where pid = $pid and query like 'drop%' and state = 'active'");
$node->safe_psql('postgres', "select pg_terminate_backend($pid, 10000)");
$node->safe_psql('original', 'insert into travel.wed_flow default values');
is(jobs($node, 'original'), "1 tr_a2\n1 tr_a3\n2 tr_a2\n2 tr_a3", 'DROP DATABASE whose session is terminated: the flow goes on');
$session->quit;
$dropper->{run}->kill_kill;
($err, $seconds) = timed("begin; alter database original rename to renamed; select count(*) from pg_class; rollback");
$node->safe_psql('original', 'insert into travel.wed_flow default values');
is($node->safe_psql('original', 'select wed_sql.sync() \g /dev/null
select count(*) from travel.job_pool'), '6', 'ALTER DATABASE RENAME, rolled back: the flow goes on');

$node->safe_psql('postgres', 'drop database original');
stop_clean($node);
done_testing();
