# A server that is not set up for it says so, names the setting, and is not
# flooded with complaints.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = PostgreSQL::Test::Cluster->new('settings');
$node->init;
$node->append_conf('postgresql.conf', "wal_level = replica\nmax_wal_senders = 10\nlog_statement = none");
$node->start;

# not preloaded
my ($ret, $out, $err) = $node->psql('postgres', 'create extension wed_sql');
like($err, qr/ERROR:  wed_sql must be loaded via shared_preload_libraries/, 'not preloaded: refused');
like($err, qr/HINT:  .*postgresql\.conf, restart the server/, '... with what to do');

# preloaded, but without logical decoding
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'wed_sql'");
$node->restart;
($ret, $out, $err) = $node->psql('postgres', 'create extension wed_sql');
is($ret, 0, 'wal_level = replica: the extension can be created');
like($err, qr/WARNING:  wal_level is "replica"/, '... with a warning');
create_figure2($node);
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
($ret, $out, $err) = $node->psql('postgres', 'select wed_sql.sync()');
like($err, qr/ERROR:  wal_level must be "logical"/, '... sync says why it cannot');
ok($node->poll_query_until('postgres', "select state = 'backing off' and last_error ~ 'wal_level' from wed_sql.status"),
	'... and so does wed_sql.status')
  or diag $node->safe_psql('postgres', 'select state, last_error from wed_sql.status');
my @complaints = slurp_file($node->logfile) =~ /^.*wal_level.*(?:WARNING|ERROR|LOG).*$|^.*(?:WARNING|ERROR|LOG):.*wal_level.*$/mg;
cmp_ok(scalar @complaints, '<', 10, '... and the log, a few times at most')
  or diag join "\n", @complaints;

# what was written meanwhile is not lost
$node->append_conf('postgresql.conf', 'wal_level = logical');
$node->restart;
is(jobs($node), "1 tr_a2\n1 tr_a3", 'set up: what was written before is matched');

# no slot to be had
$node->safe_psql('postgres', 'create database other');
$node->append_conf('postgresql.conf', 'max_replication_slots = 1');
$node->restart;
create_figure2($node, 'other');
$node->safe_psql('other', 'insert into travel.wed_flow default values');
ok($node->poll_query_until('postgres', "select state = 'backing off' and last_error ~ 'slots' from wed_sql.status where datname = 'other'"),
	'max_replication_slots: wed_sql.status says what is missing')
  or diag $node->safe_psql('postgres', 'select datname, state, last_error from wed_sql.status');
perform($node, 1, 'tr_a2', "a2 = 'x'");
is(jobs($node), '1 tr_a3', '... and the database that has its slot goes on');

# the engine can be turned off and on
$node->append_conf('postgresql.conf', "max_replication_slots = 10\nwed_sql.enabled = off");
$node->restart;
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
is($node->safe_psql('postgres', 'select distinct state from wed_sql.status'), 'off', 'wed_sql.enabled = off: says so');
is($node->safe_psql('postgres', 'select count(*) from travel.job_pool where wid = 2'), '0', '... and nothing fires');
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
is(jobs($node), "1 tr_a3\n2 tr_a2\n2 tr_a3", 'on again, without a restart: it does');
is(jobs($node, 'other'), "1 tr_a2\n1 tr_a3", '... in all databases');

$node->stop;
done_testing();
