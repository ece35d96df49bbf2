# The slot: lost, it is healed from the tables; idle, it keeps nothing back.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('slot');
$node->append_conf('postgresql.conf', 'wal_sender_timeout = 60s');
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);
my $slot = $node->safe_psql('postgres', 'select slot_name from wed_sql.status');
is($slot, $node->safe_psql('postgres', "select 'wed_sql_' || oid from pg_database where datname = current_database()"),
	'the slot is called after the database');

# lost with one state matched, one not, and one final
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
my %tgid = map { $_ => job_tgid($node, 1, $_) } qw(tr_a2 tr_a3);
$node->append_conf('postgresql.conf', 'wed_sql.enabled = off');
$node->reload;
$node->poll_query_until('postgres', "select not active from pg_replication_slots where slot_name = '$slot'")
  or die 'the engine does not stop';
is($node->safe_psql('postgres', 'select distinct state from wed_sql.status'), 'off', 'the engine can be turned off');
foreach my $trname (qw(tr_a2 tr_a3))
{
	my ($attribute) = $trname =~ /tr_(.*)/;
	$node->safe_psql('postgres', "begin; select wed_sql.try_lock(1, $tgid{$trname});
		update travel.wed_flow set $attribute = 'x' where wid = 1; commit");
}
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');
$node->safe_psql('postgres', "select pg_drop_replication_slot('$slot')");
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
wait_for_engine($node);
is(jobs($node), "1 tr_final\n2 tr_a2\n2 tr_a3", 'a lost slot is healed: what is due is pending');
is($node->safe_psql('postgres', q{select wid, version, healed from travel.wed_trace order by 1, 2}),
	"1|0|f\n1|2|t\n2|0|f", '... and the history shows where a line is missing')
  or diag $node->safe_psql('postgres', 'table travel.wed_trace');
perform($node, 1, 'tr_final', "a1 = 'done'");
is(trace($node, 1), "0 > tr_a2,tr_a3 R\n2 tr_a3 > tr_final R\n3 tr_final >  F", '... and the flow goes on to its end');
is($node->safe_psql('postgres', "select count(*) from pg_replication_slots where slot_name = '$slot' and active"), '1', '... with a new slot');

# lost while nothing was missed: nothing happens twice
$node->append_conf('postgresql.conf', 'wed_sql.enabled = off');
$node->reload;
$node->poll_query_until('postgres', "select not active from pg_replication_slots where slot_name = '$slot'");
$node->safe_psql('postgres', "select pg_drop_replication_slot('$slot')");
$node->append_conf('postgresql.conf', 'wed_sql.enabled = on');
$node->reload;
wait_for_engine($node);
is(jobs($node), "2 tr_a2\n2 tr_a3", 'healing what is whole changes nothing');
is($node->safe_psql('postgres', 'select count(*) from travel.wed_trace'), '4', '... not even the history');

# an idle database does not keep WAL back: neither its own nor that of others
$node->safe_psql('postgres', 'create database busy');
$node->safe_psql('busy', 'create table t as select generate_series(1, 200000) as i');
$node->safe_psql('busy', 'drop table t');
my $after = $node->safe_psql('postgres', 'select pg_current_wal_flush_lsn()');
ok($node->poll_query_until('postgres',
	"select pg_wal_lsn_diff('$after', confirmed_flush_lsn) < 1024 * 1024 from pg_replication_slots where slot_name = '$slot'"),
	'the slot of an idle database advances');
ok($node->poll_query_until('postgres', 'select lag_seconds < 5 from wed_sql.status'), '... and it does not count as lag');

$node->stop;
done_testing();
