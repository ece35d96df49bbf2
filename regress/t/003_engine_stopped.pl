# A follower that lags makes no difference: both branches of a parallel commit
# while the engine is stopped, and nothing fires twice, and the join fires once.
# An engine that stands still for good is replaced.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('stopped');
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);

my $listener = $node->background_psql('postgres');
$listener->query_safe('listen tr_a2; listen tr_a3; listen tr_final');

foreach my $order ([qw(tr_a2 tr_a3)], [qw(tr_a3 tr_a2)])
{
	my $wid = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
	my %tgid = map { $_ => job_tgid($node, $wid, $_) } @$order;

	kill 'STOP', $engine;
	foreach my $trname (@$order)
	{
		my ($attribute) = $trname =~ /tr_(.*)/;
		$node->safe_psql('postgres', <<SQL);
begin;
select wed_sql.try_lock($wid, $tgid{$trname});
update travel.wed_flow set $attribute = 'x' where wid = $wid;
commit;
SQL
	}
	is($node->safe_psql('postgres', "select count(*) from travel.job_pool where wid = $wid"),
		'0', 'both jobs are completed at once');
	is($node->safe_psql('postgres', "select count(*) from travel.wed_trace where wid = $wid"),
		'1', '... though the engine has seen neither');
	# what is not fired yet cannot be done
	my ($ret, $out, $err) = $node->psql('postgres', "update travel.wed_flow set a1 = 'done' where wid = $wid");
	like($err, qr/cannot be changed without the lock/, '... and nobody can go ahead');
	# a rule that is made now is too late for these states
	$node->safe_psql('postgres', "insert into travel.wed_trig (trname, cpred) values ('late', 'a2 is not null and a3 is not null')");
	kill 'CONT', $engine;

	is(jobs($node), "$wid tr_final", 'the join fires once, and nothing else does');
	is(trace($node, $wid), join("\n", (split /\n/, figure2_trace(@$order))[0 .. 2]), 'the history is exact');
	$node->safe_psql('postgres', "delete from travel.wed_trig where trname = 'late'");
	perform($node, $wid, 'tr_final', "a1 = 'done'");
	is(trace($node, $wid), figure2_trace(@$order), 'and stays so to the end');
}
my @heard = $listener->query_safe('select 1') =~ /Asynchronous notification "(\w+)"/g;
is("@{[sort @heard]}", 'tr_a2 tr_a2 tr_a3 tr_a3 tr_final tr_final', 'each job was notified once');

# a whole flow, many instances, all behind its back
kill 'STOP', $engine;
$node->safe_psql('postgres', 'insert into travel.wed_flow select from generate_series(1, 2000)');
kill 'CONT', $engine;
is($node->safe_psql('postgres', 'select wed_sql.sync() \g /dev/null
select count(*), count(distinct wid) from travel.job_pool'), '4000|2000', 'a backlog is worked off');

# sync says what it waits for
kill 'STOP', $engine;
my ($ret, $out, $err) = $node->psql('postgres', q{\set VERBOSITY verbose
select wed_sql.sync('100 ms')});
like($err, qr/WED14/, 'sync gives up after its timeout');
kill 'CONT', $engine;
is($node->safe_psql('postgres', q{select wed_sql.sync() is null}), 'f', 'and works again');

$listener->quit;

# one that has nothing to say is asked now and then, and answers
$node->safe_psql('postgres', $_) for "alter system set wed_sql.engine_timeout = '2s'", 'select pg_reload_conf()';
$node->safe_psql('postgres', 'select pg_sleep(8)');
is(engine_pid($node), $engine, 'an engine at rest is not taken for one that hangs');

my $logged = -s $node->logfile;
kill 'STOP', $engine;
my $wid = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
isnt(wait_for_engine($node, $engine), $engine, 'an engine that hangs is replaced by another, though nobody waits for it');
like(jobs($node), qr/^$wid tr_a2$/m, '... which does what there was to do');
ok($node->log_contains("wed_sql engine \\(PID $engine\\) does not answer and is terminated", $logged), '... and the log says so');
ok(wait_until_gone($engine), '... and nothing is left of it');

$node->stop;
done_testing();
