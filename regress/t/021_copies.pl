# What brings a database back by its files: base backup, recovery to a moment between two states, promotion of a
# standby, a copy that has the slot but not the log that it needs; and a slot that the server has invalidated. Flows go
# on from what the tables say; jobs are there once, and healed marks exactly the lines that are missing.
use strict;
use warnings;

use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = PostgreSQL::Test::Cluster->new('copied');
$node->init(allows_streaming => 'logical', has_archiving => 1);
$node->append_conf('postgresql.conf', <<CONF);
wal_level = logical
shared_preload_libraries = 'wed_sql'
log_line_prefix = '%m [%p] %b %q%a '
wed_sql.discovery_interval = 1s
CONF
$node->start;
create_figure2($node);
wait_for_engine($node);
my %tgid;
$node->safe_psql('postgres', 'insert into travel.wed_flow default values') for 1 .. 3;
$tgid{$_} = job_tgid($node, 1, $_) foreach qw(tr_a2 tr_a3);

# One state further, whether or not the engine is there.
sub step
{
	my ($to, $wid, $trname) = @_;
	$to->safe_psql('postgres', "begin; select 1 / wed_sql.try_lock($wid, $tgid{$trname})::int;
		update travel.wed_flow set " . substr($trname, 3) . " = 'x' where wid = $wid; commit");
}

# Everything is in order in a server, its flows go on, and these lines say that others are missing.
sub in_order
{
	my ($to, $what, $jobs, $healed) = @_;
	wait_for_engine($to);
	wait_until_followed($to);
	is(flaws($to), '', "$what: everything is as Algorithm 1 says");
	is(jobs($to), $jobs, '... what is due is pending');
	is($to->safe_psql('postgres', 'select wid, version from travel.wed_trace where healed order by 1, 2'), $healed, '... what is missing is said');
	my $wid = $to->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
	perform($to, $wid, 'tr_a2', "a2 = 'x'");
	perform($to, $wid, 'tr_a3', "a3 = 'x'");
	perform($to, $wid, 'tr_final', "a1 = 'done'");
	is(trace($to, $wid), figure2_trace('tr_a2', 'tr_a3'), '... and a new instance goes from start to final');
	is(flaws($to), '', '... in order');
}

# base backup; the engine is behind by two states of 2 when it is taken
step($node, 1, 'tr_a2');
$node->safe_psql('postgres', 'select wed_sql.sync()');
engine_off($node);
step($node, 2, $_) foreach qw(tr_a2 tr_a3);
$node->backup('base');
my $copy = PostgreSQL::Test::Cluster->new('base');
$copy->init_from_backup($node, 'base', has_restoring => 0);
$copy->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$copy->start;
in_order($copy, 'base backup', "1 tr_a3\n2 tr_final\n3 tr_a2\n3 tr_a3", '2|2');
$copy->stop;

# a standby, from now on
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# the source has its slot, and misses nothing
engine_on($node);
is(jobs($node), "1 tr_a3\n2 tr_final\n3 tr_a2\n3 tr_a3", 'the source goes on');
is($node->safe_psql('postgres', 'select count(*) from travel.wed_trace where healed'), '0', '... with all of its history');

# recovery to a moment between two states of 3, both seen by the engine
step($node, 3, 'tr_a2');
$node->safe_psql('postgres', 'select wed_sql.sync()');
$node->safe_psql('postgres', "select pg_create_restore_point('between')");
step($node, 3, 'tr_a3');
$node->safe_psql('postgres', 'select wed_sql.sync()');
my $segment = $node->safe_psql('postgres', 'select pg_walfile_name(pg_switch_wal())');
$node->poll_query_until('postgres', "select '$segment' <= last_archived_wal from pg_stat_archiver") or die 'not archived';
my $past = PostgreSQL::Test::Cluster->new('past');
$past->init_from_backup($node, 'base', has_restoring => 1);
$past->append_conf('postgresql.conf', "recovery_target_name = 'between'\nrecovery_target_action = promote\nwed_sql.enabled = on");
$past->start;
$past->poll_query_until('postgres', 'select not pg_is_in_recovery()') or die 'not promoted';
in_order($past, 'point in time', "1 tr_a3\n2 tr_final\n3 tr_a3", '');
$past->stop;

# a copy of all files, the slot's among them: nothing is missed, as the log is there
engine_off($node);
step($node, 1, 'tr_a3');
$node->stop;
my $files = PostgreSQL::Test::Cluster->new('files');
PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $files->data_dir);
chmod 0700, $files->data_dir;
$files->append_conf('postgresql.conf', 'port = ' . $files->port . "\nwed_sql.enabled = on\narchive_mode = off");
$files->start;
in_order($files, 'copy of the files', "1 tr_final\n2 tr_final\n3 tr_final", '');
# ... unless the log that the slot needs is not
engine_off($files);
$files->safe_psql('postgres', 'insert into travel.wed_flow default values');
my $wid = $files->safe_psql('postgres', 'select max(wid) from travel.wed_flow');
my $needed = $files->safe_psql('postgres', "select pg_walfile_name(restart_lsn) from pg_replication_slots");
$files->safe_psql('postgres', 'select pg_switch_wal()');
$files->safe_psql('postgres', 'checkpoint');
$files->safe_psql('postgres', 'select pg_switch_wal()');
$files->safe_psql('postgres', 'checkpoint');
$files->stop;
unlink $files->data_dir . "/pg_wal/$needed" or die $!;
$files->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$files->start;
in_order($files, 'copy without the log', "1 tr_final\n2 tr_final\n3 tr_final\n$wid tr_a2\n$wid tr_a3", '');
like(slurp_file($files->logfile), qr/the replication slot needs log that is not there/, '... and the log tells');
$files->stop;
$node->start;

# the standby becomes the primary: it has no slot; the engine of the old one was behind by a state of 1
$node->wait_for_catchup($standby);
$node->stop;
$standby->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$standby->promote;
$standby->safe_psql('postgres', 'select pg_reload_conf()');
in_order($standby, 'promotion', "1 tr_final\n2 tr_final\n3 tr_final", '');
$standby->stop;

# the slot is invalidated, as too much log is kept back
$node->append_conf('postgresql.conf', "max_slot_wal_keep_size = 16MB\narchive_mode = off");
$node->start;
engine_on($node);
$node->safe_psql('postgres', 'select wed_sql.sync()');
engine_off($node);
$wid = $node->safe_psql('postgres', 'insert into travel.wed_flow default values returning wid');
for (1 .. 4)
{
	$node->safe_psql('postgres', "select pg_logical_emit_message(false, 'filler', repeat('x', 17 * 1024 * 1024))");
	$node->safe_psql('postgres', 'select pg_switch_wal()');
}
$node->safe_psql('postgres', 'checkpoint');
is($node->safe_psql('postgres', 'select wal_status from pg_replication_slots'), 'lost', 'the slot is invalidated');
engine_on($node);
in_order($node, 'invalidated slot', "1 tr_final\n2 tr_final\n3 tr_final\n$wid tr_a2\n$wid tr_a3", '');
like(slurp_file($node->logfile), qr/made a new replication slot.*lost the log that it needs/, '... and the log tells');
$node->stop;

done_testing();
