# A dump of a database with running flows, restored in any way, into a new database of the same cluster or of another:
# rules, instances, history and jobs are back and go on from where they were, and nothing fires twice or is missed,
# also if the engine was behind when the dump was taken.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('dump');
my $other = new_server('other');
foreach my $server ($node, $other)
{
	$server->append_conf('postgresql.conf', 'max_connections = 40');    # there are ten by default here
	$server->start;
}
my $dir = PostgreSQL::Test::Utils::tempdir();

# instances 1 to 4 in the states of Figure 2, up to the final one
$node->safe_psql('postgres', 'create database source');
create_figure2($node, 'source');
$node->safe_psql('source', 'insert into travel.wed_flow default values') for 1 .. 4;
perform($node, $_, 'tr_a2', "a2 = 'x'", 'source') for 2 .. 4;
perform($node, $_, 'tr_a3', "a3 = 'x'", 'source') for 3 .. 4;
perform($node, 4, 'tr_final', "a1 = 'done'", 'source');
is(flaws($node, 'source'), '', 'the source is in order');
my $history = $node->safe_psql('source', 'table travel.wed_trace order by wid, version');
my $tgid = $node->safe_psql('source', "select tgid from travel.wed_trig where trname = 'tr_a2'");
my $last_tgid = $node->safe_psql('source', 'select last_value from wed_sql.tgid_seq');

sub dump_source
{
	my ($name) = @_;
	foreach my $format ('plain', 'custom', 'directory')
	{
		my ($out, $err) = run_command(['pg_dump', '--format', $format, '--file', "$dir/$name.$format", '--dbname', $node->connstr('source')]);
		is($err, '', "$name: pg_dump, $format, warns of nothing");
	}
}

my %restore = (
	plain => sub { my ($to, $db, $name) = @_; ['psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/$name.plain", '-d', $to->connstr($db)] },
	custom => sub { my ($to, $db, $name) = @_; ['pg_restore', '--exit-on-error', '-d', $to->connstr($db), "$dir/$name.custom"] },
	single => sub { my ($to, $db, $name) = @_; ['pg_restore', '--single-transaction', '-d', $to->connstr($db), "$dir/$name.custom"] },
	parallel => sub { my ($to, $db, $name) = @_; ['pg_restore', '--exit-on-error', '-j', 2, '-d', $to->connstr($db), "$dir/$name.directory"] },);

# Restores into a new database, and returns it when its flows are followed.
sub restored
{
	my ($to, $how, $name) = @_;
	my $db = "${name}_$how";
	$to->safe_psql('postgres', "create database $db");
	ok(run_log($restore{$how}->($to, $db, $name)), "$db: restored") or die 'not restored';
	wait_until_followed($to, $db);
	is(flaws($to, $db), '', '... and everything is as Algorithm 1 says');
	is($to->safe_psql($db, 'select last_value from wed_sql.tgid_seq'), $last_tgid, '... the sequence goes on');
	is($to->safe_psql($db, "select string_agg(tgenabled::text, '') from pg_trigger where tgrelid = 'travel.wed_flow'::regclass and not tgisinternal"),
		'AA', '... the guard is there');
	return $db;
}

dump_source('current');
foreach my $case ([$node, 'plain'], [$node, 'parallel'], [$other, 'custom'], [$other, 'single'])
{
	my ($to, $how) = @$case;
	my $db = restored($to, $how, 'current');
	is($to->safe_psql($db, 'table travel.wed_trace order by wid, version'), $history, '... the history is the same');
	is(jobs($to, $db), "1 tr_a2\n1 tr_a3\n2 tr_a3\n3 tr_final", '... so are the jobs');
	perform($to, 1, 'tr_a3', "a3 = 'y'", $db);
	perform($to, 1, 'tr_a2', "a2 = 'y'", $db);
	perform($to, 1, 'tr_final', "a1 = 'done'", $db);
	is(trace($to, 1, $db), figure2_trace('tr_a3', 'tr_a2'), '... instances go on');
	is($to->safe_psql($db, 'insert into travel.wed_flow default values returning wid'), '5', '... new ones begin');
	is(jobs($to, $db), "2 tr_a3\n3 tr_final\n5 tr_a2\n5 tr_a3", '... and each job is there once');
	is($to->safe_psql($db, "insert into travel.wed_trig (trname, cpred) values ('more', 'false') returning tgid > $last_tgid"), 't', '... so are rules');
	is($to->safe_psql($db, 'select count(*) from travel.wed_trace where healed'), '0', '... and nothing was missed');
}

# the engine is behind: 1 has gone two states on and 5 has begun, without a line
engine_off($node);
my %tgid = map { $_ => $node->safe_psql('source', "select tgid from travel.wed_trig where trname = '$_'") } qw(tr_a2 tr_a3);
$node->safe_psql('source', "begin; select 1 / wed_sql.try_lock(1, $tgid{$_})::int; update travel.wed_flow set " . substr($_, 3) . " = 'x' where wid = 1; commit")
  foreach qw(tr_a2 tr_a3);
$node->safe_psql('source', 'insert into travel.wed_flow default values');
dump_source('behind');
engine_on($node);
foreach my $case ([$other, 'plain'], [$node, 'custom'], [$node, 'single'], [$other, 'parallel'])
{
	my ($to, $how) = @$case;
	my $db = restored($to, $how, 'behind');
	is(jobs($to, $db), "1 tr_final\n2 tr_a3\n3 tr_final\n5 tr_a2\n5 tr_a3", '... what is due is pending');
	is($to->safe_psql($db, 'select wid, version from travel.wed_trace where healed'), '1|2', '... and the history says where a line is missing');
	perform($to, 1, 'tr_final', "a1 = 'done'", $db);
	perform($to, 5, 'tr_a2', "a2 = 'y'", $db);
	is(trace($to, 5, $db), "0 > tr_a2,tr_a3 R\n1 tr_a2 >  R", '... instances go on');
	is(jobs($to, $db), "2 tr_a3\n3 tr_final\n5 tr_a3", '... and each job is there once');
	is(flaws($to, $db), '', '... in order');
}
is(jobs($node, 'source'), "1 tr_final\n2 tr_a3\n3 tr_final\n5 tr_a2\n5 tr_a3", 'the source has gone on, too');
is($node->safe_psql('source', 'select count(*) from travel.wed_trace where healed'), '0', '... with all of its history');
is(flaws($node, 'source'), '', '... in order');

# a flow that was restored may be anybody's table: it is healed all the same, and a broken one disturbs nobody
is($node->safe_psql('postgres', "select count(*) from wed_sql.status where state <> 'streaming'"), '0', 'all databases are followed')
  if $node->safe_psql('postgres', "select count(*) from pg_extension where extname = 'wed_sql'");

$_->stop foreach $node, $other;
done_testing();
