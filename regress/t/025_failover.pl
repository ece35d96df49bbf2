# From PostgreSQL 17 on the slot can be kept on a standby, too: after its promotion the stream goes on, and not even a
# line of the history is missing.
use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('primary');
plan skip_all => 'slots are kept on standbys from PostgreSQL 17 on' if $node->pg_version < 17;
$node->start;
create_figure2($node);
wait_for_engine($node);
is($node->safe_psql('postgres', 'select failover from pg_replication_slots'), 't', 'the slot is one for failover');
$node->safe_psql('postgres', "select pg_create_physical_replication_slot('standby')");
$node->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
my $connstr = $node->connstr;
$standby->append_conf('postgresql.conf', <<CONF);
hot_standby_feedback = on
sync_replication_slots = on
primary_slot_name = 'standby'
primary_conninfo = '$connstr dbname=postgres'
CONF
$standby->start;
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
my %tgid = map { $_ => job_tgid($node, 1, $_) } qw(tr_a2 tr_a3);
$standby->poll_query_until('postgres', 'select count(*) = 1 from pg_replication_slots where synced and not temporary and invalidation_reason is null')
  or die 'the slot is not kept on the standby';

# two states that the engine has not seen
engine_off($node);
foreach my $trname (qw(tr_a2 tr_a3))
{
	$node->safe_psql('postgres', "begin; select 1 / wed_sql.try_lock(1, $tgid{$trname})::int;
		update travel.wed_flow set " . substr($trname, 3) . " = 'x' where wid = 1; commit");
}
$node->wait_for_catchup($standby);
$node->stop;
$standby->promote;
engine_on($standby);
wait_for_engine($standby);
wait_until_followed($standby);
is(jobs($standby), '1 tr_final', 'what is due after the promotion is pending');
perform($standby, 1, 'tr_final', "a1 = 'done'");
is(trace($standby, 1), figure2_trace('tr_a2', 'tr_a3'), '... and the history has every line');
is($standby->safe_psql('postgres', 'select count(*) from travel.wed_trace where healed'), '0', '... without a gap');
is(flaws($standby), '', '... in order');
unlike(slurp_file($standby->logfile), qr/made a new replication slot/, '... by the slot that was kept');

$standby->stop;
done_testing();
