# WAL that a slot keeps back does not grow unseen: the log warns of it, also with
# the engine off, hung or not meant to come, and wed_sql.status is right without it.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('retained');
$node->append_conf('postgresql.conf', "wed_sql.discovery_interval = 1s\nfsync = off\nautovacuum = off");
$node->start;
create_figure2($node);
$node->safe_psql('postgres', 'create database other');
create_figure2($node, 'other');
my $engine = wait_for_engine($node);
my %oid = map { split /\|/ } split /\n/, $node->safe_psql('postgres', 'select datname, oid from pg_database');

sub fill
{
	my ($megabytes) = @_;
	$node->safe_psql('postgres', "select count(pg_logical_emit_message(false, 'test', repeat('x', 1024 * 1024))) from generate_series(1, $megabytes)");
}

# Until the log has n warnings of the slot of a database.
sub warned
{
	my ($db, $n, $what) = @_;
	my @lines;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		@lines = log_lines($node, qr/WARNING:  replication slot "wed_sql_$oid{$db}" keeps back \d+ MB of WAL/);
		last if @lines >= $n;
		select(undef, undef, undef, 0.1);
	}
	return is(scalar @lines, $n, $what) || diag join "\n", @lines;
}

sub status
{
	my ($db, $columns) = @_;
	return $node->safe_psql('postgres', "select $columns from wed_sql.status where datname = '$db'");
}

# What making the other database has written is not kept back any more.
ok($node->poll_query_until('postgres', 'select wed_sql.log_running_transactions() is not null and bool_and(retained_bytes < 500000) from wed_sql.status'), 'an engine that follows keeps little back');

# the engine is off
$node->append_conf('postgresql.conf', "wed_sql.enabled = off\nwed_sql.wal_warning = 4MB");
$node->reload;
$node->poll_query_until('postgres', 'select count(*) = 0 from pg_replication_slots where active');
fill(6);
warned('postgres', 1, 'engine off: the log warns of WAL that is kept back');
warned('other', 1, '... of each slot');
is(status('other', "state, slot_name, retained_bytes > 4 * 1024 * 1024"), "off|wed_sql_$oid{other}|t", '... and wed_sql.status shows it');
like(slurp_file($node->logfile), qr/keeps back.*\n.*DETAIL:  The engine does not follow [^\n]*, because wed_sql\.enabled is off\.\n.*HINT:  .*max_slot_wal_keep_size/,
	'... with the reason, and the setting that limits it');
# It may have warned in the middle of that, at 4 MB, and may warn in the middle of this, too.
fill(1);
is(status('other', 'state'), 'off', '... not again for a little more');
fill(8);
warned('other', 2, '... but for twice as much');
warned('postgres', 2, '... of each slot');
is(scalar(log_lines($node, qr/keeps back .* MB of WAL/)), 4, '... and no more often');

$node->restart;
is($node->safe_psql('postgres', "select string_agg(datname || ' ' || state || ' ' || (retained_bytes > 4 * 1024 * 1024)::text, ', ' order by datname) from wed_sql.status"),
	'other off true, postgres off true', 'an engine that was never there: wed_sql.status has a row for each slot');

# a template, and a database that refuses connections
$node->safe_psql('postgres', 'alter database other is_template true');
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
ok($node->poll_query_until('postgres', "select state = 'left alone' from wed_sql.status where datname = 'other'"), 'a template is left alone');
like(status('other', 'last_error'), qr/is a template.*pg_drop_replication_slot\('wed_sql_$oid{other}'\)/, '... and its slot is not forgotten');
is(status('other', 'retained_bytes > 4 * 1024 * 1024'), 't', '... nor what it keeps back');
$node->safe_psql('postgres', 'alter database other is_template false');
ok($node->poll_query_until('postgres', "select state = 'streaming' from wed_sql.status where datname = 'other'"), 'no template any more: followed at once');
$node->safe_psql('postgres', 'alter database other allow_connections false');
ok($node->poll_query_until('postgres', "select state = 'left alone' from wed_sql.status where datname = 'other'"), 'a database that refuses connections is left alone');
like(status('other', 'last_error'), qr/does not allow connections/, '... and says so');
$node->safe_psql('postgres', 'alter database other allow_connections true');
ok($node->poll_query_until('postgres', "select state = 'streaming' from wed_sql.status where datname = 'other'"), '... until it allows them');
ok($node->poll_query_until('postgres', 'select wed_sql.log_running_transactions() is not null and bool_and(retained_bytes < 4 * 1024 * 1024) from wed_sql.status', 't'), 'what was kept back is given free');

# an engine that hangs, of which the log has not been told anything yet
$node->restart;
my $hanging = wait_for_engine($node);
my $since = -s $node->logfile;
kill 'STOP', $hanging;
fill(6);
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if log_lines($node, qr/keeps back/, $since) >= 2;
	select(undef, undef, undef, 0.1);
}
like(substr(slurp_file($node->logfile), $since), qr/keeps back.*\n.*DETAIL:  The engine is behind in database "other", or does not answer\./,
	'an engine that hangs: the log warns');
kill 'CONT', $hanging;

# 0 turns it off
$node->append_conf('postgresql.conf', "wed_sql.wal_warning = 0\nwed_sql.enabled = off");
$node->reload;
$since = -s $node->logfile;
fill(20);
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
wait_for_engine($node);
is(scalar(log_lines($node, qr/keeps back/, $since)), 0, 'wed_sql.wal_warning = 0: no warning');

# who monitors the server may look
$node->safe_psql('postgres', 'create role monitor login in role pg_monitor; grant usage on schema wed_sql to monitor');
is($node->safe_psql('postgres', 'select count(*) from wed_sql.status', extra_params => [ '-U', 'monitor' ]), '2', 'pg_monitor can read wed_sql.status');

stop_clean($node);
done_testing();
