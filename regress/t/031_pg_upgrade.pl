# pg_upgrade takes flows along: what was matched stays as it is, what was not is
# healed, the extension is complete, and no slot of the old cluster is needed.
use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $older = $ENV{WED_SQL_OLDER_BINDIR}
  or plan skip_all => 'needs an older PostgreSQL with wed_sql: scripts/check versions';
chomp(my $newer = `pg_config --bindir`);
my $snapshot = slurp_file(dirname(abs_path(__FILE__)) . '/../include/snapshot.sql');

my $old = new_server('old', cluster => { install_path => dirname($older) });
# what the test's library sets for its own version only
$old->adjust_conf('postgresql.conf', 'autovacuum_worker_slots', undef) if $old->pg_version < 18;
$old->start;

# One database that the engine is done with, and one that it has not seen the last states of.
foreach my $db ('done', 'behind')
{
	$old->safe_psql('postgres', "create database $db");
	create_figure2($old, $db);
	$old->safe_psql($db, 'insert into travel.wed_flow default values');
	perform($old, 1, 'tr_a2', "a2 = 'x'", $db);
	is(jobs($old, $db), '1 tr_a3', "$db: a flow before pg_upgrade");
}
my $tgid = job_tgid($old, 1, 'tr_a3', 'behind');
$old->append_conf('postgresql.conf', 'wed_sql.enabled = off');
$old->reload;
$old->poll_query_until('postgres', 'select not bool_or(active) from pg_replication_slots');
$old->safe_psql('behind', <<SQL);
begin;
select wed_sql.try_lock(1, $tgid);
update travel.wed_flow set a3 = 'x' where wid = 1;
insert into travel.wed_flow default values;
commit;
SQL
my $history = $old->safe_psql('done', 'select * from travel.wed_trace order by wid, version');

# From 17 on pg_upgrade keeps slots, and insists that all of the WAL was read through them,
# which the engine's own last transaction never was.
if ($old->pg_version >= 17)
{
	$old->safe_psql('postgres', "select pg_drop_replication_slot(slot_name) from pg_replication_slots");
}
$old->stop;

my $new = new_server('new', init => { extra => `$newer/initdb --help` =~ /--no-data-checksums/ ? ['--no-data-checksums'] : [] });
chdir ${PostgreSQL::Test::Utils::tmp_check};
command_ok(
	[
		'pg_upgrade', '--no-sync', '--retain', '--old-datadir' => $old->data_dir, '--new-datadir' => $new->data_dir,
		'--old-bindir' => $older, '--new-bindir' => $newer, '--socketdir' => $new->host,
		'--old-port' => $old->port, '--new-port' => $new->port
	],
	'pg_upgrade from ' . $old->pg_version . ' to ' . $new->pg_version);
my $logs = join '', map { slurp_file($_) } glob $new->data_dir . '/pg_upgrade_output.d/*/log/*server*.log';
isnt($logs, '', '... has run both servers');
unlike($logs, qr/engine started/, '... without the engine');

$new->start;
foreach my $db ('done', 'behind')
{
	ok($new->poll_query_until($db, "select state = 'streaming' from wed_sql.status where datname = current_database()"),
		"$db: the engine is there");
	$new->safe_psql($db, 'select wed_sql.sync()');
}
is($new->safe_psql('done', 'select * from travel.wed_trace order by wid, version'), $history, 'history is as it was');
is($new->safe_psql('behind', "select concat_ws(' ', wid, version, status, healed) from travel.wed_trace order by wid, version"),
	"1 0 R f\n1 1 R f\n1 2 R f\n2 0 R f", '... and the states that were not matched have their lines');
is(jobs($new, 'behind'), "1 tr_final\n2 tr_a2\n2 tr_a3", '... and their jobs');
perform($new, 1, 'tr_a3', "a3 = 'x'", 'done');
perform($new, 1, 'tr_final', "a1 = 'closed'", $_) foreach 'done', 'behind';
is(trace($new, 1, 'done'), figure2_trace('tr_a2', 'tr_a3'), 'flows go on to their end');

# The extension is what it would be if it had been created here.
sub snapshot
{
	my ($db) = @_;
	return $new->safe_psql($db, $snapshot);
}
$new->safe_psql('postgres', 'create database fresh');
create_figure2($new, 'fresh');
my %count;
$count{$_}++ foreach split /\n/, snapshot('fresh');
$count{$_}-- foreach split /\n/, snapshot('done');
is(join("\n", map { ($count{$_} > 0 ? 'missing: ' : 'too much: ') . $_ } grep { $count{$_} } sort keys %count), '',
	'the extension is complete');

$new->safe_psql('done', 'drop extension wed_sql cascade');
is($new->safe_psql('done', 'select count(*) from pg_publication'), '0', '... and DROP EXTENSION takes all of it');

$new->stop;
done_testing();
