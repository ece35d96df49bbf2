# A state of 15 MB is matched like any other, and what the engine needs for it is bounded, also when several come at
# once and when they are healed; a notification of it comes without the state.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('large');
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);

# in MB, since it started
sub peak
{
	my ($pid) = @_;
	my ($peak) = slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m;
	return int($peak / 1024);
}

my $listener = $node->background_psql('postgres');
$listener->query_safe('listen tr_a3');
my $before = peak($engine);
my $large = "repeat('0123456789abcdef', 983040)";
$node->safe_psql('postgres', "insert into travel.wed_flow (a2) values ($large)");
is(jobs($node), '1 tr_a3', 'a state of 15 MB fires what it is to fire');
like($listener->query_safe('select 1'), qr/"payload_omitted":true/, '... and is notified without the state');
my $one = peak($engine);
diag "VmHWM: $before MB before, $one MB after one state of 15 MB";
cmp_ok($one, '<', 250, '... within a bound');

$node->safe_psql('postgres', "insert into travel.wed_flow (a2) select $large from generate_series(1, 2)");
is(jobs($node), join("\n", map { "$_ tr_a3" } 1 .. 3), 'so do two of one transaction');
my $two = peak($engine);
diag "VmHWM: $two MB after two more";
cmp_ok($two, '<', 350, '... and not at once');
is($node->safe_psql('postgres', "select count(*) from travel.wed_trace where length(state ->> 'a2') = 15 * 1024 * 1024"), '3', 'the history has them whole');

# healed
engine_off($node);
$node->safe_psql('postgres', "delete from travel.wed_trace; delete from travel.job_pool; update wed_sql.followed set since = null");
engine_on($node);
wait_until_followed($node);
is(jobs($node), join("\n", map { "$_ tr_a3" } 1 .. 3), 'so do those that are healed');
$engine = engine_pid($node);
diag 'VmHWM: ' . peak($engine) . ' MB after healing three';
cmp_ok(peak($engine), '<', 350, '... one after the other');
is(flaws($node), '', '... in order');

$listener->quit;
$node->stop;
done_testing();
