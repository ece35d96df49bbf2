# A commit can be read from the WAL before other sessions see it. A job appears
# only when its instance does.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('visibility');
$node->start;
create_figure2($node);
wait_for_engine($node);

my $listener = $node->background_psql('postgres');
$listener->query_safe('listen tr_a2');

# a standby that is not there keeps the commit from being seen
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
my $writer = $node->background_psql('postgres');
$writer->query_until(qr/start/, "\\echo start\ninsert into travel.wed_flow default values;\n");
$node->poll_query_until('postgres', "select count(*) = 1 from pg_stat_activity where wait_event = 'SyncRep'")
  or die 'the writer does not wait';
ok($node->poll_query_until('postgres',
	"select count(*) = 1 from pg_stat_activity where application_name = 'wed_sql engine' and wait_event = 'transactionid'"),
	'the engine has read the commit, and waits for it');
is($node->safe_psql('postgres', 'select count(*) from travel.wed_flow'), '0', 'the instance is not there yet');
is($node->safe_psql('postgres', 'select count(*) from travel.job_pool'), '0', '... nor are its jobs');
unlike($listener->query_safe('select 1'), qr/Asynchronous/, '... nor has anybody been notified');

$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$node->poll_query_until('postgres', 'select count(*) = 1 from travel.wed_flow') or die 'the writer still waits';
is(jobs($node), "1 tr_a2\n1 tr_a3", 'both come together');
like($listener->query_safe('select 1'), qr/Asynchronous notification "tr_a2"/, '... and so does the notification');

$writer->quit;
$listener->quit;
$node->stop;
done_testing();
