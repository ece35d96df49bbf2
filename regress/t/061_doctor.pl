# wedctl doctor on servers that have something wrong: it finds it, and what it says mends it.
use strict;
use warnings;

use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('ward');

# findings($check): what the doctor says of it, but for what is well; with its exit status.
my $status;

sub findings
{
	my ($check) = @_;
	my ($stdout, $stderr);
	IPC::Run::run([ 'wedctl', 'doctor', '-o', 'json', '-d', $node->connstr('postgres') ], '>', \$stdout, '2>', \$stderr);
	$status = $? >> 8;
	my $all = eval { decode_json($stdout) } or die "wedctl doctor: $stdout$stderr";
	return grep { $_->{check} eq $check && $_->{severity} ne 'ok' } @$all;
}

# The findings that match, when there are as many as expected: what the engine is at comes and goes.
sub awaited
{
	my ($check, $what, $number) = @_;
	my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
	my @found;
	do { @found = grep { $_->{what} =~ $what } findings($check) } until @found == $number || time > $deadline;
	return @found;
}

# finds($check, $severity, $what, $mend): expects one finding, and returns how to mend it.
sub finds
{
	my ($check, $severity, $what, $mend) = @_;
	my @found = awaited($check, $what, 1);
	is(scalar @found, 1, "$check: $what") or diag(explain([ findings($check) ]));
	is($found[0]{severity}, $severity, "... as $severity");
	is($status, $severity eq 'note' ? $status : 1, '... and fails') if $severity ne 'note';
	like($found[0]{mend}, $mend, '... and says how to mend it');
	return $found[0]{mend};
}

sub is_well
{
	my ($check, $what) = @_;
	is_deeply([ awaited($check, $what, 0) ], [], "$check: mended");
}

# Nothing is as it should be.
$node->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = ''
wal_level = replica
fsync = off
full_page_writes = off
autovacuum = off
track_activities = off
statement_timeout = 1min
idle_in_transaction_session_timeout = 1h
max_replication_slots = 2
CONF
$node->start;
my $preload = finds('preload', 'error', qr/has not loaded/, qr/^shared_preload_libraries = 'wed_sql'/);
my $level = finds('wal_level', 'error', qr/"replica"/, qr/^alter system set wal_level/);
finds('extension', 'error', qr/not installed/, qr/^create extension wed_sql;/);
my @statements = ($level,
	finds('durability', 'error', qr/fsync/, qr/^alter system/),
	finds('durability', 'warning', qr/full_page_writes/, qr/^alter system/),
	finds('autovacuum', 'error', qr/autovacuum/, qr/^alter system/),
	finds('session defaults', 'error', qr/track_activities/, qr/^alter system/));
finds('timeouts', 'note', qr/statement_timeout is 60000ms/, qr/^alter system reset statement_timeout/);
finds('timeouts', 'warning', qr/idle_in_transaction/, qr/^alter system reset idle_in/);

# What it says is done, as it says it.
$node->append_conf('postgresql.conf', $preload);
for my $line (@statements)
{
	$node->safe_psql('postgres', $_) for split /;\s*(?:--.*)?/, $line;
}
$node->append_conf('postgresql.conf', "statement_timeout = 0\nidle_in_transaction_session_timeout = 0");
finds('pending restart', 'warning', qr/^wal_level was changed/, qr/restart/);
$node->restart;
is_well($_, qr/./) for ('preload', 'wal_level', 'durability', 'autovacuum', 'session defaults', 'timeouts', 'pending restart');

# A file that cannot be read.
$node->append_conf('postgresql.conf', 'work_mem = plenty');
finds('configuration file', 'warning', qr/work_mem/, qr/correct the line/);
$node->append_conf('postgresql.conf', "work_mem = '4MB'");
is_well('configuration file', qr/./);

# Others have all the slots.
$node->safe_psql('postgres', "select pg_create_physical_replication_slot('other' || i) from generate_series(1, 2) i");
$node->safe_psql('postgres', 'create extension wed_sql');
finds('slots and walsenders', 'error', qr/all 2 replication slots/, qr/^alter system set max_replication_slots = 10;/);
finds('slots', 'error', qr/there is no slot wed_sql_/, qr/./);
ok($node->poll_query_until('postgres', "select state = 'backing off' and last_error like '%slots%' from wed_sql.status where datname = 'postgres'"),
	'the engine backs off');
finds('engine', 'error', qr/the engine is backing off .*slots/s, qr/./);
$node->safe_psql('postgres', "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'other%'");
wait_for_engine($node);
is_well($_, qr/./) for ('slots and walsenders', 'slots', 'engine');

# WAL that nobody reads, and a slot that is lost for that.
$node->safe_psql('postgres', "alter system set wed_sql.wal_warning = '1MB'");
$node->reload;
my ($own) = $node->safe_psql('postgres', "select slot_name from pg_replication_slots where slot_name like 'wed_sql_%'");
engine_off($node);
finds('engine', 'error', qr/the engine is off/, qr/wed_sql.enabled = on/);
$node->safe_psql('postgres', "select pg_create_physical_replication_slot('forgotten', true)");
$node->safe_psql('postgres', "select pg_logical_emit_message(false, 'x', repeat('x', 3000000))");
finds('slots', 'warning', qr/^slot forgotten, which is not wed_sql's, is not in use and keeps/, qr/^select pg_drop_replication_slot\('forgotten'\);/);
finds('slots', 'warning', qr/^slot $own of database "postgres" keeps \d/, qr/let the engine go on/);
$node->safe_psql('postgres', "select pg_drop_replication_slot('forgotten')");
$node->safe_psql('postgres', "alter system set max_slot_wal_keep_size = '1MB'");
$node->reload;
for (1 .. 3)
{
	$node->safe_psql('postgres', "select pg_logical_emit_message(false, 'x', 'x')");
	$node->safe_psql('postgres', 'select pg_switch_wal()');
}
$node->safe_psql('postgres', 'checkpoint');
finds('slots', 'warning', qr/^slot $own of database "postgres" is lost/, qr/max_slot_wal_keep_size/);
engine_on($node);
wait_for_engine($node);
is_well('slots', qr/lost/);

# A role that has not what the engine needs.
$node->safe_psql('postgres', 'create role weak_engine login');
$node->append_conf('postgresql.conf', "wed_sql.conninfo = 'user=weak_engine'");
$node->reload;
my $rights = finds("engine's role", 'error', qr/lacks LOGIN or REPLICATION/, qr/^alter role weak_engine login replication;/);
my $grant = finds("engine's role", 'error', qr/has no rights/, qr/^select wed_sql.grant_engine\('weak_engine'\);/);
$node->safe_psql('postgres', $_) for ($rights, $grant);
is_well("engine's role", qr/./);

stop_clean($node);
done_testing();
