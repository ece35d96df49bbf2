# A database that fails backs off alone: of ten with flows, three are broken in
# three ways, and the other seven go on at full speed; each of the three says once
# what it has, and recovers when it is mended.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WedSql;

my $limit = 17 * 1024 * 1024;	 # of a file, in bytes: WAL segments must fit
my $states = 1500;

my $node = new_server('apart');
# No session under the limit may have to write the pages of another database: so many buffers.
$node->append_conf('postgresql.conf', <<CONF);
wed_sql.conninfo = 'user=wed_engine'
wed_sql.discovery_interval = 1h
max_connections = 60
max_wal_senders = 20
max_replication_slots = 20
fsync = off
shared_buffers = 256MB
autovacuum = off
CONF
watch_machine();
$node->start;
my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
$node->safe_psql('postgres', 'create role wed_engine superuser login; create extension wed_sql');
$node->safe_psql('postgres', 'create database original');
create_figure2($node, 'original');
my @good = map { "good$_" } 1 .. 7;
my @bad = qw(refused damaged filled);
$node->safe_psql('postgres', "create database $_ template original") foreach @good, @bad;
$node->safe_psql('postgres', "create database plain$_") foreach 1 .. 10;
$node->safe_psql('postgres', 'drop database original');
wait_for_engine($node);

# Seconds to work off the states of the good ones.
sub work_off
{
	my $start = time;
	$node->safe_psql($_, "insert into travel.wed_flow select from generate_series(1, $states)") foreach @good;
	$node->safe_psql($_, 'select wed_sql.sync()') foreach @good;
	return time - $start;
}

# Ends the engine's sessions in a database, as whatever breaks it would not.
sub disconnect
{
	my ($db) = @_;
	$node->safe_psql('postgres', "select pg_terminate_backend(pid) from pg_stat_activity where datname = '$db'");
}

sub states_of
{
	my (@databases) = @_;
	my $names = join ',', map { "'$_'" } @databases;
	return $node->safe_psql('postgres', "select string_agg(distinct state, ', ') from wed_sql.status where datname in ($names)");
}

work_off();
my $alone = work_off();

# connections are refused
my $hba = $node->data_dir . '/pg_hba.conf';
my $lines = slurp_file($hba);
unlink $hba;
append_to_file($hba, "local refused wed_engine reject\n$lines");
$node->reload;
disconnect('refused');
# a table is damaged
$node->safe_psql('damaged', 'alter table wed_sql.follower rename to elsewhere');
# the disk is full for the files of one
system_or_bail('prlimit', "--pid=$postmaster", "--fsize=$limit:unlimited");
disconnect('filled');

$node->safe_psql('refused', 'insert into travel.wed_flow default values');
$node->safe_psql('damaged', 'insert into travel.wed_flow default values');
$node->safe_psql('filled', <<'SQL');
insert into travel.wed_attr (aname) values ('filler');
insert into travel.wed_flow (filler)
select (select string_agg(md5((random() + i + g)::text), '') from generate_series(1, 45) g) from generate_series(1, 6500) i;
SQL
foreach my $broken (
	[ 'refused', qr/^the server refuses the connection: pg_hba\.conf rejects connection.*local all wed_engine peer/ ],
	[ 'damaged', qr/relation "wed_sql\.follower" does not exist/ ],
	[ 'filled', qr/could not extend file .*File too large/ ])
{
	my ($db, $error) = @$broken;
	ok($node->poll_query_until('postgres', "select state = 'backing off' from wed_sql.status where datname = '$db'"),
		"$db: it backs off");
	like($node->safe_psql('postgres', "select last_error from wed_sql.status where datname = '$db'"), $error, '... and says why');
}

# whatever else keeps the machine busy may do so in one of the two
my $together = work_off();
for (1 .. 4)
{
	last if $together < 2 * $alone + 1;
	$together = work_off();
}
note sprintf('%d states in each of %d databases: %.2f s; with three broken ones beside them %.2f s, ratio %.2f',
	$states, scalar @good, $alone, $together, $together / $alone);
cmp_ok($together, '<', 2 * $alone + 1, 'the others go on at full speed');
is(states_of(@good), 'streaming', '... undisturbed');

# mended
unlink $hba;
append_to_file($hba, $lines);
$node->reload;
$node->safe_psql('damaged', 'alter table wed_sql.elsewhere rename to follower');
system_or_bail('prlimit', "--pid=$postmaster", '--fsize=unlimited:unlimited');
ok($node->poll_query_until('postgres', 'select bool_and(state = \'streaming\') from wed_sql.status'), 'mended, all of them are followed again')
  or diag $node->safe_psql('postgres', 'select datname, state, last_error from wed_sql.status');
is(jobs($node, 'refused'), "1 tr_a2\n1 tr_a3", '... what was written meanwhile too: refused');
is(jobs($node, 'damaged'), "1 tr_a2\n1 tr_a3", '... damaged');
is($node->safe_psql('filled', 'select wed_sql.sync() \g /dev/null
select count(*), count(distinct wid) from travel.job_pool'), '13000|6500', '... filled');
is($node->safe_psql('filled', 'select count(*), bool_or(healed) from travel.wed_trace'), '6500|f', '... with its history');
is(states_of(@good, @bad), 'streaming', 'all is well');

foreach my $db (@bad)
{
	my @told = log_lines($node, qr/cannot follow the database, will try again database=$db\b/);
	is(scalar @told, 1, "the log was told once: $db") or diag join "\n", @told;
}
is(scalar(log_lines($node, qr/cannot follow the database, will try again database=good/)), 0, '... and of no other');

stop_clean($node);
done_testing();
