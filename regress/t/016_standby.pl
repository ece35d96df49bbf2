# On a standby nothing runs and wed_sql.status says so; when it is promoted, its
# databases are followed.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $primary = new_server('primary');
$primary->append_conf('postgresql.conf', 'fsync = off');
watch_machine();
$primary->start;
create_figure2($primary);
$primary->safe_psql('postgres', 'insert into travel.wed_flow default values');
is(jobs($primary), "1 tr_a2\n1 tr_a3", 'the primary follows');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

is($standby->safe_psql('postgres', 'select state, slot_name, engine_pid, lag_bytes from wed_sql.status'), 'standby|||', 'wed_sql.status of a standby');
my ($ret, $out, $err) = $standby->psql('postgres', 'select wed_sql.sync()');
like($err, qr/ERROR:  recovery is in progress/, 'wed_sql.sync() refuses');
my $start = time;
$standby->stop('smart');
cmp_ok(time - $start, '<', patience(10), 'it can be stopped');
$standby->start;

$primary->safe_psql('postgres', 'insert into travel.wed_flow default values');
$primary->wait_for_catchup($standby);
$primary->stop;
$standby->promote;
wait_for_engine($standby);
is(jobs($standby), "1 tr_a2\n1 tr_a3\n2 tr_a2\n2 tr_a3", 'promoted, it follows');
perform($standby, 1, 'tr_a2', "a2 = 'x'");
is(jobs($standby), "1 tr_a3\n2 tr_a2\n2 tr_a3", '... and goes on');

stop_clean($standby);
done_testing();
