# The paper's protocol, typed into plain psql sessions, drives Figure 2 to its
# final state; and a notification says what is needed to do so.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('protocol');
$node->start;
create_figure2($node);
wait_for_engine($node);

# Returns the notifications that a listening session has got.
sub heard
{
	my ($session) = @_;
	$node->safe_psql('postgres', 'select wed_sql.sync()');
	my $out = $session->query_safe('select 1');
	return $out =~ /Asynchronous notification "([^"]*)" with payload "(.*)" received/g;
}

my %worker = map { $_ => $node->background_psql('postgres') } qw(tr_a2 tr_a3 tr_final);
$worker{$_}->query_safe(qq(listen "$_")) foreach keys %worker;

$node->safe_psql('postgres', 'insert into travel.wed_flow default values');

# One transition: the notification, the lock, the next state.
sub work
{
	my ($trname, $assignment, $timeout, $state) = @_;
	my $session = $worker{$trname};
	my ($channel, $payload) = heard($session);
	is($channel, $trname, "$trname is notified on its own channel");
	my ($wid) = $payload =~ /"wid": ?(\d+)/;
	my ($tgid) = $payload =~ /"tgid": ?(\d+)/;
	is($node->safe_psql('postgres', "select \$\$$payload\$\$::jsonb - 'tgid' = '$state'::jsonb"),
		't', "... with the job as payload")
	  or diag $payload;
	is($node->safe_psql('postgres', "select trname from travel.job_pool where wid = $wid and tgid = $tgid"),
		$trname, '... after it is visible');
	$session->query_safe('begin');
	is($session->query_safe("select pg_try_advisory_xact_lock($wid, $tgid)"), 't', '... and its lock is free');
	$session->query_safe("update travel.wed_flow set $assignment where wid = $wid");
	$session->query_safe('commit');
}

work('tr_a2', "a2 = 'flight'", '3 days 18:00:00',
	'{"flow": "travel", "wid": 1, "trname": "tr_a2", "timeout": "3 days 18:00:00", "payload": {"a1": "ready", "a2": null, "a3": null}}');
work('tr_a3', "a3 = 'hotel'", '00:00:30',
	'{"flow": "travel", "wid": 1, "trname": "tr_a3", "timeout": "00:00:30", "payload": {"a1": "ready", "a2": null, "a3": null}}');
work('tr_final', "a1 = 'done'", '00:00:10',
	'{"flow": "travel", "wid": 1, "trname": "tr_final", "timeout": "00:00:10", "payload": {"a1": "ready", "a2": "flight", "a3": "hotel"}}');
is(trace($node, 1), figure2_trace('tr_a2', 'tr_a3'), 'Figure 2 ends in F');
is(jobs($node), '', 'nothing is left to do');
is(scalar heard($worker{$_}), '', "$_ was notified once") foreach sort keys %worker;

# an exception is notified like everything else
my $recovery = $node->background_psql('postgres');
$recovery->query_safe('listen "_EXCPT"');
$node->safe_psql('postgres', "insert into travel.wed_attr (aname) values ('lost'); insert into travel.wed_trig (trname, cpred) values ('lose', \$\$lost = 'soon'\$\$)");
$node->safe_psql('postgres', "update travel.wed_trig set cpred = \$\$a1 = 'done'\$\$ where cfinal; insert into travel.wed_flow (a1, lost) values ('x', 'soon')");
perform($node, 2, 'lose', "lost = 'yes'");
my ($channel, $payload) = heard($recovery);
is($channel, '_EXCPT', 'an exception is notified');
like($payload, qr/"lost": ?"yes"/, '... with the state');

# beyond what NOTIFY carries: at 7,999 bytes the state goes
$worker{lose} = $node->background_psql('postgres');
$worker{lose}->query_safe('listen lose');
sub notified_with_note_of
{
	my ($length) = @_;
	$node->safe_psql('postgres', "insert into travel.wed_flow (a1, lost, note) values ('x', 'soon', repeat('n', $length))");
	return (heard($worker{lose}))[1];
}
$node->safe_psql('postgres', "insert into travel.wed_attr (aname) values ('note')");
my $overhead = length(notified_with_note_of(1)) - 1;
my $whole = notified_with_note_of(7999 - $overhead);
is(length $whole, 7999, 'a payload of 7,999 bytes goes whole');
like($whole, qr/"note"/, '... with its state');
my $cut = notified_with_note_of(8000 - $overhead);
unlike($cut, qr/"payload":/, 'one of 8,000 bytes goes without its state');
like($cut, qr/"payload_omitted": ?true/, '... and says so');
my ($wid) = $cut =~ /"wid": ?(\d+)/;
is($node->safe_psql('postgres', "select length(payload ->> 'note') from travel.job_pool where wid = $wid"),
	8000 - $overhead, '... which is in the job');

$_->quit foreach $recovery, values %worker;
$node->stop;
done_testing();
