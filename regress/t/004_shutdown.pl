# However the server goes down, no process stays; and when it comes up again,
# what was in flight goes on.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('shutdown');
watch_machine();
$node->start;
create_figure2($node);
wait_for_engine($node);

sub postmaster_pid
{
	return (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
}

sub in_flight
{
	my ($how, $down) = @_;
	my $engine = wait_for_engine($node);
	my @family = children(postmaster_pid());
	ok((grep { $_ == $engine } @family), "$how: the engine is one of the server's");

	# one state that the engine has seen, one that it has not
	my $wid = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
	my $tgid = job_tgid($node, $wid, 'tr_a2');
	kill 'STOP', $engine if $how !~ /^(fast|smart) shutdown$/;
	$node->safe_psql('postgres', <<SQL);
begin;
select wed_sql.try_lock($wid, $tgid);
update travel.wed_flow set a2 = 'x' where wid = $wid;
commit;
SQL
	push @family, children(postmaster_pid());
	$down->();
	is(join(' ', grep { !wait_until_gone($_) } @family), '', "$how: no process is left");

	$node->start;
	perform($node, $wid, 'tr_a3', "a3 = 'y'");
	perform($node, $wid, 'tr_final', "a1 = 'done'");
	is(trace($node, $wid), figure2_trace('tr_a2', 'tr_a3'), "$how: the flow goes on");
	is(jobs($node), '', "$how: nothing is left to do");
}

in_flight('fast shutdown', sub { $node->stop('fast') });

# the server waits for its clients, of which the engine must not be the last
$node->append_conf('postgresql.conf', 'wed_sql.discovery_interval = 1h');
$node->reload;
in_flight('smart shutdown',
	sub {
		my $start = time;
		$node->stop('smart');
		cmp_ok(time - $start, '<', patience(10), 'smart shutdown: does not wait for the engine');
	});
in_flight('fast shutdown of an engine that does not answer', sub { $node->stop('fast') });
in_flight('immediate shutdown', sub { $node->stop('immediate') });
in_flight('kill -9 of the postmaster',
	sub {
		my $postmaster = postmaster_pid();
		$node->kill9;
		wait_until_gone($postmaster);
		# until somebody has buried it, it looks alive to the next one
		unlink $node->data_dir . '/postmaster.pid', $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	});

# a crash of a backend restarts the server within, and the engine with it
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->restart;
my $engine = wait_for_engine($node);
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $victim->query_safe('select pg_backend_pid()');
kill 'KILL', $pid;
ok(wait_until_gone($engine), 'crash of a backend: the engine ends');
$node->poll_query_until('postgres', 'select true');
isnt(wait_for_engine($node, $engine), $engine, 'crash of a backend: another comes');
$victim->{run}->finish;
my $new = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
perform($node, $new, 'tr_a2', "a2 = 'x'");
like(trace($node, $new), qr/1 tr_a2/, 'crash of a backend: flows go on');

$node->stop;
done_testing();
