# The engine is no standby: a commit that waited for it to apply the commit would wait for ever. With
# synchronous_standby_names = '*' it gives its place to the real standby, says what is wrong, and comes back by itself.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('primary');
$node->start;
create_figure2($node);
wait_for_engine($node);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);

foreach my $names ('*', "ANY 1 (standby, *)", "FIRST 2 (standby, \"wed_sql engine\")")
{
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	$node->poll_query_until('postgres', "select state = 'backing off' and last_error like 'synchronous_standby_names takes the engine for a standby%' from wed_sql.status")
	  or die 'the engine does not notice';
	pass("$names: wed_sql.status says what is wrong");
	next if $names =~ /FIRST 2/;    # there is one standby only
	my $timed_out;
	$node->psql('postgres', 'insert into travel.wed_flow default values', timeout => 60, timed_out => \$timed_out);
	ok(!$timed_out, '... and commits do not wait for the engine');
}
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$node->reload;
wait_for_engine($node);
is(jobs($node), "1 tr_a2\n1 tr_a3\n2 tr_a2\n2 tr_a3", 'when the standbys are named, it comes back by itself');
is(flaws($node), '', '... and has lost nothing');
is($node->safe_psql('postgres', 'select count(*) from travel.wed_trace where healed'), '0', '... not even a line');
is($node->safe_psql('postgres', "select string_agg(application_name, ',') from pg_stat_replication where sync_priority > 0"), 'standby', '... beside the standby');

$standby->stop;
$node->stop;
done_testing();
