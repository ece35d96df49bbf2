# One engine serves all databases that have the extension; those that come and
# go are noticed, hindered by nothing, and leave no slot behind.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('databases');
$node->start;
create_figure2($node);
wait_for_engine($node);
$node->safe_psql('postgres', 'insert into travel.wed_flow default values');

sub slots
{
	return $node->safe_psql('postgres', 'select count(*) from pg_replication_slots');
}

# the same flow in two databases
$node->safe_psql('postgres', 'create database other');
create_figure2($node, 'other');
$node->safe_psql('other', 'insert into travel.wed_flow default values');
is(jobs($node, 'other'), "1 tr_a2\n1 tr_a3", 'a new database is served');
is(slots(), '2', '... with a slot of its own');
is($node->safe_psql('postgres', q{select string_agg(datname || ' ' || state, ', ' order by datname) from wed_sql.status}),
	'other streaming, postgres streaming', '... and both are in wed_sql.status');
perform($node, 1, 'tr_a2', "a2 = 'x'", 'other');
is(jobs($node, 'other'), '1 tr_a3', 'one database moves on');
is(jobs($node), "1 tr_a2\n1 tr_a3", '... and the other is where it was');

# a notification stays in its database
my $listener = $node->background_psql('postgres');
$listener->query_safe('listen tr_a2');
$node->safe_psql('other', 'insert into travel.wed_flow default values');
is(jobs($node, 'other'), "1 tr_a3\n2 tr_a2\n2 tr_a3", 'an instance starts in one');
unlike($listener->query_safe('select 1'), qr/Asynchronous/, '... and is not heard of in the other');
$listener->quit;

# DROP EXTENSION rolled back changes nothing; committed, it takes the slot along
$node->safe_psql('other', 'begin; drop extension wed_sql cascade; rollback');
perform($node, 1, 'tr_a3', "a3 = 'x'", 'other');
is(jobs($node, 'other'), "1 tr_final\n2 tr_a2\n2 tr_a3", 'DROP EXTENSION, rolled back: flows go on');
$node->safe_psql('other', 'drop extension wed_sql cascade');
ok($node->poll_query_until('postgres', 'select count(*) = 1 from pg_replication_slots'), 'DROP EXTENSION takes the slot along');
ok($node->poll_query_until('postgres', "select count(*) = 1 from wed_sql.status where state = 'streaming'"), '... and is noticed');

# and CREATE EXTENSION likewise
$node->safe_psql('other', 'drop schema if exists travel cascade');
$node->safe_psql('other', 'begin; create extension wed_sql; rollback');
$node->safe_psql('other', 'begin; create extension wed_sql; commit');
create_figure2($node, 'other');
$node->safe_psql('other', 'insert into travel.wed_flow default values');
is(jobs($node, 'other'), "1 tr_a2\n1 tr_a3", 'CREATE EXTENSION brings it back');

# nothing of this hinders DROP DATABASE, also of a database that was just made
my ($ret, $out, $err) = $node->psql('postgres', 'drop database other');
is($err, '', 'DROP DATABASE is not hindered');
is(slots(), '1', '... and takes the slot along');
foreach my $round (1 .. 5)
{
	$node->safe_psql('postgres', 'create database fleeting');
	create_figure2($node, 'fleeting');
	$node->safe_psql('fleeting', 'insert into travel.wed_flow default values');
	($ret, $out, $err) = $node->psql('postgres', 'drop database fleeting');
	is($err, '', "DROP DATABASE, round $round");
}
# two states that the engine has not seen when somebody fails to drop the database
$node->safe_psql('postgres', 'create database needed');
create_figure2($node, 'needed');
$node->safe_psql('needed', 'insert into travel.wed_flow default values; select wed_sql.sync()');
my $slot = $node->safe_psql('postgres', "select slot_name from pg_replication_slots where database = 'needed'");
($ret, $out, $err) = $node->psql('postgres', "begin; drop database needed");
like($err, qr/cannot run inside a transaction block/, 'DROP DATABASE that fails');
perform($node, 1, 'tr_a2', "a2 = 'x'", 'needed');
perform($node, 1, 'tr_a3', "a3 = 'x'", 'needed');
is(jobs($node, 'needed'), '1 tr_final', '... changes nothing');
is($node->safe_psql('needed', 'select count(*), bool_or(healed) from travel.wed_trace'), '3|f', '... and costs no history');
is($node->safe_psql('postgres', "select slot_name from pg_replication_slots where database = 'needed'"), $slot, '... nor the slot');
$node->safe_psql('postgres', 'drop database needed');
($ret, $out, $err) = $node->psql('postgres', 'drop database nonsense');
like($err, qr/database "nonsense" does not exist/, 'DROP DATABASE of what is not there');

# a template with a flow in it
$node->safe_psql('postgres', 'create database original');
create_figure2($node, 'original');
$node->safe_psql('original', 'insert into travel.wed_flow default values; select wed_sql.sync()');
$node->safe_psql('postgres', 'alter database original rename to renamed');
perform($node, 1, 'tr_a2', "a2 = 'x'", 'renamed');
is(jobs($node, 'renamed'), '1 tr_a3', 'ALTER DATABASE RENAME does not stop it');
$node->safe_psql('postgres', 'drop database renamed');

perform($node, 1, 'tr_a2', "a2 = 'x'");
is(jobs($node), '1 tr_a3', 'and all the time the first one has gone on');

$node->stop;
done_testing();
