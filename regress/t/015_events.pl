# Whatever becomes of a database and of the extension in it, the engine notices,
# follows what is there, and leaves nothing of what is not.
use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use WedSql;

my $node = new_server('events');
$node->append_conf('postgresql.conf', "wed_sql.discovery_interval = 1h\nmax_connections = 50\nfsync = off");
$node->start;
create_figure2($node);
my $engine = wait_for_engine($node);

sub slots
{
	my ($db) = @_;
	return $node->safe_psql('postgres', "select count(*) from pg_replication_slots where database = '$db'");
}


sub start_instance
{
	my ($db) = @_;
	$node->safe_psql($db, 'insert into travel.wed_flow default values');
	return;
}

# dropped, and made anew, while the engine looks the other way
$node->safe_psql('postgres', 'create database one; ');
create_figure2($node, 'one');
start_instance('one');
is(jobs($node, 'one'), "1 tr_a2\n1 tr_a3", 'a database is followed');
kill 'STOP', $engine;
$node->safe_psql('one', 'drop extension wed_sql cascade; drop schema if exists travel cascade');
create_figure2($node, 'one');
start_instance('one');
kill 'CONT', $engine;
is(jobs($node, 'one'), "1 tr_a2\n1 tr_a3", 'DROP and CREATE EXTENSION between two looks: the new one is followed');
is(slots('one'), '1', '... by a slot of its own');
kill 'STOP', $engine;
$node->safe_psql('one', 'drop extension wed_sql cascade; drop schema if exists travel cascade');
kill 'CONT', $engine;
ok($node->poll_query_until('postgres', "select count(*) = 0 from pg_replication_slots where database = 'one'"),
	'DROP EXTENSION between two looks: no slot is left');
$node->safe_psql('one', 'begin; create extension wed_sql; rollback');
$node->safe_psql('one', 'begin; create extension wed_sql; select wed_sql.create_flow(\'f\'); drop extension wed_sql cascade; commit; drop schema if exists f cascade');
is(slots('one'), '0', 'CREATE EXTENSION that comes to nothing leaves no slot');
create_figure2($node, 'one');
start_instance('one');
$node->safe_psql('one', 'begin; drop extension wed_sql cascade; rollback');
is(jobs($node, 'one'), "1 tr_a2\n1 tr_a3", 'DROP EXTENSION, rolled back: followed all the same');

# CREATE EXTENSION in one database is no reason to visit another
$node->safe_psql('postgres', 'create database bystander');
$node->safe_psql('postgres', 'create database two');
create_figure2($node, 'two');
jobs($node, 'two');
my $log = -s $node->logfile;
$node->append_conf('postgresql.conf', 'log_connections = on');
$node->reload;
$node->safe_psql('two', 'drop extension wed_sql cascade; drop schema if exists travel cascade');
$node->poll_query_until('postgres', "select count(*) = 0 from pg_replication_slots where database = 'two'");
create_figure2($node, 'two');
jobs($node, 'two');
is(scalar(log_lines($node, qr/connection authorized: .*database=bystander/, $log)), 0, 'CREATE and DROP EXTENSION: the engine goes to that database only');
cmp_ok(scalar(log_lines($node, qr/connection authorized: .*database=two/, $log)), '>', 0, '... which it does');
$node->append_conf('postgresql.conf', 'log_connections = off');
$node->reload;

# a database moves
my $tablespace = $node->basedir . '/tablespace';
mkdir $tablespace;
$node->safe_psql('postgres', "create tablespace elsewhere location '$tablespace'");
$node->safe_psql('postgres', 'alter database one set tablespace elsewhere');
$node->safe_psql('postgres', 'alter database one rename to uno');
start_instance('uno');
is(jobs($node, 'uno'), "1 tr_a2\n1 tr_a3\n2 tr_a2\n2 tr_a3", 'SET TABLESPACE, RENAME: the flow goes on');
is($node->safe_psql('postgres', "select datname from wed_sql.status where datname in ('one', 'uno')"), 'uno', '... under its new name');
is($node->safe_psql('uno', 'select bool_or(healed) from travel.wed_trace'), 'f', '... with its history');

# copies of a database go on as flows of their own
my @strategies = $node->pg_version >= 15 ? (' strategy wal_log', ' strategy file_copy') : ('');
foreach my $strategy (@strategies)
{
	$node->safe_psql('postgres', "create database copy template uno$strategy");
	is(jobs($node, 'copy'), "1 tr_a2\n1 tr_a3\n2 tr_a2\n2 tr_a3", "CREATE DATABASE ... TEMPLATE$strategy: the copy has the jobs");
	perform($node, 1, 'tr_a2', "a2 = 'x'", 'copy');
	perform($node, 1, 'tr_a3', "a3 = 'x'", 'copy');
	is(jobs($node, 'copy'), "1 tr_final\n2 tr_a2\n2 tr_a3", '... and goes on');
	perform($node, 2, 'tr_a2', "a2 = 'x'", 'uno');
	is(jobs($node, 'uno'), "1 tr_a2\n1 tr_a3\n2 tr_a3", '... as the original does');
	is(slots('copy'), '1', '... each with its slot');
	$node->safe_psql('postgres', 'drop database copy with (force)');
	$node->safe_psql('postgres', 'drop database uno');
	is(slots('uno'), '0', '... and without when it is dropped');
	$node->safe_psql('postgres', 'create database uno');
	create_figure2($node, 'uno');
	start_instance('uno') for 1 .. 2;
}

# a flow is dropped under load
my $script = $node->basedir . '/start.sql';
append_to_file($script, "insert into travel.wed_flow default values;\n");
my $out = '';
my $clients = IPC::Run::start([ 'pgbench', '-n', '-c', '4', '-T', '60', '-f', $script, '-h', $node->host, '-p', $node->port, 'uno' ],
	'<', \undef, '>', \$out, '2>', \$out);
$node->poll_query_until('uno', 'select count(*) > 100 from travel.wed_trace') or die "no work was done: $out";
$node->safe_psql('uno', "select wed_sql.drop_flow('travel')");
$clients->finish;
is($node->safe_psql('uno', "select to_regnamespace('travel') is null"), 't', 'drop_flow under load drops the flow');
create_figure2($node, 'uno');
start_instance('uno');
is(jobs($node, 'uno'), "1 tr_a2\n1 tr_a3", '... and the next one is followed');
# a machine that is too busy to let the engine leave a database in time has it replaced
$engine = engine_pid($node) if log_lines($node, qr/does not answer and is terminated/);
is(engine_pid($node), $engine, '... by the same engine');

# every setting that can be reloaded
my @settings = map { [ split /\|/ ] } split /\n/, $node->safe_psql('postgres', <<'SQL');
select name, context,
       case vartype when 'bool' then case setting when 'on' then 'off' else 'on' end
                    when 'integer' then (greatest(min_val::bigint, 2) + 30)::text
                    when 'enum' then enumvals[array_length(enumvals, 1)]
                    else 'user=' || session_user end
  from pg_settings where name like 'wed\_sql.%' order by name
SQL
cmp_ok(scalar @settings, '>', 8, 'there are settings');
foreach my $row (@settings)
{
	my ($name, $context, $value) = @$row;
	my $since = -s $node->logfile;
	$node->safe_psql('postgres', "alter system set $name = '$value'");
	$node->reload;
	if ($context eq 'postmaster')
	{
		ok($node->poll_query_until('postgres', "select pending_restart from pg_settings where name = '$name'"), "$name: needs a restart, and says so");
	}
	else
	{
		ok($node->poll_query_until('postgres', "select setting = '$value' from pg_settings where name = '$name'"), "$name: reloaded");
	}
	$node->safe_psql('postgres', "alter system reset $name");
	$node->reload;
}
is(engine_pid($node), $engine, 'the engine goes on through all of it');
start_instance('postgres');
is(jobs($node), "1 tr_a2\n1 tr_a3", '... and follows');
$node->append_conf('postgresql.conf', "wed_sql.conninfo = 'no such key'");
my $since = -s $node->logfile;
$node->reload;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if log_lines($node, qr/the settings are not taken/, $since);
	select(undef, undef, undef, 0.1);
}
is(scalar(log_lines($node, qr/the settings are not taken/, $since)), 1, 'a wed_sql.conninfo that is none is refused');
start_instance('postgres');
is($node->safe_psql('postgres', 'select wed_sql.sync() \g /dev/null
select count(*) from travel.job_pool'), '4', '... and the engine goes on as before');
$node->append_conf('postgresql.conf', "wed_sql.conninfo = ''");
$node->reload;

# more databases than there is room for
$node->append_conf('postgresql.conf', 'wed_sql.max_databases = 2');
$since = -s $node->logfile;
$node->restart;
create_figure2($node, 'bystander');
$node->poll_query_until('postgres', 'select count(*) = 4 from pg_replication_slots where active');
is(scalar(log_lines($node, qr/WARNING:  more than 2 databases have WED-flows/, $since)), 1, 'wed_sql.max_databases: one line says that it is exceeded');
$node->append_conf('postgresql.conf', 'wed_sql.max_databases = 1000');
$node->restart;
wait_for_engine($node);

stop_clean($node);
done_testing();
